"""Accuracy with correct noise: MNIST at record level and at client level, proven throughout.

Hyperparameters were chosen on 10,000 records held out of the training images; every configuration
is a file in configs/.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.reproduction.core import Options, Result, Settings
from benchmarks.reproduction.training_runs import (
    accounted_epsilons,
    dataset_name,
    train,
)
from benchmarks.tables import read_csv

# Local budgets of one report -> what Chen, Cao, Ge (AAAI 2024) report there, where they do.
RECORD = {
    "mnist_record_constant": ("constant 0.5", "94.8%"),
    "mnist_record_unif2": ("U(0.01, 2)", "93.5%"),
    "mnist_record_unif3": ("U(0.5, 1)", "96.78% (best quoted)"),
    "mnist_record_mixed": ("half 0.5, half 0.01", "not given"),
}
# Local epsilon of one report -> its configuration; delta 1e-5.
CLIENTS = {
    0.5: "mnist_clients_local_0.5",
    1.0: "mnist_clients_local_1",
    1.75: "mnist_clients_local_1.75",
    2.0: "mnist_clients_local_2",
    3.25: "mnist_clients",
    4.0: "mnist_clients_local_4",
}
# Where a table shows the accountant's columns: its name for each.
SHOWN_AS = {
    "proven epsilon": "shuffled",
    "proven epsilon, worst client": "shuffled",
    "published epsilon (GSPA)": "gspa",
    "local epsilon (no shuffle)": "local",
    "lower bound": "shuffled_lower",
}
PROVEN, WORST, PUBLISHED, LOCAL, LOWER = SHOWN_AS


def _measured(options: Options, name: str, seeds: Sequence[int], table: str) -> dict[str, Any]:
    """What the configuration reached, and how long a run took: it runs once per seed, which draws
    the noise, the order and the budgets. Or what `table` says, where results are there."""
    if options.measured is not None:
        return _measured_before(options.measured / table, name)
    runs = [train(options, name, f"run.seed={seed}", f"budgets.seed={seed}") for seed in seeds]
    accuracies = [float(run.summary["accuracy"]) for run in runs]
    return {
        "accuracy": round(statistics.fmean(accuracies), 4),
        "spread": round(statistics.stdev(accuracies), 4),
        "lowest": min(accuracies),
        "runs": len(runs),
        "seconds per run": round(statistics.median(run.summary["seconds"] for run in runs), 1),
    }


def _measured_before(table: Path, name: str) -> dict[str, Any]:
    (row,) = (row for row in read_csv(table) if row["configuration"] == _path(name))
    found = {key: float(row[key]) for key in ("accuracy", "spread", "lowest")}
    return {**found, "runs": int(row["runs"]), "seconds per run": float(row["seconds per run"])}


@cache
def _epsilons(options: Options, name: str, seeds: tuple[int, ...]) -> Mapping[str, float]:
    """The accountant's columns, most exposed client over all seeds' budgets: what every page
    shows."""
    found = [accounted_epsilons(options, name, f"budgets.seed={s}") for s in seeds]
    return {key: max(each[key] for each in found) for key in found[0]}


def _row(
    options: Options,
    name: str,
    seeds: tuple[int, ...],
    says: Mapping[str, Any],
    table: str,
    shown: Sequence[str],
) -> dict[str, Any]:
    """A row of `table`: what ran, what it reached, and the accountant's columns as `shown`."""
    epsilons = _epsilons(options, name, seeds)
    columns = {column: epsilons[SHOWN_AS[column]] for column in shown}
    return {
        "configuration": _path(name),
        **says,
        **_measured(options, name, seeds, table),
        **columns,
    }


def _path(name: str) -> str:
    return f"configs/{name}.toml"


