"""Sums of reports without rounding error, whatever their order, packing or threads.

Every report is a multiple of a public power of two, and small enough for float32 to hold it.
"""

from __future__ import annotations

import math
import sys
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.errors import NotApplicableError

LONG = 1_000_000
"""Numbers of a sum that is kept once only, and added to by one thread at a time."""


class ExactSum:
    """The sum of reports, added up as they come, from several threads; on nodes, too.

    It is a function of the multiset of reports: whatever their order and packing, its bits are
    those of the sum of all of them (see `exact_sum`).
    """

    def __init__(self, dimension: int, group: int = 1) -> None:
        self.total = torch.zeros(dimension, dtype=torch.float64)
        self._group = group
        self._lock = Lock()

    def add(self, rows: Tensor, largest: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Add reports [m k, d] of k clients up, of those whose coordinates are all finite and at
        most `largest` [k] in size; returns which clients these are [k]."""
        if len(self.total) <= LONG:
            part = torch.zeros_like(self.total)
            if exact_sum(rows, part, largest, self._group):
                with self._lock:
                    self.total += part
                return np.ones(len(largest), dtype=bool)
        # A vector less, for one more pass over the reports.
        with self._lock:
            valid = valid_rows(rows, largest)
            good = rows if valid.all() else rows[torch.from_numpy(_of_each(valid, rows))]
            exact_sum(good, self.total, group=self._group)
        return valid

    def add_sum(self, part: Tensor, largest: float) -> bool:
        """Add an exact sum [d] of reports, unless one of its coordinates is beyond `largest`, or
        not finite; returns whether."""
        low, high = torch.aminmax(part)
        # NaN is not at most anything, and an infinity more than every number.
        if not max(-float(low), float(high)) <= min(largest, sys.float_info.max):
            return False
        with self._lock:
            self.total += part
        return True


def exact_sum(
    reports: Tensor, accumulator: Tensor, largest: NDArray[np.float64] | None = None, group: int = 1
) -> bool:
    """Add the sum of `reports` (float32 [m k, d]) over rows to accumulator (float64 [d]); return
    whether every number is at most its client's of `largest` [k] in size. NaN is not.

    Exact, hence independent of order and partition, as long as `require_exact` holds for all the
    reports that ever go into the accumulator. `group` (see `exact_group`) is a number of rows whose
    float32 sums are exact too: faster, and the same bits.
    """
    from fl_shuffle._internal.compiled.rows import sum_within

    each = np.full(len(reports), math.inf) if largest is None else _of_each(largest, reports)
    limits = np.broadcast_to(each, reports.shape[:1])
    rounded = limits.astype(np.float32)
    below = np.where(rounded > limits, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    rows = reports.cpu().contiguous().numpy()
    return bool(sum_within(rows, below, group, accumulator.numpy()))


def valid_rows(rows: Tensor, largest: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of k clients [k] have rows, of [m k, d], without a number above their own of
    `largest` [k] in size, and without NaN."""
    if not rows.numel():
        return np.ones(len(largest), dtype=bool)
    low, high = torch.aminmax(rows, dim=1)
    # What is not finite is not within anything that is.
    within = torch.maximum(-low, high).cpu().double().numpy() <= _of_each(largest, rows)
    return np.asarray(within.reshape(-1, len(largest)).all(axis=0))


def _of_each(values: NDArray[np.generic], rows: Tensor) -> NDArray[np.generic]:
    """Return the k clients' values for their rows [m k, d]."""
    return np.tile(values, len(rows) // max(1, len(values)))


def exact_group(step: float, largest: float) -> int:
    """Return how many reports on a grid of `step` with |coordinate| <= `largest` float32 adds
    exactly."""
    return max(1, int(2.0**24 * step / largest))


def require_exact(count: int, largest: float, smallest_step: float) -> None:
    """Raise `NotApplicableError` unless float64 adds `count` reports exactly, in any order.

    It does if count * largest < 2^53 * smallest_step, where `largest` bounds every coordinate and
    all reports lie on grids whose steps are powers of two >= smallest_step: every partial sum is
    then an integer below 2^53 in units of the smallest step.
    """
    if not count * largest < 2.0**53 * smallest_step:
        raise NotApplicableError(
            f"a sum of {count} reports up to {largest:g} on a grid of {smallest_step:g} is not "
            "exact in float64: give the clients noise scales that are closer together"
        )
