"""The server's side of a shuffler that is a party of its own: the same calls, over its service.

Reports do not come here: nodes seal them and submit them to the shuffler. The server opens a round
there, asks the clients, closes it, writes down who is in the batch, and only then fetches it; the
shuffler gives the same bytes until the step that they led to is durable. Whichever process is
killed, the round continues where it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from fl_shuffle._internal.arrays import Ids, Mask
from fl_shuffle.errors import PrivacyBudgetError, RunError
from fl_shuffle.shuffler.local import ReceivedReports, Shuffled, UnusableBatchError, listed
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, opened_report, pieces_of
from fl_shuffle.shuffler.remote.link import Link

log = logging.getLogger("fl_shuffle.run.shuffler")

RUN = "run"
"""The run's identifier in a request."""


@dataclass
class RemoteShuffler:
    """A shuffler behind `link`. `private` is the analyzer's key (empty where only sums leave),
    `keep` says that somebody looks at single reports.

    A report that cannot be opened, or is no honest one, is a report that is not there; a batch with
    fewer usable ones than `privacy.min_reports`, or than the `honest` ones that the configuration
    promises by number, ends the run. `counted` is the round, if any, whose reports the ledger has
    counted and from which no step was taken: it is closed there, or the shuffler's store is older
    than the run. All methods raise `ShufflerError` for a shuffler that refuses or does not answer.
    """

    link: Link
    agreement: Agreement
    private: bytes
    honest: int
    keep: bool
    counted: int | None

    def __post_init__(self) -> None:
        self.min_reports, self.batches = self.agreement.min_reports, self.agreement.batches
        self.facts: Mapping[str, str] = {RUN: self.agreement.run}

    def open(self, round_number: int, asked: Mask) -> RemoteBatch:
        """See `Shuffler`. Raises `RunError` for a round that was handed over already, and for a
        counted one that is not closed."""
        counted = round_number == self.counted
        # Nobody is asked on a counted round: one that is not closed there takes no report.
        wanted = wire.bitmap_of(np.zeros_like(asked) if counted else asked)
        (state,) = self.ask(wire.BEGIN, round_number, wanted)
        if state == wire.HANDED_OVER:
            raise RunError(
                f"the shuffler has already released round {round_number}: this run directory is "
                "older than the run; put the newer one back"
            )
        if counted and state == wire.OPEN:
            raise RunError(
                "the shuffler's store is older than the run, whose ledger has counted round "
                f"{round_number} already; put the right one back, or start a new run"
            )
        return RemoteBatch(self, round_number, collecting=state == wire.OPEN)

    def forget(self, round_number: int) -> None:
        """See `Shuffler`."""
        if round_number:
            self.ask(wire.FINISH, round_number)

    def ask(self, method: str, round_number: int, sent: bytes = b"") -> bytes:
        """Return what it answers to a call on a round."""
        return self.link.ask(method, wire.Call(self.agreement, round_number), sent)


class RemoteBatch:
    """A round's batch there."""

    def __init__(self, shuffler: RemoteShuffler, number: int, *, collecting: bool) -> None:
        self.reasons: Counter[str] = Counter()
        self.collecting = collecting
        self._shuffler = shuffler
        self.number = number
        self._count = 0

    def add(self, answer: ReceivedReports, clients: Ids, position: int) -> Mask:
        """See `Batch`. Nothing is used that comes here: nodes have a shuffler of their own."""
        self.reasons["sent to the server instead of the shuffler"] += len(clients)
        return np.zeros(len(clients), dtype=bool)

    def close(self) -> Mask:
        """See `Batch`."""
        try:
            bitmap = self._shuffler.ask(wire.CLOSE, self.number)
        except wire.ShufflerError as error:
            if error.reason != "FAILED_PRECONDITION":
                raise
            raise PrivacyBudgetError(
                f"round {self.number}: fewer usable reports than privacy.min_reports = "
                f"{self._shuffler.min_reports}, or than the shuffler's own minimum, arrived; it "
                f"releases nothing{listed(self.reasons)}"
            ) from None
        present = wire.mask_of(bitmap, self._shuffler.agreement.clients)
        self._count = int(present.sum())
        return present

    def fetch(self) -> Iterator[bytes]:
        """Yield what is released of a closed round, piece by piece: the same bytes each time."""
        size, position = self._shuffler.agreement.piece_bytes, 0
        while page := self._shuffler.ask(
            wire.FETCH, self.number, position.to_bytes(wire.POSITION_BYTES, "big")
        ):
            pieces = pieces_of(page, size)
            position += len(pieces)
            yield from pieces

    def release(self) -> Shuffled:
        """See `Batch`."""
        agreement, keep, number = self._shuffler.agreement, self._shuffler.keep, self.number
        sent, pieces = self._count * agreement.batches, self.fetch()
        if agreement.release == "sum":
            return Shuffled(sent, total=torch.from_numpy(agreement.sum_in(next(pieces, b""))))
        total, rows, position = np.zeros(agreement.dimension), [], 0
        valid = np.zeros(agreement.batches, dtype=np.int64)
        for position, sealed in enumerate(islice(pieces, sent + 1), start=1):
            report = opened_report(sealed, self._shuffler.private, agreement, number)
            if report is None or position > sent:
                continue
            valid[(position - 1) // self._count] += 1
            if keep:
                rows.append(torch.from_numpy(report))
            else:
                total += report
        usable = int(valid.sum())
        if position != sent:
            raise RunError(
                f"the shuffler released {position} reports of round {number} and named "
                f"{self._count} clients"
            )
        if usable < sent:
            log.warning("round %d: %d of %d reports cannot be used", number, sent - usable, sent)
        fewest, least = int(valid.min()), max(agreement.min_reports, self._shuffler.honest)
        # Each batch is a round of its own to the accountant, which has one number for all of them.
        unusable = self._count - fewest
        if fewest < least:
            raise UnusableBatchError(
                f"{sent - usable} of {sent} reports cannot be used, and a batch has only {fewest} "
                f"others; privacy.min_reports and privacy.assumed_honest need {least}",
                unusable,
            )
        if keep:
            return Shuffled(usable, reports=torch.stack(rows), unusable=unusable)
        return Shuffled(usable, total=torch.from_numpy(total), unusable=unusable)
