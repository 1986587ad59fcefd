"""The server's side of a shuffler that is a party of its own: the same calls, over its service.

Reports do not come here: nodes seal them and submit them to the shuffler. The server opens a round
there, asks the clients, closes it, writes down who is in the batch, and only then fetches it; the
shuffler gives the same bytes until the step that they led to is durable. Whoever is killed, the
round goes on where it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.errors import PrivacyBudgetError, RunError
from fl_shuffle.shuffler.local import (
    Answer,
    ExactSum,
    Ids,
    Mask,
    Shuffled,
    UnusableBatchError,
    Vector,
    valid_rows,
)
from fl_shuffle.shuffler.remote.agreement import report_of_bytes
from fl_shuffle.shuffler.remote.link import Receiver, patiently
from fl_shuffle.shuffler.remote.sealing import SealError, open_sealed
from fl_shuffle.shuffler.remote.summing import sum_of_content
from fl_shuffle.shuffler.remote.wire import HANDED_OVER, OPEN

log = logging.getLogger("fl_shuffle.run.shuffler")

RUN = "run"
"""The run's identifier in a request."""


class RemoteShuffler:
    """A shuffler behind `receiver`. `private` is the analyzer's key (empty where only sums leave),
    `largest` [clients] bounds honest reports, `keep` says that somebody looks at single ones.

    `honest` says how many of so many reports must be honest ones: which client sent a report that
    cannot be used is not known, so that a batch with fewer usable ones ends the run. `counted` is
    the round, if any, whose reports the ledger has counted and from which no step was taken: it is
    closed there, or the shuffler's store is older than the run. `patience`, in seconds.
    """

    def __init__(
        self,
        receiver: Receiver,
        private: bytes,
        largest: Vector,
        honest: Callable[[int], int],
        *,
        keep: bool,
        counted: int | None,
        patience: float,
    ) -> None:
        self.receiver = receiver
        self.private = private
        self.largest = float(largest.max())
        self.honest = honest
        self.keep = keep
        self.patience = patience
        self.min_reports = receiver.agreement.min_reports
        self.batches = receiver.agreement.batches
        self._counted = counted

    @property
    def facts(self) -> Mapping[str, str]:
        """See `Shuffler`."""
        return {RUN: self.receiver.agreement.run}

    def open(self, round_number: int, asked: Mask) -> RemoteBatch:
        """See `Shuffler`. Raises `RunError` for a round that was handed over already, and for a
        counted one that is not closed."""
        counted = round_number == self._counted
        # Nobody is asked on a counted round: one that is not closed there takes no report.
        state = self.receiver.begin(round_number, np.zeros_like(asked) if counted else asked)
        if state == HANDED_OVER:
            raise RunError(
                f"the shuffler has handed round {round_number} over already: this run directory is "
                "older than the run; put the newer one back"
            )
        if counted and state == OPEN:
            raise RunError(
                f"the shuffler's store is older than the run, whose ledger has counted round "
                f"{round_number} already; put the right one back, or start a new run"
            )
        return RemoteBatch(self, round_number, collecting=state == OPEN)

    def forget(self, round_number: int) -> None:
        """See `Shuffler`."""
        if round_number:
            self.receiver.finish(round_number)


class RemoteBatch:
    """A round's batch there."""

    def __init__(self, shuffler: RemoteShuffler, number: int, *, collecting: bool) -> None:
        self.reasons: Counter[str] = Counter()
        self._collecting = collecting
        self._shuffler = shuffler
        self._number = number
        self._count = 0

    @property
    def collecting(self) -> bool:
        """See `Batch`."""
        return self._collecting

    def add(self, answer: Answer, clients: Ids, position: int) -> Mask:
        """See `Batch`. Nothing is used that comes here: nodes have a shuffler of their own."""
        self.reasons["sent to the server instead of the shuffler"] += len(clients)
        return np.zeros(len(clients), dtype=bool)

    def close(self) -> Mask:
        """See `Batch`."""
        present = self._shuffler.receiver.close_round(self._number)
        if present is None:
            reasons = [f"{reason}: {count}" for reason, count in self.reasons.most_common(5)]
            raise PrivacyBudgetError(
                f"round {self._number}: fewer usable reports than privacy.min_reports = "
                f"{self._shuffler.min_reports}, or than the shuffler's own minimum, arrived; it "
                "releases nothing" + (f" ({'; '.join(reasons)})" if reasons else "")
            )
        self._count = int(present.sum())
        return present

    def release(self) -> Shuffled:
        """See `Batch`: fetched, from the start again where the connection ends."""
        return patiently(self._fetched, self._shuffler.patience)

    def _fetched(self) -> Shuffled:
        receiver = self._shuffler.receiver
        if receiver.agreement.release == "sum":
            (content,) = receiver.batch(self._number)
            exact = sum_of_content(content, receiver.agreement)
            return Shuffled(self._sent, total=torch.from_numpy(exact))
        total, rows, pieces = ExactSum(receiver.agreement.dimension), [], 0
        valid = np.zeros(self._shuffler.batches, dtype=np.int64)
        for sealed in receiver.batch(self._number):
            batch, pieces = pieces // self._count, pieces + 1
            row = self._opened(sealed) if batch < len(valid) else None
            if row is None:
                continue
            valid[batch] += 1
            if self._shuffler.keep:
                rows.append(row)
            else:
                total.add_sum(row.double(), self._shuffler.largest)
        if pieces != self._sent:
            raise RunError(
                f"the shuffler released {pieces} reports of round {self._number} and named "
                f"{self._count} clients"
            )
        self._require_honest(valid)
        usable = int(valid.sum())
        if self._shuffler.keep:
            return Shuffled(usable, reports=torch.stack(rows))
        return Shuffled(usable, total=total.total)

    @property
    def _sent(self) -> int:
        """Reports, in all batches together."""
        return self._count * self._shuffler.batches

    def _require_honest(self, valid: NDArray[np.int64]) -> None:
        unusable = self._sent - int(valid.sum())
        if unusable:
            log.warning(
                "round %d: %d of %d reports cannot be used", self._number, unusable, self._sent
            )
        if valid.min() < max(1, self._shuffler.honest(self._count)):
            raise UnusableBatchError(
                f"{unusable} of {self._sent} reports cannot be used, and whose they are is not "
                "known: fewer are honest than is assumed (privacy.assumed_honest); if some clients "
                "may not be, say how many are, in a new run"
            )

    def _opened(self, sealed: bytes) -> Tensor | None:
        """The report [d] in a sealed message; None if it cannot be an honest one."""
        agreement = self._shuffler.receiver.agreement
        try:
            content = open_sealed(sealed, self._shuffler.private, agreement.info(self._number))
        except SealError:
            return None
        report = report_of_bytes(content, agreement)
        if report is None:
            return None
        row = torch.from_numpy(report)
        return row if valid_rows(row[None], np.array([self._shuffler.largest])).all() else None
