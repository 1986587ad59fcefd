"""Chen, Cao and Ge 2024: federated training on MNIST, as published and with correct clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fl_shuffle as fs
from benchmarks.reproduction.core import Options, Panel, Result, panels, target
from benchmarks.reproduction.training_runs import (
    dataset_name,
    evaluated,
    proven_epsilon,
    settings_of,
    train_each,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon

Rows = list[dict[str, Any]]
# Distribution of local budgets -> how it is shown, and the accuracy the paper reports.
DISTRIBUTIONS = {
    "unif1": ("Unif 1: U(0.01, 1)", ""),
    "unif2": ("Unif 2: U(0.01, 2)", "93.5%"),
    "unif3": ("Unif 3: U(0.5, 1)", "96.78% (best of all)"),
    "constant": ("constant 0.5", "94.8%"),
    "mixed": ("half 0.5, half 0.01", ""),
}
AS_PUBLISHED = ("privacy.clip=average", "privacy.calibration=as-published")
HONEST = "every record clipped"
ACCURACY = "test accuracy, %"


def played(
    options: Options,
    name: str,
    setting: str,
    points: Sequence[Any],
    versions: Mapping[str, Sequence[str]],
) -> dict[tuple[str, Any], fs.Result]:
    """Runs of a configuration with each version's settings at each point, by (version, point)."""
    keys = [(version, point) for version in versions for point in points]
    wanted = [(name, (f"{setting}={point}", *versions[version])) for version, point in keys]
    return dict(zip(keys, train_each(options, wanted), strict=True))


def row(run: fs.Result, published: str, epsilon: float | None) -> dict[str, Any]:
    """What a table says of a run; `published`: the name of a formula's epsilon."""
    return {
        "accuracy": run.accuracy,
        "best epoch": max(accuracy for _, accuracy in evaluated(run)),
        published: epsilon,
        "proven epsilon": proven_epsilon(run),
        "seconds": round(float(run.summary["seconds"]), 1),
    }


def epochs_of(runs: Mapping[tuple[str, Any], fs.Result], axis: str) -> Rows:
    """Test accuracies after each epoch."""
    return [
        {axis: point, "version": version, "epoch": number, "accuracy": accuracy}
        for (version, point), run in runs.items()
        for number, accuracy in evaluated(run)
    ]


def by_epoch(
    options: Options,
    runs: Mapping[tuple[str, Any], fs.Result],
    titles: Mapping[str, str],
    label: Callable[[Any], str],
) -> list[Panel]:
    """A panel of accuracies by epoch for each version, with a curve for each point."""
    parts = []
    for version, shown in titles.items():
        own = {label(point): run for (kind, point), run in runs.items() if kind == version}
        lines: dict[int, dict[str, Any]] = {}
        for name, run in own.items():
            for number, accuracy in evaluated(run):
                lines.setdefault(number, {"epoch": number})[name] = 100.0 * accuracy
        title = f"{shown}, {dataset_name(options)}"
        styles: dict[str, dict[str, Any]] = {name: {} for name in own}
        parts.append(Panel(title, [*lines.values()], "epoch", styles, ACCURACY, logy=False))
    return parts


