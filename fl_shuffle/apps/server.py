"""The Flower ServerApp: wires task, strategy, book and evaluation, on any engine."""

from __future__ import annotations

import os

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.apps.flower_log import FlowerLog
from fl_shuffle.apps.player import strategy_of
from fl_shuffle.configuration.sections import AppSection
from fl_shuffle.configuration.supernodes import read_supernodes
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.settings import SIMULATION_VARIABLE, config_of, require_simulated
from fl_shuffle.gradients import load_ahead, packing_of
from fl_shuffle.runs import DataFacts, Preparing, RunFacts, RunPlace, observer_of, open_run
from fl_shuffle.tasks.evaluation import evaluator
from fl_shuffle.tasks.models import flatten_parameters, load_parameters
from fl_shuffle.tasks.task import load_task
from fl_shuffle.threads import keep_one_thread

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole federation and leave a finished run directory."""
    config = config_of(context)
    pooled = config.run.noise == "pooled"
    if pooled:
        require_simulated(context)
    keep_one_thread()
    # Before the data: what is wrong with it is said at once.
    listed = config.run.supernodes
    supernodes = read_supernodes(listed, config.data.clients) if listed else None
    observer = observer_of(grid, context.run_config, FlowerLog(config))
    task = load_task(config, lambda text: observer(Preparing(text)))
    model = task.model(config)
    initial = flatten_parameters(model)
    if isinstance(grid, InProcessGrid) and config.app == AppSection():
        # While the first round is reserved its nodes have nothing to do.
        records, device = len(task.labels), config.run.device
        grid.begin(lambda: load_ahead(model, device=device, loss=task.loss, records=records))
    shape, rows = tuple(task.inputs.shape[1:]), not pooled or config.sums_need_rows
    packing, sizes = packing_of(model, shape, rows=rows), np.diff(task.offsets)
    measure = evaluator(model, task, config.model)
    own = config.model.metrics != "default"
    facts = RunFacts(
        task.plan,
        initial.numel(),
        DataFacts(
            source=config.data.source,
            records=len(task.labels),
            shape=tuple(task.inputs.shape[1:]),
            classes=task.classes,
            test_records=len(task.test_labels),
            held_out=len(task.test_labels) if config.data.validation else 0,
            regression=task.regression,
        ),
        features_use_data=task.features_use_data,
        fingerprint=task.fingerprint,
        lifetime=task.budgets.lifetime,
        budgets_by_place=task.budgets.by_place,
        metrics=tuple(measure(0, initial)) if own else (),
    )
    place = RunPlace.of(context.run_config)
    with open_run(config, facts, place, observer) as run:
        player = strategy_of(
            config,
            run,
            ServerOptimizer(config.server, initial),
            task.plan,
            context.run_config,
            supernodes=supernodes,
            # There every report would be pickled on its way; elsewhere the server takes reports
            # alone.
            summed=os.environ.get(SIMULATION_VARIABLE) == "1",
            cut=lambda clients: packing.starts(sizes[clients]),
            evaluate=measure,
        )
        load_parameters(model, player.play(grid))
        strategy = player.strategy
        run.finish(model.state_dict(), strategy.stopped_early, failed=strategy.failed)
        player.finished(run)
