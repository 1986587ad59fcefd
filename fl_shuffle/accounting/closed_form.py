"""Amplification bounds in closed form, for one pure local budget shared by all clients.

Relation replace-one, units nats, n = number of reports. Every function returns an upper bound and
raises `NotApplicableError` naming the condition that failed. Round-off is a few units in the last
place and is covered by a relative inflation of 1e-12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.privacy_loss import AmplificationLaw, AtomicLaw
from fl_shuffle.errors import NotApplicableError, require_integer, require_real

MAX_EPSILON0 = 200.0
MAX_CLIENTS = 10**12
INFLATE = 1.0 + 1e-12


def _inputs(epsilon0: float, clients: int, delta: float) -> tuple[float, int, float]:
    return (
        require_real("epsilon0", epsilon0, minimum=0.0, maximum=MAX_EPSILON0),
        require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS),
        require_real(
            "delta",
            delta,
            minimum=0.0,
            maximum=1.0,
            exclusive_minimum=True,
            exclusive_maximum=True,
        ),
    )


def erlingsson2019_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """12 eps0 sqrt(ln(1/delta)/n): Erlingsson et al. 2019 (one report per client).

    Requires n >= 1000, 0 < eps0 < 1/2 and delta < 1/100.
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    _require(n >= 1000, f"erlingsson2019 needs clients >= 1000, got {n}")
    _require(0.0 < budget < 0.5, f"erlingsson2019 needs 0 < epsilon0 < 0.5, got {budget:g}")
    _require(target < 0.01, f"erlingsson2019 needs delta < 0.01, got {target:g}")
    return INFLATE * 12.0 * budget * math.sqrt(math.log(1.0 / target) / n)


def feldman2022_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Feldman, McMillan and Talwar 2022, Theorem 3.1: the standard clone in closed form.

    ln(1 + tanh(eps0/2) (8 sqrt(e^eps0 ln(4/delta)/n) + 8 e^eps0/n)), provided
    eps0 <= ln(n / (16 ln(2/delta))).
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    limit = n / (16.0 * math.log(2.0 / target))
    _require(
        limit > 1.0 and budget <= math.log(limit),
        f"feldman2022 needs epsilon0 <= ln(n / (16 ln(2/delta))) = {_log(limit):.4g} at "
        f"n = {n}, delta = {target:g}, got epsilon0 = {budget:g}",
    )
    high = math.exp(budget)
    spread = 8.0 * math.sqrt(high * math.log(4.0 / target) / n) + 8.0 * high / n
    return INFLATE * math.log1p(math.tanh(0.5 * budget) * spread)


def feldman2023_epsilon(epsilon0: float, clients: int, delta: float) -> float:
    """Feldman, McMillan and Talwar 2023, closed form, for randomizers that allow its reduction.

    ln(1 + (e^eps0 - 1) (4 sqrt(2 ln(4/delta)) / sqrt((e^eps0 + 1) n) + 4/n)), provided
    eps0 <= ln(n / (8 ln(2/delta)) - 1). The general proof is withdrawn by its authors' erratum;
    it stands where every report law is at least (R(x0) + R(x1)) / (e^eps0 + 1), which the caller
    checks.
    """
    budget, n, target = _inputs(epsilon0, clients, delta)
    limit = n / (8.0 * math.log(2.0 / target)) - 1.0
    _require(
        limit > 1.0 and budget <= math.log(limit),
        f"feldman2023 needs epsilon0 <= ln(n / (8 ln(2/delta)) - 1) = {_log(limit):.4g} at "
        f"n = {n}, delta = {target:g}, got epsilon0 = {budget:g}",
    )
    root = math.sqrt((math.exp(budget) + 1.0) * n)
    spread = 4.0 * math.sqrt(2.0 * math.log(4.0 / target)) / root + 4.0 / n
    return INFLATE * math.log1p(math.expm1(budget) * spread)


def smallest_delta(bound: Callable[[float], float], epsilon: float) -> float:
    """The smallest delta found in [1e-300, 1) with bound(delta) <= `epsilon`; rounded up.

    `bound` maps delta to epsilon, decreasing, and may refuse (`NotApplicableError`) below some
    delta. Raises `NotApplicableError` when even delta near one does not reach `epsilon`; the reason
    given is the bound's own if it refuses everywhere.
    """
    refusal: list[NotApplicableError] = []

    def holds(log_delta: float) -> bool:
        try:
            return bound(math.exp(log_delta)) <= epsilon
        except NotApplicableError as error:
            refusal[:] = [error]
            return False

    good, bad = math.log1p(-1e-9), math.log(1e-300)
    if not holds(good):
        # A condition such as delta < 1/100 may exclude the top end: look below it once.
        good = math.log(0.01 * (1.0 - 1e-9))
        if not holds(good):
            if refusal:
                raise refusal[0]
            raise NotApplicableError(
                f"this closed form gives no delta below one at epsilon = {epsilon:g}; "
                "ask for a larger epsilon, or use the method blanket or clone"
            )
    if holds(bad):
        return 1e-300
    while good - bad > 1e-10 * max(1.0, -good):
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return math.exp(good)