def facts_of(
    options: Options,
    runs: Mapping[tuple[str, Any], fs.Result],
    rows: Rows,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Of every table here; `versions`: which are the published one and the clipped one."""

    def listed(own: Mapping[Any, Any], column: str = "accuracy", form: str = ".2%") -> str:
        return "; ".join(f"{point} {row[column]:{form}}" for point, row in own.items())

    known = dict(zip(runs, rows, strict=True))
    return {
        "data": dataset_name(options),
        "width": sum(next(iter(runs.values())).config.model.hidden),
        "seconds": sum(row["seconds"] for row in rows),
        "runs": len(rows),
        "listed": listed,
        **{
            name: {_shown(point): row for (kind, point), row in known.items() if kind == version}
            for name, version in versions.items()
        },
    }


def _shown(point: Any) -> str:
    return point if isinstance(point, str) else f"{point:g}:"


VERSIONS = {"as published": AS_PUBLISHED, HONEST: ()}
TITLES = {
    "as published": "as published (not private as labelled)",
    HONEST: "every record clipped (honest)",
}


def _distributions(options: Options) -> list[str]:
    return ["constant", "unif2"] if options.fast else list(DISTRIBUTIONS)


def _gspa_parameters(options: Options) -> Mapping[str, Any]:
    return {
        "distributions": _distributions(options),
        "versions": {name: list(settings) for name, settings in VERSIONS.items()},
        "configurations": settings_of(["mnist_gspa"]),
    }


def _gspa(options: Options) -> Result:
    names = _distributions(options)
    runs = played(options, "mnist_gspa", "budgets.distribution", names, VERSIONS)
    rows = [
        {"budgets": name, "version": version, "paper": DISTRIBUTIONS[name][1]}
        | row(run, "published epsilon (GSPA)", run.summary["columns"]["gspa"]["epsilon"])
        for (version, name), run in runs.items()
    ]
    parts = by_epoch(options, runs, TITLES, lambda name: DISTRIBUTIONS[name][0])
    return Result(
        {"table3": rows, "figure4": epochs_of(runs, "budgets")},
        {"figure4": panels(parts, 2)},
        facts_of(options, runs, rows, {"published": "as published", "clipped": HONEST}),
    )


RENYI_VERSIONS = {HONEST: (), "average clipped": AS_PUBLISHED}
RENYI_TITLES = {
    HONEST: "every record clipped (honest)",
    "average clipped": "average clipped (not private as labelled)",
}
RENYI_BLOCKS = 200


def _renyi_epsilons(options: Options) -> list[float]:
    return [0.5, 2.0] if options.fast else [0.1, 0.5, 1.0, 2.0]


def _renyi_parameters(options: Options) -> Mapping[str, Any]:
    return {
        "epsilon0": _renyi_epsilons(options),
        "versions": {name: list(settings) for name, settings in RENYI_VERSIONS.items()},
        "configurations": settings_of(["mnist_rdp"]),
    }


def renyi_epsilon(epsilon0: float, epochs: int, blocks: int, delta: float) -> float:
    """Chen, Cao, Ge (ICASSP 2024), Theorem 3: mu = 2 sqrt(T / (m - 1)) e^(eps0 / 2), as epsilon.

    As published: T epochs over m blocks; the exact conversion of mu-Gaussian DP at `delta`.
    """
    return gaussian_epsilon(delta, 2.0 * math.sqrt(epochs / (blocks - 1)) * math.exp(epsilon0 / 2))


def _renyi(options: Options) -> Result:
    points = _renyi_epsilons(options)
    runs = played(options, "mnist_rdp", "budgets.epsilon", points, RENYI_VERSIONS)
    rows: Rows = []
    for (version, epsilon0), run in runs.items():
        said = renyi_epsilon(epsilon0, int(run.summary["rounds"]), RENYI_BLOCKS, run.delta)
        own = row(run, "published epsilon (Theorem 3)", said)
        rows.append({"epsilon0": epsilon0, "version": version} | own)
    shown = [
        {"epsilon0": epsilon0}
        | {
            title: 100.0 * float(runs[version, epsilon0].summary["accuracy"])
            for version, title in RENYI_TITLES.items()
        }
        for epsilon0 in points
    ]
    panel = Panel(
        f"{dataset_name(options)}, Laplace noise",
        shown,
        "epsilon0",
        {title: {} for title in RENYI_TITLES.values()},
        f"{ACCURACY} (last epoch)",
        xlabel="local epsilon of a report",
        logy=False,
    )
    parts = by_epoch(options, runs, RENYI_TITLES, lambda epsilon0: f"eps0 = {epsilon0:g}")
    return Result(
        {"table2": rows, "epochs": epochs_of(runs, "epsilon0")},
        {"figure4": panels(parts, 2), "accuracy": panels([panel], 1)},
        facts_of(options, runs, rows, {"published": "average clipped", "clipped": HONEST}),
    )


TARGETS = (
    target("chen2024-gspa-table-3", _gspa_parameters, _gspa),
    target("chen2024-renyi-table-2", _renyi_parameters, _renyi),
)
