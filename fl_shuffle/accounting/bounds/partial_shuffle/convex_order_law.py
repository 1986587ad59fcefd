"""The distribution L* above every L_k = (P - aQ)/R_k in convex order, from privacy profiles alone.

docs/research/proofs, section 12, "Convex order, from profiles". With H_s(P, Q) <= h(s) for the
differing client's pair and H_s(P, R), H_s(Q, R) <= g(s) against any other client's report, for
every theta in (0, 1)

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

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.round_off import UNIT

PARTIAL_SHUFFLE_MAX_EXPONENT = 600.0
"""Exponentials are formed up to here, as e^709 overflows: such a bound is of no use."""
CONVEX_ORDER_LEAST_END = 1e-12
"""The ends of a distribution are at least so far from zero: an empty interval has no nodes."""

HockeyStickCurve = Callable[[FloatArray], FloatArray]
"""H_s at every s > 0 (not its logarithm), from above."""


@dataclass(frozen=True)
class ConvexOrderLaw:
    """L* at `epsilon`. An `AmplificationDistribution`.

    `one_sided` bounds E(L - t)_+ for t >= 0 and E(t - L)_+ for t < 0: nothing cancels. `upper`
    carries what lies above it; what lies below `lower` is moved up to it.
    """

    epsilon: float
    one_sided: Callable[[FloatArray], FloatArray]
    lower: float
    upper: float

    @property
    def mean(self) -> float:
        """1 - e^epsilon."""
        return -math.expm1(self.epsilon)

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """Return S(t): `one_sided`, to which 1 - a - t is added for t < 0."""
        t = np.atleast_1d(np.asarray(t, dtype=np.float64))
        return np.where(t < 0.0, self.mean - t, 0.0) + self.one_sided(t)


def law_of_profile(epsilon: float, profile: HockeyStickCurve, top: float) -> ConvexOrderLaw:
    """Return L* where one profile holds for any two reports.

    Parameters
    ----------
    epsilon : float
        In nats, at least 0; a = e^epsilon.
    profile : callable
        h(s) at every s > 0, from above, convex.
    top : float
        h is constant from there on: ratios end.

    Returns
    -------
    ConvexOrderLaw
        The distribution whose transforms are h(a + t) for t >= 0 and a h((1 + |t|)/a) for t < 0.

    Notes
    -----
    Statement: L_k is below L* in the convex order, for every other client k. Source:
    docs/research/proofs, section 12, "Convex order, from profiles".
    """
    a, least = math.exp(epsilon), CONVEX_ORDER_LEAST_END

    def one_sided(t: FloatArray) -> FloatArray:
        negative = t < 0.0
        # theta = a/(a + t) makes both arguments a + t, and theta = 1/(1 + |t|) makes them (1 +
        # |t|)/a.
        value = profile(np.where(negative, (1.0 - t) / a, a + t))
        result: FloatArray = np.where(negative, a * value, value)
        return result

    # h has fallen as far as it will from `top` on: where a + t = top, and where (1 + |t|)/a = top.
    return ConvexOrderLaw(epsilon, one_sided, min(1.0 - a * top, -least), max(top - a, least))


def law_of_laplace(epsilon: float, move: float, spread: float) -> ConvexOrderLaw:
    """Return L* for Laplace reports.

    Parameters
    ----------
    epsilon : float
        In nats, at least 0; a = e^epsilon.
    move : float
        Distance of the client's two means in l1, in noise scales.
    spread : float
        How far the means of others may lie from the client's, at least `move`.

    Returns
    -------
    ConvexOrderLaw
        With h(s) = 1 - sqrt(s) e^(-move/2) and the like for `spread`, Cauchy's inequality gives the
        best theta: (1 - sqrt(a e^-move + t e^-spread))_+, and for t < 0 a times the same with 1/a,
        |t|/a.

    Notes
    -----
    Statement and source: as for `law_of_profile`. Direction of error: 4 units of round-off are
    added.
    """
    a, least = math.exp(epsilon), CONVEX_ORDER_LEAST_END
    # The ends are where the transforms vanish: a e^-move + t e^-spread = 1 above, and (e^-move +
    # |t| e^-spread)/a = 1 below.
    upper = max(-math.expm1(epsilon - move) * math.exp(spread), least)
    lower = -math.exp(spread + epsilon) * -math.expm1(-epsilon - move) - least

    def one_sided(t: FloatArray) -> FloatArray:
        negative = t < 0.0
        scale = np.where(negative, a, 1.0)
        # 1 - (a e^-move + t e^-spread) as a sum without cancellation: accurate up to the top.
        own = np.where(negative, -epsilon, epsilon) - move
        room = np.maximum(-np.expm1(own) - np.abs(t) / scale * math.exp(-spread), 0.0)
        # 1 - sqrt(1 - room) = room/(1 + sqrt(1 - room)), without cancellation for small room.
        value = scale * room / (1.0 + np.sqrt(np.maximum(1.0 - room, 0.0)))
        return np.where(t >= upper, 0.0, value + 4.0 * UNIT)

    return ConvexOrderLaw(epsilon, one_sided, lower, upper)
