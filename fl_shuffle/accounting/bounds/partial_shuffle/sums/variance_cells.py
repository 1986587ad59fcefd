"""E(S)_+ for a sum of independent terms of unknown laws, told apart by their second moments.

For a centred Gaussian V of variance v independent of everything, s = theta + ik, theta > 0,

    E(S)_+ <= E(S+V)_+ <= (h/2 pi) sum_k |e^(v s^2/2)|/|s|^2 prod_j |M_j(s)|,   M_j(s) = E e^(sX_j),

the sum over k in h Z: it equals that of e^(-j theta T) E(S + V + jT)_+, T = 2 pi/h, before moduli
are taken. By Hoelder's inequality for sums it is at most the largest, over all laws that a term may
have, of the same sum with |M|^N: so one law at a time, all on one line with one v and one h.

Let X be such a term, lowest <= E X <= highest, E X^2 <= second, W = e^(theta X), M = E W. Its
*tilted* second moment U = E X^2 W lies in a cell [low, high]. With Y >= X^- in increasing convex
order, X_+ below atoms A_+ in that order:

* E X^2 - lost <= U <= E X^2 + won with lost = E Y^2 (1 - e^(-theta Y)) and
  won = E A_+^2 (e^(theta A_+) - 1), so E X^2 <= V = min(second, high + lost);
* M <= 1 + theta highest + theta^2 V/3 + theta^2 high/6, because e^x - 1 - x - x^2/2 is at most
  x^2 (e^x - 1)/6 for every x: skewness that lifts M makes |M(s)| fall faster;
* M <= 1 + theta highest + theta^2 V/2 + E(e^x - 1 - x - x^2/2 at x = theta A_+), and at most the
  moment of a law that dominates X in third order;
* lowest <= E X W <= highest + theta (V + high)/2: x (e^x - 1) <= x^2 (1 + e^x)/2;
* E |X|^p W <= E Y^p + E A_+^p e^(theta A_+), p = 3, 4.

With X' a copy of X, |M(s)|^2 = E W W' cos k(X - X') and cos x <= 1 - x^2/2 + min(KAPPA |x|^3,
x^4/24):

    |M(s)|^2 <= M^2 - k^2 (M U - (E X W)^2) + min(KAPPA k^3 G_3, k^4 G_4/24),
    G_3 = E W W' |X - X'|^3 <= 2 (M E|X|^3 W + U sqrt(M U)) + 4 U |E X W|,
    G_4 = E W W' (X - X')^4 <= 2 M E X^4 W + 8 E|X|^3 W |E X W| + 6 U^2.

With the cell's lower end for U the right side grows with M as long as k^2 low <= 2M, where M >= 1 +
theta lowest; there M's upper bound may be put in. Elsewhere, and beyond the last node, |M(s)| <= M;
Gaussian terms that fall are bounded by their integral.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import erfcx

from fl_shuffle.accounting.engine.tilted_moments import UNIT, TiltedMoments
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES

KAPPA = 0.0992
"""At least (cos x - 1 + x^2/2)/x^3 for every x > 0: the largest, near x = 4, is 0.09917."""
_TILTS = np.geomspace(0.1, 1.4, 32)
_SMOOTHINGS = np.array([1.5, 2.0, 2.5, 3.2, 4.5, 6.3, 9.0])
"""Candidates, around a normal approximation's theta and in units of 1/(last k): any is valid."""


@dataclass(frozen=True)
class Kind:
    """What a kind of terms has in common: upper bounds in two orders, and on the second moment.

    `atoms` dominate every term in increasing convex order, `comparison` in third order.
    """

    atoms: AtomicLaw
    comparison: AtomicLaw
    second: float


@dataclass(frozen=True)
class Terms:
    """`count` independent terms, each of one of `kinds`, with means from `lowest` to `highest`.

    `deficit` dominates every X^- in increasing convex order, but for `beyond`: what it leaves out
    of E f(X^-) at most, for f with f(x) <= x^4, f'(x) <= 4x^3 beyond its last value.
    """

    count: int
    kinds: Sequence[Kind]
    lowest: float
    highest: float
    deficit: AtomicLaw
    beyond: float

    @cached_property
    def third(self) -> float:
        """E (X^-)^3 at most."""
        return self._moment(3)

    @cached_property
    def fourth(self) -> float:
        """E (X^-)^4 at most."""
        return self._moment(4)

    def _moment(self, order: int) -> float:
        return float(self.deficit.probabilities @ self.deficit.values**order) + self.beyond