def _facts(options: Options, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How long training took is from when it ran: finished runs are not run again."""
    return {
        "data": dataset_name(options),
        "rows": rows,
        "runs": sum(row["runs"] for row in rows),
        "seconds": sum(row["seconds per run"] * row["runs"] for row in rows),
    }


def _record(options: Options, settings: Settings) -> Result:
    seeds = tuple(settings["seeds"])
    table, shown = "mnist-record-level/accuracy.csv", (WORST, PUBLISHED, LOWER)
    rows = [
        _row(options, name, seeds, {"local budgets": budgets, "paper": claimed}, table, shown)
        for name, (budgets, claimed) in RECORD.items()
    ]
    figure = _record_figure(rows, dataset_name(options))
    refuted = [row for row in rows if row[PUBLISHED] < row[LOWER]]
    facts = {**_facts(options, rows), "refuted": refuted}
    return Result({"accuracy": rows}, {"accuracy": figure}, facts)


def _errorbar(
    axis: Any, x: Sequence[float], rows: Sequence[Mapping[str, Any]], **style: Any
) -> None:
    accuracy, spread = ([100 * row[key] for row in rows] for key in ("accuracy", "spread"))
    axis.errorbar(x, accuracy, yerr=spread, **style)


def _record_figure(rows: Sequence[Mapping[str, Any]], dataset: str) -> Figure:
    """Accuracy beside the paper's; and the epsilon that is proven, published and attacked."""
    figure = Figure(figsize=(10.8, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = range(len(rows))
    correct = "correct noise, mean and spread over seeds"
    _errorbar(left, places, rows, fmt="o", capsize=4, label=correct)
    quoted = [place for place in places if "%" in rows[place]["paper"]]
    claimed = [float(rows[place]["paper"].split("%")[0]) for place in quoted]
    left.plot(quoted, claimed, "x", color="C1", label="the paper's claim, noise too small")
    left.set(ylabel="test accuracy, %", title=f"Record level, {dataset}")
    for column, label, marker, colour in (
        (WORST, "proven upper bound", "v", "C0"),
        (PUBLISHED, "published (no guarantee)", "x", "C1"),
        (LOWER, "lower bound: an attack achieves it", "^", "C3"),
    ):
        values = [row[column] for row in rows]
        right.plot(places, values, marker, color=colour, label=label, alpha=0.8)
    right.set(ylabel="epsilon after all rounds, delta 1e-5", title="worst client", yscale="log")
    for axis, place in ((left, "center right"), (right, "upper right")):
        axis.set_xticks(places, [row["local budgets"] for row in rows], fontsize=8)
        axis.grid(True, alpha=0.3)
        axis.legend(fontsize=8, loc=place)
    return figure


def _clients(options: Options, settings: Settings) -> Result:
    seeds = tuple(settings["seeds"])
    chosen = {3.25: CLIENTS[3.25]} if options.fast else CLIENTS
    table = "mnist-client-level/accuracy_against_epsilon.csv"
    shown = (PROVEN, PUBLISHED, LOCAL, LOWER)
    rows = [
        _row(options, name, seeds, {"local epsilon of a report": local}, table, shown)
        for local, name in chosen.items()
    ]
    figure = Figure(figsize=(6.8, 4.2), layout="constrained")
    axis = figure.subplots()
    for column, label, colour in (
        (PROVEN, "proven, shuffled", "C0"),
        (PUBLISHED, "published mu (GSPA): no guarantee", "C1"),
        (LOCAL, "proven without the shuffler", "0.5"),
    ):
        x = [row[column] for row in rows]
        _errorbar(axis, x, rows, fmt="o-", color=colour, capsize=3, label=label)
    axis.set(
        xscale="log",
        xlabel="epsilon after all rounds, delta 1e-6",
        ylabel="test accuracy, %",
        title=f"Client level, {dataset_name(options)}",
    )
    axis.grid(True, alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    name = "accuracy_against_epsilon"
    return Result({name: rows}, {name: figure}, _facts(options, rows))


def _accounted(options: Options, settings: Settings) -> Result:
    """Every client reports in every round, so the bill is known without a run."""
    rows: list[dict[str, Any]] = []
    for name in settings["configurations"]:
        epsilons = _epsilons(options, name, tuple(settings["seeds"]))
        rows.append({"configuration": _path(name), **epsilons})
        options.say(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in epsilons.items()))
    return Result({"epsilons": rows}, {}, {"rows": rows})


TARGETS = {
    "mnist-record-level": _record,
    "mnist-client-level": _clients,
    "mnist-epsilons": _accounted,
}