@dataclass(frozen=True)
class BlanketMoments:
    """What the moment bounds know of the amplification variable L at one epsilon.

    `gamma` blanket mass; L lies in [lower, upper]; `second` >= E[L^2], *uncentred*; `exposed` is
    the divergence outside the blanket, added as it stands.
    """

    gamma: float
    lower: float
    upper: float
    second: float
    exposed: float = 0.0

    @classmethod
    def generic(cls, epsilon0: float, epsilon: float) -> BlanketMoments:
        """For any pure eps0-randomizer shared by all clients.

        The blanket is the law of the differing client's second report, which every report law
        contains with mass e^-eps0. Then L = P/Q - e^eps with P/Q in [e^-eps0, e^eps0] and mean one,
        so the variance is at most (e^eps0 - 1)(1 - e^-eps0).
        """
        gain, loss = math.expm1(epsilon0), -math.expm1(-epsilon0)
        return cls(
            gamma=math.exp(-epsilon0),
            lower=math.exp(-epsilon0) - math.exp(epsilon),
            upper=math.exp(epsilon) * math.expm1(epsilon0 - epsilon),
            second=gain * loss + math.expm1(epsilon) ** 2,
        )

    @classmethod
    def of_law(cls, law: AmplificationLaw, gamma: float, exposed: float = 0.0) -> BlanketMoments:
        """From the law itself. Without atoms, L is spread to a grid with its mean kept, which can
        only raise the second moment."""
        if isinstance(law, AtomicLaw):
            second = math.fsum((law.probabilities * law.values**2).tolist())
            return cls(gamma, law.lower, law.upper, second * INFLATE, exposed)
        grid = np.linspace(law.lower, law.upper, 4001)
        step = grid[1] - grid[0]
        excess = law.stop_loss(grid)
        # E f(L) for the chord function of t^2: value at the left end, slope, then one kink a node.
        second = grid[0] ** 2 + (grid[0] + grid[1]) * (law.mean - grid[0])
        second += 2.0 * step * float(excess[1:-1].sum())
        return cls(gamma, law.lower, law.upper, second * (1.0 + 1e-9), exposed)


def hoeffding_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Balle et al. 2019, Lemma 5.3, with Hoeffding's tail, averaged exactly over Bin(n, gamma).

    With a = e^eps - 1 and b the length of L's range: E(sum of m L)_+ <= (b^2/4a) e^(-2 m a^2/b^2).
    """
    n = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS)
    drift = math.expm1(require_real("epsilon", epsilon, minimum=0.0, maximum=2 * MAX_EPSILON0))
    span = moments.upper - moments.lower
    if drift == 0.0:
        return 1.0
    if moments.upper <= 0.0:
        return min(1.0, moments.exposed)
    rate = 2.0 * (drift / span) ** 2
    return _averaged(span * span / (4.0 * drift), rate, moments, n)


def bennett_delta(moments: BlanketMoments, clients: int, epsilon: float) -> float:
    """Balle et al. 2019, Lemma 5.3, with Bennett's tail, averaged exactly over Bin(n, gamma).

    With a = e^eps - 1, b = max L, c >= E[L^2] (*uncentred*: the variance would give a number below
    the truth) and phi(u) = (1 + u) ln(1 + u) - u:
    E(sum of m L)_+ <= b / ln(1 + a b/c) e^(-m c phi(a b/c) / b^2).
    """
    n = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS)
    drift = math.expm1(require_real("epsilon", epsilon, minimum=0.0, maximum=2 * MAX_EPSILON0))
    top, second = moments.upper, moments.second
    if drift == 0.0:
        return 1.0
    if top <= 0.0:
        return min(1.0, moments.exposed)
    u = drift * top / second
    log = math.log1p(u)
    phi = (1.0 + u) * log - u if u > 1e-4 else 0.5 * u * u * (1.0 - u / 3.0)
    return _averaged(top / log, second / top**2 * phi, moments, n)


def _averaged(front: float, rate: float, moments: BlanketMoments, n: int) -> float:
    """(1/(gamma n)) E[front e^(-rate M) 1{M >= 1}], M ~ Bin(n, gamma), plus what is exposed."""
    gamma = moments.gamma
    some = n * math.log1p(gamma * math.expm1(-rate))
    none = n * math.log1p(-gamma) if gamma < 1.0 else -math.inf
    if none > -30.0:
        # exp(some) - exp(none) would cancel when few reports come from the blanket.
        hit = math.exp(none) * math.expm1(n * math.log1p(gamma * math.exp(-rate) / (1.0 - gamma)))
    else:
        hit = math.exp(some)
    return min(1.0, front / (gamma * n) * hit * (1.0 + 1e-9) + moments.exposed)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise NotApplicableError(message)


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
