"""The law L* that dominates every L_k = (P - aQ)/R_k in convex order: from privacy profiles alone.

With H_s(P, Q) <= h(s) for the differing client's pair and H_s(P, R), H_s(Q, R) <= g(s) against any
other client's report, for every theta in (0, 1)

    E(L - t)_+ = int (P - aQ - tR)_+ <= theta h(a/theta) + (1-theta) g(t/(1-theta)),       t > 0,
    E(t - L)_+ <= theta a h(1/(theta a)) + (1-theta) a g(|t|/((1-theta) a)),               t < 0,

and E L = 1 - a. Where h = g the best theta is a/(a + t), 1/(1 + |t|): h(a + t) and a h((1 +
|t|)/a). Any theta is valid. Below one, h(s) = 1 - s + s h(1/s).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from fl_shuffle.accounting.bounds.partial_shuffle.lognormal import squared_excess
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES

Profile = Callable[[FloatArray], FloatArray]
"""H_s at every s > 0 (not its logarithm), from above."""

_TAIL_SHARES = np.append(
    0.0, np.geomspace(TOLERANCES.split_tail_first, 1.0, TOLERANCES.split_tail_nodes)
)
"""Nodes from where a tail begins to where it is bounded, as shares of the way."""


@dataclass(frozen=True)
class _Law:
    """What all L* at `epsilon` share."""

    epsilon: float

    @property
    def mean(self) -> float:
        """1 - e^epsilon."""
        return -math.expm1(self.epsilon)


@dataclass(frozen=True)
class ConvexOrderLaw(_Law):
    """L* where one profile holds for any two reports. An `AmplificationLaw`.

    `upper` carries what lies above it; what lies below `lower` is moved up to it.
    """

    profile: Profile
    lower: float
    upper: float

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """S(t) = h(a + t) for t >= 0, 1 - a - t + a h((1 + |t|)/a) for t < 0."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        return np.where(t < 0.0, self.mean - t, 0.0) + self.one_sided(t)

    def one_sided(self, t: FloatArray) -> FloatArray:
        """E(L - t)_+ for t >= 0 and E(t - L)_+ for t < 0, at most: nothing cancels."""
        a = math.exp(self.epsilon)
        negative = t < 0.0
        value = self.profile(np.where(negative, (1.0 - t) / a, a + t))
        result: FloatArray = np.where(negative, a * value, value)
        return result


@dataclass(frozen=True)
class GaussianSplitLaw(_Law):
    """L* for Gaussian reports: the pair `move` apart, others up to `spread` >= `move` away.

    At the best theta both profiles use the same threshold: Phi(move/2 - ln(a/theta)/move) =
    Phi(spread/2 - ln(t/(1-theta))/spread). The left side grows and the right side falls with theta.
    """

    move: float
    spread: float
    lower: float
    upper: float

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """S(t), each value at a theta near the best."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        return np.where(t < 0.0, self.mean - t, 0.0) + self.one_sided(t)

    def one_sided(self, t: FloatArray) -> FloatArray:
        """E(L - t)_+ for t >= 0 and E(t - L)_+ for t < 0, at most: nothing cancels."""
        return split_excess(self.epsilon, self.move, np.asarray(self.spread), t)


def split_excess(epsilon: float, d: float, mu: FloatArray, t: FloatArray) -> FloatArray:
    """`GaussianSplitLaw.one_sided` for many spreads `mu` at once, broadcast against `t`."""
    negative, far = t < 0.0, TOLERANCES.partial_shuffle_max_exponent
    scale = np.where(negative, epsilon, 0.0)
    # Everything divided by `scale`: own report a or 1/a, the other's |t| or |t|/a.
    own = np.where(negative, -epsilon, epsilon)
    with np.errstate(divide="ignore"):
        other = np.maximum(np.log(np.abs(t)) - scale, -far)
    constant = 0.5 * (d - mu) - own / d + other / mu
    x = -constant * mu
    for _ in range(TOLERANCES.split_newton_steps):
        log_theta, log_rest = _log_shares(x)
        share = np.exp(log_rest)
        value = constant + log_theta / d - log_rest / mu
        step = value / (share / d + (1.0 - share) / mu)
        x = np.minimum(np.maximum(x - step, -far), far)
        if np.abs(step).max() <= TOLERANCES.split_close:
            break
    log_theta, log_rest = _log_shares(x)
    result = np.exp(log_theta) * gaussian_profile(own - log_theta, d)
    result += np.exp(log_rest) * gaussian_profile(other - log_rest, mu)
    bound: FloatArray = np.minimum(result, 1.0) * np.exp(scale) * TOLERANCES.profile_inflation
    return bound


def _log_shares(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """log(theta) and log(1 - theta) for theta = 1 / (1 + e^-x)."""
    common = np.log1p(np.exp(-np.abs(x)))
    return np.minimum(x, 0.0) - common, -np.maximum(x, 0.0) - common


@dataclass(frozen=True)
class LaplaceSplitLaw(_Law):
    """L* for Laplace reports: the pair `move` apart in l1, others up to `spread` >= `move` away.

    With h(s) = 1 - sqrt(s) e^(-move/2) and the like for `spread`, Cauchy's inequality gives the
    best theta: S(t) = (1 - sqrt(a e^-move + t e^-spread))_+, and for t < 0 a times the same with
    1/a, |t|/a.
    """

    move: float
    spread: float

    @property
    def upper(self) -> float:
        top = -math.expm1(self.epsilon - self.move) * math.exp(self.spread)
        return max(top, TOLERANCES.convex_order_least_end)

    @property
    def lower(self) -> float:
        bottom = -math.exp(self.spread + self.epsilon) * -math.expm1(-self.epsilon - self.move)
        return bottom - TOLERANCES.convex_order_least_end

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """S(t), through log of the root: relative accuracy up to the top."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        negative = t < 0.0
        scale = np.where(negative, math.exp(self.epsilon), 1.0)
        # 1 - (a e^-move + t e^-spread) as a sum without cancellation.
        own = np.where(negative, -self.epsilon, self.epsilon) - self.move
        room = -np.expm1(own) - np.abs(t) / scale * math.exp(-self.spread)
        value = scale * np.where(
            room > 0.0, room / (1.0 + np.sqrt(1.0 - np.maximum(room, 0.0))), 0.0
        )
        whole = np.where(negative, self.mean - t + value, value)
        whole += TOLERANCES.laplace_split_round_off
        return np.where(t >= self.upper, 0.0, whole)


