"""The server of a federation in the shuffle model: budgets, shuffler, accountant, ledger, rounds.

`fl-shuffle simulate`, Ray and `flwr run .` all run this file. Behind it a run directory remains,
whose ledger says what every round has cost every client.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.federation import Federation
from fl_shuffle.flower.strategy import ShuffleStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play all rounds that the budgets allow."""
    federation = Federation.of_server(grid, context)  # configuration -> records, budgets, noise
    config, model = federation.config, federation.model()
    nodes = federation.nodes(grid)  # whom to ask for whose reports
    optimizer = ServerOptimizer(config.server, flatten_parameters(model))

    # What every client has spent, in columns: as published (GSPA, specific), proven, attacked.
    accountant = federation.accountant(federation.dimension)
    with federation.open_ledger(grid, context, accountant, federation.dimension) as ledger:
        ledger.restore(optimizer)  # where a run goes on
        # Releases reports in random order, or their sum; never too few to hide anybody.
        shuffler = federation.shuffler(context, ledger.run, federation.dimension, ledger.counted)
        strategy = ShuffleStrategy(
            shuffler=shuffler,
            # Durable: reserves a round before it is played, commits it before it is released.
            ledger=ledger,
            optimizer=optimizer,
            schedule=federation.schedule,  # who takes part, all at once or one after the other
            nodes=nodes,
            analyzer=federation.analyzer,  # the mean of the reports, or a robust estimate of it
        )
        result = strategy.start(
            grid,
            federation.arrays(model),
            num_rounds=config.run.rounds,
            evaluate_fn=federation.evaluate(),
        )
        ledger.finish(federation.state(result.arrays), strategy.stopped, failed=strategy.failed)
        shuffler.forget(ledger.rounds)  # all that its last batch led to is durable
