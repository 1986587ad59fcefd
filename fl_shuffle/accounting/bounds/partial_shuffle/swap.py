"""Constants of the random swap: what concentration costs, with every tail bounded.

Client 1's report is swapped with that of one of N others, chosen with probability w_k(Y_k) / S,
where w_k = min(max(Z_k, floor), zeta), Z_k = omega / R_k, S = sum_j w_j(Y_j). R_k has its mean
within c noise widths of omega's, client 1 within `own`. Published are h = Y_k and, with labels, the
reports t after the swap: relative to omega(h) prod R_j(t_j) the signed density P - aQ becomes
sum_k f_k(h) L_k(t_k) / D_k with f_k = w_k/Z_k, D_k = w_k(h) + S(t) - w_k(t_k). For every m > 0

    delta <= (1/m) E_g F((zeta^+ - floor)/m, eta(g)) + H E(1 - S/m)_+
             + (N/m) (H + a - 1) E(Z - zeta)_+ + (N/m) H E(floor - Z)_+ + (N/m^2) E_P(Z - zeta^+)_+,

    F(eta^+, eta) = E( sum_k [L_k + eta^+ L_k^+ + eta L_k^-] )_+,
    eta(g) = (min(zeta, max(1, e^(cg + c^2/2))) - floor) / m,  g standard normal.

* 1/D_k <= 1/max(D_k, m) + (1/D_k - 1/m)_+. Undoing the swap, the last costs H E(1 - S/m)_+.
* f_k <= 1 + (f_k - 1)_+ on L_k^+, f_k >= 1 - (1 - f_k)_+ on L_k^-: leaving the excess out costs
  (1/m) E(f_k - 1)_+ H and (1/m) E(1 - f_k)_+ (H + a - 1); under omega the expectations are
  E(floor - Z_k)_+ and E(Z_k - zeta)_+.
* With b = 1/max(S, m) and S - D_k = w_k(t_k) - w_k(h), 1/max(D_k, m) lies between
  b (1 - (w_k(h) - floor)/m) and b (1 + (w_k(t_k) - floor)/m), and b <= 1/m.
* w_k(t_k) is cut at zeta^+; the excess costs (1/m^2) E[L_k^+ (Z_k - zeta^+)_+] each.
* One h serves all k. For fixed l_k >= 0, sum_k l_k w_k(h) is, in increasing convex order, at most
  the same sum with all w_k functions of one g (comonotone), and the quantile function of Z_k(h) is
  at most max(1, e^(cg + c^2/2)): e^(ug + u^2/2) is convex in u, so largest at u = 0 or u = c.

F is convex in eta, so its mean over g is at most its interpolation on a few nodes with the weights
of the law of max(1, e^(cg + c^2/2)) spread to them, mean kept.

The floor is at most one, where the quantile function bounds Z_k, so that it bounds w_k as well.

Tail of S. E(m - S)_+ grows when Z_k grows in convex order (z -> -min(z, zeta) is convex), so all
c_k may be taken to be c, and the floor only raises S. E e^(-lambda w) is bounded by spreading w to
a grid, and E(m - S)_+ <= E e^(lambda (m - S)) / (e lambda). Spread is what E(t - w)_+ says: small
weights decide, and there it keeps its relative accuracy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.lognormal import excess
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES

FACTORS = np.geomspace(0.2, 3.0, 24)
"""Rates tried in the exponential inequality, around the normal approximation's."""


@dataclass(frozen=True)
class Swap:
    """The constants for one epsilon: any choice gives a bound, `cost` included."""

    smallest: float
    """m"""
    gain: float
    """eta^+"""
    losses: FloatArray
    """Nodes for eta, increasing."""
    weights: FloatArray
    """Their probabilities."""
    cost: float
    """Everything that is added to the main term."""
    floor: float = 0.0
    """The least weight."""


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
    """Constants for `count` others within `reach` at a cost of about `goal`; None if none.

    `local` is H = H_a(P, Q). `sensitivity` says how fast the result grows with eta (relative, for
    all N terms): where the worst eta hardly matters a single node is taken.
    """
    drift = math.expm1(epsilon)
    c = max(reach, TOLERANCES.swap_least_reach)
    share = goal / 3.0
    zeta, over = _cap(
        c, 1.0, TOLERANCES.swap_max_weight, TOLERANCES.swap_cap_share * share / (local + drift)
    )
    if zeta >= TOLERANCES.swap_max_weight:
        return None
    found = floor_of_sum(*_capped_weights(c, zeta), count, math.log(share / local))
    if found is None:
        return None
    m, below = found
    plus, cut = _cap(c, math.exp(c * own + c * c), zeta, share * m * m / count)
    floor, under = _floor(c, TOLERANCES.swap_floor_share * share * m / (count * local))
    cost = local * below + count / m * ((local + drift) * over + local * under)
    cost += count / (m * m) * cut
    worst = sensitivity * (zeta - floor) / m
    if worst < TOLERANCES.swap_no_effect or zeta < 1.001:
        losses, weights = np.array([(zeta - floor) / m]), np.ones(1)
    else:
        middle = [zeta**0.5] if worst > TOLERANCES.swap_large_effect else []
        nodes = np.array([1.0, *middle, zeta])
        losses, weights = (nodes - floor) / m, _spread(nodes, c)
    gain = (plus - floor) / m
    if not (0.0 <= floor <= 1.0 <= plus <= zeta and losses[-1] < 0.5 and gain < 0.5):
        return None
    return Swap(
        m, gain, losses, weights, cost * (1.0 + TOLERANCES.partial_shuffle_round_off), floor
    )


