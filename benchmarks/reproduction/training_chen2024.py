"""Chen, Cao and Ge 2024: federated training on MNIST, as published and with correct clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import fl_shuffle as fs
from benchmarks.reproduction.core import Options, Panel, Result, Settings, panels
from benchmarks.reproduction.training_runs import (
    dataset_name,
    evaluated,
    proven_epsilon,
    train_each,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon

HONEST = "every record clipped"
ACCURACY = "test accuracy, %"
RENYI_BLOCKS = 200


@dataclass(frozen=True)
class Table:
    """Runs of a configuration at each point of `settings[points]`, in a version as published and in
    one that clips every record. `axis` names the points in tables, `label` in figures."""

    config: str
    setting: str
    points: str
    axis: str
    published: str
    label: Callable[[Any], str]
    claims: Callable[[Any], dict[str, str]]
    """More columns of the paper's."""
    column: str
    epsilon: Callable[[Any, fs.Result], float]
    """What the paper's formula says of a run, and its name."""

    def played(self, options: Options, settings: Settings) -> dict[tuple[str, Any], fs.Result]:
        """The runs, by version and point."""
        versions = settings["versions"]
        keys = [(version, point) for version in versions for point in settings[self.points]]
        wanted = [
            (self.config, (f"{self.setting}={point}", *versions[version]))
            for version, point in keys
        ]
        return dict(zip(keys, train_each(options, wanted), strict=True))

    def row(self, version: str, point: Any, run: fs.Result) -> dict[str, Any]:
        """What the table says of a run."""
        return {
            self.axis: point,
            "version": version,
            **self.claims(point),
            "accuracy": run.accuracy,
            "best epoch": max(accuracy for _, accuracy in evaluated(run)),
            self.column: self.epsilon(point, run),
            "proven epsilon": proven_epsilon(run),
            "seconds": round(float(run.summary["seconds"]), 1),
        }

    def panel(self, version: str, runs: Mapping[Any, fs.Result], options: Options) -> Panel:
        """Accuracies by epoch, a curve for each point."""
        lines: dict[int, dict[str, Any]] = {}
        for point, run in runs.items():
            for number, accuracy in evaluated(run):
                line = lines.setdefault(number, {"epoch": number})
                line[self.label(point)] = 100.0 * accuracy
        styles: dict[str, dict[str, Any]] = {self.label(point): {} for point in runs}
        title = f"{self.title(version)}, {dataset_name(options)}"
        return Panel(title, [*lines.values()], "epoch", styles, ACCURACY, logy=False)

    def title(self, version: str) -> str:
        """A version, and whether it keeps what it says."""
        return f"{version} ({'honest' if version == HONEST else 'not private as labelled'})"


def train(table: Table, names: tuple[str, str], options: Options, settings: Settings) -> Result:
    """All runs of a table; `names`: of its CSV files."""
    runs = table.played(options, settings)
    rows = {key: table.row(*key, run) for key, run in runs.items()}
    epochs = [
        {table.axis: point, "version": version, "epoch": number, "accuracy": accuracy}
        for (version, point), run in runs.items()
        for number, accuracy in evaluated(run)
    ]
    versions = {
        version: {point: run for (kind, point), run in runs.items() if kind == version}
        for version in settings["versions"]
    }
    figure4 = [table.panel(version, own, options) for version, own in versions.items()]
    figures = {"figure4": panels(figure4, 2)}
    if table is RENYI:
        last = [
            {"epsilon0": point}
            | {table.title(kind): 100.0 * rows[kind, point]["accuracy"] for kind in versions}
            for point in settings["epsilon0"]
        ]
        title = f"{dataset_name(options)}, Laplace noise"
        styles: dict[str, dict[str, Any]] = {table.title(kind): {} for kind in versions}
        panel = Panel(title, last, "epsilon0", styles, f"{ACCURACY} (last epoch)", logy=False)
        panel.xlabel = "local epsilon of a report"
        figures["accuracy"] = panels([panel], 1)

    def listed(own: Mapping[Any, Any], column: str = "accuracy", form: str = ".2%") -> str:
        return "; ".join(f"{point} {row[column]:{form}}" for point, row in own.items())

    def shown(version: str) -> dict[str, Any]:
        own = {point: rows[version, point] for point in versions[version]}
        return {p if isinstance(p, str) else f"{p:g}:": row for p, row in own.items()}

    facts = {
        "data": dataset_name(options),
        "width": sum(next(iter(runs.values())).config.model.hidden),
        "seconds": sum(row["seconds"] for row in rows.values()),
        "runs": len(rows),
        "listed": listed,
        "published": shown(table.published),
        "clipped": shown(HONEST),
    }
    tables = dict(zip(names, ([*rows.values()], epochs), strict=True))
    return Result(tables, figures, facts)


# Distribution of local budgets -> how it is shown, and the accuracy the paper reports.
DISTRIBUTIONS = {
    "unif1": ("Unif 1: U(0.01, 1)", ""),
    "unif2": ("Unif 2: U(0.01, 2)", "93.5%"),
    "unif3": ("Unif 3: U(0.5, 1)", "96.78% (best of all)"),
    "constant": ("constant 0.5", "94.8%"),
    "mixed": ("half 0.5, half 0.01", ""),
}
GSPA = Table(
    *("mnist_gspa", "budgets.distribution", "distributions", "budgets", "as published"),
    label=lambda name: DISTRIBUTIONS[name][0],
    claims=lambda name: {"paper": DISTRIBUTIONS[name][1]},
    column="published epsilon (GSPA)",
    epsilon=lambda _, run: float(run.summary["columns"]["gspa"]["epsilon"]),
)


def renyi_epsilon(epsilon0: float, run: fs.Result) -> float:
    """Chen, Cao, Ge (ICASSP 2024), Theorem 3: mu = 2 sqrt(T / (m - 1)) e^(eps0 / 2), as epsilon.

    As published: T epochs over m blocks; the exact conversion of mu-Gaussian DP at `delta`.
    """
    epochs = run.summary["rounds"]
    mu = 2.0 * math.sqrt(epochs / (RENYI_BLOCKS - 1)) * math.exp(epsilon0 / 2)
    return gaussian_epsilon(run.delta, mu)


RENYI = Table(
    *("mnist_rdp", "budgets.epsilon", "epsilon0", "epsilon0", "average clipped"),
    label="eps0 = {:g}".format,
    claims=lambda _: {},
    column="published epsilon (Theorem 3)",
    epsilon=renyi_epsilon,
)
TARGETS = {
    "chen2024-gspa-table-3": partial(train, GSPA, ("table3", "figure4")),
    "chen2024-renyi-table-2": partial(train, RENYI, ("table2", "epochs")),
}
