"""Makes tests/golden/partial_shuffle.json. Run by hand, as a script.

For each point two numbers in 30-digit arithmetic (mpmath), from formulas only, with no code of
the package:

* `lower`: the exact divergence of one data set (all others at one end of the ball, client 1 at
  either end): (1/n) E(sum of n copies of 1 - aX)_+. No valid bound is below it.
* `upper`: the right-hand side of docs/proofs.md, section 13, at the free parameters beside it
  (found by a search in `gaussian_bound.py`). The package chooses its own parameters and a finer
  comparison, and adds its numerical error: it must not be above.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
from mpmath import mp, mpc, mpf
from scipy.optimize import minimize

from tests.accounting.bounds.partial_shuffle.oracles.gaussian_bound import Law, Swap, delta_bound

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "partial_shuffle.json"
POINTS = [
    (0.5, 10**3, 0.0106),
    (0.5, 10**4, 0.00293),
    (0.5, 10**6, 0.000213),
    (1.0, 10**3, 0.0231),
    (1.0, 10**4, 0.0064),
    (1.0, 10**5, 0.00179),
    (2.0, 10**3, 0.053),
    (2.0, 10**4, 0.0143),
    (2.0, 10**6, 0.0011),
    (3.25, 10**4, 0.027),
    (4.0, 10**4, 0.0372),
    (4.0, 10**5, 0.0102),
    (4.0, 10**6, 0.0028),
]
MU_PER_LOCAL = 1.0 / math.sqrt(2.0 * math.log(1.25e5))
"""Classical calibration at (eps0, 1e-5): mu = eps0 / sqrt(2 ln(1.25/1e-5))."""


def legendre(order: int) -> list[tuple[mpf, mpf]]:
    """Gauss-Legendre nodes and weights on (-1, 1), refined by Newton steps."""
    nodes = []
    for start in np.polynomial.legendre.leggauss(order)[0]:
        x = mpf(float(start))
        for _ in range(3):
            before, value = mpf(1), x
            for k in range(2, order + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = order * (x * value - before) / (x * x - 1)
            x -= value / slope
        nodes.append((x, 2 / ((1 - x * x) * slope * slope)))
    return nodes


def normal_tail(x: mpf) -> mpf:
    return mp.erfc(x / mp.sqrt(2)) / 2


def excess(s: mpf, mu: mpf) -> mpf:
    v = mp.log(s) / mu
    return normal_tail(v - mu / 2) - s * normal_tail(v + mu / 2)


def squared_excess(s: mpf, mu: mpf) -> mpf:
    v = mp.log(s) / mu
    return (
        mp.exp(mu * mu) * normal_tail(v - 3 * mu / 2)
        - 2 * s * normal_tail(v - mu / 2)
        + s * s * normal_tail(v + mu / 2)
    )


def panel(low: mpf, high: mpf, rule: list[tuple[mpf, mpf]]) -> list[tuple[mpf, mpf]]:
    """Nodes z in (low, high) and their standard normal masses."""
    half, middle = (high - low) / 2, (high + low) / 2
    scale = half / mp.sqrt(2 * mp.pi)
    return [
        (middle + half * x, w * scale * mp.exp(-((middle + half * x) ** 2) / 2)) for x, w in rule
    ]


def contour(atoms: list[tuple[mpf, mpf]], count: int, shift: mpf, power: int) -> mpf:
    """E(shift + S)_+^(power - 1), power 2 or 3, as a contour integral."""
    values = np.array([float(x) for x, _ in atoms])
    masses = np.array([float(w) for _, w in atoms])
    low, high = 1e-8, 500.0 / max(abs(values[-1]), abs(values[0]))
    for _ in range(120):
        theta = math.sqrt(low * high)
        tilted = masses * np.exp(theta * (values - values.max()))
        slope = count * (tilted @ values) / tilted.sum() - power / theta + float(shift)
        low, high = (theta, high) if slope < 0 else (low, theta)
    tilted /= tilted.sum()
    sd = math.sqrt(count * (tilted @ values**2 - (tilted @ values) ** 2))
    step = 2 * math.pi / (34 / theta + 20 * sd + float(shift))
    last = math.ceil(9.0 / sd / step)
    terms = []
    for k in range(last + 1):
        s = mpc(theta, k * step)
        moment = mp.fsum(w * mp.exp(s * x) for x, w in atoms)
        term = (mp.exp(count * mp.log(moment) + s * shift) / s**power).real
        terms.append(term / 2 if k == 0 else term)
    return mp.fsum(terms) * mpf(step) / mp.pi * math.factorial(power - 1)


def exact_lower(mu: mpf, count: int, a: mpf, rule: list[tuple[mpf, mpf]]) -> mpf:
    """All others at P's mean: n iid terms 1 - aX."""
    reports = count + 1
    edges = [mpf(e) for e in (-11, -6, -2, 2, 6, 11)]
    nodes = [node for low, high in pairwise(edges) for node in panel(low, high, rule)]
    atoms = [(1 - a * mp.exp(mu * z - mu * mu / 2), w) for z, w in nodes]
    total = mp.fsum(w for _, w in atoms)
    atoms = [(x, w / total) for x, w in reversed(atoms)]
    return contour(atoms, reports, mpf(0), 2) / reports


