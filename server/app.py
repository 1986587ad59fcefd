"""The server of a federation in the shuffle model: budgets, accountant, ledger, shuffler, rounds.

`fl-shuffle simulate`, Ray, and `flwr run .` all execute this file. It leaves a run directory, whose
ledger holds what every round has cost every client. A user's own ServerApp has
`ShuffleStrategy.of`, which puts the same parts together in the same order.
"""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.federation import Federation
from fl_shuffle.federation.optimizer import ServerOptimizer
from fl_shuffle.flower.messages import vector_of
from fl_shuffle.flower.strategy import ShuffleStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Execute all rounds that the budgets allow."""
    federation = Federation.of_server(grid, context)  # configuration -> records, budgets, noise
    arrays = federation.arrays(federation.model())
    model = vector_of(arrays)
    dimension = len(model)
    nodes = federation.nodes(grid)  # which node holds the records of which clients

    # What every client has spent, in columns: as published (GSPA, specific), proven, attacked.
    accountant = federation.accountant(dimension)
    with federation.open_ledger(grid, context, accountant, dimension, ()) as ledger:
        begun = ledger.resumed  # a resumed run continues where it stopped
        config = federation.config
        optimizer = ServerOptimizer(
            config.server, model, begun.optimizer_state, report_unit=config.report_unit
        )
        # Releases reports in random order, or their sum; never too few to hide anybody.
        shuffler = federation.shuffler(context, ledger.run, dimension, begun.counted)
        strategy = ShuffleStrategy(
            shuffler=shuffler,
            # Durable: reserves a round before it is sent, commits it before it is released.
            ledger=ledger,
            optimizer=optimizer,
            schedule=federation.schedule,  # which clients take part: together, or one by one
            nodes=nodes,
            analyzer=federation.analyzer,  # the mean of the reports, or a robust estimate of it
            keep=federation.keeper(ledger),  # models that are saved on the way
        )
        rounds = config.run.rounds
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=federation.evaluate())
        state = federation.state(strategy.released())
        ledger.finish(state, strategy.stopped, failed=strategy.failed)
        shuffler.forget(ledger.rounds)  # all that its last batch led to is durable
