"""A federation: what a run's configuration comes to, put together once, for both sides.

`server/app.py` and `clients/app.py` each ask `Federation.of(context)` for the same public facts
(who has which budget, what noise and clip that buys) and take what is theirs: the server a model, a
shuffler and test records, a node its clients' records, a clipper and a randomizer. `RunParts` is
what of it needs nobody's records: all that there is where model and records are a user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import Any, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid
from torch import Tensor, nn

from fl_shuffle._internal.arrays import Ids
from fl_shuffle._internal.threads import keep_one_thread
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.budgets import Budgets, are_totals, make_budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.evaluation import evaluator, require_readable_held_out
from fl_shuffle.data.models import SHIPPED_MODELS, try_own_model
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.federation.robust import analyzer_of, try_analyzer
from fl_shuffle.flower import messages
from fl_shuffle.flower.answers import Answer, Node, ReportsAnswer, Request, SealedAnswer, SumAnswer
from fl_shuffle.flower.first_trainings import FirstTrainings
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.node_registry import read_supernodes, reply_with_holding
from fl_shuffle.flower.nodes import Nodes, every_client
from fl_shuffle.flower.remote_shuffler import agreement_of, link_of, run_named_in
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.flower.server_errors import require_run_config
from fl_shuffle.flower.settings import (
    config_of,
    is_simulated,
    require_simulated,
    require_solved_here,
)
from fl_shuffle.gradients import make_gradient_engine, packing_of
from fl_shuffle.gradients.blocks import Packing
from fl_shuffle.gradients.clipper import ClientRecords, Clipper, make_clipper, starts_of_pieces
from fl_shuffle.gradients.engine import GradientEngine, Loss
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.gradients.sum_of_means import SumOfMeans, make_sum_of_means
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.own_trial import try_randomizer
from fl_shuffle.randomizers.personal import NoiseSource, Randomizer, make_randomizer
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.randomizers.total_budgets import searched
from fl_shuffle.runs.directory import RunPlace
from fl_shuffle.runs.display import FlowerLog
from fl_shuffle.runs.events import Preparing, observer_of
from fl_shuffle.runs.facts import DataFacts, RunFacts
from fl_shuffle.runs.run import Run, open_run, try_saving
from fl_shuffle.shuffler.aggregate import AggregateShuffler
from fl_shuffle.shuffler.local import LocalShuffler, Shuffled
from fl_shuffle.shuffler.remote.client import RemoteShuffler

RoundMeasure = Callable[[int, ArrayRecord], dict[str, float]]
"""(round, the model's arrays) -> metrics of it on public records."""


class RunParts:
    """A run's parts that need nobody's records. Build with `of`.

    `source` is that of the clients' noise, the run's own unless given. Several threads may ask for
    parts: each is made once, and immutable or locked.
    """

    def __init__(
        self,
        config: Config,
        budgets: Budgets,
        randomizers: Calibration,
        source: NoiseSource | None = None,
    ) -> None:
        self.config = config
        self.budgets = budgets
        self.randomizers = randomizers
        self.first_trainings = FirstTrainings(config.data.clients)
        self._source = source
        self._making = RLock()
        self._nodes: dict[object, Node] = {}
        self._tried = set[int]()

    @classmethod
    def of(cls, context: Context, *, beside: str | Path | None = None) -> Self:
        """Return the parts of the run that a context belongs to; this process keeps the last run's.

        Two runs never share a source of noise. Relative paths of the configuration are looked for
        beside the file `beside` first. Raises `ConfigError` for a configuration that is missing,
        that asks for a simulation where there is none, or that these parts cannot be made of.
        """
        config, run = config_of(tuple(context.run_config.items()), beside), context.run_id

        def make() -> RunParts:
            require_simulated(context, config)
            if searched(config) and are_totals(config.budgets):
                require_solved_here(context)
            return cls.made_of(config, run)

        parts = run_cache.get("parts", (cls, config), make, run=run)
        assert isinstance(parts, cls)
        return parts

    @classmethod
    def made_of(cls, config: Config, run: Hashable = None) -> Self:
        """Return the parts of this `run` for clients whose data and model are a user's own; raises
        `InvalidValueError` for a configuration that cannot be run so."""
        declared = config.privacy.randomizer in ("declared", "none")
        if config.privacy.unit != "client" and not config.data.records_per_client and not declared:
            raise InvalidValueError(
                "data.records_per_client",
                0,
                "must be set for your own app with privacy.unit = 'record': the number of records "
                "per client is public",
                "set it, or clip whole updates with privacy.unit = 'client'",
            )
        if config.run.entropy == "seeded":
            # The last bits of the app's training depend on the number of threads, too, and are to
            # be the same on every engine.
            keep_one_thread()
        budgets = make_budgets(config.budgets, config.data.clients)
        records = np.full(
            config.data.clients, max(1, config.data.records_per_client), dtype=np.int64
        )
        return cls(config, budgets, make_plan(config, budgets, records))

    # What a node's clients do.

    @property
    def records_each(self) -> int:
        """Of how many records each client makes its mean, where the app gives them."""
        return max(1, self.config.data.records_per_client)

    def gradient_engine(
        self, model: nn.Module, records: int, shape: tuple[int, ...], loss: Loss | None
    ) -> GradientEngine:
        """Return the engine for `records` of this shape in all, with the run's clipping; a `loss`
        of None is cross entropy."""
        return make_gradient_engine(
            model,
            clip="record" if self.config.clipping == "record" else "none",
            norm=self.randomizers.norm,
            device=self.config.run.device,
            loss=loss,
            records=records,
            shape=shape,
        )

    @cached_property
    def randomizer(self) -> Randomizer:
        """Every client's own local randomizer."""
        return make_randomizer(self.config, self.randomizers, self._source)

    def request(self, message: Message, context: Context) -> Request:
        """Return what the server asks of this node.

        Raises `InvalidValueError` for a request that makes no sense or is for clients whose records
        lie elsewhere, and where the trial refuses a randomizer of the user's own; `ConfigError`
        where the node's configuration forbids to answer it.
        """
        total = self.config.data.clients
        asked = messages.TrainRequest.of(message, total)
        self._node(context).require_held(asked)
        require_simulated(context, self.config, summed=asked.summed)
        model = self.parameters_in(message)
        self._try_randomizer(len(model))
        return Request(message, context, asked.round_number, model, asked.clients, asked.summed)

    def parameters_in(self, message: Message) -> Tensor:
        """Return the model of a request, float32 [d]; raises `InvalidValueError` if there is
        none."""
        return messages.vector_of(messages.model_in(message.content))

    def answer(self, request: Request) -> Answer:
        """Return an empty answer: reports one by one, or their exact sum where the request allows
        it.

        Raises `InvalidValueError` for a request to a node with a shuffler that names no run.
        """
        node, plan = self._node(request.context), self.randomizers
        if node.sender is not None:
            run = run_named_in(request.message)
            agreement = agreement_of(run, self.config, plan, len(request.model))
            return SealedAnswer(request, plan, node, agreement)
        if request.summed and node.record is None:
            return SumAnswer(request, plan, self._pieces(request.clients, len(request.model)))
        return ReportsAnswer(request, plan, node)

    def _node(self, context: Context) -> Node:
        """Return what a node's own configuration says, read once: a simulation's nodes are
        alike."""
        own = tuple(sorted(context.node_config.items()))
        with self._making:
            if own not in self._nodes:
                self._nodes[own] = Node.of(context, self.config, **self._dealt())
            return self._nodes[own]

    def _dealt(self) -> dict[str, Any]:
        """Return how records are dealt to clients, for a node's own record: as an app's code
        says."""
        return {"dealt": False}

    def _pieces(self, clients: Ids, dimension: int) -> list[Ids]:
        """Return whole blocks of these clients, as many at a time as rows are held."""
        starts = starts_of_pieces(self.blocks(clients), dimension)
        return [clients[a:b] for a, b in pairwise(starts.tolist())]

    def blocks(self, clients: Ids) -> Ids:
        """Return where blocks of clients that are computed together begin, and the end: a request
        has whole ones, so that bits do not depend on nodes."""
        return every_client(clients)

    def holding(self, question: Message, context: Context) -> Message:
        """Return which clients this node plays."""
        return reply_with_holding(question, context, self.config.data.clients)

    # What the server does.

    @cached_property
    def seeds(self) -> SeedTree:
        """Of what the server draws: participants, orders, aggregate noise."""
        return SeedTree(self.config.run.seed if self.config.run.entropy == "seeded" else None)

    @property
    def schedule(self) -> Schedule:
        """Which clients answer which model."""
        training = self.config.training
        return Schedule(
            self.config.data.clients,
            self.seeds,
            participation=training.participation,
            sequential=training.schedule == "sequential",
            evaluate_every=self.config.run.evaluate_every,
        )

    @property
    def analyzer(self) -> Callable[[Shuffled], Tensor]:
        """What the server makes of the shuffled reports: their mean, or an estimate of it from
        single ones."""
        return analyzer_of(self.config.server)

    def nodes(self, grid: Grid) -> Nodes:
        """Return who can be asked for whose reports. Raises `ConfigError` for a bad
        `run.supernodes`."""
        config, listed = self.config, self.config.run.supernodes
        return Nodes(
            config.data.clients,
            config.run.timeout,
            self.blocks,
            summed=self.nodes_add_up(grid),
            simulated=isinstance(grid, InProcessGrid) or is_simulated(config),
            supernodes=read_supernodes(listed, config.data.clients) if listed else None,
            few_bits=self.randomizers.few_bits,
        )

    def nodes_add_up(self, grid: Grid) -> bool:
        """Return whether nodes answer with sums of reports: where each report would be pickled on
        its way and nobody wants single ones."""
        config = self.config
        if config.training.schedule == "sequential" or config.server.analyzer != "mean":
            return False
        return isinstance(grid, InProcessGrid) and grid.far

    def shuffler(
        self, context: Context, run: str, dimension: int, counted: int | None
    ) -> LocalShuffler | RemoteShuffler:
        """Return what forgets whose report is whose: here, or a party of its own.

        `run` is the run's identifier, `counted` the round whose reports the ledger has counted and
        from which no step was taken. Single reports are kept, and permuted, where somebody looks at
        them. Raises `ConfigError` where run and configuration disagree on the shuffler.
        """
        config, plan = self.config, self.randomizers
        keep = config.server.analyzer != "mean"
        separate = link_of(config, context.run_config)
        if separate is not None:
            agreement = agreement_of(run, config, plan, dimension)
            assumed = config.privacy.assumed_honest
            honest = assumed if isinstance(assumed, int) else 1
            return RemoteShuffler(
                separate[0], agreement, separate[1], honest, keep=keep, counted=counted
            )
        return LocalShuffler(
            dimension,
            plan.largest,
            self.seeds,
            min_reports=config.privacy.min_reports,
            keep=keep,
            group=plan.group,
            batches=plan.reports_per_round,
        )

    def accountant(self, dimension: int) -> Accountant:
        """Return what counts each client's spend, in columns: published, proven, attacked."""
        plan = self.randomizers
        return Accountant.of(self.config.to_dict(), plan.classes, plan.class_of, dimension)

    def open_ledger(
        self,
        grid: Grid,
        context: Context,
        accountant: Accountant,
        dimension: int,
        metrics: tuple[str, ...] = (),
    ) -> AbstractContextManager[Run]:
        """Return the run's ledger, new or that of the run that goes on, for a model of `dimension`
        numbers; `metrics` are the names of what is measured after a round.

        Raises `RunError` where the run directory is taken or cannot be continued, and
        `ConfigError` or `InvalidValueError` for code of the user's own that a trial refuses.
        """
        self.try_own_code(dimension)
        facts = self.facts(dimension, metrics)
        place = RunPlace.of(context.run_config)
        # The observer is this process's user, or reads Flower's log.
        return open_run(facts, place, accountant, observer_of(grid, FlowerLog(self.config)))

    def try_own_code(self, dimension: int) -> None:
        """Try what the configuration names of the user's own on made-up numbers, before a round is
        paid for; raises `ConfigError` or `InvalidValueError`."""
        try_analyzer(self.config.server, dimension, self.config.data.clients)
        self._try_randomizer(dimension)

    def _try_randomizer(self, dimension: int) -> None:
        """Try the randomizer once in a process, for means of `dimension` numbers: every node has to
        know by itself."""
        local = self.randomizers.custom
        with self._making:
            if local is not None and dimension not in self._tried:
                try_randomizer(local, dimension, self.config.privacy.randomizer)
                self._tried.add(dimension)

    def state(self, arrays: ArrayRecord) -> dict[str, Tensor]:
        """Return the model with these arrays, as it is saved."""
        return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}

    def keeper(self, run: Run) -> Callable[[int, Callable[[], ArrayRecord]], None] | None:
        """Return what saves the model after every `run.checkpoint_every`-th round; None if nothing
        is.

        The model is computed from released reports, whose cost the ledger has by then.
        """
        every = self.config.run.checkpoint_every
        if not every:
            return None

        def keep(number: int, released: Callable[[], ArrayRecord]) -> None:
            if number % every == 0:
                run.keep_model(number, self.state(released()))

        return keep

    def facts(self, dimension: int, metrics: tuple[str, ...]) -> RunFacts:
        """Return what is known of the run before it starts."""
        config, plan = self.config, self.randomizers
        records = config.data.records_per_client * config.data.clients
        data = DataFacts(f"the clients' own ({config.app.client})", records, (), 0, 0, 0)
        return RunFacts(config, plan, self.budgets, dimension, data, metrics)


