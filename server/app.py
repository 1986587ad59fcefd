"""The server of a federation in the shuffle model: budgets, shuffler, accountant, ledger, rounds.

`fl-shuffle simulate`, Ray and `flwr run .` all run this file, and so do ServerApps of a user's own
(`ShuffleStrategy.of`). Behind it a run directory remains, whose ledger says what every round has
cost every client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.federation import Federation, RunParts
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.messages import vector_of
from fl_shuffle.flower.strategy import ShuffleStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play all rounds that the budgets allow."""
    federation = Federation.of_server(grid, context)  # configuration -> records, budgets, noise
    arrays, rounds = federation.arrays(federation.model()), federation.config.run.rounds
    with strategy_of(federation, grid, context, arrays) as strategy:
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=federation.evaluate())


@contextmanager
def strategy_of(
    federation: RunParts,
    grid: Grid,
    context: Context,
    arrays: ArrayRecord,
    metrics: tuple[str, ...] = (),
    frozen: Frozen | None = None,
) -> Iterator[ShuffleStrategy]:
    """The strategy that trains these arrays, between opening a run directory and completing it.

    `metrics` names what a user's own server measures; `frozen` is what of its model stays.
    """
    nodes = federation.nodes(grid)  # whom to ask for whose reports
    optimizer = ServerOptimizer(federation.config.server, vector_of(arrays))
    dimension = optimizer.current().numel()

    # What every client has spent, in columns: as published (GSPA, specific), proven, attacked.
    accountant = federation.accountant(dimension)
    with federation.open_ledger(grid, context, accountant, dimension, metrics) as ledger:
        ledger.restore(optimizer)  # where a run goes on
        # Releases reports in random order, or their sum; never too few to hide anybody.
        shuffler = federation.shuffler(context, ledger.run, dimension, ledger.counted)
        strategy = ShuffleStrategy(
            shuffler=shuffler,
            # Durable: reserves a round before it is played, commits it before it is released.
            ledger=ledger,
            optimizer=optimizer,
            schedule=federation.schedule,  # who takes part, all at once or one after the other
            nodes=nodes,
            analyzer=federation.analyzer,  # the mean of the reports, or a robust estimate of it
            frozen=frozen,
        )
        yield strategy
        state = federation.state(strategy.released())
        ledger.finish(state, strategy.stopped, failed=strategy.failed)
        shuffler.forget(ledger.rounds)  # all that its last batch led to is durable
