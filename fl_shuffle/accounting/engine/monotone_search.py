"""Inverse problems on monotone certified curves: the answer is always on the safe side.

A curve here is a function whose every value is already certified (an upper bound on delta, or a
lower one). The searches only assume that it is nonincreasing up to its own numerical error, and
they return a point at which the curve has been *evaluated* and found to satisfy the request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.special import log_ndtr

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon as exact_gaussian_epsilon
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_mu
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import PrecisionError


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The epsilon at which a Gaussian with shift `mu` has this delta: a starting point only."""
    low, high = 0.0, mu * mu + 60.0 * mu + 1e-300
    for _ in range(40):
        middle = 0.5 * (low + high)
        first = float(log_ndtr(0.5 * mu - middle / mu))
        second = middle + float(log_ndtr(-0.5 * mu - middle / mu))
        value = first + math.log(max(-math.expm1(min(second - first, -1e-16)), 1e-300))
        if value > math.log(delta):
            low = middle
        else:
            high = middle
    return high


def bisected(
    function: Callable[[float], float], goal: float, low: float, high: float, within: float = 1e-4
) -> float:
    """Smallest positive x (to the factor 1 + `within`) at which a falling function is within goal.

    `high`, if that is nowhere else.
    """
    if function(high) > goal:
        return high
    while high > low * (1.0 + within):
        middle = math.sqrt(low * high)
        if function(middle) <= goal:
            high = middle
        else:
            low = middle
    return high


def _coordinate(value: float) -> float:
    """sqrt(-log value): nearly linear in epsilon, which makes secant steps accurate."""
    if value <= 0.0:
        return math.inf
    return math.sqrt(max(-math.log(value), 0.0))


def crossing(
    curve: Callable[[float], float],
    target: float,
    maximum: float,
    side: Literal["above", "below"],
    *,
    minimum: float = 0.0,
    tolerance: float = TOLERANCES.search_log_tolerance,
) -> tuple[float, float | None]:
    """Bracket the epsilon where a nonincreasing `curve` falls to `target`.

    Returns (above, below): the curve exceeds the target at `above` (`minimum` if it never does,
    then `below` is that too) and does not at `below`, which is None if it exceeds the target even
    at `maximum`. The one on `side` was evaluated and is where the curve is within `tolerance` of
    the target, or as close as floating point allows; the other may be far (infinite). Raises
    `PrecisionError` if the curve is not monotone enough to be bracketed.
    """
    at_start = curve(minimum)
    if at_start <= target:
        return minimum, minimum
    low, high = minimum, math.inf
    floor = _coordinate(target)
    width = tolerance / (2.0 * max(floor, 1e-3))
    goal = floor + (0.5 if side == "below" else -0.5) * width
    before, before_y = minimum, _coordinate(at_start)
    point = 0.5 * (minimum + maximum)
    if at_start < 0.9 and minimum == 0.0:
        point = min(gaussian_epsilon(target, 2.5 * at_start), maximum)
    for _ in range(TOLERANCES.search_max_evaluations):
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
        if close or (math.isfinite(high) and high - low <= 1e-9 * high):
            return low, high
        upper = min(high, maximum)
        step = math.nan
        if math.isfinite(y) and y != before_y:
            step = point + (goal - y) * (point - before) / (y - before_y)
        if math.isfinite(y):
            before, before_y = point, y
        if step >= maximum and not math.isfinite(high):
            step = maximum
        elif not low < step < upper:
            step = 0.5 * (low + upper)
        point = step
    raise PrecisionError(
        f"the curve could not be bracketed at {target:g} within "
        f"{TOLERANCES.search_max_evaluations} evaluations; "
        "ask for a smaller relative_error"
    )


def last_above(function: Callable[[float], float], target: float, maximum: float) -> float:
    """A point up to which the falling `function` exceeds `target`, 0 if it starts below it.

    `function` is a cheap bound from below on a curve: there is no need to compute that any earlier.
    """
    target *= 1.0 + 1e-6
    low, high = 0.0, maximum
    if function(low) <= target:
        return 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return low


def near_crossing(
    curve: Callable[[float], float], target: float, first: float, high: float, tolerance: float
) -> float:
    """The smallest epsilon found with curve(epsilon) <= `target`, starting from `first`.

    `high` satisfies it and need not be evaluated. The curve at the result is within `tolerance`
    (relative) of the target, unless it jumps there.
    """
    low, at_low, at_high = 0.0, 1.0, 0.5 * target
    point, aim = first, target * (1.0 - 0.5 * tolerance)
    for step in range(60):
        value = curve(point)
        if value <= target:
            high, at_high = point, value
            if value >= target * (1.0 - tolerance) or point == 0.0:
                break
        else:
            low, at_low = point, value
        if high - low <= TOLERANCES.search_jump_width * high:
            break
        if step < TOLERANCES.search_fitted_steps:
            fitted = gaussian_mu(point, value) if 0.0 < value < 0.9 else 0.0
            point = exact_gaussian_epsilon(aim, fitted) if fitted else high
        else:
            # Between two points sqrt(-log delta) is nearly linear in epsilon.
            start, end = _coordinate(min(at_low, 0.99)), _coordinate(max(at_high, 1e-300))
            share = (_coordinate(aim) - start) / max(end - start, 1e-12)
            point = low + min(max(share, 0.02), 0.98) * (high - low)
        if not low < point < high or step % 8 == 7:
            point = 0.5 * (low + high)
    return high


