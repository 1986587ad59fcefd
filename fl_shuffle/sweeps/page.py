"""A sweep as one self-contained HTML page: the figure, the table, every run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle.report.drawing import STYLES
from fl_shuffle.report.figures import Figure, Line, wide
from fl_shuffle.report.markup import Cell, Number, charts, html_table, page
from fl_shuffle.sweeps.tables import EACH_ALONE, SweepTables, shown

PERCENT = ("accuracy", "accuracy_sd")
HEADS = {"accuracy": "accuracy, %", "accuracy_sd": "spread, %", "directory": "folder"}


def render(result: SweepTables) -> str:
    """The page as text."""
    name = escape(result.directory.name)
    runs, wanted = len(result.finished), len(result.sweep.points)
    body = [
        f"<h1>Sweep {name}</h1>",
        f'<p class="quiet">{wanted} runs: {len(result.table["runs"])} combinations of '
        f"{escape(', '.join(result.settings)) or 'no setting'}, {len(result.sweep.seeds)} seeds "
        f"each; {runs} finished.</p>",
        f'<p class="warning">{escape(EACH_ALONE)}.</p>',
    ]
    if runs < wanted:
        body.append(
            f'<p class="warning">{wanted - runs} runs have no result; '
            "<code>fl-shuffle sweep --resume</code> goes on with them.</p>"
        )
    figure = accuracy_against_epsilon(result)
    if figure is not None:
        body += ["<h2>Accuracy against epsilon</h2>", charts([figure])]
    combinations = "Mean and spread (one sample standard deviation) of accuracy over the seeds; "
    combinations += "the largest epsilon of any of the runs"
    folders = "Every finished run; its folder lies in runs/ of the sweep's"
    names = [Path(name).name for name in result.runs["directory"]]
    base = escape(json.dumps(result.sweep.base, indent=2))
    body += [
        f'<h2>Combinations</h2><div id="combinations">{_table(result.table, combinations)}</div>',
        f'<h2>Runs</h2><div id="runs">{_table({**result.runs, "directory": names}, folders)}</div>',
        '<details class="printed"><summary>base configuration</summary>'
        f'<pre tabindex="0">{base}</pre></details>',
    ]
    return page(f"fl-shuffle sweep {result.directory.name}", body)


def _table(columns: Mapping[str, Sequence[Any]], caption: str) -> str:
    cells = [_cells(name, values) for name, values in columns.items()]
    heads = [HEADS.get(name, name.removesuffix("_epsilon")) for name in columns]
    return html_table(heads, zip(*cells, strict=True), caption=caption)


def _cells(name: str, values: Sequence[Any]) -> list[Cell]:
    """A column: numbers where it holds nothing else, accuracies in percent."""
    if any(isinstance(value, bool | str | list | dict) for value in values):
        return [shown(value) for value in values]
    scale = 100.0 if name in PERCENT else None
    return [Number(value if scale is None or value is None else scale * value) for value in values]


def accuracy_against_epsilon(result: SweepTables) -> Figure | None:
    """Accuracy against epsilon, with error bars; None if no combination has both numbers.

    One line for each combination of the settings but the last, along the last one's values.
    """
    table = result.table
    found: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    keys = result.settings
    for row in range(len(table["runs"])):
        epsilon, accuracy = table["epsilon"][row], table["accuracy"][row]
        if epsilon is None or accuracy is None or not np.isfinite(epsilon):
            continue
        group = tuple(f"{key} = {shown(table[key][row])}" for key in keys[:-1])
        spread = table["accuracy_sd"][row] or 0.0
        found.setdefault(group, []).append((epsilon, 100.0 * accuracy, 100.0 * spread))
    if not found:
        return None
    lines = []
    for number, (group, points) in enumerate(found.items()):
        x, y, spread = np.array(sorted(points)).T
        label = ", ".join(group) or "test accuracy, %"
        lines.append(Line(f"run-{number % STYLES}", label, x, y, spread))
    return Figure(
        name="accuracy-epsilon",
        title="Accuracy against epsilon",
        caption="Mean test accuracy over the seeds, and one sample standard deviation either way; "
        "epsilon is the largest of the combination's runs.",
        x_label=_epsilon_label(result),
        y_label="test accuracy, %",
        lines=lines,
        log_x=wide([line.x for line in lines]),
    )


def _epsilon_label(result: SweepTables) -> str:
    deltas = {each.delta for each in result.finished.values()}
    at = f" at delta = {deltas.pop():g}" if len(deltas) == 1 else ""
    return f"epsilon of the worst client{at}"
