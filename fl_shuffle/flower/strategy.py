"""The shuffler strategy: broadcast, collect, shuffle, account, step; round by round.

Unlike Flower's stock loop it can stop before a round that would overspend, and go on after a crash.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.aggregation.shuffler import Analyzer, PooledBatch, ReportBatch, within
from fl_shuffle.configuration.supernodes import SuperNodeFile
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.flower.exchange import (
    BEYOND,
    Cut,
    Turns,
    ask,
    every_client,
    exchange,
    requests,
    taking_partial_sums,
    taking_reports,
    taking_sums,
)
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.records import Layout, TrainRequest, reports_of
from fl_shuffle.flower.roster import Roster
from fl_shuffle.randomizers.pooled import PooledNoise
from fl_shuffle.seeds import SeedTree

Mask = NDArray[np.bool_]
# A reply's reports stay below so many bytes: memory is bounded. Many small ones would cost more.
CHUNK_BYTES = 1 << 24


class RoundBook(Protocol):
    """What the strategy tells about every round, and asks before it starts one."""

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """Book the round's worst case, durably, before the model is released.

        Returns the clients that may still take part, or None if the run must stop before this
        round because it would exceed a budget.
        """

    def commit(self, round_number: int, present: Mask, seconds: float) -> Spend | None:
        """Record what is about to be released.

        Returns None, and records nothing, if so few reports arrived that releasing them would
        exceed a budget: the batch must then be thrown away.
        """

    def checkpoint(self, round_number: int, state: dict[str, Any]) -> None:
        """Keep what is needed to resume after this round."""


@dataclass(frozen=True)
class RoundOutcome:
    """One finished round, as the outside sees it."""

    round_number: int
    spend: Spend
    dropped: int
    seconds: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Schedule:
    """Who takes part, and how their reports meet the model."""

    rounds: int
    sequential: bool = False
    participation: float = 1.0
    evaluate_every: int = 1
    timeout: float = 3600.0


class ShuffleStrategy(Strategy):
    """Federated learning in the shuffle model.

    Every round: choose participants, reserve the round in the book, broadcast the model, collect
    the clients' randomized reports, strip and shuffle them (see `ReportBatch`), commit what really
    arrived, and step the server optimizer on their mean. `aggregate` schedules average all reports
    of the round; `sequential` ones apply the reports one at a time in a fresh uniformly random
    order, the next client seeing the model after the previous report. The same run gives the same
    bits on every engine: noise is keyed by client, sums are exact, and requests are made of whole
    blocks of clients. `cut` names the blocks: given a round's clients in ascending order (those of
    one holder, in a deployment), the positions at which blocks begin, and the end; without it every
    client is a block. `group` reports have an exact sum in float32 already (see `exact_group`).

    No client ends or ruins a run: of a reply that is not the float32 array asked for nothing is
    used, nor a report with a coordinate beyond `largest` [clients], what an honest one can reach. A
    model that is not finite, or an analyzer's answer that is no step, stops the run (`failed`).

    `summed`: simulated nodes may answer with the sum of their clients' reports. It is exact, so the
    round's has the same bits. With `pooled` noise no reports are made: each request is answered by
    one sum of clipped means, and a round gets one vector of noise, with the law of the sum of the
    noise of those who answered. Both only for `aggregate` schedules without an analyzer.

    `foresee(number, expected, next)` is called while clients compute: what can be worked out ahead
    of reserving the next round, with participants `next`, should all of the `expected` report.
    """

    def __init__(
        self,
        *,
        clients: int,
        schedule: Schedule,
        optimizer: ServerOptimizer,
        book: RoundBook,
        seeds: SeedTree,
        min_reports: int = 2,
        group: int = 1,
        largest: NDArray[np.float64] | None = None,
        cut: Cut | None = None,
        analyzer: Analyzer | None = None,
        pooled: PooledNoise | None = None,
        layout: Layout | None = None,
        supernodes: SuperNodeFile | None = None,
        summed: bool = False,
        foresee: Callable[[int, Mask, Mask], None] | None = None,
        evaluate: Callable[[int, Tensor], dict[str, float]] | None = None,
        on_round: Callable[[RoundOutcome], None] | None = None,
    ) -> None:
        self._clients = clients
        self._schedule = schedule
        self._optimizer = optimizer
        self._book = book
        self._seeds = seeds
        self._min_reports = min_reports
        self._group = group
        self._largest = largest
        self._cut = cut or every_client
        self._analyzer = analyzer
        self._pooled = pooled
        self._summed = summed
        self._foresee = foresee
        self._evaluate = evaluate
        self._on_round = on_round
        self._roster = Roster(clients, schedule.timeout, supernodes)
        self._layout = layout or Layout.flat(optimizer.current().numel())
        self._causes: Counter[str] = Counter()
        # Of a round in which everybody takes part: the same every time.
        self._whole: dict[tuple[int, int], list[TrainRequest]] = {}
        self.stopped_early: str | None = None
        self.failed = False

    def run(self, grid: Grid, first_round: int = 1) -> Tensor:
        """Run the rounds from `first_round` on; returns the final parameters, float32 [d].

        Raises `PrivacyBudgetError` if fewer than `min_reports` usable reports arrive.
        """
        for number in range(first_round, self._schedule.rounds + 1):
            started = time.perf_counter()
            self._causes.clear()
            allowed = self._book.reserve(number, self._drawn(number))
            play = self._sequential_round if self._schedule.sequential else self._aggregate_round
            spend = None if allowed is None else play(grid, number, allowed)
            if allowed is None or spend is None:
                self.stopped_early = f"stopped before round {number}: it would exceed the budget"
                self.failed = number == 1
                break
            if not self.failed and not self._optimizer.is_finite():
                self._fail(number, "the model is no longer finite; lower server.learning_rate")
            last = number == self._schedule.rounds
            due = last or number % self._schedule.evaluate_every == 0
            metrics = {}
            if self._evaluate and due and not self.failed:
                metrics = self._evaluate(number, self._optimizer.released())
            if not self.failed:
                self._book.checkpoint(number, self._optimizer.state())
            if self._on_round:
                # A shuffler apart may have closed the round before it was reserved anew.
                dropped = max(0, int(np.count_nonzero(allowed)) - spend.n_reports)
                seconds = time.perf_counter() - started
                self._on_round(RoundOutcome(number, spend, dropped, seconds, metrics))
            if self.failed:
                break
        return self._optimizer.released()

    def _fail(self, number: int, why: str) -> None:
        self.failed = True
        self.stopped_early = f"stopped after round {number}, which is paid for: {why}"

    def _require(self, number: int, reports: int, grid: Grid) -> None:
        """Refuse a batch too small to hide anyone, and say what became of the others."""
        if reports >= self._min_reports:
            return
        causes = [f"{cause}: {count}" for cause, count in self._causes.most_common(5)]
        if isinstance(grid, InProcessGrid) and grid.hanging:
            causes.append(f"requests not answered in time: {grid.hanging}")
        raise PrivacyBudgetError(
            f"round {number}: {reports} usable reports arrived, below privacy.min_reports = "
            f"{self._min_reports}; the batch is not released"
            + (f" ({'; '.join(causes)})" if causes else "")
        )

    def _drawn(self, number: int) -> Mask:
        """The round's participants; raises `PrivacyBudgetError` if they are too few to report."""
        participants = self._participants(number)
        count = int(np.count_nonzero(participants))
        if count < self._min_reports:
            remedy = "raise it, or " if self._schedule.participation < 1.0 else "raise "
            raise PrivacyBudgetError(
                f"round {number}: training.participation = {self._schedule.participation:g} drew "
                f"{count} of {self._clients} clients, below privacy.min_reports = "
                f"{self._min_reports}; {remedy}data.clients"
            )
        return participants

    def _participants(self, number: int) -> Mask:
        if self._schedule.participation == 1.0:
            return np.ones(self._clients, dtype=bool)
        draw = self._seeds.numpy_generator(number, "participation").random(self._clients)
        return np.asarray(draw < self._schedule.participation)

    def _assign(self, grid: Grid, number: int, allowed: Mask, dimension: int) -> Turns:
        """The round's requests, each with a node that can play its clients; nodes take turns."""
        # A sum is as long for many clients as for few.
        reports = not (self._pooled or self._summed)
        most = max(1, CHUNK_BYTES // (4 * dimension)) if reports else self._clients
        everyone = bool(allowed.all())
        queues = []
        for held, nodes in self._roster.pools(grid):
            asked = len(nodes), most
            if held is None and everyone and asked in self._whole:
                wanted = [replace(one, round_number=number) for one in self._whole[asked]]
            else:
                chosen = allowed if held is None else allowed & held
                cut = requests(number, chosen, most, len(nodes), self._cut)
                wanted = [replace(one, summed=self._summed) for one in cut]
                if held is None and everyone:
                    self._whole = {asked: wanted}
            queues.append([(request, nodes[i % len(nodes)]) for i, request in enumerate(wanted)])
        return [turn for turns in zip_longest(*queues) for turn in turns if turn is not None]

    def _aggregate_round(self, grid: Grid, number: int, allowed: Mask) -> Spend | None:
        started = time.perf_counter()
        theta = self._optimizer.current()
        model = self._layout.record(theta.numpy())
        turns = self._assign(grid, number, allowed, theta.numel())
        timeout = self._schedule.timeout
        total = self._clients
        messages = (request.message(model, node, timeout, total) for request, node in turns)
        window = 2 * len({node for _, node in turns})
        batch: ReportBatch | PooledBatch
        present = np.zeros(self._clients, dtype=bool)
        if self._pooled is None:
            batch = ReportBatch(theta.numel(), keep=self._analyzer is not None, group=self._group)
            taking = taking_partial_sums if self._summed else taking_reports
            take = taking(turns, batch, present, self._largest, self._causes)
        else:
            batch = PooledBatch(theta.numel())
            take = taking_sums(turns, batch, present)
        ahead = None
        if self._foresee is not None and number < self._schedule.rounds:
            ahead = partial(self._foresee, number, allowed, self._participants(number + 1))
        exchange(grid, messages, take, window=window, timeout=timeout, meanwhile=ahead)
        self._require(number, batch.count, grid)
        spend = self._book.commit(number, present, time.perf_counter() - started)
        if spend is None:
            return None
        mean = self._estimate(batch, number, present)
        if not self.failed:
            self._optimizer.step(mean.to(torch.float32), number, self._schedule.rounds)
        return spend

    def _estimate(self, batch: ReportBatch | PooledBatch, number: int, present: Mask) -> Tensor:
        """What the server steps along: the mean of the reports, or what the analyzer makes of
        them."""
        if isinstance(batch, PooledBatch):
            assert self._pooled is not None
            generator = self._seeds.numpy_generator(number, "pooled noise")
            total = self._pooled.add_to(batch.release_sum(), present, generator)
            return torch.from_numpy(total / batch.count)
        if self._analyzer is None:
            return batch.release_sum() / batch.count
        order = self._seeds.numpy_generator(number, "permutation")
        return self._analyzed(batch.release(order), number)

    def _analyzed(self, reports: Tensor, number: int) -> Tensor:
        """The analyzer's estimate of the mean report [d], or a failure of the run."""
        assert self._analyzer is not None
        mean: Any = self._analyzer(reports)
        wanted = (reports.shape[1],)
        if not isinstance(mean, Tensor) or tuple(mean.shape) != wanted:
            shape = f" of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else ""
            what = f"{type(mean).__name__}{shape}"
            self._fail(
                number, f"server.analyzer returned {what}, no torch.Tensor of shape {wanted}"
            )
        elif not bool(torch.isfinite(mean).all()):
            self._fail(number, "server.analyzer returned numbers that are not finite")
        return torch.zeros(wanted) if self.failed else mean

    def _sequential_round(self, grid: Grid, number: int, allowed: Mask) -> Spend | None:
        started = time.perf_counter()
        order = self._seeds.numpy_generator(number, "permutation").permutation(
            np.flatnonzero(allowed)
        )
        if len(order) < self._min_reports:
            raise PrivacyBudgetError(
                f"round {number}: {len(order)} clients take part, below privacy.min_reports = "
                f"{self._min_reports}"
            )
        pools = self._roster.pools(grid)
        present = np.zeros(self._clients, dtype=bool)
        silent: set[int] = set()
        for index, client in enumerate(order.tolist()):
            nodes = next((nodes for held, nodes in pools if held is None or held[client]), None)
            if nodes is None:
                continue
            theta = self._optimizer.current()
            model = self._layout.record(theta.numpy())
            node = nodes[index % len(nodes)]
            if node in silent:
                continue
            timeout = self._schedule.timeout
            message = TrainRequest(number, client, 1).message(model, node, timeout, self._clients)
            reply = ask(grid, message, timeout=timeout)
            if reply is None:
                # It costs the round one timeout, not one for each of its clients.
                silent.add(node)
                continue
            reports = reports_of(reply, (1, theta.numel()), self._causes)
            if reports is None:
                continue
            report = torch.from_numpy(reports.copy())
            largest = None if self._largest is None else self._largest[client : client + 1]
            if bool(within(report, largest)):
                self._optimizer.step(report[0], number, self._schedule.rounds)
                present[client] = True
            else:
                self._causes[BEYOND] += 1
        self._require(number, int(np.count_nonzero(present)), grid)
        return self._book.commit(number, present, time.perf_counter() - started)

    # Flower's per-phase hooks: `run` drives the rounds itself, and `start` is the public way in.

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **kwargs: Any) -> Result:
        """Flower's entry point: starts from `initial_arrays` and returns Flower's `Result`.

        The number of rounds, evaluation and timeout are this strategy's own (constructor).
        """
        self._layout = Layout.of(initial_arrays)
        self._optimizer.load(torch.from_numpy(self._layout.flatten(initial_arrays)))
        result = Result()
        result.arrays = self._layout.record(self.run(grid).numpy())
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        size = sum(array.numpy().size for array in arrays.values())
        allowed = self._participants(server_round)
        for request, node in self._assign(grid, server_round, allowed, size):
            yield request.message(arrays, node, None, self._clients)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        batch = ReportBatch(self._optimizer.current().numel(), keep=False)
        for position, reply in enumerate(replies):
            reports = reports_of(reply)
            if reports is not None:
                batch.add(torch.from_numpy(reports), position)
        batch.require(self._min_reports)
        mean = (batch.release_sum() / batch.count).to(torch.float32)
        self._optimizer.step(mean, server_round, self._schedule.rounds)
        return self._layout.record(self._optimizer.current().numpy()), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Nothing to log: the run's header says what is run."""
