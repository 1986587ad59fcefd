"""A shuffler in the server's process: the batch permuted, or its exact sum.

What the analyzer receives of it is exactly what a separate shuffler would release; but server and
shuffler share their memory, so the boundary between them is a simulated one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.arrays import Ids, Mask, Vector
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import ExactSum, exact_sum, valid_rows

OUT_OF_RANGE = "out of an honest report's range"
"""Why a report is dropped that noise cannot have made, or that is not finite."""


@dataclass(frozen=True)
class Reports:
    """A node's answer: a report of each client to each of m batches, float32 [m k, d], those of a
    batch together."""

    rows: NDArray[np.float32]


@dataclass(frozen=True)
class PartialSum:
    """A simulated node's answer: the exact sum [d] of its clients' reports, and of which [k]."""

    total: Vector
    valid: Mask


ReceivedReports = Reports | PartialSum


@dataclass(frozen=True)
class Shuffled:
    """What leaves a shuffler: `count` reports [count, d], those of a batch in uniformly random
    order, or only their sum [d]. At most `unusable` reports of each batch cannot be used, beside
    these: their senders are unknown, and they hide nobody."""

    count: int
    reports: Tensor | None = None
    total: Tensor | None = None
    unusable: int = 0

    def mean(self) -> Tensor:
        """Return the mean report, float32 [d]: the same bits from the reports as from their sum."""
        total = self.total
        if total is None:
            assert self.reports is not None
            total = torch.zeros(self.reports.shape[1], dtype=torch.float64)
            exact_sum(self.reports, total)
        mean = np.empty(len(total), dtype=np.float32)
        # In pieces: rounded from doubles, of which no other vector is made.
        np.divide(total.numpy(), self.count, out=mean, dtype=np.float64, casting="same_kind")
        return torch.from_numpy(mean)


class UnusableBatchError(Exception):
    """A counted batch that no step can be taken from; the run ends, and what it released is
    paid for. `unusable` as for `Shuffled`."""

    def __init__(self, text: str, unusable: int = 0) -> None:
        self.unusable = unusable
        super().__init__(text)


class Batch(Protocol):
    """A round's reports on their way through a shuffler. May be added to from several threads."""

    reasons: Counter[str]
    """Why reports are missing, once for each, for the operator of the server."""

    collecting: bool
    """Whether clients are to be asked: not if a stopped run had closed the batch already."""

    def add(self, answer: ReceivedReports, clients: Ids, position: int) -> Mask:
        """Take in a node's answer for these clients [k], as far as it is valid.

        Returns whose reports are in the batch [k]. `position` (the request's, another one for each
        call) is what a permutation starts from, in any order of arrival; nothing of it is released.
        """

    def close(self) -> Mask:
        """Return whose reports are in it [clients], which is fixed from here on.

        Raises `PrivacyBudgetError` where they are too few to hide anybody.
        """

    def release(self) -> Shuffled:
        """Release it; the caller has written down what that costs.

        Raises `UnusableBatchError` where there is nothing to take a step from.
        """


class Shuffler(Protocol):
    """Opens a batch for each round, and forgets it when the step that it led to is durable."""

    min_reports: int
    """A smaller batch is not released."""

    batches: int
    """Number of batches in which a round's reports are shuffled: one of each client in each."""

    facts: Mapping[str, str]
    """What nodes must know of it, in every request."""

    def open(self, round_number: int, asked: Mask) -> Batch:
        """Return the batch of a round in which these clients [clients] are asked."""

    def forget(self, round_number: int) -> None:
        """Drop that round's batch, of which nothing is needed any more; nothing for round 0."""


@dataclass
class LocalShuffler:
    """A shuffler of reports with `dimension` coordinates; `largest` [clients] bounds each client's
    honest ones, coordinate by coordinate: what is beyond, or not finite, is dropped alone.

    `keep`: reports are stored and released permuted. Otherwise they are added up as they come.
    The two are equal by design where nobody looks at single reports: these lie on public
    power-of-two grids, so that the float64 sum is exact and has the bits of the sum of the permuted
    batch, whatever the order. `group` reports have an exact sum in float32 already: adding up is
    then faster. In a round of several `batches` a client is in all of them or in none.
    """

    dimension: int
    largest: Vector
    seeds: SeedTree
    min_reports: int = 2
    keep: bool = True
    group: int = 1
    batches: int = 1
    facts: Mapping[str, str] = field(default_factory=dict, init=False)

    def open(self, round_number: int, asked: Mask) -> PermutedBatch | SummedBatch:
        """See `Shuffler`."""
        batch = PermutedBatch if self.keep else SummedBatch
        return batch(self, round_number, len(asked))

    def forget(self, round_number: int) -> None:
        """Do nothing: nothing is kept of it."""


