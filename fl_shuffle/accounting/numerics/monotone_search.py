"""Inverse problems on monotone certified curves: the answer is always on the safe side.

A curve here is a function whose every value is already certified (an upper bound on delta, or a
lower one). The searches only assume that it is nonincreasing up to its own numerical error, and
they return a point at which the curve has been *evaluated* and found to satisfy the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from scipy.special import erfinv

from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.accounting.numerics.stop_loss import STOP_LOSS_ERROR, DeltaBound, DeltaCurve
from fl_shuffle.errors import PrecisionError, require_open_unit, require_real

SEARCH_LOG_TOLERANCE = 2e-4
"""The epsilon searches stop once the curve is within this relative distance of the target."""
SEARCH_MAX_EVALUATIONS = 200
"""A monotone search needs a dozen: this number means that the curve is not monotone."""
SEARCH_NARROW = 1e-6
"""Where a curve jumps its place is found this closely, relatively."""
SEARCH_SLIVER = 1e-6
"""An epsilon nearer than this to the largest one, relatively, is that."""
SEARCH_PATIENCE = 4
"""After this number of evaluations that halved neither the bracket nor the distance to the target,
the bracket is bisected."""


def _coordinate(value: float) -> float:
    """Return sqrt(-log value): nearly linear in epsilon and in the noise."""
    return math.sqrt(max(-math.log(value), 0.0)) if value > 0.0 else math.inf


def crossing(
    curve: Callable[[float], float],
    target: float,
    maximum: float,
    side: Literal["above", "below"] = "below",
    *,
    minimum: float = 0.0,
    tolerance: float = SEARCH_LOG_TOLERANCE,
) -> tuple[float, float]:
    """Bracket the point where a nonincreasing curve of deltas falls to `target`.

    Parameters
    ----------
    curve : callable
        delta at every epsilon.
    target : float
        The delta to cross.
    maximum : float
        An epsilon at which the curve is known not to exceed `target`.
    side : {"below", "above"}, default "below"
        On which side the crossing is approached.
    minimum : float, default 0.0
        Smallest epsilon.
    tolerance : float
        The search ends where the curve, at the point on `side`, is within this relative distance of
        the target, or the bracket is narrow.

    Returns
    -------
    tuple of float
        (above, below): the curve exceeds the target at `above` (`minimum` if it never does, then
        `below` is that too) and does not at `below`. Both were evaluated, but for `maximum`.

    Raises
    ------
    PrecisionError
        If the curve is not monotone enough to be bracketed.

    Notes
    -----
    The search begins as if the curve were a Gaussian one. It continues in `_coordinate` by secants
    through the last two points, and by false positions (Illinois rule) where a secant leaves the
    bracket. Both propose only: what is compared with the target are the values.
    """
    goal = _coordinate(target)
    width = tolerance / (2.0 * max(goal, 1e-3))
    at_start = curve(minimum)
    if at_start <= target:
        return minimum, minimum
    aim = 0.5 * width if side == "below" else -0.5 * width
    low, under = minimum, _coordinate(at_start) - goal
    high, over = maximum, math.inf
    point = _gaussian_guess(minimum, at_start, target)
    last, slow, before = 0, 0, math.inf
    older, older_gap = low, under
    for _ in range(SEARCH_MAX_EVALUATIONS):
        if not low < point < high or slow >= SEARCH_PATIENCE:
            point = 0.5 * (low + high)
        value = curve(point)
        gap, enough = _coordinate(value) - goal, value <= target
        # The end that stays counts half, or it would stay for ever.
        if enough:
            under *= 0.5 if last > 0 else 1.0
            high, over, last = point, gap, 1
        else:
            over *= 0.5 if last < 0 else 1.0
            low, under, last = point, gap, -1
        near = abs(gap) <= width and enough == (side == "below")
        if near or high - low <= SEARCH_NARROW * high:
            return low, high
        # Beside a flat stretch that is nearly at the target neither kind of step moves much.
        advances = high - low <= 0.5 * before or abs(gap) <= 0.5 * abs(older_gap)
        slow = 0 if advances else slow + 1
        before = high - low if advances else before
        rise = (gap - older_gap) / (point - older)
        older, older_gap, secant = point, gap, point
        if 0.0 < rise < math.inf:
            secant += (aim - gap) / rise
        if low < secant < high:
            point = secant
        else:
            point = low + (high - low) * (aim - under) / (over - under) if under < over else low
    raise PrecisionError(
        f"the curve could not be bracketed at {target:g} within {SEARCH_MAX_EVALUATIONS} "
        "evaluations"
    )


def _gaussian_guess(minimum: float, at_start: float, target: float) -> float:
    """Return where a Gaussian curve that passes (`minimum`, `at_start`) falls to `target`."""
    reached = min(at_start, 0.9)
    # At 0 the curve of mu is erf(mu / sqrt(8)).
    mu = (
        math.sqrt(8.0) * float(erfinv(reached)) if minimum == 0.0 else gaussian_mu(minimum, reached)
    )
    return gaussian_epsilon(target, mu) if mu > 0.0 else minimum


class CurvePoint(NamedTuple):
    """A point of a certified curve, and the part of `delta` that was added for numerical errors."""

    epsilon: float
    delta: float
    numerical_error: float = 0.0


def solve(
    curve: DeltaCurve,
    local_epsilon: float,
    *,
    epsilon: float | None,
    delta: float | None,
    relative_error: float | None = None,
) -> CurvePoint:
    """Return a point on a certified nonincreasing curve, on the safe side.

    Parameters
    ----------
    curve : DeltaCurve
        Certified upper bounds on delta.
    local_epsilon : float
        Epsilon of one report, in nats; it ends the search.
    epsilon, delta : float or None
        Exactly one is given.
    relative_error : float, optional
        Relative error of the curve's values. The search is no coarser.

    Returns
    -------
    CurvePoint
        From `epsilon`: delta there. From `delta`: the smallest epsilon found at which the curve has
        been evaluated and is not above it, infinite if none up to the local budget is.

    Notes
    -----
    A curve with a penalty that grows with epsilon is searched from its lowest tested point
    downwards.
    """
    if epsilon is not None:
        budget = require_real("epsilon", epsilon, minimum=0.0)
        bound = curve(budget)
        return CurvePoint(budget, bound.delta, bound.error)
    target = require_open_unit("delta", delta)
    seen: dict[float, DeltaBound] = {}

    def value(point: float) -> float:
        if point not in seen:
            seen[point] = curve(point)
        return seen[point].delta

    maximum = local_epsilon
    # A penalty may make the curve rise again: step down to a point that already satisfies it.
    for _ in range(60):
        if maximum <= 1e-9 or value(maximum) <= target:
            break
        maximum *= 0.8
    if value(maximum) > target:
        return CurvePoint(math.inf, target)
    # Few reports: the curve drops within a sliver below the local budget.
    if value(maximum * (1.0 - SEARCH_SLIVER)) > target:
        return CurvePoint(maximum, target, seen[maximum].error)
    tolerance = min(SEARCH_LOG_TOLERANCE, relative_error or STOP_LOSS_ERROR)
    _, found = crossing(value, target, maximum, tolerance=tolerance)
    return CurvePoint(found, target, seen[found].error)
