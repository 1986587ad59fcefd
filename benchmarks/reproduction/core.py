"""What a target is, how it is run and resumed, and where its results lie.

Results of target NAME lie in OUT/NAME: one CSV per table, one PNG per figure, and `entry.json`,
written last, so that a target that was interrupted is run again.
"""

from __future__ import annotations

import decimal
import hashlib
import json
import shutil
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from benchmarks.tables import Row, write_csv

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
ENTRY = "entry.json"


@dataclass(frozen=True)
class Options:
    """How to run: `fast` means few points (minutes become seconds).

    `measured`: a folder of finished results. What they measured is read there, and nothing is
    trained; what the accountant says is counted anew.
    """

    out: Path
    fast: bool = False
    measured: Path | None = None

    def say(self, message: str) -> None:
        """One line of progress inside a target."""
        print(f"      {message}", flush=True)


@dataclass(frozen=True)
class Result:
    """What a target found: rows of each table, figures, and the facts that its sentences tell."""

    tables: Mapping[str, Sequence[Row]]
    figures: Mapping[str, Figure]
    facts: Mapping[str, Any]


Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """One table or figure of a paper. `texts`: its entry of targets.toml."""

    name: str
    run: Callable[[Options, Settings], Result]
    texts: Mapping[str, Any]

    def settings(self, options: Options) -> dict[str, Any]:
        """Everything the results depend on (JSON values): a finished target is run again only when
        they change, or one of the configuration files whose digests are among them."""
        found = {**self.texts["settings"], **(self.texts.get("fast", {}) if options.fast else {})}
        if names := found.get("configurations"):
            files = {name: (CONFIGS / f"{name}.toml").read_bytes() for name in names}
            found["configurations"] = {
                name: hashlib.sha256(file).hexdigest()[:12] for name, file in files.items()
            }
        return found


def all_targets() -> dict[str, Target]:
    """Every target, in the order of targets.toml."""
    from benchmarks.reproduction import (
        chen2024_estimation,
        chen2024_gspa,
        chen2024_renyi,
        su2025,
        training,
        training_chen2024,
    )

    modules = (
        *(chen2024_estimation, chen2024_gspa, chen2024_renyi),
        *(su2025, training, training_chen2024),
    )
    texts = tomllib.loads((HERE / "targets.toml").read_text("utf-8"))
    runs = {name: run for module in modules for name, run in module.TARGETS.items()}
    return {
        name: Target(name, runs[name], {**texts.get(own.get("like", ""), {}), **own})
        for name, own in texts.items()
    }


def fingerprint(target: Target, options: Options) -> str:
    """A digest of everything the results of this target depend on."""
    settings = {"parameters": target.settings(options), "fast": options.fast}
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
    settings = target.settings(options)
    result = target.run(options, settings)
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
        **{key: target.texts[key] for key in ("title", "paper", "claim")},
        **{
            key: JINJA.from_string(target.texts[key]).render(result.facts)
            for key in ("reproduction", "honest")
        },
        "tables": [f"{name}.csv" for name in result.tables],
        "figures": [f"{name}.png" for name in result.figures],
        "parameters": settings,
        "fast": options.fast,
        "fingerprint": fingerprint(target, options),
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
    }
    (folder / ENTRY).write_text(json.dumps(entry, indent=2) + "\n")
    return entry


def rounded_up(bound: float) -> str:
    """An upper bound in three digits, as every page shows it."""
    return str(decimal.Context(3, decimal.ROUND_CEILING).create_decimal(bound))


def rounded_down(bound: float) -> str:
    """A lower bound in three digits, as every page shows it."""
    return str(decimal.Context(3, decimal.ROUND_FLOOR).create_decimal(bound))


def span(values: Iterable[float], form: str = ".0%") -> str:
    """Smallest to largest."""
    found = list(values)
    return f"{min(found):{form}} to {max(found):{form}}"


JINJA = Environment(
    loader=FileSystemLoader(HERE),
    undefined=StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
JINJA.filters |= {"span": span, "f": format, "up": rounded_up, "down": rounded_down}


@dataclass
class Panel:
    """Curves of one axes: columns of rows against another, `x`. Every key of `styles` is drawn."""

    title: str
    rows: Sequence[Row]
    x: str
    styles: Mapping[str, Mapping[str, Any]]
    ylabel: str
    xlabel: str = ""
    prefix: str = ""
    """What columns begin with and labels do not."""
    logx: bool = False
    logy: bool = True


def panels(parts: Sequence[Panel], columns: int) -> Figure:
    """A grid of panels; one legend below if all show the same curves, else one in each."""
    rows = -(-len(parts) // columns)
    shared = all(list(part.styles) == list(parts[0].styles) for part in parts)
    beside = max(2, columns)
    legend = 0.17 * -(-len(parts[0].styles) // beside) if shared else 0.0
    figure = Figure(figsize=(5.4 * columns, 4.1 * rows + legend), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(parts) :]:
        axis.set_visible(False)
    for axis, part in zip(axes.flat, parts, strict=False):
        x = [row[part.x] for row in part.rows]
        for label, style in part.styles.items():
            axis.plot(x, [row[part.prefix + label] for row in part.rows], label=label, **style)
        axis.set(title=part.title, xlabel=part.xlabel or part.x, ylabel=part.ylabel)
        axis.set(xscale="log" if part.logx else "linear", yscale="log" if part.logy else "linear")
        axis.grid(True, alpha=0.3)
    if shared:
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=beside, fontsize=8)
    else:
        for axis in axes.flat[: len(parts)]:
            axis.legend(fontsize=7)
    return figure
