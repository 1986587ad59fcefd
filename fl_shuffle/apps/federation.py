"""A whole federation from a run's configuration: for a ServerApp of your own, in five lines.

    from fl_shuffle.apps import FederationSettings

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        FederationSettings.of(context, beside=__file__).run(grid, Net(), evaluate=accuracy)

The clients' side is `fl_shuffle.flower.ShuffleClientApp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid
from torch import Tensor, nn

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.apps.flower_log import FlowerLog
from fl_shuffle.apps.player import strategy_of
from fl_shuffle.configuration.sections import Config
from fl_shuffle.configuration.supernodes import read_supernodes
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.mod import ClientPlan
from fl_shuffle.flower.records import Layout
from fl_shuffle.flower.settings import config_of
from fl_shuffle.gradients.structure import require_no_batch_statistics
from fl_shuffle.runs import DataFacts, RunFacts, RunPlace, observer_of, open_run
from fl_shuffle.threads import keep_one_thread

Evaluate = Callable[[int, ArrayRecord], Mapping[str, float]]
"""(round, the model's arrays) -> metrics of it on public records: `accuracy` (0 to 1), `loss`, or
names of your own. Round 0 is the initial model, so that names are known before the first round."""


@dataclass(frozen=True)
class FederationSettings:
    """Everything that a server of your own needs, made from a run's configuration.

    Clients' data and training are the ClientApp's affair: of `[data]` only `clients` counts, and
    `[model]` not at all. The unit of privacy is a client. `run` leaves a run directory like any
    other: `report`, `ledger` and `--resume` know it.
    """

    clients: ClientPlan
    place: RunPlace
    run_config: Mapping[str, object]

    @classmethod
    def of(cls, context: Context, *, beside: str | Path | None = None) -> FederationSettings:
        """From the run that a ServerApp's context belongs to; `beside`: your app's `__file__`,
        beside which relative paths of the configuration are looked for.

        Raises `ConfigError` for a configuration that is missing or that own apps cannot have.
        """
        config = config_of(context, beside)
        return cls(ClientPlan.of(config), RunPlace.of(context.run_config), context.run_config)

    @property
    def config(self) -> Config:
        """The configuration as resolved."""
        return self.clients.config

    def run(
        self,
        grid: Grid,
        model: nn.Module | ArrayRecord,
        *,
        evaluate: Evaluate | None = None,
    ) -> ArrayRecord:
        """Play every round, write the run directory, and return the final model's arrays.

        `model`: what training starts from; the same names and shapes go to the clients. Records
        that `evaluate` measures on are taken for public. Raises `ConfigError` or
        `InvalidValueError` for a model or metrics that cannot be used, else as rounds do.
        """
        keep_one_thread()
        arrays = arrays_of(model) if isinstance(model, nn.Module) else model
        layout = Layout.of(arrays)
        initial = torch.from_numpy(layout.flatten(arrays))

        def measure(number: int, parameters: Tensor) -> dict[str, float]:
            assert evaluate is not None
            return _metrics(evaluate(number, layout.record(parameters.numpy())))

        names = () if evaluate is None else tuple(measure(0, initial))
        config = self.config
        data = DataFacts(f"the clients' own ({config.app.client})", 0, (), 0, 0, 0)
        facts = RunFacts(
            self.clients.plan,
            initial.numel(),
            data,
            features_use_data=False,
            fingerprint=None,
            lifetime=self.clients.budgets.lifetime,
            budgets_by_place=self.clients.budgets.by_place,
            metrics=names,
        )
        listed = config.run.supernodes
        supernodes = read_supernodes(listed, config.data.clients) if listed else None
        observer = observer_of(grid, self.run_config, FlowerLog(config))
        with open_run(config, facts, self.place, observer) as run:
            player = strategy_of(
                config,
                run,
                ServerOptimizer(config.server, initial),
                self.clients.plan,
                self.run_config,
                supernodes=supernodes,
                layout=layout,
                evaluate=None if evaluate is None else measure,
            )
            final = layout.record(player.play(grid).numpy())
            named = {name: torch.from_numpy(array.numpy()) for name, array in final.items()}
            run.finish(named, player.strategy.stopped_early, failed=player.strategy.failed)
            player.finished(run)
        return final


def arrays_of(module: nn.Module) -> ArrayRecord:
    """The module's arrays by name, all of them trained.

    Raises `InvalidValueError` for batch statistics and for other buffers, which would be clipped
    and noised with the rest.
    """
    require_no_batch_statistics(module)
    state, trained = module.state_dict(), dict(module.named_parameters())
    for name, values in state.items():
        if name not in trained:
            raise InvalidValueError(
                f"model buffer {name}",
                str(values.dtype),
                "is no parameter, and would be clipped and noised with the rest",
                "register it with persistent=False",
            )
    return ArrayRecord(state)


def _metrics(found: object) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in dict(found).items()}  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ConfigError(
            f"evaluate returned {type(found).__name__}; it must return a mapping of names to "
            "numbers, as {'accuracy': 0.9}"
        ) from None
