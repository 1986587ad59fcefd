"""Inverse problems on monotone certified curves: the answer is always on the safe side.

A curve here is a function whose every value is already certified (an upper bound on delta, or a
lower one). The searches only assume that it is nonincreasing up to its own numerical error, and
they return a point at which the curve has been *evaluated* and found to satisfy the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from fl_shuffle.accounting.bisection import bisected
from fl_shuffle.accounting.engine.stop_loss import STOP_LOSS_ERROR, Curve, DeltaBound
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.errors import PrecisionError, require_open_unit, require_real

SEARCH_LOG_TOLERANCE = 2e-4
"""The epsilon searches stop once the curve is within this relative distance of the target."""
SEARCH_MAX_EVALUATIONS = 200
"""A monotone search needs a dozen: so many mean that the curve is not monotone."""
SEARCH_NARROW = 1e-9
"""Where a curve jumps its place is found this closely, relatively."""
SEARCH_FARTHEST_STEP = 4.0
"""An unbounded step goes no farther than so many times the last point that was too small."""


def _coordinate(value: float) -> float:
    """sqrt(-log value): nearly linear in epsilon and in the noise."""
    if value <= 0.0:
        return math.inf
    return math.sqrt(max(-math.log(value), 0.0))


def crossing(
    curve: Callable[[float], float],
    target: float,
    maximum: float,
    side: Literal["above", "below"] = "below",
    *,
    minimum: float = 0.0,
    first: float | None = None,
    sure: bool = False,
    tolerance: float = SEARCH_LOG_TOLERANCE,
    narrow: float = SEARCH_NARROW,
) -> tuple[float, float | None]:
    """Bracket the point where a nonincreasing `curve` of deltas falls to `target`.

    Returns (above, below): the curve exceeds the target at `above` (`minimum` if it never does,
    then `below` is that too) and does not at `below`, which is None if it exceeds the target even
    at `maximum`. Both were evaluated, but `maximum` is not where it is `sure` to be enough. The
    search ends where the curve, at the point on `side`, is within `tolerance` (relative) of the
    target, or the bracket is `narrow` (relative). It begins at `first`.

    Between two points a straight line is tried, and halves whenever two trials did not halve the
    bracket; a value is never fitted to a point that was not evaluated. Raises `PrecisionError` if
    the curve is not monotone enough to be bracketed.
    """
    at_start = curve(minimum)
    if at_start <= target:
        return minimum, minimum
    low, high = minimum, maximum if sure else math.inf
    floor = _coordinate(target)
    width = tolerance / (2.0 * max(floor, 1e-3))
    goal = floor + (0.5 if side == "below" else -0.5) * width
    known = [(minimum, _coordinate(at_start))]
    if first is None:
        # As if it were a Gaussian curve with this value at its start.
        mu = gaussian_mu(0.0, min(at_start, 0.9)) if minimum == 0.0 else 0.0
        first = gaussian_epsilon(target, mu) if mu > 0.0 else 0.5 * (minimum + maximum)
    point = min(max(first, minimum + 1e-9 * (maximum - minimum)), maximum)
    before, slow = math.inf, 0
    for _ in range(SEARCH_MAX_EVALUATIONS):
        if sure and point >= maximum:
            point = 0.5 * (low + maximum)
        value = curve(point)
        y = _coordinate(value)
        if value <= target:
            high = point
            close = side == "below" and y - floor <= width
        else:
            low = point
            close = side == "above" and floor - y <= width
            if point >= maximum:
                return low, None
        if close or (math.isfinite(high) and high - low <= narrow * high):
            return low, high
        if math.isfinite(y):
            known.append((point, y))
        slow = slow + 1 if high - low > 0.5 * before else 0
        before = high - low if slow == 0 else before
        step = _on_a_line(known, goal)
        bracketed = any(at == high for at, _ in known)
        end = min(high, maximum)
        if not bracketed:
            reach = max(SEARCH_FARTHEST_STEP * (low - minimum), first - minimum)
            end = min(end, minimum + reach) if low > minimum else end
        if bracketed and slow >= 2:
            step = 0.5 * (low + high)
        elif step >= end:
            step = end if not bracketed and low < end < high else 0.5 * (low + end)
        elif not step > low:
            step = 0.5 * (low + end)
        point = step
    raise PrecisionError(
        f"the curve could not be bracketed at {target:g} within {SEARCH_MAX_EVALUATIONS} "
        "evaluations; ask for a smaller relative_error"
    )


def _on_a_line(known: list[tuple[float, float]], goal: float) -> float:
    """Where a straight line through the two points nearest to the goal meets it; or nan."""
    nearest = sorted(known, key=lambda place: abs(place[1] - goal))[:2]
    if len(nearest) < 2 or nearest[0][1] == nearest[1][1]:
        return math.nan
    (x, y), (other_x, other_y) = nearest
    return x + (goal - y) * (other_x - x) / (other_y - y)


def last_above(function: Callable[[float], float], target: float, maximum: float) -> float:
    """A point up to which the falling `function` exceeds `target`, 0 if it starts below it.

    `function` is a cheap bound from below on a curve: there is no need to compute that any earlier.
    """
    target *= 1.0 + 1e-6
    if function(0.0) <= target:
        return 0.0
    return bisected(lambda at: function(at) > target, 0.0, maximum, 1e-12)[0]


class Point(NamedTuple):
    """A point of a certified curve, and the part of `delta` that was added for numerical errors."""

    epsilon: float
    delta: float
    numerical_error: float = 0.0


def solve(
    curve: Curve,
    local_epsilon: float,
    *,
    epsilon: float | None,
    delta: float | None,
    relative_error: float | None = None,
    unhidden: Callable[[float], float] | None = None,
) -> Point:
    """A point on a certified nonincreasing curve, on the safe side.

    From `epsilon`: delta there. From `delta`: the smallest epsilon found at which the curve has
    been evaluated and is not above it, infinite if none up to the local budget is. A curve
    with a penalty that grows with epsilon is searched from its lowest tested point downwards.
    `unhidden` is a cheap falling function that the curve is nowhere below.
    """
    if epsilon is not None:
        budget = require_real("epsilon", epsilon, minimum=0.0)
        bound = curve(budget)
        return Point(budget, bound.delta, bound.error)
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
        return Point(math.inf, target)
    # Huge budgets: the curve is flat at one and drops within a sliver below the local budget.
    sliver = maximum * (1.0 - 1e-6)
    if maximum > 50.0 and value(sliver) > target:
        return Point(maximum, target, seen[maximum].error)
    minimum = 0.0 if unhidden is None else last_above(unhidden, target, maximum)
    if minimum >= maximum * (1.0 - 1e-7):
        return Point(maximum, target)
    _, found = crossing(
        value,
        target,
        maximum,
        "below",
        minimum=minimum,
        tolerance=min(SEARCH_LOG_TOLERANCE, relative_error or STOP_LOSS_ERROR),
    )
    result = maximum if found is None else found
    return Point(result, target, seen[result].error)
