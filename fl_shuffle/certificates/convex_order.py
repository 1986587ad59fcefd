"""Witnesses for rounds of Gaussian reports by convex order.

Source: docs/research/proofs, sections 11 and 12.

Everything here is floating point and a matter of taste: a poor choice makes the verified epsilon
larger, no choice makes it wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.certificates.lines import line

SHARE = 1e-2
"""Of a point's delta, what each of (A), (B) and the cut may take: the best that was tried."""
SMOOTH = 0.1
"""Deviation of the added normal variable, in those of the sum."""
MOST = 500
"""Frequencies: where large ratios are rare this proof is loose anyway."""


@dataclass(frozen=True)
class Shape:
    """A round in noise standard deviations, as `fl_shuffle.verify.shuffled.GroupDistances`."""

    count: int
    move: float
    spread: float
    reach: float


def excess(s: FloatArray | float, mu: float) -> FloatArray:
    """Return E(X - s)_+ of a lognormal X of mean one."""
    at = np.asarray(s, dtype=np.float64)
    shift = np.log(np.maximum(at, 1e-300)) / mu
    return np.asarray(ndtr(mu / 2 - shift) - at * ndtr(-mu / 2 - shift))


def point(shape: Shape, epsilon: float, guess: float) -> dict[str, str] | None:
    """Return a witness for one point of the curve, or None where the local bound is all there is.

    `guess` is about the point's delta: what (A), (B) and the cut may cost is measured by it.
    """
    a = math.exp(epsilon)
    local = float(excess(a, shape.move))
    allowed = SHARE * guess
    zetas = np.geomspace(1.01, 1e4, 600)
    costs = 1.2 * (local + a - 1) * excess(zetas, shape.reach)
    fits = np.flatnonzero(costs <= allowed)
    if not len(fits):
        return None
    zeta = float(zetas[fits[0]])
    m, rate = _smallest_sum(shape, zeta, allowed / max(local, 1e-300))
    if not zeta < 0.5 * m:
        return None
    eta = zeta / m
    law = _Law(shape, a, eta)
    return {
        "by": "convex order",
        "zeta": repr(zeta),
        "m": repr(m),
        "rate": repr(rate),
        **law.sum_witness(allowed, m),
    }


def _smallest_sum(shape: Shape, zeta: float, allowed: float) -> tuple[float, float]:
    """Return the largest m, and its rate, with (A) at most `allowed` times H."""
    z = np.geomspace(1e-4, 1.0, 400) * zeta
    lacking = z * excess(1 / z, shape.reach)
    nodes, lacking = np.append(0.0, z), np.append(0.0, lacking)
    best = (0.0, 1.0)
    for rate in np.geomspace(0.02, 60, 60):
        values = np.exp(-rate * nodes)
        moment = values[-1] - float(np.diff(lacking) / np.diff(nodes) @ np.diff(values))
        room = 1 + math.log(allowed) - shape.count * math.log(moment)
        if room <= 1:
            continue
        x = room + math.log(room + 1)
        for _ in range(30):
            x = room + math.log(x)
        best = max(best, (float(min(x / rate, shape.count)), float(rate)))
    return best


class _Law:
    """phi(L*) in floating point, and the nodes that it is put on."""

    def __init__(self, shape: Shape, a: float, eta: float) -> None:
        self.shape, self.a, self.eta = shape, a, eta

    def above(self, t: FloatArray) -> FloatArray:
        """Return S(t) for t >= 0."""
        return self._split(self.a, t, 1.0)

    def _split(self, own: float, other: FloatArray, scale: float) -> FloatArray:
        if self.shape.move == self.shape.spread:
            return scale * excess(own + other, self.shape.move)
        theta = 1 / (1 + np.exp(-np.linspace(-30, 30, 241)))[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rows = theta * excess(own / theta, self.shape.move) + (1 - theta) * excess(
                other / (1 - theta), self.shape.spread
            )
        return np.asarray(scale * np.minimum(np.nanmin(rows, axis=0), 1.0))

    def sum_witness(self, allowed: float, m: float) -> dict[str, str]:
        """Return nodes, cut and line of the sum of `count` terms."""
        count, eta, a = self.shape.count, self.eta, self.a
        cuts = np.geomspace(0.05, 1e6, 500)
        price = count / m * (1 + eta) * self.above(cuts / (1 + eta))
        cut = float(cuts[np.flatnonzero(price <= allowed)[0]])
        unit = a * math.sqrt(math.expm1(self.shape.spread**2))
        above = math.ceil(16 * math.asinh(cut / unit))
        deep = a * math.exp(self.shape.spread * (8 + self.shape.spread))
        below = max(4, math.ceil(16 * math.asinh(deep / unit)))
        t = unit * np.sinh(np.arange(-below, above + 1) / 16)
        local = float(excess(a, self.shape.move))
        mean = 2 * eta * local - (1 - eta) * (a - 1)
        up = (1 + eta) * self.above(np.maximum(t, 0.0) / (1 + eta))
        down = mean - t + (1 - eta) * self._split(1 / a, np.maximum(-t, 0.0) / (1 - eta) / a, a)
        transform = np.where(t >= 0, up, down)
        fall = (transform[-2] - transform[-1]) / (t[-1] - t[-2])
        beyond = t[-1] + min(max(transform[-1] / max(fall, 1e-300), 0.01 * unit), 4.0 * t[-1])
        x, s = np.append(t, beyond), np.append(transform, 0.0)
        slopes = np.append(np.append(-1.0, np.diff(s) / np.diff(x)), 0.0)
        masses = np.maximum(np.diff(slopes), 0.0)
        return {
            "unit": repr(unit),
            "below": str(below),
            "above": str(above),
            "beyond": repr(float(beyond)),
            **line(masses / masses.sum(), x, count, SMOOTH, MOST),
        }
