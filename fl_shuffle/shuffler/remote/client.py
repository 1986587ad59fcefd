"""The server's side of a shuffler that is a party of its own: the same calls, over its service.

Reports do not come here: nodes seal them and submit them to the shuffler. The server opens a round
there, asks the clients, closes it, writes down who is in the batch, and only then fetches it; the
shuffler gives the same bytes until the step that they led to is durable. Whoever is killed, the
round goes on where it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.errors import PrivacyBudgetError, RunError
from fl_shuffle.shuffler.local import Answer, Ids, Mask, Shuffled, UnusableBatchError, listed
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, opened_report, sum_of_content
from fl_shuffle.shuffler.remote.link import Link

log = logging.getLogger("fl_shuffle.run.shuffler")

RUN = "run"
"""The run's identifier in a request."""


@dataclass
class RemoteShuffler:
    """A shuffler behind `link`. `private` is the analyzer's key (empty where only sums leave),
    `keep` says that somebody looks at single reports.

    `honest` says how many of so many reports must be honest ones: which client sent a report that
    cannot be used is not known, so that a batch with fewer usable ones ends the run. `counted` is
    the round, if any, whose reports the ledger has counted and from which no step was taken: it is
    closed there, or the shuffler's store is older than the run. All methods raise `ShufflerError`
    for a shuffler that refuses or does not answer.
    """

    link: Link
    agreement: Agreement
    private: bytes
    honest: Callable[[int], int]
    keep: bool
    counted: int | None

    def __post_init__(self) -> None:
        self.min_reports, self.batches = self.agreement.min_reports, self.agreement.batches

    @property
    def facts(self) -> Mapping[str, str]:
        """See `Shuffler`."""
        return {RUN: self.agreement.run}

    def open(self, round_number: int, asked: Mask) -> RemoteBatch:
        """See `Shuffler`. Raises `RunError` for a round that was handed over already, and for a
        counted one that is not closed."""
        counted = round_number == self.counted
        # Nobody is asked on a counted round: one that is not closed there takes no report.
        wanted = wire.bitmap_of(np.zeros_like(asked) if counted else asked)
        state = self._ask(wire.BEGIN, round_number, wanted, self.agreement)
        if state == wire.HANDED_OVER:
            raise RunError(
                f"the shuffler has handed round {round_number} over already: this run directory is "
                "older than the run; put the newer one back"
            )
        if counted and state == wire.OPEN:
            raise RunError(
                f"the shuffler's store is older than the run, whose ledger has counted round "
                f"{round_number} already; put the right one back, or start a new run"
            )
        return RemoteBatch(self, round_number, collecting=state == wire.OPEN)

    def close(self, round_number: int) -> Mask | None:
        """Who is in the round's batch (mask [clients]), which is then fixed; None: too few."""
        try:
            bitmap = self._ask(wire.CLOSE, round_number)
        except wire.ShufflerError as error:
            if error.reason == "FAILED_PRECONDITION":
                return None
            raise
        return wire.mask_of(bitmap, self.agreement.clients)

    def fetch(self, round_number: int) -> Iterator[bytes]:
        """What is released of a closed round, piece by piece: the same bytes each time."""
        size, position = self.agreement.piece_bytes, 0
        while page := self._ask(
            wire.FETCH, round_number, position.to_bytes(wire.POSITION_BYTES, "big")
        ):
            for start in range(0, len(page), size):
                position += 1
                yield page[start : start + size]

    def forget(self, round_number: int) -> None:
        """See `Shuffler`."""
        if round_number:
            self._ask(wire.FINISH, round_number)

    def _ask(
        self, method: str, number: int, sent: bytes = b"", facts: Agreement | None = None
    ) -> bytes:
        return self.link.ask(method, wire.Call(self.agreement.run, number, facts), sent)


class RemoteBatch:
    """A round's batch there."""

    def __init__(self, shuffler: RemoteShuffler, number: int, *, collecting: bool) -> None:
        self.reasons: Counter[str] = Counter()
        self.collecting = collecting
        self._shuffler = shuffler
        self._number = number
        self._count = 0

    def add(self, answer: Answer, clients: Ids, position: int) -> Mask:
        """See `Batch`. Nothing is used that comes here: nodes have a shuffler of their own."""
        self.reasons["sent to the server instead of the shuffler"] += len(clients)
        return np.zeros(len(clients), dtype=bool)

    def close(self) -> Mask:
        """See `Batch`."""
        present = self._shuffler.close(self._number)
        if present is None:
            raise PrivacyBudgetError(
                f"round {self._number}: fewer usable reports than privacy.min_reports = "
                f"{self._shuffler.min_reports}, or than the shuffler's own minimum, arrived; it "
                f"releases nothing{listed(self.reasons)}"
            )
        self._count = int(present.sum())
        return present

    def release(self) -> Shuffled:
        """See `Batch`."""
        agreement, keep = self._shuffler.agreement, self._shuffler.keep
        sent, pieces = self._count * agreement.batches, self._shuffler.fetch(self._number)
        if agreement.release == "sum":
            exact = sum_of_content(next(pieces, b""), agreement)
            return Shuffled(sent, total=torch.from_numpy(exact))
        total, rows, position = np.zeros(agreement.dimension), [], 0
        valid = np.zeros(agreement.batches, dtype=np.int64)
        for position, sealed in enumerate(islice(pieces, sent + 1), start=1):
            report = opened_report(sealed, self._shuffler.private, agreement, self._number)
            if report is None or position > sent:
                continue
            valid[(position - 1) // self._count] += 1
            if keep:
                rows.append(torch.from_numpy(report))
            else:
                total += report
        if position != sent:
            raise RunError(
                f"the shuffler released {position} reports of round {self._number} and named "
                f"{self._count} clients"
            )
        self._require_honest(valid, sent)
        if keep:
            return Shuffled(len(rows), reports=torch.stack(rows))
        return Shuffled(int(valid.sum()), total=torch.from_numpy(total))

    def _require_honest(self, valid: NDArray[np.int64], sent: int) -> None:
        unusable = sent - int(valid.sum())
        if unusable:
            log.warning("round %d: %d of %d reports cannot be used", self._number, unusable, sent)
        if valid.min() < max(1, self._shuffler.honest(self._count)):
            raise UnusableBatchError(
                f"{unusable} of {sent} reports cannot be used, and whose they are is not known: "
                "fewer are honest than is assumed (privacy.assumed_honest); if some clients may "
                "not be, say how many are, in a new run"
            )
