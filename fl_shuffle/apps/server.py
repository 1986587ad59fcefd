"""The Flower ServerApp: wires task, strategy, book and evaluation, on any engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_shuffle.accounting.rounds.sum_account import honest_reports
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.aggregation.robust import analyzer_of
from fl_shuffle.configuration.supernodes import read_supernodes
from fl_shuffle.flower.apart import ApartStrategy, agreement_of, receiver_of
from fl_shuffle.flower.settings import SIMULATION_VARIABLE, config_of, require_simulated
from fl_shuffle.flower.strategy import Schedule, ShuffleStrategy
from fl_shuffle.gradients import packing_of
from fl_shuffle.randomizers.pooled import PooledNoise
from fl_shuffle.runs import DataFacts, Preparing, RunFacts, RunPlace, observer_of, open_run
from fl_shuffle.seeds import SeedTree
from fl_shuffle.tasks.evaluation import evaluator
from fl_shuffle.tasks.models import flatten_parameters, load_parameters
from fl_shuffle.tasks.task import load_task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the whole federation and leave a finished run directory."""
    config = config_of(context)
    pooled = config.run.noise == "pooled"
    if pooled:
        require_simulated(context)
    torch.set_num_threads(1)
    # Before the data: what is wrong with it is said at once.
    listed = config.run.supernodes
    supernodes = read_supernodes(listed, config.data.clients) if listed else None
    observer = observer_of(grid, context.run_config)
    task = load_task(config, lambda text: observer(Preparing(text)))
    model = task.model(config)
    initial = flatten_parameters(model)
    shape, rows = tuple(task.inputs.shape[1:]), not pooled or config.sums_need_rows
    packing, sizes = packing_of(model, shape, rows=rows), np.diff(task.offsets)
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
        ),
        features_use_data=task.features_use_data,
        fingerprint=task.fingerprint,
        lifetime=task.budgets.lifetime,
    )
    place = RunPlace.of(context.run_config)
    with open_run(config, facts, place, observer) as run:
        optimizer = ServerOptimizer(config.server, initial)
        first_round = run.restore(optimizer)
        # There every report would be pickled on its way; elsewhere the server takes reports alone.
        on_ray = os.environ.get(SIMULATION_VARIABLE) == "1"
        analyzer = analyzer_of(config.server)
        sequential = config.training.schedule == "sequential"
        apart = receiver_of(
            config,
            context.run_config,
            lambda: agreement_of(run.identifier, config, task.plan, initial.numel()),
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
            group=task.plan.group,
            largest=task.plan.largest,
            cut=lambda clients: packing.starts(sizes[clients]),
            analyzer=analyzer,
            pooled=PooledNoise(task.plan.noise, task.plan.weight * task.plan.scale, task.plan.step)
            if pooled
            else None,
            supernodes=supernodes,
            summed=on_ray and analyzer is None and not pooled and not sequential,
            foresee=run.book.foresee,
            evaluate=evaluator(model, task),
            on_round=run.on_round,
        )
        parameters = strategy.run(grid, first_round)
        load_parameters(model, parameters)
        run.finish(model.state_dict(), strategy.stopped_early, failed=strategy.failed)
        if isinstance(strategy, ApartStrategy):
            strategy.finished(run.rounds)
