"""Sums of reports without rounding error, whatever their order, packing or threads.

Every report is a multiple of a public power of two, and small enough for float32 to hold it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.errors import NotApplicableError


def exact_sum(reports: torch.Tensor, accumulator: torch.Tensor, group: int = 1) -> None:
    """accumulator (float64 [d]) += the sum of `reports` (float32 [K, d]) over rows.

    Exact, hence independent of order and partition, as long as `require_exact` holds for all the
    reports that ever go into the accumulator. `group` (see `exact_group`) is a number of rows whose
    float32 sums are exact too: faster, and the same bits.
    """
    exact_sum_within(reports, accumulator, None, group)


def exact_sum_within(
    reports: torch.Tensor,
    accumulator: torch.Tensor,
    largest: NDArray[np.float64] | None = None,
    group: int = 1,
) -> bool:
    """`exact_sum`, and whether every number is at most its row's of `largest` [K] in size.

    NaN is not.
    """
    limits = np.broadcast_to(math.inf if largest is None else largest, reports.shape[:1])
    if reports.device.type == "cpu" and reports.is_contiguous():
        from fl_shuffle.compiled.rows import sum_within

        rounded = limits.astype(np.float32)
        below = np.where(rounded > limits, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return bool(sum_within(reports.numpy(), below, group, accumulator.numpy()))
    accumulator.add_(reports.sum(dim=0, dtype=torch.float64))
    return bool(rows_within(reports, limits).all())


def rows_within(rows: torch.Tensor, largest: NDArray[np.float64]) -> torch.Tensor:
    """Which rows [K, d] have no number above their own of `largest` [K] in size, and no NaN."""
    if not rows.numel():
        return torch.ones(rows.shape[0], dtype=torch.bool)
    low, high = torch.aminmax(rows, dim=1)
    return torch.maximum(-low, high).cpu().double() <= torch.tensor(largest)


def exact_group(step: float, largest: float) -> int:
    """How many reports on a grid of `step` with |coordinate| <= `largest` float32 adds exactly."""
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
