"""The server's rounds with a shuffler apart, and how a run that was stopped goes on with one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.errors import PrivacyBudgetError, RunError
from fl_shuffle.flower.apart.parties import RUN
from fl_shuffle.flower.exchange import exchange
from fl_shuffle.flower.records import REQUEST_RECORD, TrainRequest
from fl_shuffle.flower.strategy import Mask, RoundBook, ShuffleStrategy
from fl_shuffle.shuffling.agreement import report_of_bytes
from fl_shuffle.shuffling.link import PAUSE_SECONDS, Receiver, ShufflerError
from fl_shuffle.shuffling.sealing import SealError, open_sealed
from fl_shuffle.shuffling.summing import sum_of_content
from fl_shuffle.shuffling.wire import HANDED_OVER, OPEN

log = logging.getLogger("fl_shuffle.run.shuffler")

Committed = tuple[int, Mask, Spend]
"""A round that the ledger has counted and that no step has been taken for: (round, whose reports,
spend)."""


class GoingOn:
    """The book of a run that was stopped between counting a round and stepping: that round is
    neither reserved nor counted again."""

    def __init__(self, book: RoundBook, committed: Committed) -> None:
        self._book = book
        self._number, self._present, self._spend = committed

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        if round_number == self._number:
            return self._present.copy()
        return self._book.reserve(round_number, participants)

    def commit(self, round_number: int, present: Mask, seconds: float) -> Spend | None:
        if round_number != self._number:
            return self._book.commit(round_number, present, seconds)
        if not np.array_equal(present, self._present):
            raise RunError(
                f"the shuffler's batch of round {round_number} holds other clients' reports than "
                "the ledger has counted; put the run's own ledger back"
            )
        return self._spend

    def checkpoint(self, round_number: int, state: dict[str, Any]) -> None:
        self._book.checkpoint(round_number, state)


class ApartStrategy(ShuffleStrategy):
    """`ShuffleStrategy` with a shuffler apart: `settings` are those of its base.

    `private` is the analyzer's key. `honest` says how many of so many reports must be honest ones:
    which client sent a report that cannot be used is not known, so that a batch with fewer usable
    ones ends the run. `committed`: see `Committed`.
    """

    def __init__(
        self,
        *,
        receiver: Receiver,
        private: bytes,
        honest: Callable[[int], int],
        committed: Committed | None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._receiver = receiver
        self._private = private
        self._honest = honest
        self._most = None if self._largest is None else self._largest.max(keepdims=True)
        if committed is not None:
            _require_closed(receiver, committed)
            self._book = GoingOn(self._book, committed)

    def _aggregate_round(self, grid: Grid, number: int, allowed: Mask) -> Spend | None:
        started = time.perf_counter()
        if number > 1:
            # The reservation of this round made the step of the one before durable.
            self._receiver.finish(number - 1)
        standing = self._receiver.begin(number, allowed)
        if standing == HANDED_OVER:
            raise RunError(
                f"the shuffler has handed round {number} over already: this run directory is older "
                "than the run; put the newer one back"
            )
        if standing == OPEN:
            self._ask_clients(grid, number, allowed)
        present = self._receiver.close_round(number)
        if present is None:
            causes = [f"{cause}: {count}" for cause, count in self._causes.most_common(5)]
            raise PrivacyBudgetError(
                f"round {number}: fewer usable reports than privacy.min_reports = "
                f"{self._min_reports}, or than the shuffler's own minimum, arrived; it releases "
                "nothing" + (f" ({'; '.join(causes)})" if causes else "")
            )
        spend = self._book.commit(number, present, time.perf_counter() - started)
        if spend is None:
            self._receiver.finish(number)
            return None
        mean = self._fetched(number, int(present.sum()))
        if not self.failed:
            self._optimizer.step(mean.to(torch.float32), number, self._schedule.rounds)
        return spend

    def finished(self, rounds: int) -> None:
        """Have the shuffler forget the last round's batch: the run's results are durable."""
        if rounds:
            self._receiver.finish(rounds)

    def _ask_clients(self, grid: Grid, number: int, allowed: Mask) -> None:
        theta = self._optimizer.current()
        model = self._layout.record(theta.numpy())
        turns = self._assign(grid, number, allowed, theta.numel())
        timeout, run = self._schedule.timeout, self._receiver.agreement.run

        def message(request: TrainRequest, node: int) -> Message:
            made = request.message(model, node, timeout, allowed.size)
            made.content.config_records[REQUEST_RECORD][RUN] = run
            return made

        def take(position: int, reply: Message) -> None:
            if reply.has_error():
                self._causes["failed"] += len(turns[position][0].clients)

        messages = (message(request, node) for request, node in turns)
        window = 2 * len({node for _, node in turns})
        exchange(grid, messages, take, window=window, timeout=timeout)

    def _fetched(self, number: int, reports: int) -> Tensor:
        """The mean [d] of the released reports, or what the analyzer makes of them."""
        until = time.monotonic() + self._schedule.timeout
        while True:
            try:
                if self._receiver.agreement.release == "sum":
                    (total,) = self._receiver.batch(number)
                    exact = sum_of_content(total, self._receiver.agreement)
                    return torch.from_numpy(exact) / reports
                return self._opened(number, reports)
            except ShufflerError as error:
                if not error.passing or time.monotonic() > until:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _opened(self, number: int, reports: int) -> Tensor:
        agreement = self._receiver.agreement
        batch = ReportBatch(agreement.dimension, keep=self._analyzer is not None, group=self._group)
        info, pieces = agreement.info(number), 0
        for sealed in self._receiver.batch(number):
            try:
                report = report_of_bytes(open_sealed(sealed, self._private, info), agreement)
            except SealError:
                report = None
            if report is not None:
                batch.add(torch.from_numpy(report)[None], pieces, self._most)
            pieces += 1
        if pieces != reports:
            raise RunError(
                f"the shuffler released {pieces} reports of round {number} and named {reports} "
                "clients"
            )
        unusable = reports - batch.count
        if unusable:
            log.warning("round %d: %d of %d reports cannot be used", number, unusable, reports)
        if batch.count < max(1, self._honest(reports)):
            self._fail(
                number,
                f"{unusable} of {reports} reports cannot be used, and whose they are is not known: "
                "fewer are honest than is assumed (privacy.assumed_honest); if some clients may "
                "not be, say how many are, in a new run",
            )
            return torch.zeros(agreement.dimension)
        return self._estimate(batch, number, np.zeros(0, dtype=bool))


def _require_closed(receiver: Receiver, committed: Committed) -> None:
    """Raises `RunError` where the shuffler does not know that a counted round is closed: a round is
    counted after its close is durable.

    The question is a beginning that asks nobody: a closed round stays as it is, and one that is not
    takes no report.
    """
    number, present, _ = committed
    if receiver.begin(number, np.zeros_like(present)) == OPEN:
        raise RunError(
            f"the shuffler's store is older than the run, whose ledger has counted round {number} "
            "already; put the right one back, or start a new run"
        )
