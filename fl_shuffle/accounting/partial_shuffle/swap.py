"""Constants of the random swap: what concentration costs, with every tail bounded.

Client 1's report is swapped with that of one of N others, chosen with probability w_k(Y_k) / S, where
w_k = min(Z_k, zeta), Z_k = omega / R_k, S = sum_j w_j(Y_j). R_k has its mean within c noise widths of
omega's, client 1 within `own`. Then, with b_k = 1/D_k clamped to [1/M, 1/m], beta = M/m^2,

    delta <= (1/m) E_g F(eta^+, eta(g)) + H E(1 - S/m)_+ + (N/M) (H + a - 1) E(1 - M/D)_+
             + (N/m) beta E_P(Z - zeta^+)_+ + (N/m) P(g > z) [(1 + eta^+) H + u (H + a - 1)],

    F(eta^+, eta) = E( sum_k [L_k + eta^+ L_k^+ + eta L_k^-] )_+,   eta^+ = beta zeta^+,
    eta(g) = beta max(1, e^(cg + c^2/2)),  g standard normal,  zeta = e^(cz + c^2/2),
    u = (M/m - 1 + beta zeta)_+.

F is convex in eta, so its mean over g is at most its interpolation on a few nodes with the weights
of the law of max(1, e^(cg + c^2/2)) spread to them, mean kept.

Tails. E(m - S)_+ grows when Z_k grows in convex order (z -> -min(z, zeta) is convex), so all c_k may be
taken to be c. E e^(-lambda w) is bounded by spreading w to a grid with its mean kept. For the upper
tail e^(lambda min(z, zeta)) is first replaced by its convex majorant, linear beyond zeta. Then
E(m - S)_+ <= E e^(lambda (m - S)) / (e lambda).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from fl_shuffle.accounting.partial_shuffle.lognormal import excess
from fl_shuffle.accounting.privacy_loss import FloatArray

STEP = 0.05
FACTORS = np.geomspace(0.2, 3.0, 24)
"""Rates tried in the exponential inequalities, around the normal approximation's."""
ROUND_OFF = 1e-9
MAX_WEIGHT = 1e8


@dataclass(frozen=True)
class Swap:
    """The constants for one epsilon: any choice gives a bound, `cost` included."""

    smallest: float
    """m"""
    largest: float
    """M"""
    gain: float
    """eta^+"""
    losses: FloatArray
    """Nodes for eta, increasing."""
    weights: FloatArray
    """Their probabilities."""
    cost: float
    """Everything that is added to the main term."""


def choose_swap(
    *,
    count: int,
    reach: float,
    own: float,
    epsilon: float,
    local: float,
    goal: float,
    sensitivity: float,
) -> Swap | None:
    """Constants for `count` others within `reach` and a cost of about `goal`; None if there are none.

    `local` is H = H_a(P, Q). `sensitivity` says how fast the result grows with eta (relative, for
    all N terms): where the worst eta hardly matters a single node is taken.
    """
    drift = math.expm1(epsilon)
    c = max(reach, 1e-6)
    share = 0.25 * goal
    rare = share / (2.0 * (1.3 * local + 0.4 * (local + drift)))
    z = float(-ndtri(min(rare, 0.3)))
    zeta = math.exp(c * z + 0.5 * c * c)
    if zeta > MAX_WEIGHT:
        return None
    smallest = _smallest(count, c, z, math.log(share / local))
    if smallest is None:
        return None
    m, below = smallest
    largest = _largest(count, c, z, math.log(share * count / (local + drift)))
    if largest is None:
        return None
    top, above = largest
    beta = top / (m * m)
    plus, cut = _cap(c, max(own, 0.0), zeta, share * m / (count * beta))
    gain = beta * plus
    surplus = max(top / m - 1.0 + beta * zeta, 0.0)
    # P(g > z), rounded up: ndtr is accurate to a few units in the last place.
    bad = count / m * float(ndtr(-z)) * (1.0 + 1e-12)
    cost = local * below + (local + drift) / count * above + count * beta / m * cut
    cost += bad * ((1.0 + gain) * local + surplus * (local + drift))
    if sensitivity * beta * zeta < 0.01:
        losses, weights = np.array([beta * zeta]), np.ones(1)
    else:
        middle = math.exp(c * min(2.5, 0.6 * z) + 0.5 * c * c)
        nodes = np.array([1.0, middle, zeta])
        losses, weights = beta * nodes, _spread(nodes, c)
    if losses[-1] >= 0.5 or gain >= 0.5:
        return None
    return Swap(m, top, gain, losses, weights, cost * (1.0 + 1e-9))


