"""A batch of reports without identity, order or timing.

Inside one simulation process the shuffler and the analyzer share memory, so this is a *simulated*
trust boundary: what the analyzer receives is exactly what a separate shuffler would release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.randomizers.vector import exact_sum, exact_sum_within, reach_of, rows_within


class ReportBatch:
    """Collects the reports of one round and releases them shuffled, or only their sum.

    Reports arrive in any order and in any packing as float32 rows of length `dimension`, from
    several threads if need be. A row that holds NaN or an infinity is dropped, and one beyond what
    its client's honest report can reach. With `keep=False`
    rows are added up as they come and are not stored: reports lie on a public power-of-two grid, so
    the float64 sum is exact and is bit for bit the sum of the batch in *every* order, the shuffled
    one included. With `keep=True` the whole batch is stored and released under a uniformly random
    permutation. `group` is a number of reports whose float32 sum is exact: adding up is then
    faster, the result is the same.
    """

    def __init__(self, dimension: int, *, keep: bool, group: int = 1) -> None:
        self.dimension = dimension
        self._sum = torch.zeros(dimension, dtype=torch.float64)
        self._rows: dict[int, Tensor] | None = {} if keep else None
        self._group = group
        self._lock = Lock()
        self.count = 0

    def add(
        self, rows: Tensor, position: int, largest: NDArray[np.float64] | None = None
    ) -> np.ndarray:
        """Take in `rows` [k, dimension]; returns the boolean mask of the rows that were usable.

        `largest` [k] bounds the absolute value of each row's coordinates. `position` (the
        request's, different for each call) makes what the permutation of a kept batch starts from
        the same whichever rows arrive first; nothing of it is released.
        """
        if self._rows is None:
            part = torch.zeros_like(self._sum)
            honest = exact_sum_within(rows, part, largest, self._group)
            # A NaN or an infinity anywhere makes the sum of all coordinates one.
            if honest and math.isfinite(float(part.sum())):
                with self._lock:
                    self._sum += part
                    self.count += rows.shape[0]
                return np.ones(rows.shape[0], dtype=bool)
        usable = within(rows, largest)
        rows = rows[usable]
        with self._lock:
            if self._rows is None:
                exact_sum(rows, self._sum, self._group)
            else:
                self._rows[position] = rows.clone()
            self.count += rows.shape[0]
        return usable.numpy()

    def add_sum(self, part: Tensor, count: int, largest: float) -> bool:
        """Take in the exact sum [dimension] of so many reports; returns whether it was usable.

        `largest` bounds the absolute value of its coordinates. Not for a batch that is kept.
        """
        reach = reach_of(part)
        if self._rows is not None or not (math.isfinite(reach) and reach <= largest):
            return False
        with self._lock:
            self._sum += part
            self.count += count
        return True

    def require(self, minimum: int) -> None:
        """Refuse a batch too small to hide anyone; raises `PrivacyBudgetError`."""
        require_reports(self.count, minimum)

    def release_sum(self) -> Tensor:
        """The sum of all reports, float64 [dimension]: a function of the multiset of reports."""
        if self._rows is None:
            return self._sum
        for rows in self._rows.values():
            exact_sum(rows, self._sum, self._group)
        return self._sum

    def release(self, generator: np.random.Generator) -> Tensor:
        """All reports, float32 [n, dimension], in a uniformly random order drawn from `generator`.

        The generator must be seeded from a cryptographic source, or from the run's seed in a
        simulation. Only for a batch built with `keep=True`.
        """
        if self._rows is None:
            raise ValueError("this batch kept only the sum; build it with keep=True")
        if not self._rows:
            return torch.zeros(0, len(self._sum))
        batch = torch.cat([self._rows[position] for position in sorted(self._rows)])
        return batch[torch.from_numpy(generator.permutation(batch.shape[0]))]


def within(rows: Tensor, largest: NDArray[np.float64] | None) -> Tensor:
    """Which of the rows [k, dimension] are finite and, if `largest` [k] is given, within it."""
    usable = torch.isfinite(rows).all(dim=1)
    return usable if largest is None else usable & rows_within(rows, largest)


class PooledBatch:
    """The sum of a round's weighted means, where no reports are made: sums of parts of it arrive.

    Each is a multiple of one public grid, so that their sum is exact, whatever the parts and their
    order. `count`: the clients in it. May be added to from several threads.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._sum = np.zeros(dimension)
        self._lock = Lock()
        self.count = 0

    def add(self, part: NDArray[np.float64], clients: int) -> bool:
        """Take in the sum [dimension] over so many clients; returns whether it was usable."""
        with np.errstate(over="ignore", invalid="ignore"):
            if not math.isfinite(part.sum()):
                return False
        with self._lock:
            self._sum += part
            self.count += clients
        return True

    def require(self, minimum: int) -> None:
        """See `ReportBatch.require`."""
        require_reports(self.count, minimum)

    def release_sum(self) -> NDArray[np.float64]:
        """The sum of all means, float64 [dimension], without noise."""
        return self._sum


def require_reports(count: int, minimum: int) -> None:
    """Raise `PrivacyBudgetError` if so many usable reports are below `privacy.min_reports`."""
    if count < minimum:
        raise PrivacyBudgetError(
            f"{count} usable reports arrived, below privacy.min_reports = {minimum}; "
            "the batch is not released"
        )


Analyzer = Callable[[Tensor], Tensor]
