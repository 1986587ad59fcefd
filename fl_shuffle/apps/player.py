"""A run's strategy, put together from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from flwr.serverapp import Grid
from torch import Tensor

from fl_shuffle.accounting.rounds.sum_account import honest_reports
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.aggregation.robust import analyzer_of
from fl_shuffle.configuration.sections import Config
from fl_shuffle.configuration.supernodes import SuperNodeFile
from fl_shuffle.flower.apart.parties import agreement_of, receiver_of
from fl_shuffle.flower.apart.strategy import ApartStrategy
from fl_shuffle.flower.exchange import Cut
from fl_shuffle.flower.records import Layout
from fl_shuffle.flower.strategy import Schedule, ShuffleStrategy
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.randomizers.pooled import PooledNoise
from fl_shuffle.runs import Run
from fl_shuffle.seeds import SeedTree


@dataclass(frozen=True)
class Player:
    """A strategy, and the round that its run begins or goes on with."""

    strategy: ShuffleStrategy
    first_round: int

    def play(self, grid: Grid) -> Tensor:
        """All rounds; the final parameters, float32 [d]."""
        return self.strategy.run(grid, self.first_round)

    def finished(self, run: Run) -> None:
        """Tell a shuffler apart that the run is over."""
        if isinstance(self.strategy, ApartStrategy):
            self.strategy.finished(run.rounds)


def strategy_of(
    config: Config,
    run: Run,
    optimizer: ServerOptimizer,
    plan: RandomizerPlan,
    run_config: Mapping[str, object],
    *,
    supernodes: SuperNodeFile | None = None,
    summed: bool = False,
    cut: Cut | None = None,
    layout: Layout | None = None,
    evaluate: Callable[[int, Tensor], dict[str, float]] | None = None,
) -> Player:
    """The strategy of an open run, with its book, seeds, shuffler, analyzer and noise.

    `run_config` is Flower's; `summed`: nodes may answer with sums of reports, where nobody wants
    single ones.
    """
    first_round = run.restore(optimizer)
    analyzer = analyzer_of(config.server)
    sequential = config.training.schedule == "sequential"
    pooled = None
    if config.run.noise == "pooled":
        pooled = PooledNoise(plan.noise, plan.weight * plan.scale, plan.step)
    dimension = optimizer.current().numel()
    apart = receiver_of(
        config, run_config, lambda: agreement_of(run.identifier, config, plan, dimension)
    )
    make: Callable[..., ShuffleStrategy] = ShuffleStrategy
    if apart is not None:
        receiver, private = apart
        honest = config.privacy.assumed_honest
        make = partial(
            ApartStrategy,
            receiver=receiver,
            private=private,
            honest=lambda reports: honest_reports(honest, reports),
            committed=run.committed,
        )
    strategy = make(
        clients=config.data.clients,
        schedule=Schedule(
            rounds=config.run.rounds,
            sequential=sequential,
            participation=config.training.participation,
            evaluate_every=config.run.evaluate_every,
            timeout=config.run.timeout,
        ),
        optimizer=optimizer,
        book=run.book,
        seeds=SeedTree(config.run.seed if config.run.entropy == "seeded" else None),
        min_reports=config.privacy.min_reports,
        group=plan.group,
        largest=plan.largest,
        cut=cut,
        analyzer=analyzer,
        pooled=pooled,
        supernodes=supernodes,
        summed=summed and analyzer is None and pooled is None and not sequential,
        foresee=run.book.foresee,
        layout=layout,
        evaluate=evaluate,
        on_round=run.on_round,
    )
    return Player(strategy, first_round)