class Federation(RunParts):
    """A run's parts, records and model as its configuration names them.

    Every client of it makes reports of its own: see `AggregateFederation` for a simulation that
    makes none.
    """

    def __init__(self, config: Config, task: Task, source: NoiseSource | None = None) -> None:
        super().__init__(config, task.budgets, task.plan, source)
        self.task = task

    @classmethod
    def made_of(cls, config: Config, run: Hashable = None) -> Federation:
        """Return the parts for what adds the noise: each client, or a simulation to each round's
        sum. Raises as `load_task` does."""
        keep_one_thread()
        kind = AggregateFederation if config.run.aggregate_noise else cls
        return kind(config, load_task(config, run=run))

    @classmethod
    def of_server(cls, grid: Grid, context: Context) -> Self:
        """Return `of`, with progress lines for the run's observer."""
        require_run_config(context.run_config)
        config = config_of(tuple(context.run_config.items()))
        if config.run.supernodes:
            # Before the data: its errors are reported at once.
            read_supernodes(config.run.supernodes, config.data.clients)
        observer = observer_of(grid, FlowerLog(config))
        task = load_task(config, lambda text: observer(Preparing(text)), context.run_id)
        if config.data.validation_fraction:
            # The server alone publishes numbers about them.
            require_readable_held_out(task)
        return cls.of(context)

    # What both sides know.

    def model(self) -> nn.Module:
        """Return a fresh model, initialized from the run's seed."""
        return self.task.model(self.config)

    @cached_property
    def _packing(self) -> Packing:
        return packing_of(self.model(), tuple(self.task.inputs.shape[1:]))

    def blocks(self, clients: Ids) -> Ids:
        """See `RunParts.blocks`: clients whose gradients are computed together."""
        if len(clients) == self.config.data.clients:
            return self._all_blocks
        return self._packing.starts(np.diff(self.task.offsets)[clients])

    @cached_property
    def _all_blocks(self) -> Ids:
        return self._packing.starts(np.diff(self.task.offsets))

    # What a node's clients do.

    def _dealt(self) -> dict[str, Any]:
        """See `RunParts._dealt`: as the configuration says."""
        task = self.task
        return {"names": task.names, "features_use_data": task.features_use_data}

    @property
    def clipper(self) -> Clipper:
        """Clients' clipped gradients or updates, from their records and the broadcast model."""
        with self._making:
            return self._clipper

    @cached_property
    def _clipper(self) -> Clipper:
        records, engine = self._records_and_engine()
        return make_clipper(self.config, records, self.randomizers, engine, self.seeds)

    def _records_and_engine(self) -> tuple[ClientRecords, GradientEngine]:
        """Return the clients' records on the run's device, and what computes their gradients
        there."""
        task, device = self.task, torch.device(self.config.run.device)
        shape = tuple(task.inputs.shape[1:])
        engine = self.gradient_engine(self.model(), len(task.labels), shape, task.loss)
        records = ClientRecords(task.inputs.to(device), task.labels.to(device), task.offsets)
        return records, engine

    def parameters_in(self, message: Message) -> Tensor:
        """See `RunParts.parameters_in`: nothing is read but whole float32 arrays."""
        sent = messages.model_in(message.content).values()
        read = [messages.float32_array(array) for array in sent]
        arrays = [array.reshape(-1) for array in read if array is not None]
        if not arrays or len(arrays) < len(read):
            raise InvalidValueError("model", "its bytes", "must be whole float32 arrays")
        return torch.from_numpy(np.concatenate(arrays)).to(self.config.run.device)

    # What the server does.

    def nodes(self, grid: Grid) -> Nodes:
        """See `RunParts.nodes`."""
        if isinstance(grid, InProcessGrid) and not self.config.app.custom_client:
            # While the first round is reserved its nodes have nothing to do.
            grid.begin(self._prepare)
        return super().nodes(grid)

    def _prepare(self) -> None:
        """Make and load what the first request would wait for."""
        clip_rows(torch.zeros(1, 1), 1.0, 2)
        assert self.clipper is not None and self.randomizer is not None

    def arrays(self, model: nn.Module) -> ArrayRecord:
        """Return a model's parameters, as they travel."""
        named = {name: values.detach().numpy() for name, values in model.named_parameters()}
        return messages.array_record(named, shared=True)

    def try_own_code(self, dimension: int) -> None:
        """See `RunParts.try_own_code`: a model, too, and whether it can be saved."""
        task = self.task
        if self.config.model.kind not in SHIPPED_MODELS:
            try_own_model(
                self.config, self.model(), task.inputs, task.classes, task.record_shape,
                regression=task.regression,
            )  # fmt: skip
            try_saving(self.state(self.arrays(self.model())))
        super().try_own_code(dimension)

    def state(self, arrays: ArrayRecord) -> dict[str, Tensor]:
        """See `RunParts.state`: buffers, too."""
        model = self.model()
        nn.utils.vector_to_parameters(messages.vector_of(arrays), model.parameters())
        return dict(model.state_dict())

    def evaluate(self) -> RoundMeasure:
        """Return accuracy, loss and the configuration's own metrics on the public test records."""
        measure = evaluator(self.model(), self.task, self.config.model)
        return lambda number, arrays: measure(number, messages.vector_of(arrays))

    def facts(self, dimension: int, metrics: tuple[str, ...] = ()) -> RunFacts:
        """See `RunParts.facts`."""
        config, task = self.config, self.task
        if config.model.metrics != "default":
            metrics = tuple(self.evaluate()(0, self.arrays(self.model())))
        data = DataFacts(
            source=config.data.source,
            records=len(task.labels),
            shape=tuple(task.inputs.shape[1:]),
            classes=task.classes,
            test_records=len(task.test_labels),
            held_out=len(task.test_labels) if config.data.validation_fraction else 0,
            regression=task.regression,
        )
        return RunFacts(
            config, task.plan, task.budgets, dimension, data, metrics,
            features_use_data=task.features_use_data, fingerprint=task.fingerprint,
        )  # fmt: skip


