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

import numpy as np

from fl_shuffle.accounting.laws.amplification import FloatArray

PARTIAL_SHUFFLE_ROUND_OFF = 1e-9
"""Covers the round-off of costs, closed forms and sums, and of two distances that are one."""
PARTIAL_SHUFFLE_MAX_EXPONENT = 600.0
"""Exponentials are formed up to here, as e^709 overflows: such a bound is of no use."""
CONVEX_ORDER_LEAST_END = 1e-12
"""The ends of a law are at least so far from zero: an empty interval has no nodes."""
LAPLACE_SPLIT_ROUND_OFF = 4e-16
"""Covers the round-off of the closed form for Laplace noise."""
PROFILE_INFLATION = 1.0 + 3e-11
"""Covers the round-off of a local profile. Against 50 digits, for all mu, epsilon up to 700
and delta down to 1e-290, it is below 1.8e-11 of a Gaussian delta (6.1e-12 above 1e-40), largest for
mu a little above 1e-3; Laplace profiles are off by a unit in the last place."""

Profile = Callable[[FloatArray], FloatArray]
"""H_s at every s > 0 (not its logarithm), from above."""


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
        return max(top, CONVEX_ORDER_LEAST_END)

    @property
    def lower(self) -> float:
        bottom = -math.exp(self.spread + self.epsilon) * -math.expm1(-self.epsilon - self.move)
        return bottom - CONVEX_ORDER_LEAST_END

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
        whole += LAPLACE_SPLIT_ROUND_OFF
        return np.where(t >= self.upper, 0.0, whole)