def _spread(nodes: FloatArray, c: float) -> FloatArray:
    """Weights on `nodes` of max(1, e^(cg + c^2/2)), cut at the last node; mean kept."""
    growth = math.exp(c * c)
    transform = growth * excess(nodes / growth, c) * (1.0 + 1e-9)
    transform -= transform[-1] / (1.0 + 1e-9)
    tail = np.minimum(-np.diff(transform) / np.diff(nodes), 1.0)
    return np.append(1.0, tail) - np.append(tail, 0.0)


def _cap(c: float, own: float, zeta: float, allowed: float) -> tuple[float, float]:
    """zeta^+ <= zeta and E_P(Z - zeta^+)_+, at most `allowed` if it can be: ln Z ~ N(c^2/2 + c own, c^2)."""
    mean = math.exp(c * c + c * own)
    caps = np.exp(np.linspace(0.0, math.log(zeta), 80))
    cut = mean * excess(caps / mean, c) * (1.0 + 1e-9)
    cut[-1] = 0.0  # no weight is above zeta
    first = int(np.argmax(cut <= allowed))
    return float(caps[first]), float(cut[first])


@lru_cache(maxsize=64)
def _capped_weights(c: float, z: float) -> tuple[FloatArray, FloatArray, float]:
    """Values and probabilities that dominate min(Z, zeta) in convex order; E(Z - zeta)_+."""
    zeta = math.exp(c * z + 0.5 * c * c)
    steps = np.exp(c * np.arange(-9.0, z + c, STEP) - 0.5 * c * c)
    values = np.concatenate([[0.0], steps[steps < zeta * (1.0 - 1e-3 * c)], [zeta]])
    over = float(excess(np.array([zeta]), c)[0]) * (1.0 + 1e-9)
    transform = np.append(1.0, excess(values[1:], c)) - over
    transform[-1] = 0.0
    tail = -np.diff(transform) / np.diff(values)
    tail = np.minimum(np.maximum.accumulate(tail[::-1])[::-1], 1.0)
    probabilities = np.append(1.0, tail) - np.append(tail, 0.0)
    return values, probabilities, over


def _log_moments(c: float, z: float, rates: FloatArray) -> FloatArray:
    """log E e^(-rate (w - 1)) from above, for every rate (both signs), with round-off."""
    values, probabilities, over = _capped_weights(c, z)
    rise = np.expm1(-np.multiply.outer(rates, values - 1.0)) @ probabilities
    top = np.maximum(-rates, 0.0) * over * np.exp(np.maximum(-rates, 0.0) * (values[-1] - 1.0))
    result: FloatArray = np.log1p(rise + top) + ROUND_OFF * np.abs(rates) * c
    return result


def _rates(count: int, c: float, log_goal: float) -> FloatArray:
    spread = math.sqrt(math.expm1(c * c) * count)
    return FACTORS * math.sqrt(2.0 * max(-log_goal, 1.0)) / spread


def _smallest(count: int, c: float, z: float, log_goal: float) -> tuple[float, float] | None:
    """m, and a bound on E(1 - S/m)_+ near e^`log_goal`."""
    rates = _rates(count, c, log_goal)
    rates = rates[rates * c < 60.0]
    log_moment = count * (_log_moments(c, z, rates) - rates)
    # With x = rate m the bound is e^(x + log_moment - 1) / x: the largest x that keeps the goal.
    level = log_goal - log_moment + 1.0
    good = level > 1.1
    if not np.any(good):
        return None
    rates, log_moment, level = rates[good], log_moment[good], level[good]
    x = level + np.log(level)
    for _ in range(30):
        x = level + np.log(x)
    best = int(np.argmax(x / rates))
    m = float(x[best] / rates[best])
    exponent = float(rates[best] * m + log_moment[best]) - 1.0
    slack = 1e-12 * (float(rates[best]) * m + 1.0)
    return m, math.exp(exponent + slack) / (float(rates[best]) * m)


def _largest(count: int, c: float, z: float, log_goal: float) -> tuple[float, float] | None:
    """M >= N, and a bound on E(D - M)_+, D = zeta and N - 1 weights, near e^`log_goal`."""
    zeta = math.exp(c * z + 0.5 * c * c)
    rates = _rates(count, c, log_goal - math.log(count))
    rates = rates[rates * zeta < 300.0]
    if rates.size == 0:
        return None
    log_moment = (count - 1) * (_log_moments(c, z, -rates) + rates)
    needed = zeta + (log_moment - 1.0 - np.log(rates) - log_goal) / rates
    best = int(np.argmin(needed))
    top = max(float(needed[best]), float(count))
    exponent = float(log_moment[best] - rates[best] * (top - zeta)) - 1.0
    slack = 1e-12 * (float(rates[best]) * top + 1.0)
    return top, math.exp(exponent + slack) / float(rates[best])