@dataclass(frozen=True)
class Excess:
    """log of an upper bound on E(S)_+, and of what it would be for normal decay of moduli."""

    log_bound: float
    log_estimate: float
    theta: float
    """Where the line was put."""


def excess_of_sum(terms: Terms, near: float | None = None) -> Excess:
    """An upper bound on E(S)_+ for every assignment of laws to the terms; may be infinite.

    `near`: where the line was for nearly the same terms, if they are known.
    """
    theta, estimate = _tilt(terms, near)
    second = max(kind.second for kind in terms.kinds)
    least = 1.0 + theta * terms.lowest
    if not least > 0.5:
        return Excess(math.inf, estimate, theta)
    sd = math.sqrt(terms.count * second)
    step = 2.0 * math.pi / (TOLERANCES.cells_period_sds * sd + 8.0 / theta)
    last = min(TOLERANCES.cells_last_angle / math.sqrt(second), TOLERANCES.cells_last_sds / sd)
    if last > TOLERANCES.cells_max_frequencies * step:
        return Excess(math.inf, estimate, theta)
    k: FloatArray = step * np.arange(max(1, int(last / step)) + 1, dtype=np.float64)
    _, log_top, log_decay = transform_bounds(terms, theta, k)
    end = float(k[-1])
    smoothing = _SMOOTHINGS / end
    weights = np.exp(-0.5 * np.multiply.outer(k * k, smoothing**2))
    weights *= (np.where(k == 0.0, 1.0, 2.0) / (theta * theta + k * k))[:, None]
    sums = step / (2.0 * math.pi) * (np.exp(0.5 * terms.count * log_decay) @ weights)
    sums += np.exp(-0.5 * _SMOOTHINGS**2) / (math.pi * smoothing**2 * end**3)
    worst = np.max(np.log(sums) + terms.count * log_top[:, None], axis=0)
    bound = float(np.min(worst + 0.5 * (smoothing * theta) ** 2))
    slack = TOLERANCES.cells_round_off * (1.0 + abs(bound))
    return Excess(bound + slack if math.isfinite(bound) else math.inf, estimate, theta)


def transform_bounds(
    terms: Terms, theta: float, k: FloatArray
) -> tuple[list[FloatArray], FloatArray, FloatArray]:
    """Cells of U, log M at most [cells], and log |M(s)/M|^2 at most [cells, k], M that bound.

    The cells are given by their edges for each kind, and are those of all kinds in turn. Valid if
    1 + theta lowest > 0.
    """
    lost = float(tilting_loss(terms, theta))
    found = [_cells(terms, kind, theta, lost) for kind in terms.kinds]
    low, log_top, mean, G3, G4 = np.concatenate([cells for _, cells in found], axis=1)
    top = np.exp(log_top)
    fall = (low * top - mean * mean) / (top * top)
    rest = np.minimum(
        np.multiply.outer(KAPPA * G3 / (top * top), k),
        np.multiply.outer(G4 / (math.factorial(4) * top * top), k * k),
    )
    change = np.clip(k * k * (rest - fall[:, None]), -1.0 + UNIT, 0.0)
    change[np.multiply.outer(low, k * k) > 2.0 * (1.0 + theta * terms.lowest)] = 0.0
    return [edges for edges, _ in found], log_top, np.log1p(change)


def _cells(
    terms: Terms, kind: Kind, theta: float, lost: float
) -> tuple[FloatArray, tuple[FloatArray, ...]]:
    """Edges of the cells of U, and for each its low end, log M, |E X W|, G_3 and G_4 at most."""
    positive = kind.atoms.values > 0.0
    x, p = theta * kind.atoms.values[positive], kind.atoms.probabilities[positive]
    square = (x / theta) ** 2
    won = float(p @ (square * np.expm1(x)))
    cube = square * (x / theta) * np.exp(x)
    three = float(p @ cube) + terms.third
    four = float(p @ (cube * x)) / theta + terms.fourth

    edges = _edges(kind.second, lost, won)
    low, high = edges[:-1], edges[1:]
    second = np.minimum(kind.second, high + lost)
    rise = np.minimum(
        theta * theta * (second / 3.0 + high / 6.0),
        0.5 * theta * theta * second + float(p @ third_remainder(x)),
    )
    moment = TiltedMoments.of(kind.comparison, theta)
    log_moment = moment.log + moment.log_total_error([(1.0, terms.count - 1)]) / terms.count
    log_top = np.minimum(np.log1p(theta * terms.highest + rise), log_moment)
    top = np.exp(log_top)
    mean = np.maximum(-terms.lowest, terms.highest + 0.5 * theta * (second + high))
    G3 = 2.0 * (top * three + high * np.sqrt(top * high)) + 4.0 * high * mean
    G4 = 2.0 * top * four + 8.0 * three * mean + 6.0 * high * high
    return edges, (low, log_top, mean, G3, G4)