GaussianLaw = ConvexOrderLaw | GaussianSplitLaw


def gaussian_law(epsilon: float, move: float, spread: float) -> GaussianLaw:
    """L* for Gaussian reports: the pair `move` apart, others within `spread` >= `move`.

    Cut far out: the caller lowers `upper`.
    """
    a = math.exp(epsilon)
    upper = math.exp(spread * (spread + 12.0) - 0.5 * spread * spread)
    lower = -max(a * math.exp(spread * (spread + 7.0) - 0.5 * spread * spread) - 1.0, 0.2 * spread)
    if move != spread:
        return GaussianSplitLaw(epsilon, move, spread, lower, upper)

    def profile(s: FloatArray) -> FloatArray:
        return gaussian_profile(np.log(s), spread) * TOLERANCES.profile_inflation

    return ConvexOrderLaw(epsilon, profile, lower, upper)


def deficit(law: GaussianLaw, spread: float) -> tuple[AtomicLaw, float]:
    """Y >= L_k^- in increasing convex order, and what it leaves out of E(L_k^-)^p, p = 2, 3, 4.

    E(L_k^- - t)_+ is at most the law's for t >= 0, which is convex, hence at most its chords up to
    a point G > 1; Y has their kinks as atoms. Two things are left out: E(L_k^- - G)_+ times a
    slope of at most 4 G^3, and, as L_k^- <= a Q/R_k with a lognormal Q/R_k, at most
    a^4 E(Q/R_k)^4 1{Q/R_k > G/a}.
    """
    a = math.exp(law.epsilon)
    far = spread * (TOLERANCES.deficit_reach + spread)
    end = a * math.exp(far)
    nodes = np.geomspace(TOLERANCES.deficit_first * spread, end, TOLERANCES.deficit_nodes)
    left = law.one_sided(-nodes)
    nodes, left = (
        np.append(0.0, nodes),
        np.append(law.one_sided(np.array([-TOLERANCES.partial_shuffle_tiny])), left),
    )
    chances = np.clip(-np.diff(left) / np.diff(nodes), 0.0, 1.0)
    chances = np.maximum.accumulate(chances[::-1])[::-1]
    masses = -np.diff(np.concatenate([[1.0], chances, [0.0]]))
    beyond = a**4 * math.exp(6.0 * spread * spread) * float(ndtr(3.5 * spread - far / spread))
    beyond += 4.0 * end**3 * float(left[-1])
    return AtomicLaw(nodes, masses), beyond * (1.0 + TOLERANCES.partial_shuffle_round_off)


class _Cut(Protocol):
    @property
    def epsilon(self) -> float: ...

    @property
    def upper(self) -> float: ...

    def stop_loss(self, t: FloatArray) -> FloatArray: ...


def squared_tail(law: _Cut, spread: float, left: float) -> float:
    """At least E(L_k - K)_+^2 for Gaussian reports, K = `law.upper`, P at most `spread` away.

    `left` = law.stop_loss(K).

    It is 2 int_K^inf E(L_k - t)_+ dt. Up to a point G > 1 the integrand is at most the convex S,
    whose trapezoidal sum is above its integral; beyond, (L_k - G)_+ <= (P/R_k - G)_+.
    """
    nodes, beyond = tail_nodes(law.epsilon, law.upper, spread, left)
    return float(square_of_tail(nodes, law.stop_loss(nodes), np.array(beyond)))


def tail_nodes(
    epsilon: float, start: float, spread: float, left: float
) -> tuple[FloatArray, float]:
    """Where S is asked for from K = `start`, S(K) = `left`, up to G, and what lies beyond G."""
    reach = math.log(start + math.exp(epsilon)) / spread + 0.5 * spread
    sds = np.arange(TOLERANCES.split_tail_sds, TOLERANCES.split_tail_most_sds)
    ends = np.exp(spread * (reach + sds) - 0.5 * spread * spread)
    ends = np.maximum(ends, max(2.0, 2.0 * start))
    beyond = squared_excess(ends, spread)
    # Beyond G what P alone could say counts: far enough out that it is nothing against S.
    enough = beyond <= TOLERANCES.split_tail_share * (float(ends[0]) - start) * left
    last = int(np.argmax(enough)) if np.any(enough) else sds.size - 1
    nodes = start + _TAIL_SHARES * (float(ends[last]) - start)
    return nodes, float(beyond[last])


def square_of_tail(nodes: FloatArray, left: FloatArray, beyond: FloatArray) -> FloatArray:
    """At least E(L_k - K)_+^2 from S = `left` at `nodes` and what lies beyond; any number."""
    result: FloatArray = 2.0 * np.trapezoid(left, nodes, axis=-1) + beyond
    return result * TOLERANCES.split_tail_inflation
