"""Federated learning in the shuffle model, as a Flower strategy.

Round by round: reserve, broadcast, collect, shuffle, account, step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from fl_shuffle._internal.arrays import Mask
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.data.evaluation import numbers_by_name
from fl_shuffle.errors import ConfigError, PrivacyBudgetError, ProgramError, RunError
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.flower.first_trainings import PROGRAM_FAILS
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import exchange
from fl_shuffle.flower.messages import ArrayLayout, read_answer, vector_of
from fl_shuffle.flower.nodes import Assignment, Broadcast, Nodes
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.runs.events import RoundOutcome
from fl_shuffle.shuffler.local import (
    Batch,
    ReceivedReports,
    Reports,
    Shuffled,
    Shuffler,
    UnusableBatchError,
)

Evaluate = Callable[[int, ArrayRecord], Mapping[str, Any] | None]
"""(round, the model's arrays) -> metrics of it on public records."""
Taken = Callable[[ReceivedReports, Mask], None]
"""What is done with an answer, and which of its reports are in the batch."""

NO_EVALUATION = (
    "no client is asked to evaluate, since its answer would be exact numbers about private records"
)
PLAYED_BY_START = (
    "ShuffleStrategy runs its rounds itself, and the ledger checks each one before it starts; "
    "Flower's own loop, or a strategy around this one, would skip that: call start(grid, arrays)"
)


class RoundLedger(Protocol):
    """What the strategy asks before a round, and tells before anything of it is released."""

    first_round: int
    """The first round: 1, or the one with which a run continues."""

    def reserve(self, round_number: int, participants: Mask) -> Mask | None:
        """Write the round's worst case down, durably.

        Returns the clients that may take part; None if the run must stop here, because the round
        would exceed a budget.
        """

    def commit(self, round_number: int, present: Mask) -> Spend | None:
        """Write down whose reports are about to be released.

        Returns None, and writes nothing, if they are so few that releasing them would exceed a
        budget: nothing may then be.
        """

    def amend(self, round_number: int, present: Mask, unusable: int) -> tuple[Spend, str]:
        """Write down, durably, how many of the committed round's reports cannot be used.

        They hide nobody, and whose they are is unknown. Returns what has been spent, and which
        budget that exceeds, in words (empty if none).
        """

    def record(self, outcome: RoundOutcome, state: dict[str, Any] | None) -> None:
        """Write down what came of it, and what is needed to go on after it (None: nothing is)."""


class PlayedByStart(Strategy):
    """A strategy whose `start` plays all rounds.

    A caller of Flower's hooks for one phase each would go around the ledger.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> NoReturn:
        """Raise `RunError`: a round that another loop plays is in no ledger."""
        raise RunError(PLAYED_BY_START)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> NoReturn:
        """Raise `RunError`: the model steps only where the ledger has counted the round."""
        raise RunError(PLAYED_BY_START)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: answers would be exact numbers about private records."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Do nothing."""

    def summary(self) -> None:
        """Log nothing: the run's header says what is run."""


@dataclass(kw_only=True, eq=False)
class ShuffleStrategy(PlayedByStart):
    """Flower strategy that trains with shuffled, randomized reports.

    Use it in your ServerApp in place of a strategy such as FedAvg. Create it with `of`, which reads
    everything from the run's configuration, and call `start` once. In every round,

    1. the ledger reserves what the round may cost at most,
    2. the model is sent to the nodes of the participating clients,
    3. the nodes answer with randomized reports, and the shuffler removes the senders,
    4. the ledger commits the clients whose reports arrived, and
    5. only then are the reports released, and the model takes a step.

    Parameters
    ----------
    shuffler : Shuffler
        Collects the reports of a round and releases them in random order, or their sum.
    ledger : RoundLedger
        Reserves, commits, and records rounds.
    optimizer : ServerOptimizer
        Updates the model.
    schedule : Schedule
        Which clients take part in which round.
    nodes : Nodes
        Which Flower node runs which clients.
    analyzer : callable, default Shuffled.mean
        Makes the direction of the step, shape (parameters,), of what the shuffler releases.
    frozen : Frozen, optional
        Arrays that travel beside the trained ones, and stay as they are.
    keep : callable, optional
        Called after each round that is written down, with its number and with what gives the model.

    Attributes
    ----------
    stopped : str or None
        Why the run ended early.
    failed : bool
        Whether the run stopped because the model, or what the analyzer returned, was not finite. No
        client's reply stops a run.
    answered : bool
        Whether any node has sent a report, or a sum of them.

    Notes
    -----
    The same run gives the same bits on every engine: noise is keyed by client, sums are exact, and
    requests hold whole blocks of clients.
    """

    shuffler: Shuffler
    ledger: RoundLedger
    optimizer: ServerOptimizer
    schedule: Schedule
    nodes: Nodes
    analyzer: Callable[[Shuffled], Tensor] = Shuffled.mean
    frozen: Frozen | None = None
    keep: Callable[[int, Callable[[], ArrayRecord]], None] | None = None
    stopped: str | None = field(default=None, init=False)
    failed: bool = field(default=False, init=False)
    answered: bool = field(default=False, init=False)
    """Whether any node has sent a report, or a sum of them."""

    def __post_init__(self) -> None:
        self._dimension = self.optimizer.current().numel()
        self._rounds = 0
        self._asked = 0

    @staticmethod
    def of(
        context: Context,
        *,
        beside: str | Path | None = None,
        model: nn.Module | None = None,
        **fedavg: object,
    ) -> Strategy:
        """Return the strategy of a run as its configuration says, for your own ServerApp.

        Shuffler, ledger, accountant, optimizer, and nodes come from the configuration that the run
        names. A run directory like any other remains.

        Parameters
        ----------
        context : Context
            The ServerApp's context.
        beside : str or Path, optional
            The app's ``__file__``, beside which relative paths of the configuration are looked for.
        model : torch.nn.Module, optional
            Says what is trained: those of its parameters that ask for a gradient, tied ones once.
            All of the arrays without it.
        **fedavg
            What a stock strategy takes and this one cannot, refused by name.

        Returns
        -------
        Strategy
            Call its `start` once.

        Raises
        ------
        ConfigError
            For a configuration that is missing or that such apps cannot have, and for every
            argument of `fedavg`.

        Examples
        --------
        In a ServerApp's main function::

            strategy = ShuffleStrategy.of(context, beside=__file__)
            result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()))
        """
        from fl_shuffle.flower.configured import ConfiguredStrategy

        return ConfiguredStrategy(context, beside, model, fedavg)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the ledger's first round to round `num_rounds`.

        A resumed run continues from the optimizer's state.

        Parameters
        ----------
        grid : Grid
            Flower's connection to the nodes.
        initial_arrays : ArrayRecord
            The model's arrays.
        num_rounds : int, default 3
            Number of the last round.
        timeout : float, optional
            Seconds until a request is given up. By default, that of the nodes.
        train_config : ConfigRecord, optional
            Goes to the clients with every request.
        evaluate_config : ConfigRecord, optional
            Must be left out or empty: no client is asked to evaluate.
        evaluate_fn : callable, optional
            ``evaluate_fn(round, arrays)`` measures the model on public records, after each round
            that the schedule evaluates.

        Returns
        -------
        Result
            Flower's result: the final arrays, and what `evaluate_fn` has measured.

        Raises
        ------
        PrivacyBudgetError
            If fewer usable reports arrive than may be released.
        ConfigError
            For an `evaluate_config`.
        """
        require_no_evaluation(evaluate_config)
        self._layout, self._rounds = ArrayLayout.of(initial_arrays), num_rounds
        seconds = self.nodes.timeout if timeout is None else timeout
        beside = {} if self.frozen is None else self.frozen.records()
        self._broadcast = Broadcast(seconds, train_config, beside)
        if self.ledger.first_round == 1:
            self.optimizer.load(vector_of(initial_arrays))
        result = Result()
        for number in range(self.ledger.first_round, num_rounds + 1):
            started = time.perf_counter()
            spend = self._play(grid, number)
            if spend is None:
                self.stopped = f"stopped before round {number}: it would exceed the budget"
                self.failed = number == 1
                break
            if not self.failed and not self.optimizer.is_finite():
                self._fail(number, "the model is no longer finite; lower server.learning_rate")
            due = number == num_rounds or number % self.schedule.evaluate_every == 0
            metrics = {}
            if evaluate_fn is not None and due and not self.failed:
                metrics = metrics_in(evaluate_fn(number, self.released()))
                result.evaluate_metrics_serverapp[number] = MetricRecord({**metrics})
            # A remote shuffler may have closed the round before it was reserved anew.
            dropped = max(0, self._asked - spend.num_reports)
            seconds = time.perf_counter() - started
            self.ledger.record(
                RoundOutcome(number, spend, dropped, seconds, metrics),
                None if self.failed else self.optimizer.state(),
            )
            if self.failed:
                break
            if self.keep is not None:
                self.keep(number, self.released)
        result.arrays = self.released()
        return result

    def _play(self, grid: Grid, number: int) -> Spend | None:
        """Play one round; return None if it would exceed a budget."""
        drawn = self.schedule.participants(number, self.shuffler.min_reports)
        allowed = self.ledger.reserve(number, drawn)
        if allowed is None:
            return None
        self._asked = int(np.count_nonzero(allowed))
        self.shuffler.forget(number - 1)  # the reservation has made its step durable
        one_by_one = self.schedule.sequential
        order = self.schedule.order(number, allowed) if one_by_one else []
        if one_by_one and len(order) < self.shuffler.min_reports:  # all are released as they come
            raise PrivacyBudgetError(
                f"round {number}: {len(order)} clients take part, below privacy.min_reports = "
                f"{self.shuffler.min_reports}"
            )
        batch = self.shuffler.open(number, allowed)
        if one_by_one:
            self._one_after_another(grid, number, order, batch)
        elif batch.collecting:  # not if a stopped run had closed it already
            assignments = self.nodes.assignments(grid, number, allowed, self._dimension)
            self._collect(grid, assignments, batch)
        present = batch.close()
        spend = self.ledger.commit(number, present)
        if spend is None:
            self.shuffler.forget(number)
        elif not one_by_one:
            spend = self._step(number, batch, present, spend)
        return spend

    def _collect(
        self,
        grid: Grid,
        assignments: Sequence[Assignment],
        batch: Batch,
        taken: Taken | None = None,
    ) -> bool:
        """Broadcast the model, and hand what nodes answer to the shuffler.

        Returns whether all have answered.
        """
        model = self._layout.record(self.optimizer.current().numpy())
        late = set(range(len(assignments)))

        def take(position: int, reply: Message) -> None:
            request = assignments[position][0]
            late.discard(position)
            if reply.has_error() and reply.error.code == PROGRAM_FAILS and self.nodes.simulated:
                raise ProgramError(str(reply.error.reason))
            answer = read_answer(
                reply,
                request,
                self._dimension,
                batch.reasons,
                self.shuffler.batches,
                self.nodes.few_bits,
            )
            if answer is not None:
                self.answered = True
                valid = batch.add(answer, request.clients, position)
                if taken is not None:
                    taken(answer, valid)

        exchange(
            grid,
            self._broadcast.messages(assignments, model, self.shuffler.facts),
            take,
            window=2 * len({node for _, node in assignments}),
            timeout=self._broadcast.timeout,
        )
        for position in late:
            batch.reasons["not answered in time"] += len(assignments[position][0].clients)
        return not late

    def _one_after_another(self, grid: Grid, number: int, order: list[int], batch: Batch) -> None:
        """Let each report move the model that the next client is sent.

        All of it was reserved as released.
        """

        def step(answer: ReceivedReports, valid: Mask) -> None:
            if isinstance(answer, Reports) and valid.all():
                report = torch.from_numpy(answer.rows[0].copy())
                self.optimizer.step(report, number, self._rounds)

        silent: set[int] = set()
        for request, node in self.nodes.one_by_one(grid, number, order):
            # A node that is silent costs the round one timeout, not one for each of its clients.
            if node not in silent and not self._collect(grid, [(request, node)], batch, step):
                silent.add(node)

    def _step(self, number: int, batch: Batch, present: Mask, spend: Spend) -> Spend:
        """Move the model against what the analyzer makes of the batch, or stop if it is nothing.

        Returns what has been spent, unusable reports considered.
        """
        try:
            shuffled = batch.release()
            if shuffled.unusable:
                # Before the step: what readers of the model get is on record with its whole cost.
                spend, too_much = self.ledger.amend(number, present, shuffled.unusable)
                if too_much:
                    self._fail(number, f"unusable reports made it cost {too_much}")
                    return spend
            found = self.analyzer(shuffled)
        except UnusableBatchError as error:
            if error.unusable:
                spend, _ = self.ledger.amend(number, present, error.unusable)
            self._fail(number, str(error))
        else:
            self.optimizer.step(found.to(torch.float32), number, self._rounds)
        return spend

    def _fail(self, number: int, why: str) -> None:
        self.failed = True
        self.stopped = f"stopped after round {number}, whose privacy spend is recorded: {why}"

    def released(self) -> ArrayRecord:
        """Return the whole model, as it is evaluated and returned."""
        trained = self._layout.record(self.optimizer.released().numpy())
        return trained if self.frozen is None else self.frozen.whole(trained)


def metrics_in(found: object) -> dict[str, float]:
    """Return names and numbers of what an `evaluate_fn` returned; none of None.

    Raises `ConfigError` for anything else.
    """
    return {} if found is None else numbers_by_name(found, "evaluate_fn")


def require_no_evaluation(evaluate_config: ConfigRecord | None) -> None:
    """Refuse settings for an evaluation by clients; raises `ConfigError`."""
    if evaluate_config:
        raise ConfigError(
            f"evaluate_config has no effect: {NO_EVALUATION}; leave it out, and measure on public "
            "records with evaluate_fn"
        )
