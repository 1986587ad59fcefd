"""What a target is, how it is run and resumed, and where its results lie.

A module of this package that defines `TARGETS: dict[str, Target]` is found by itself. Results of
target NAME lie in OUT/NAME: one CSV per table, one PNG per figure, and `entry.json`, written last,
so that a target that was interrupted is run again.
"""

from __future__ import annotations

import csv
import decimal
import hashlib
import importlib
import json
import os
import pkgutil
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib.figure import Figure

Row = Mapping[str, Any]
ENTRY = "entry.json"
BEYOND = "Beyond the papers"


@dataclass(frozen=True)
class Options:
    """How to run: `fast` means few points (minutes become seconds), `data` is the MNIST folder.

    `measured`: a folder of finished results. What they measured is read there, and nothing is
    trained; what the accountant says is counted anew.
    """

    out: Path
    fast: bool = False
    data: Path | None = None
    measured: Path | None = None

    def say(self, message: str) -> None:
        """One line of progress inside a target."""
        print(f"      {message}", flush=True)


@dataclass(frozen=True)
class Result:
    """What a target found: rows of each table, figures, and two sentences made from the numbers."""

    tables: Mapping[str, Sequence[Row]]
    figures: Mapping[str, Figure]
    reproduction: str
    honest: str


@dataclass(frozen=True)
class Target:
    """One table or figure of a paper.

    `claim` is what the paper says; `parameters` gives every setting the results depend on (JSON
    values): a finished target is run again only when they change.
    """

    name: str
    title: str
    paper: str
    claim: str
    parameters: Callable[[Options], Mapping[str, Any]]
    run: Callable[[Options], Result]


def all_targets() -> dict[str, Target]:
    """Every target of every module of this package: paper by paper, then what goes beyond."""
    package = importlib.import_module(__package__)
    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for name, target in getattr(
            importlib.import_module(f"{__package__}.{module.name}"), "TARGETS", {}
        ).items():
            if name != target.name or name in found:
                raise ValueError(f"target {name!r} of {module.name}: name clashes")
            found[name] = target

    def place(target: Target) -> tuple[bool, str, str]:
        return target.paper == BEYOND, target.paper, target.name

    return {target.name: target for target in sorted(found.values(), key=place)}


def fingerprint(target: Target, options: Options) -> str:
    """A digest of everything the results of this target depend on."""
    settings = {"parameters": target.parameters(options), "fast": options.fast}
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def finished(target: Target, options: Options) -> dict[str, Any] | None:
    """The entry of a run with the same settings whose files are all there, else None."""
    folder = options.out / target.name
    try:
        entry: dict[str, Any] = json.loads((folder / ENTRY).read_text())
    except FileNotFoundError:
        return None
    files = [*entry["tables"], *entry["figures"]]
    if entry["fingerprint"] != fingerprint(target, options):
        return None
    return entry if all((folder / name).is_file() for name in files) else None


def execute(
    target: Target, options: Options, measured: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run one target, write its files and its entry, return the entry.

    `measured` is the entry of the run whose measurements are kept, if any: its times are, too.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    result = target.run(options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if measured is not None:
        wall, cpu = measured["seconds"], measured["cpu_seconds"]
    folder = options.out / target.name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, rows in result.tables.items():
        write_csv(folder / f"{name}.csv", rows)
    for name, figure in result.figures.items():
        figure.savefig(folder / f"{name}.png", dpi=130, bbox_inches="tight")
    entry = {
        "name": target.name,
        "title": target.title,
        "paper": target.paper,
        "claim": target.claim,
        "reproduction": result.reproduction,
        "honest": result.honest,
        "tables": [f"{name}.csv" for name in result.tables],
        "figures": [f"{name}.png" for name in result.figures],
        "parameters": dict(target.parameters(options)),
        "fast": options.fast,
        "fingerprint": fingerprint(target, options),
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
    }
    write_atomically(folder / ENTRY, json.dumps(entry, indent=2) + "\n")
    return entry


def forget(target: Target, options: Options) -> None:
    """Drop the entry of a target and the run directories of the configurations it trains."""
    (options.out / target.name / ENTRY).unlink(missing_ok=True)
    for name in target.parameters(options).get("configurations", {}):
        for folder in (options.out / "runs").glob(f"{name}-*"):
            shutil.rmtree(folder)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows as CSV; columns in the order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_atomically(path: Path, text: str) -> None:
    """The whole text under this name, or the old file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def rounded_up(bound: float) -> str:
    """An upper bound in three digits, as every page shows it."""
    return str(decimal.Context(3, decimal.ROUND_CEILING).create_decimal(bound))


def rounded_down(bound: float) -> str:
    """A lower bound in three digits, as every page shows it."""
    return str(decimal.Context(3, decimal.ROUND_FLOOR).create_decimal(bound))


@dataclass
class Panel:
    """Curves of one axes: x, and y by label; styles by label come from `STYLES`."""

    title: str
    x: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    xlabel: str
    ylabel: str
    logx: bool = False
    logy: bool = True
    styles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def panels(parts: Sequence[Panel], columns: int) -> Figure:
    """A grid of panels; one legend below if all show the same curves, else one in each."""
    rows = -(-len(parts) // columns)
    shared = all(list(part.curves) == list(parts[0].curves) for part in parts)
    beside = max(2, columns)
    legend = 0.17 * -(-len(parts[0].curves) // beside) if shared else 0.0
    figure = Figure(figsize=(5.4 * columns, 4.1 * rows + legend), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(parts) :]:
        axis.set_visible(False)
    for axis, part in zip(axes.flat, parts, strict=False):
        for label, y in part.curves.items():
            axis.plot(part.x, y, label=label, **part.styles.get(label, {}))
        axis.set(title=part.title, xlabel=part.xlabel, ylabel=part.ylabel)
        if part.logx:
            axis.set_xscale("log")
        if part.logy:
            axis.set_yscale("log")
        axis.grid(True, alpha=0.3)
    if shared:
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=beside, fontsize=8)
    else:
        for axis in axes.flat[: len(parts)]:
            axis.legend(fontsize=7)
    return figure