def upper(mu: mpf, count: int, a: mpf, found: dict[str, float], rule) -> mpf:
    """Section 13 at the parameters `found`."""
    m, zeta, slot, rate, middle, kappa, x1, cut, q, b = (
        mpf(found[name])
        for name in ("m", "zeta", "zeta_t", "rate", "middle", "kappa", "x1", "cut", "q", "b")
    )
    c, local, scale = mu / 2, excess(a, mu), a * kappa
    # The law.
    start = mp.log(x1) / mu
    kept = normal_tail(start + mu / 2)
    collapsed = (1 - normal_tail(start - mu / 2)) / (1 - kept)
    top = 1 + (cut - 1 + a) / scale
    end = mp.log(top) / mu + mu / 2
    above = normal_tail(end)
    jump = scale * mp.sqrt(squared_excess(top, mu) / above)
    bend = mp.log(mp.mpf(max(1 + (-b - 1 + a) / scale, mpf("1e-9")))) / mu + mu / 2
    edges = sorted({start + mu / 2, end, *([bend] if start + mu / 2 < bend < end else [])})
    atoms = [(1 - a + scale * (collapsed - 1), 1 - kept)]
    for low, high in pairwise(edges):
        atoms += [
            (1 - a + scale * (mp.exp(mu * z - mu * mu / 2) - 1), w)
            for z, w in panel(low, high, rule)
        ]
    atoms.append((cut + jump, above))
    total = mp.fsum(w for _, w in atoms)
    assert abs(total - 1) < mpf(10) ** -20
    # The costs.
    low, high = mpf(-12), mp.log(zeta) / c + c / 2
    moment = mp.fsum(
        w * mp.exp(-rate * mp.exp(c * z - c * c / 2))
        for start_at, end_at in pairwise([low, mpf(-4), mpf(0), high])
        for z, w in panel(start_at, end_at, rule)
    ) + normal_tail(high) * mp.exp(-rate * zeta)
    cost = local * mp.exp(rate * m - 1 + count * mp.log(moment)) / (rate * m)
    cost += count / m * (local + a - 1) * excess(zeta, c)
    cost += count / m**2 * mp.exp(2 * c * c) * excess(slot / mp.exp(2 * c * c), c)
    cost += count / m * (1 + slot / m) * excess(a + cut, mu)
    # The head's weight.
    nodes = [mpf(1), middle, zeta]
    grown = mp.exp(c * c)
    transform = [grown * (excess(x / grown, c) - excess(zeta / grown, c)) for x in nodes]
    tail = [(transform[i] - transform[i + 1]) / (nodes[i + 1] - nodes[i]) for i in range(2)]
    weights = [1 - tail[0], tail[0] - tail[1], tail[1]]
    main = mpf(0)
    for head, weight in zip(nodes, weights, strict=True):
        gain, loss = slot / m, head / m
        shaped = [
            ((1 - loss) * x + (gain + loss) * max(x + b, mpf(0)) ** 2 / (4 * b), w)
            for x, w in atoms
        ]
        main += weight * contour(shaped, count, q, 3) / (4 * q)
    return main / m + cost


