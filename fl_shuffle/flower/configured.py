"""`ShuffleStrategy.of`: all that a user's own ServerApp needs, from a run's configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import nn

from fl_shuffle._internal.threads import keep_one_thread
from fl_shuffle.errors import ConfigError, InvalidValueError, PrivacyBudgetError, suggestion
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.federation.parts import RunParts
from fl_shuffle.flower import strategy
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import vector_of
from fl_shuffle.flower.node_registry import QUERY_SECONDS, holdings
from fl_shuffle.flower.server_errors import require_run_config
from fl_shuffle.flower.settings import require_same_app_config
from fl_shuffle.runs.run import try_saving

_NO_METRICS = "metrics of clients are exact numbers about private records, and never leave them"
NOT_TAKEN = {
    "fraction_train": "who takes part is training.participation of the configuration",
    "fraction_evaluate": strategy.NO_EVALUATION,
    "min_train_nodes": "the fewest reports to release are privacy.min_reports",
    "min_evaluate_nodes": strategy.NO_EVALUATION,
    "min_available_nodes": "the fewest reports to release are privacy.min_reports",
    "weighted_by_key": "num-examples is private, and never leaves a client",
    "arrayrecord_key": "the model travels as 'arrays'",
    "configrecord_key": "train_config travels as 'config'",
    "train_metrics_aggr_fn": _NO_METRICS,
    "evaluate_metrics_aggr_fn": _NO_METRICS,
}
"""What stock strategies take and this one cannot: why not."""
NO_MOD = "app.client must be a ShuffleClientApp, which reports whatever its training does"
"""What to look at where nobody has sent a report."""


class ConfiguredStrategy(strategy.PlayedByStart):
    """What `ShuffleStrategy.of` returns. `start` plays every round and writes the run directory."""

    def __init__(
        self,
        context: Context,
        beside: str | Path | None,
        model: nn.Module | None,
        given: Mapping[str, object],
    ) -> None:
        """See `ShuffleStrategy.of`."""
        for name in given:
            if name in NOT_TAKEN:
                raise ConfigError(
                    f"ShuffleStrategy.of({name}=...): {NOT_TAKEN[name]}; leave it out"
                )
            hint = suggestion(name, ["beside", "model", *NOT_TAKEN])
            hint = hint or "it takes context, beside and model"
            raise ConfigError(f"ShuffleStrategy.of({name}=...): there is no such argument; {hint}")
        require_run_config(context.run_config)
        self._parts = RunParts.of(context, beside=beside)
        require_same_app_config(context, self._parts.config)
        self._model = model
        self._context = context

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: strategy.Evaluate | None = None,
    ) -> Result:
        """Play the run's rounds; returns Flower's `Result`: the final arrays, and what
        `evaluate_fn` has measured, round 0 being the initial model.

        `initial_arrays`: what training starts from, arrays of any names and shapes, of floating
        types. `num_rounds` must be `run.rounds` of the configuration where it is given; `timeout`
        (seconds) is `run.timeout` unless given. Records that `evaluate_fn` measures on are taken
        for public. Raises `ConfigError` or `InvalidValueError` for a model, metrics or settings
        that cannot be used, else as rounds do.
        """
        strategy.require_no_evaluation(evaluate_config)
        rounds = self._parts.config.run.rounds
        if num_rounds not in (None, rounds):
            raise InvalidValueError(
                "num_rounds",
                num_rounds,
                f"the budgets are planned for run.rounds = {rounds}",
                "leave num_rounds out, or set run.rounds",
            )
        keep_one_thread()
        frozen = None if self._model is None else Frozen.of(self._model, initial_arrays)
        trained = initial_arrays if frozen is None else frozen.trained(initial_arrays)
        # Before anything is reserved: names of metrics are known, and mistakes in them seen.
        first = {} if evaluate_fn is None else strategy.metrics_in(evaluate_fn(0, initial_arrays))
        self._require_mod(grid)
        try_saving(self._parts.state(initial_arrays))
        settings = train_config or ConfigRecord()
        with self._opened(grid, trained, tuple(first), frozen) as played:
            try:
                result: Result = played.start(
                    grid, trained, rounds, timeout, settings, evaluate_fn=evaluate_fn
                )
            except PrivacyBudgetError as error:
                if played.answered:
                    raise
                raise PrivacyBudgetError(f"{error}; {NO_MOD}") from None
        if first:
            result.evaluate_metrics_serverapp[0] = MetricRecord({**first})
        return result

    @contextmanager
    def _opened(
        self, grid: Grid, arrays: ArrayRecord, metrics: tuple[str, ...], frozen: Frozen | None
    ) -> Iterator[strategy.ShuffleStrategy]:
        """Yield the strategy that trains `arrays`, while its run directory is open.

        The parts and their order are those of `server/app.py`. `metrics` names what the user's
        server measures; `frozen` holds the arrays of its model that are not trained.
        """
        parts, context = self._parts, self._context
        model = vector_of(arrays)
        dimension = len(model)
        nodes = parts.nodes(grid)
        accountant = parts.accountant(dimension)
        with parts.open_ledger(grid, context, accountant, dimension, metrics) as ledger:
            begun = ledger.resumed
            optimizer = ServerOptimizer(
                parts.config.server,
                model,
                begun.optimizer_state,
                report_unit=parts.config.report_unit,
            )
            shuffler = parts.shuffler(context, ledger.run, dimension, begun.counted)
            played = strategy.ShuffleStrategy(
                shuffler=shuffler,
                ledger=ledger,
                optimizer=optimizer,
                schedule=parts.schedule,
                nodes=nodes,
                analyzer=parts.analyzer,
                frozen=frozen,
                keep=parts.keeper(ledger),
            )
            yield played
            ledger.finish(parts.state(played.released()), played.stopped, failed=played.failed)
            shuffler.forget(ledger.rounds)

    def _require_mod(self, grid: Grid) -> None:
        """Raise `ConfigError` where a simulated node's app cannot say which clients it plays.

        An app without the framework's mod would train on the first request and send its model
        without noise. One node is asked before anything is reserved; the nodes of a deployment are
        asked by `NodeRegistry`.
        """
        if not isinstance(grid, InProcessGrid):
            return
        node = next(iter(grid.get_node_ids()))
        config = self._parts.config
        if holdings(grid, [node], config.data.clients, QUERY_SECONDS)[node] is None:
            raise ConfigError(
                f"app.client = {config.app.client!r}: does not answer which clients it holds; "
                f"{NO_MOD}, and mods must pass query messages on"
            )