class _LocalBatch:
    """What both kinds of batch share: who is in it, and how many must be."""

    collecting = True

    def __init__(self, shuffler: LocalShuffler, number: int, clients: int) -> None:
        self.reasons: Counter[str] = Counter()
        self._number = number
        self._shuffler = shuffler
        self._present = np.zeros(clients, dtype=bool)
        self._lock = Lock()

    def close(self) -> Mask:
        """See `Batch`."""
        count, minimum = int(self._present.sum()), self._shuffler.min_reports
        if count < minimum:
            raise PrivacyBudgetError(
                f"round {self._number}: {count} usable reports arrived, below privacy.min_reports "
                f"= {minimum}; the batch is not released{listed(self.reasons)}"
            )
        return self._present

    def _note(self, clients: Ids, valid: Mask) -> Mask:
        with self._lock:
            self._present[clients] = valid
            if not valid.all():
                self.reasons[OUT_OF_RANGE] += int((~valid).sum())
        return valid


class SummedBatch(_LocalBatch):
    """Adds reports up as they come: of the batch only the sum is kept."""

    def __init__(self, shuffler: LocalShuffler, number: int, clients: int) -> None:
        super().__init__(shuffler, number, clients)
        self._sum = ExactSum(shuffler.dimension, shuffler.group)

    def add(self, answer: ReceivedReports, clients: Ids, position: int) -> Mask:
        """See `Batch`."""
        largest = self._shuffler.largest[clients]
        if isinstance(answer, PartialSum):
            most = float(largest[answer.valid].sum()) * self._shuffler.batches
            taken = self._sum.add_sum(torch.from_numpy(answer.total), most)
            return self._note(clients, answer.valid & taken)
        return self._note(clients, self._sum.add(torch.from_numpy(answer.rows), largest))

    def release(self) -> Shuffled:
        """See `Batch`."""
        total = self._sum.total
        self._sum.total = total.new_zeros(0)  # it is let out once, and not held here beside
        return Shuffled(int(self._present.sum()) * self._shuffler.batches, total=total)


class PermutedBatch(_LocalBatch):
    """Keeps every report, and releases each batch in a uniformly random order."""

    def __init__(self, shuffler: LocalShuffler, number: int, clients: int) -> None:
        super().__init__(shuffler, number, clients)
        self._rows: dict[int, Tensor] = {}

    def add(self, answer: ReceivedReports, clients: Ids, position: int) -> Mask:
        """See `Batch`."""
        if isinstance(answer, PartialSum):
            self.reasons["sent a sum where single reports are wanted"] += len(clients)
            return np.zeros(len(clients), dtype=bool)
        rows = torch.from_numpy(answer.rows)
        valid = valid_rows(rows, self._shuffler.largest[clients])
        with self._lock:
            batches = rows.reshape(self._shuffler.batches, len(clients), -1)
            self._rows[position] = batches[:, torch.from_numpy(valid)]
        return self._note(clients, valid)

    def release(self) -> Shuffled:
        """See `Batch`."""
        # From the requests' order, whichever node was faster: a seeded run gives the same bits.
        batches = torch.cat([self._rows[position] for position in sorted(self._rows)], dim=1)
        draws = self._shuffler.seeds.numpy_generator(self._number, "permutation")
        for reports in batches:
            order = torch.from_numpy(draws.permutation(len(reports)))
            reports[:] = reports[order]
        return Shuffled(len(batches) * batches.shape[1], reports=batches.flatten(0, 1))


def listed(reasons: Counter[str]) -> str:
    """Return the most frequent reasons for missing reports, in parentheses; nothing without any."""
    found = "; ".join(f"{reason}: {times}" for reason, times in reasons.most_common(5))
    return f" ({found})" if found else ""
