"""Where a statement ceases to hold, from the side where it holds: by halves, or by how much."""

from __future__ import annotations

import math
from collections.abc import Callable

FIRST_STEP, NEXT_STEP = 1.5, 4.0
"""A bracket grows by these factors: the guess is often near, and where not, it is far off."""
PRECISION = 1e-3
"""Relative, of numbers that are not whole."""


def bisected(
    holds: Callable[[float], bool], good: float, bad: float, relative: float
) -> tuple[float, float]:
    """Return (a point at which `holds` was seen to be true, one at which it was not), that near
    together.

    `good` and `bad`, in any order, are taken to be such points already.
    """
    # The floor ends the search for a root at zero, where no relative distance is reached.
    while abs(good - bad) > relative * max(abs(good), abs(bad), 1e-290):
        middle = 0.5 * (good + bad)
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good, bad


def furthest(
    spare: Callable[[float], float],
    start: float,
    least: float,
    most: float,
    *,
    whole: bool,
    upwards: bool,
) -> float | None:
    """Return the largest number (the smallest, unless `upwards`) that was seen to have something to
    `spare`, from `least` to `most`; None of none.

    `spare` is monotone, finite, and about linear in the number's logarithm.
    """
    value, step = min(max(float(round(start)) if whole else start, least), most), FIRST_STEP
    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    while good is None or bad is None:
        # Brackets are grown in the logarithm, in which `spare` is about linear.
        found = value, spare(value)
        good, bad = (found, bad) if found[1] >= 0.0 else (good, found)
        # Further where there is some to spare; back where there is none.
        up = (good is not None) == upwards
        if value == (most if up else least):
            return None if good is None else good[0]
        value, step = value * step if up else value / step, NEXT_STEP
        if whole:
            value = float(math.ceil(value) if up else math.floor(value))
        value = min(max(value, least), most)
    # The Illinois rule: the end that stays counts half, or one end would never move.
    while abs(good[0] - bad[0]) > (1.0 if whole else PRECISION * min(good[0], bad[0])):
        low, high = math.log(bad[0]), math.log(good[0])
        # The zero of the chord in the logarithm, kept off the ends so that the bracket always
        # shrinks.
        share = min(max(-bad[1] / (good[1] - bad[1]), 0.02), 0.98)
        value = math.exp(low + share * (high - low))
        if whole:
            ends = sorted((good[0], bad[0]))
            # Strictly between the ends, or a whole number would be asked twice.
            value = min(max(float(round(value)), ends[0] + 1.0), ends[1] - 1.0)
        found = value, spare(value)
        if found[1] >= 0.0:
            good, bad = found, (bad[0], 0.5 * bad[1])
        else:
            bad, good = found, (good[0], 0.5 * good[1])
    return good[0]