class AggregateFederation(Federation):
    """The parts of a simulation in which no client makes a report (`run.noise`).

    Nodes send exact sums of clipped means (`flower/aggregate_client.py`), and the shuffler adds the
    noise of all reports that these stand for, of the same distribution, to the sum of a round.
    Nobody's own `randomizer` is ever asked for.
    """

    @classmethod
    def of(cls, context: Context, *, beside: str | Path | None = None) -> Self:
        """See `RunParts.of`, for a node; its requests are refused outside of a simulation. Raises
        `ConfigError` too for a run whose clients make reports."""
        parts = Federation.of(context, beside=beside)
        if not isinstance(parts, cls):
            raise ConfigError(
                f"run.noise = {parts.config.run.noise!r}: clients add their own noise, but this "
                "app is for simulations without reports and adds none; choose another app.client"
            )
        return parts

    @property
    def sum_of_means(self) -> SumOfMeans:
        """The weighted sum of clients' clipped means, from their records and a model."""
        with self._making:
            return self._sum_of_means

    @cached_property
    def _sum_of_means(self) -> SumOfMeans:
        records, engine = self._records_and_engine()
        return make_sum_of_means(self.config, records, self.randomizers, engine, self.seeds)

    def _prepare(self) -> None:
        """See `Federation._prepare`."""
        clip_rows(torch.zeros(1, 1), 1.0, 2)
        assert self.sum_of_means is not None

    def nodes_add_up(self, grid: Grid) -> bool:
        """Return True, always: there are no reports."""
        return True

    def shuffler(
        self, context: Context, run: str, dimension: int, counted: int | None
    ) -> AggregateShuffler:
        """See `RunParts.shuffler`: what adds the round's noise."""
        plan = self.randomizers
        noise = AggregateNoise(
            plan.noise, plan.weight * plan.scale, plan.step, plan.reports_per_round
        )
        return AggregateShuffler(
            dimension,
            plan.largest,
            self.seeds,
            min_reports=self.config.privacy.min_reports,
            keep=False,
            group=plan.group,
            batches=plan.reports_per_round,
            noise=noise,
        )