def smallest_integer(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest tested n in [low, high] at which `holds`, a nondecreasing predicate, is true.

    None if it fails at `high`. The predecessor of the answer was tested and failed (or is low - 1).
    """
    if holds(low):
        return low
    step, last_bad = 1, low
    while True:
        candidate = min(low + step, high)
        if holds(candidate):
            break
        last_bad = candidate
        if candidate == high:
            return None
        step *= 4
    good = candidate
    while good - last_bad > 1:
        middle = (good + last_bad) // 2
        if good > 4 * max(last_bad, 1):
            middle = max(last_bad + 1, math.isqrt(good * max(last_bad, 1)))
        if holds(middle):
            good = middle
        else:
            last_bad = middle
    return good


def largest_real(
    holds: Callable[[float], bool], maximum: float, *, relative_width: float = 1e-6
) -> float:
    """The largest tested x in [0, maximum] at which `holds`, a nonincreasing predicate, is true.

    Zero is taken to satisfy it. The search is geometric from `maximum` down to 1e-9 of it.
    """
    if holds(maximum):
        return maximum
    bad, good = maximum, 0.0
    trial = 0.5 * maximum
    while trial > 1e-9 * maximum:
        if holds(trial):
            good = trial
            break
        bad = trial
        trial *= 0.5
    while good > 0.0 and bad - good > relative_width * bad:
        middle = 0.5 * (bad + good)
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def crossing_scale(
    cost: Callable[[float], float],
    aim: float,
    start: float,
    bad: float,
    good: float,
    power: float,
    seen: dict[float, float],
) -> float:
    """A scale between `bad` and `good` where the falling `cost` is near `aim`, from `start`.

    It is where to ask for a dearer cost: nothing is certified. The cost is expected to fall with
    about this `power` of the scale; `seen` takes what was asked.
    """
    scale = start
    for _ in range(TOLERANCES.plan_max_trials):
        if scale >= good:
            return good
        scale = max(scale, bad * (1.0 + 0.1 * TOLERANCES.plan_close))
        # Where delta alone pays for everything the cost is zero, which has no logarithm.
        value = seen[scale] = max(cost(scale), sys.float_info.min)
        if (off := abs(math.log(value / aim))) <= TOLERANCES.plan_rough_close:
            break
        above = max((at for at, found in seen.items() if found > aim), default=None)
        below = min((at for at, found in seen.items() if found <= aim), default=None)
        if above is not None and below is not None:
            if below <= above or is_least(seen, below, aim):
                return below
            # Between two costs: a straight line in logarithms.
            rise = math.log(seen[below] / seen[above]) if math.isfinite(seen[above]) else -math.inf
            part = math.log(aim / seen[above]) / rise if rise > -math.inf and rise < 0.0 else 0.5
            scale = above * (below / above) ** min(max(part, 0.05), 0.95)
        else:
            # A heavy tail makes the cost steeper in the scale than proportional.
            falls = falling_power(seen, power)
            step = (value / aim) ** (1.0 / falls) if math.isfinite(value) else 1.3
            scale *= min(max(step, 0.75), 1.35)
        if off <= TOLERANCES.plan_rough_near and len(seen) > 1:
            # So near, two costs say where the crossing is: a third would only confirm it.
            break
    return scale


def is_least(seen: dict[float, float], good: float, aim: float) -> bool:
    """Whether hardly less than the scale `good` was seen to cost more than `aim`.

    Or a little less, and far more: the cost jumps.
    """
    close, wide = good / TOLERANCES.plan_scale_close, good / TOLERANCES.plan_jump_width
    below = [(at, cost / aim) for at, cost in seen.items() if wide <= at < good]
    return any(over > (1.0 if at >= close else TOLERANCES.plan_jump) for at, over in below)


def falling_power(seen: dict[float, float], expected: float) -> float:
    """With which power of the scale the cost fell in all trials; 1 to 10.

    By least squares, drawn to what was `expected` by trials so near that their errors decide.
    """
    finite = [(math.log(scale), math.log(cost)) for scale, cost in seen.items() if cost < math.inf]
    if not finite:
        return expected
    x, y = np.array(finite).T
    x -= x.mean()
    weight = TOLERANCES.plan_expected_power_width**2
    return plausible_power(float((weight * expected - x @ y) / (weight + x @ x)))


def plausible_power(power: float) -> float:
    return min(max(power, 1.0), 10.0)
