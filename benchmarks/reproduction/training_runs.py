"""Federations for the training targets: configurations of configs/, run as users run them.

Every run keeps its run directory (ledger, metrics, model) under OUT/runs. A finished one with the
same configuration is read instead of run again, so an interrupted target continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import fl_shuffle as fs
from benchmarks.reproduction.core import CONFIGS, Options
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.randomizers.calibration import make_plan

# The digits that ship with scikit-learn, few clients, few rounds: seconds instead of minutes.
FAST = (
    'data.source="digits"',
    "data.clients=20",
    "data.records_per_client=0",
    "run.rounds=3",
    "run.evaluate_every=1",
)
FAST_RECORDS = 71
"""Number of digits that each of the 20 clients is dealt."""
FAST_HOG = "data.feature_options={ cells = [4], components = 16, ridge = 0.03 }"
FAST_NETWORK = ("data.feature_options={ components = 20 }", "model.hidden=[16]")


def overrides_for(options: Options, name: str, overrides: Sequence[str]) -> list[str]:
    """The settings of a run: those of the target, then the small ones of the fast mode."""
    found = list(overrides)
    if options.fast:
        network = name in ("mnist_gspa", "mnist_rdp")
        found += [*FAST, *(FAST_NETWORK if network else (FAST_HOG,))]
    return found


def train(options: Options, name: str, *overrides: str) -> fs.Result:
    """Run configs/NAME.toml with `section.key=value` overrides, or read its finished run."""
    config = resolve_config(CONFIGS / f"{name}.toml", overrides_for(options, name, overrides))
    tables = config.to_dict()
    tables["data"].pop("root")
    digest = hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:12]
    folder = options.out.resolve() / "runs" / f"{name}-{digest}"
    settings = " ".join(overrides) or "as in the file"
    if not (folder / "summary.json").is_file():
        if folder.exists():
            shutil.rmtree(folder)
        fs.simulate(config, out=folder)
    found = fs.Result(folder)
    epsilon = f"proven epsilon {proven_epsilon(found):.4g}"
    options.say(f"{name} ({settings}): accuracy {found.accuracy:.2%}, {epsilon}")
    return found


def train_each(options: Options, runs: Sequence[tuple[str, Sequence[str]]]) -> list[fs.Result]:
    """`train` for every (configuration, overrides), in this order; one process per core.

    For sequential schedules, whose rounds use a single core. The fast mode stays in this process:
    starting another one takes longer than the training.
    """
    workers = 1 if options.fast else min(os.cpu_count() or 1, len(runs))
    if workers == 1:
        return [train(options, name, *overrides) for name, overrides in runs]
    # What is finished when an interrupt ends them is kept.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_trained, options, name, overrides) for name, overrides in runs]
        return [fs.Result(job.result()) for job in jobs]


def _trained(options: Options, name: str, overrides: Sequence[str]) -> Path:
    return train(options, name, *overrides).directory


def proven_epsilon(run: fs.Result) -> float:
    """Of the most exposed client, against an attacker who sees the shuffled reports."""
    return float(run.summary["shuffled_epsilon"])


def evaluated(run: fs.Result) -> list[tuple[int, float]]:
    """The rounds that were evaluated, with their test accuracies."""
    pairs = zip(run.metrics["round"].tolist(), run.metrics["accuracy"].tolist(), strict=True)
    return [(number, accuracy) for number, accuracy in pairs if not math.isnan(accuracy)]


PROVEN = ("shuffled", "sum", "local")
ACCOUNTED = (*PROVEN, "shuffled_lower", "gspa")
"""The accountant's columns that pages show; `shuffled_lower` is an attack, `gspa` the published
formula."""


def accounted_epsilons(options: Options, name: str, *overrides: str) -> dict[str, float]:
    """What the most exposed client of configs/NAME.toml will have spent, as the run itself will
    count it: the columns `ACCOUNTED` after the last round. Every client reports in every round,
    so no run is needed, and no data. Where a column says nothing, a proven one is infinite,
    another 0."""
    fast = (f"data.records_per_client={FAST_RECORDS}",) if options.fast else ()
    settings = [*overrides_for(options, name, overrides), *fast]
    config = resolve_config(CONFIGS / f"{name}.toml", settings)
    clients, rounds = config.data.clients, config.run.rounds
    budgets = make_budgets(config.budgets, clients)
    plan = make_plan(
        config, budgets, np.full(clients, config.data.records_per_client, dtype=np.int64)
    )
    accountant = Accountant.of(config.to_dict(), plan.classes, plan.class_of)
    everyone = np.ones(clients, dtype=bool)
    spend = accountant.count([(number, everyone) for number in range(1, rounds + 1)])
    assert spend is not None
    columns = {**spend.columns, **accountant.lower_bounds()}
    found = {}
    for key in ACCOUNTED:
        worst = columns[key].worst if key in columns else None
        silent = math.inf if key in PROVEN else 0.0
        found[key] = silent if worst is None else float(worst)
    return found


def dataset_name(options: Options) -> str:
    return "8 x 8 digits (fast mode)" if options.fast else "MNIST"
