"""Local privacy profiles, all that a bound for any randomizer needs.

Source: docs/research/proofs, section 12.

A profile is s -> h(s), an upper bound on H_s = int (R - sR')_+ for any two report distributions R,
R' of the randomizer, both orders. It is convex and nonincreasing with h(0) = 1 and h(s) = 1 - s + s
h(1/s). Known points are joined by chords of their lower convex envelope (true curves are convex).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    PARTIAL_SHUFFLE_MAX_EXPONENT,
)
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.numerics.tilted_moments import TINY
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import InvalidValueError, require_real

PROFILE_MAX_EPSILON = 60.0
"""Local profiles are read up to here (nats): beyond, a report protects nothing."""
PROFILE_LEAST_EPSILON = 1e-6
"""Smaller ones count as this: of e^epsilon - 1 doubles then keep ten digits."""
PROFILE_EPSILON_STEP = 1e-10
"""A local epsilon is found to this accuracy, relatively, and rounded up."""


@dataclass(frozen=True)
class LocalProfile:
    """h as a function of s > 0. `kinks` lists where a piecewise linear h bends (None: smooth).

    `top`: h is constant from there on (for a smooth h negligible).
    """

    name: str
    value: Callable[[FloatArray], FloatArray]
    top: float
    kinks: FloatArray | None = None

    def __call__(self, s: FloatArray) -> FloatArray:
        """Return h(s), elementwise."""
        return self.value(np.asarray(s, dtype=np.float64))

    @property
    def beyond(self) -> float:
        """h(top): what no large s takes away."""
        return float(self.value(np.array([self.top]))[0])

    def local_delta(self, epsilon: float) -> float:
        """Return the divergence of one report at `epsilon`, the shuffler ignored."""
        largest = PARTIAL_SHUFFLE_MAX_EXPONENT
        return min(1.0, float(self.value(np.array([math.exp(min(epsilon, largest))]))[0]))

    def local_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with local_delta(epsilon) <= `delta`.

        It may be infinite.
        """
        if self.local_delta(0.0) <= delta:
            return 0.0
        high = math.log(self.top)
        if self.local_delta(high) > delta:
            return math.inf
        return bisected(
            lambda epsilon: self.local_delta(epsilon) <= delta, high, 0.0, PROFILE_EPSILON_STEP
        )[0]


def approximate(epsilon0: float, delta0: float = 0.0) -> LocalProfile:
    """Return the profile of any (epsilon0, delta0)-DP randomizer.

    It is delta0 + (1 - delta0)(e^eps0 - s)_+/(1 + e^eps0).
    """
    return points([(epsilon0, delta0)])


def points(pairs: Sequence[tuple[float, float]]) -> LocalProfile:
    """Return the profile of a randomizer that is (eps, delta)-DP for every listed pair.

    Parameters
    ----------
    pairs : sequence of (float, float)
        Epsilons in nats, 0 to 60, and deltas in [0, 1]. An epsilon near 0 is rounded up.

    Returns
    -------
    LocalProfile
        Piecewise linear, above every such randomizer's.

    Raises
    ------
    InvalidValueError
        For an empty list, or a pair out of range.

    Notes
    -----
    Source: docs/research/proofs, section 12, "Which profiles". Direction of error: rounded up.
    """
    if len(pairs) == 0:
        raise InvalidValueError("profile", pairs, "needs at least one (epsilon, delta) pair")
    best: dict[float, float] = {}
    for epsilon, delta in pairs:
        e = require_real("epsilon", epsilon, minimum=0.0, maximum=PROFILE_MAX_EPSILON)
        d = require_real("delta", delta, minimum=0.0, maximum=1.0)
        e = max(e, PROFILE_LEAST_EPSILON) if e > 0.0 else 0.0
        best[e] = min(d, best.get(e, 1.0))
    best.setdefault(0.0, 1.0)
    at = sorted(best)
    # h(s) = 1 - s + s h(1/s) extends the points below one; the pair's curve is the lower convex
    # envelope of both halves, which every convex profile below the points stays under.
    pair = DominatingPair.from_curve(at, [best[e] for e in at])
    ratios = np.exp(pair.losses)
    masses = pair.masses / ratios  # of the other distribution
    name = ", ".join(f"({e:g}, {d:g})" for e, d in sorted(pairs)[:3])

    def value(s: FloatArray) -> FloatArray:
        # H_s = sum of (ratio - s)_+ times Q's mass, plus P's mass where Q has none.
        gains = np.maximum(ratios - s[..., None], 0.0) @ masses + pair.infinite
        result: FloatArray = np.minimum(gains * ROUND_UP, 1.0)
        return result

    return LocalProfile(name + ("..." if len(pairs) > 3 else ""), value, float(ratios[-1]), ratios)


def laplace(ratio: float) -> LocalProfile:
    """Return the profile of Laplace noise on a vector.

    The vector moves by at most `ratio` noise scales in l1. Rounded up.
    """
    require_real("ratio", ratio, minimum=0.0, exclusive_minimum=True, maximum=PROFILE_MAX_EPSILON)

    def value(s: FloatArray) -> FloatArray:
        result: FloatArray = laplace_profile(_log(s), ratio) * ROUND_UP
        return np.maximum(result, 0.0)

    return LocalProfile(f"Laplace, {ratio:g}", value, math.exp(ratio))


def _log(s: FloatArray) -> FloatArray:
    """Return ln s for s >= 0, finite."""
    result: FloatArray = np.log(np.maximum(s, TINY))
    return result