def _floor(c: float, allowed: float) -> tuple[float, float]:
    """The largest floor tried with E(floor - X)_+ <= `allowed`, X lognormal with mean one."""
    logs, lost = _floors(c)
    if not lost[-1] <= allowed:
        return 0.0, 0.0
    first = int(np.argmax(lost <= allowed))
    return math.exp(-float(logs[first])), float(lost[first])


@lru_cache(maxsize=64)
def _floors(c: float) -> tuple[FloatArray, FloatArray]:
    """-log of the floors that are tried, and E(floor - X)_+ for each."""
    logs = np.linspace(0.0, TOLERANCES.swap_floor_reach * c, TOLERANCES.swap_floors)
    lost = np.exp(-logs) * gaussian_profile(logs, c) * (1.0 + TOLERANCES.partial_shuffle_round_off)
    return logs, lost


def _spread(nodes: FloatArray, c: float) -> FloatArray:
    """Weights on `nodes` of max(1, e^(cg + c^2/2)), cut at the last node; mean kept or raised."""
    growth = math.exp(c * c)
    up = 1.0 + TOLERANCES.partial_shuffle_round_off
    transform = growth * excess(nodes / growth, c) * up
    transform -= transform[-1] / up
    tail = -np.diff(transform) / np.diff(nodes)
    tail = np.minimum(np.maximum.accumulate(tail[::-1])[::-1], 1.0)
    weights: FloatArray = np.append(1.0, tail) - np.append(tail, 0.0)
    return weights


def _cap(c: float, mean: float, most: float, allowed: float) -> tuple[float, float]:
    """A cap <= `most` and E(mean X - cap)_+ <= `allowed`, if it can be had; X lognormal, mean one.

    Z has this law: under R with mean 1, under P at distance `own` with mean e^(c own + c^2).
    """
    top = min(math.log(most), math.log(mean) + TOLERANCES.swap_cap_sds * c)
    caps, cut = _caps(c, mean, top)
    if cut[-1] > allowed:
        return most, 0.0
    first = int(np.argmax(cut <= allowed))
    return float(caps[first]), float(cut[first])


@lru_cache(maxsize=64)
def _caps(c: float, mean: float, top: float) -> tuple[FloatArray, FloatArray]:
    """The caps up to e^`top` that are tried, and E(mean X - cap)_+ for each."""
    caps = np.exp(np.linspace(0.0, top, TOLERANCES.swap_caps))
    cut = mean * excess(caps / mean, c) * (1.0 + TOLERANCES.partial_shuffle_round_off)
    return caps, cut


@lru_cache(maxsize=64)
def _capped_weights(c: float, zeta: float) -> tuple[FloatArray, FloatArray]:
    """Values and probabilities that dominate min(Z, zeta) among falling convex functions."""
    far, low, high = TOLERANCES.swap_grid_sds
    coarse, fine = TOLERANCES.swap_steps
    sds = np.append(np.arange(far, low, coarse), np.arange(low, high + 2.0 * c, fine))
    steps = np.exp(c * sds - 0.5 * c * c)
    last = zeta * (1.0 - TOLERANCES.swap_last_gap * c)
    values = np.concatenate([[0.0], steps[steps < last], [zeta]])
    # E(t - Z)_+ = t E(Z' - 1/t)_+, Z' the same ratio the other way round.
    return spread_atoms(values, np.append(0.0, values[1:] * excess(1.0 / values[1:], c)))


def spread_atoms(values: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray]:
    """min(Z, last value), spread to `values` (from 0 up), for E(t - Z)_+ <= `below` there.

    `below` may be off by a billionth, or have underflown. E(t - w)_+ of the result is the chords of
    larger numbers, all sums of positive terms: nowhere smaller than that of min(Z, last value).
    """
    below = below * (1.0 + TOLERANCES.partial_shuffle_round_off)
    below[1:] = np.maximum(below[1:], TOLERANCES.partial_shuffle_tiny)
    chances = np.diff(below) / np.diff(values)
    chances = np.clip(np.maximum.accumulate(chances), 0.0, 1.0)
    return values, np.append(chances, 1.0) - np.append(0.0, chances)


def floor_of_sum(
    values: FloatArray, probabilities: FloatArray, count: int, log_goal: float
) -> tuple[float, float] | None:
    """m, and a bound on E(1 - S/m)_+ near e^`log_goal`, S a sum of `count` such weights."""
    mean = float(probabilities @ values)
    spread = math.sqrt(float(probabilities @ (values - mean) ** 2))
    rates = FACTORS * math.sqrt(2.0 * max(-log_goal, 1.0) / count) / spread
    most = min(TOLERANCES.swap_max_rate / spread, TOLERANCES.partial_shuffle_max_exponent)
    rates = np.unique(np.minimum(rates, most))
    # log E e^(-rate (w - 1)), with round-off; then of e^(-rate S).
    each = np.log1p(np.expm1(-np.multiply.outer(rates, values - 1.0)) @ probabilities)
    log_moment = count * (each + TOLERANCES.swap_round_off * rates * spread - rates)
    # With x = rate m the bound is e^(x + log_moment - 1) / x: the largest x that keeps the goal.
    level = log_goal - log_moment + 1.0
    good = level > TOLERANCES.swap_least_level
    if not np.any(good):
        return None
    rates, log_moment, level = rates[good], log_moment[good], level[good]
    x = level + np.log(level)
    for _ in range(TOLERANCES.swap_fixed_point_steps):
        x = level + np.log(x)
    best = int(np.argmax(x / rates))
    m = float(x[best] / rates[best])
    exponent = float(rates[best] * m + log_moment[best]) - 1.0
    slack = TOLERANCES.swap_exponent_round_off * (float(rates[best]) * m + 1.0)
    below = math.exp(exponent + slack) / (float(rates[best]) * m)
    return m, max(below, TOLERANCES.partial_shuffle_tiny)
