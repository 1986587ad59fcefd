"""The one search by halves: where a statement ceases to hold, from the side where it holds."""

from __future__ import annotations

from collections.abc import Callable


def bisected(
    holds: Callable[[float], bool], good: float, bad: float, relative: float
) -> tuple[float, float]:
    """(a point at which `holds` was seen to be true, one at which it was not), that near together.

    `good` and `bad`, in any order, are taken to be such points already.
    """
    while abs(good - bad) > relative * max(abs(good), abs(bad), 1e-290):
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good, bad