def tilting_loss(terms: Terms, theta: float | FloatArray) -> FloatArray:
    """By how much U is smaller than E X^2 at most, for each theta."""
    y, q = terms.deficit.values, terms.deficit.probabilities
    loss: FloatArray = -np.expm1(-np.multiply.outer(theta, y)) @ (q * y * y) + terms.beyond
    return loss


def _edges(second: float, lost: float, won: float) -> FloatArray:
    """Cells that cover every U, fine where laws of the largest variance have theirs."""
    above = max(second - lost, 0.5 * second)
    shares = np.linspace(0.0, 1.0, TOLERANCES.variance_upper_cells + 1)[1:]
    below = np.array(TOLERANCES.variance_cells) * above
    return np.concatenate([below, above + (second + won - above) * shares])


def third_remainder(x: FloatArray) -> FloatArray:
    """At least e^x - 1 - x - x^2/2 for x >= 0."""
    remainder: FloatArray = (np.expm1(x) - x - 0.5 * x * x) * TOLERANCES.profile_inflation
    small = x < TOLERANCES.cells_series_below
    near = x[small]
    cube = near * near * near
    remainder[small] = cube / 6.0 * (1.0 + 0.25 * near * (1.0 + 0.2 * near * np.exp(near)))
    return remainder


def _tilt(terms: Terms, near: float | None) -> tuple[float, float]:
    """Where to put the line, and the logarithm of the result with normal decay: not a bound."""
    second = max(kind.second for kind in terms.kinds)
    sd = math.sqrt(terms.count * second)
    drift = max(-terms.count * terms.highest / sd, 0.0)
    theta = _TILTS * max(1.3, 0.5 * (drift + math.sqrt(drift * drift + 6.0))) / sd
    largest = max(float(kind.atoms.values[-1]) for kind in terms.kinds)
    theta = np.minimum(theta, TOLERANCES.cells_largest_tilt / largest) if largest > 0.0 else theta
    # The logarithm is convex in theta, nearly: every fourth candidate, then those near the best.
    every = TOLERANCES.cells_tilts_at_once
    if near is None:
        start = every * int(np.argmin(_log_at_tilts(terms, theta[::every])[0]))
    else:
        start = int(np.argmin(np.abs(theta - near)))
    first, end = max(0, start - every + 1), min(start + every, theta.size)
    logs, estimates = _log_at_tilts(terms, theta[first:end])
    best = int(np.argmin(logs))
    at_edge = (best == 0 and first > 0) or (first + best == end - 1 and end < theta.size)
    if near is not None and at_edge:
        return _tilt(terms, None)
    return float(theta[first + best]), float(estimates[best])


def _log_at_tilts(terms: Terms, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The logarithm with normal decay, and where the tilted sum's own spread is taken for it."""
    logs, estimates = np.full((2, theta.size), -np.inf)
    for kind in terms.kinds:
        values, p = kind.comparison.values, kind.comparison.probabilities
        rise = np.expm1(np.multiply.outer(theta, values))
        moment = np.maximum(rise @ p, -0.9)
        log = terms.count * np.log1p(moment) - np.log(2.0 * theta)
        positive = kind.atoms.values > 0.0
        gains = np.multiply.outer(theta, kind.atoms.values[positive])
        by_moments = theta * terms.highest + 0.5 * theta * theta * kind.second
        by_moments += third_remainder(gains) @ kind.atoms.probabilities[positive]
        least = terms.count * np.log1p(np.clip(by_moments, -0.9, moment)) - np.log(2.0 * theta)
        decay = erfcx(theta * math.sqrt(0.5 * terms.count * kind.second))
        logs = np.maximum(logs, least + np.log(decay))
        # Far out the tilted sum spreads more than the sum itself, and E(S)_+ is smaller.
        tilted = ((rise + 1.0) @ np.stack([p * values, p * values**2], axis=1)).T / (1.0 + moment)
        spread = np.maximum(tilted[1] - tilted[0] ** 2, kind.second)
        decay = erfcx(theta * np.sqrt(0.5 * terms.count * spread))
        estimates = np.maximum(estimates, log + np.log(decay))
    # Laws of hardly any variance, whose transforms do not fall, are not to decide.
    mean = terms.highest + theta * tilting_loss(terms, theta) / 3.0
    still = terms.count * theta * mean - np.log(2.0 * theta)
    return np.maximum(logs, still), estimates
