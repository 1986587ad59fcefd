"""Rounds whose shuffler is a party of its own: what nodes hand over, and what the server gets.

A node seals each report and gives it to the shuffler; its reply to the server holds nothing. The
server begins a round at the shuffler, asks the clients, closes the round, writes down who is in the
batch, and only then fetches it. The shuffler has one batch for each round and gives the same bytes
until the step they led to is durable: whoever is killed, the round goes on where it was.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, PrivacyBudgetError, RunError
from fl_shuffle.flower.exchange import exchange
from fl_shuffle.flower.records import REQUEST_RECORD, TrainRequest
from fl_shuffle.flower.strategy import Mask, RoundBook, ShuffleStrategy
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.shuffling.agreement import Agreement, report_of_bytes, require_run
from fl_shuffle.shuffling.credentials import Pass, read_key
from fl_shuffle.shuffling.link import PAUSE_SECONDS, Receiver, Sender, ShufflerError
from fl_shuffle.shuffling.sealing import SealError, open_sealed
from fl_shuffle.shuffling.summing import sum_of_content
from fl_shuffle.shuffling.wire import HANDED_OVER, OPEN

log = logging.getLogger("fl_shuffle.run.shuffler")

SHUFFLER = "shuffler"
"""In a node's configuration its site's pass, in the server's run configuration the analyzer's."""
ANALYZER_KEY = "analyzer-key"
"""In a node's configuration the analyzer's public key, in the server's run configuration the
private one: files, all of them."""
RUN = "run"
"""The run's identifier in a request."""

Committed = tuple[int, Mask, Spend]
"""A round that the ledger has counted and that no step has been taken for: (round, whose reports,
spend)."""


def agreement_of(run: str, config: Config, plan: RandomizerPlan, dimension: int) -> Agreement:
    """What this run's parties agree on: each computes it from the public configuration."""
    exponent = math.frexp(float(plan.step.min()))[1] - 1  # steps are powers of two
    return Agreement(
        run=run,
        release=config.privacy.release,
        clients=config.data.clients,
        dimension=dimension,
        min_reports=config.privacy.min_reports,
        exponent=exponent,
        largest=math.ceil(float(plan.largest.max()) / 2.0**exponent),
    )


def sender_of(config: Config, node_config: Mapping[str, object]) -> Sender | None:
    """A node's way to its shuffler; None where the server is the shuffler, too.

    What the node's own configuration says stands above the run's, which the server writes: raises
    `ConfigError` if a node that has a shuffler is asked for reports without, or one that has none
    is asked to use it.
    """
    own, key = node_config.get(SHUFFLER), node_config.get(ANALYZER_KEY)
    apart = config.privacy.shuffler == "apart"
    if own is None:
        if apart:
            raise ConfigError(
                "privacy.shuffler = 'apart': this node knows no shuffler; start it with "
                f'--node-config \'{SHUFFLER}="/path/site.json" {ANALYZER_KEY}="/path/key.pub"\''
            )
        return None
    if not apart:
        raise ConfigError(
            f"privacy.shuffler = {config.privacy.shuffler!r}: this node hands reports to its own "
            "shuffler and to nobody else; use 'apart'"
        )
    if config.privacy.release != "sum" and key is None:
        raise ConfigError(f"node-config names a {SHUFFLER} and no {ANALYZER_KEY}")
    public = None if key is None else read_key(_file(ANALYZER_KEY, key), private=False)
    return Sender(Pass.read(_file(SHUFFLER, own), "site"), public, config.run.timeout)


def receiver_of(
    config: Config, run_config: Mapping[str, object], agreement: Callable[[], Agreement]
) -> tuple[Receiver, bytes] | None:
    """The server's way to its shuffler, and the analyzer's private key (empty where only sums
    leave); None where the server is the shuffler. Raises `ConfigError` for half of it."""
    own, key = str(run_config.get(SHUFFLER, "")), str(run_config.get(ANALYZER_KEY, ""))
    if config.privacy.shuffler != "apart":
        if own or key:
            raise ConfigError(
                f"--run-config names a {SHUFFLER if own else ANALYZER_KEY}, and privacy.shuffler = "
                f"{config.privacy.shuffler!r} uses none; set it to 'apart'"
            )
        return None
    one_by_one = config.privacy.release == "reports"
    missing = [name for name, value in ((SHUFFLER, own), (ANALYZER_KEY, key)) if not value]
    if not own or (one_by_one and not key):
        raise ConfigError(
            f"privacy.shuffler = 'apart': --run-config names no {missing[0]}; start the run with "
            f"flwr run and the analyzer's files, see docs/deployment.md"
        )
    private = read_key(_file(ANALYZER_KEY, key), private=True) if one_by_one else b""
    access = Pass.read(_file(SHUFFLER, own), "analyzer")
    return Receiver(access, agreement(), config.run.timeout), private


def _file(name: str, value: object) -> Path:
    path = Path(str(value))
    if not isinstance(value, str) or not path.is_absolute():
        raise ConfigError(f"{name} = {value!r}: must be an absolute file name")
    return path


def run_named_in(message: Message) -> str:
    """The identifier of the run that a request is part of; raises `InvalidValueError`."""
    return require_run(message.content.config_records.get(REQUEST_RECORD, ConfigRecord()).get(RUN))


def hand_over(
    sender: Sender,
    agreement: Agreement,
    request: TrainRequest,
    reports: NDArray[np.float32],
    sent: Mask,
) -> None:
    """Give these reports [k, d], as far as they are to be `sent` [k], to the shuffler."""
    for client, report in zip(request.clients[sent].tolist(), reports[sent], strict=True):
        sender.send(agreement, request.round_number, client, report)


def reply_with_nothing(request: Message) -> Message:
    """That the request was worked on."""
    return Message(RecordDict(), reply_to=request)


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
        if committed is not None and receiver.begin(committed[0], committed[1]) != OPEN:
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
            made = request.message(model, node, timeout)
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
