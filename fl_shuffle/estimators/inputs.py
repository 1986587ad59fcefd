"""What users hand in, checked once: budgets, values, reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.errors import InvalidValueError

COIN_EPSILON0 = 20.0
"""Largest budget of a report that is drawn with coins. Coins have 53 bits: at 20 the rarest one,
2e-9, is right to a relative 5e-8, and so is the ratio e^epsilon0. Beyond, that error grows."""


def require_budgets(
    epsilon0: float | NDArray[Any], count: int, *, largest: float = MAX_EPSILON0
) -> FloatArray:
    """Return `epsilon0` as float64, shape (count,): one number for all users, or one for each.

    Raises `InvalidValueError` unless each is a finite number in (0, `largest`].
    """
    given = np.asarray(epsilon0)
    if given.dtype.kind not in "iuf" or given.shape not in ((), (count,)):
        found = f"{given.dtype} {list(given.shape)}"
        raise InvalidValueError(
            "epsilon0", found, f"must be one number, or {count} numbers, one for each user"
        )
    right = np.isfinite(given) & (given > 0) & (given <= largest)
    for wrong in given[~right][:1]:
        raise InvalidValueError(
            "epsilon0", float(wrong), f"must be a finite number > 0, at most {largest:g}"
        )
    return np.broadcast_to(given.astype(np.float64), (count,))


def require_values(values: NDArray[Any], kinds: str, low: float, high: float) -> NDArray[Any]:
    """Return a vector of whole numbers ("iu"), or of numbers, in [low, high].

    Raises `InvalidValueError`.
    """
    given = np.asarray(values)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in kinds:
        what = "whole numbers" if kinds == "iu" else "numbers"
        found = f"{given.dtype} {list(given.shape)}"
        raise InvalidValueError("values", found, f"must be {what}, a vector, one for each user")
    for wrong in given[~((given >= low) & (given <= high))][:1]:
        remedy = "clip the data to a range chosen without looking at it"
        allowed = f"must be in [{low:g}, {high:.12g}]"
        raise InvalidValueError("value", wrong.item(), allowed, remedy)
    return given