def search(mu: float, count: int, epsilon: float) -> dict[str, float]:
    """Free parameters by trial: any choice gives a bound, if the law passes its certificate."""
    a, c = math.exp(epsilon), mu / 2
    variance = math.expm1(mu * mu)
    cut = math.exp(mu * (mu + 7.0) - mu * mu / 2) - a
    best: tuple[float, dict[str, float]] = (math.inf, {})
    for place in (-0.2, 0.0):
        x1 = math.exp(mu * place)
        kappa = next(
            (
                k
                for k in np.arange(1.0, 1.4, 0.002)
                if Law(mu, a, k, x1, np.inf).floor < 0
                and Law(mu, a, k, x1, np.inf).certificate(1000) >= 1
            ),
            None,
        )
        if kappa is None:
            continue
        kappa = float(kappa) + 0.0005
        if Law(mu, a, kappa, x1, np.inf).certificate(40_000) < 1:
            continue
        law = Law(mu, a, kappa, x1, cut)
        theta = (a - 1) / variance

        def unpack(x: np.ndarray, theta: float = theta) -> tuple[Swap, float, float]:
            zeta = math.exp(c * x[0] + c * c / 2)
            slot = math.exp(c * min(x[1], x[0]) + c * c / 2)
            spread = math.sqrt(count * math.expm1(c * c))
            m = count - x[2] * spread
            swap = Swap(m, zeta, slot, x[2] * math.exp(x[5]) / spread, zeta**0.5)
            return swap, math.exp(x[3]) / theta, math.exp(x[4]) * math.sqrt(variance)

        def goal(x: np.ndarray, law: Law = law) -> float:
            swap, q, b = unpack(x)
            if swap.m < 0.1 * count or swap.zeta >= swap.m or swap.zeta_t < 1 or x[0] < 1:
                return 50.0
            value = delta_bound(mu, count, epsilon, swap, law, q, b)
            return math.log(value) if value > 0 else 50.0

        first = np.array([4.6, 3.6, 4.6, 0.0, 0.0, 0.0])
        result = minimize(
            goal,
            first,
            method="Nelder-Mead",
            options={"maxiter": 130, "xatol": 0.02, "fatol": 1e-4},
        )
        if result.fun < best[0]:
            swap, q, b = unpack(result.x)
            best = (
                result.fun,
                {
                    "m": swap.m,
                    "zeta": swap.zeta,
                    "zeta_t": swap.zeta_t,
                    "rate": swap.rate,
                    "middle": swap.middle,
                    "kappa": kappa,
                    "x1": x1,
                    "cut": cut,
                    "q": q,
                    "b": b,
                },
            )
    return best[1]


def main() -> None:
    mp.dps = 30
    rule = legendre(40)
    entries = []
    for local, reports, epsilon in POINTS:
        mu, count = local * MU_PER_LOCAL, reports - 1
        found = search(mu, count, epsilon)
        a = mp.exp(mpf(epsilon))
        entry = {
            "local_epsilon": local,
            "reports": reports,
            "mu": mu,
            "epsilon": epsilon,
            "lower": mp.nstr(exact_lower(mpf(mu), count, a, rule), 15),
            "upper": mp.nstr(upper(mpf(mu), count, a, found, rule), 15),
            "parameters": found,
        }
        assert float(entry["lower"]) < float(entry["upper"]) < 2e-6, entry
        entries.append(entry)
        print(local, reports, epsilon, entry["lower"], entry["upper"], found, flush=True)
    GOLDEN.write_text(json.dumps({"made_by": __doc__, "points": entries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
