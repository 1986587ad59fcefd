"""A sweep as one self-contained HTML page: the figure, the table, every run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
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

    A line runs along the values of the setting that moves epsilon most, one for each combination
    of the others.
    """
    table = result.table
    found = zip(table["epsilon"], table["accuracy"], strict=True)
    rows = [
        row
        for row, (epsilon, accuracy) in enumerate(found)
        if epsilon is not None and accuracy is not None and np.isfinite(epsilon)
    ]
    if not rows:
        return None
    # Of settings that move it equally, the last; a sweep over seeds alone has none, and one point.
    keys = result.settings[::-1] or [""]
    groups = max((_lines(result, rows, key) for key in keys), key=partial(_moved, result))
    lines = []
    for number, (label, own) in enumerate(groups.items()):
        at = sorted(own, key=lambda row: table["epsilon"][row])
        x = np.array([table["epsilon"][row] for row in at])
        y = 100.0 * np.array([table["accuracy"][row] for row in at])
        spread = 100.0 * np.array([table["accuracy_sd"][row] or 0.0 for row in at])
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
        scattered=True,
    )


def _lines(result: SweepTables, rows: Sequence[int], along: str) -> dict[str, list[int]]:
    """The rows of the table in groups that differ in nothing but the setting `along`."""
    found: dict[str, list[int]] = {}
    others = [key for key in result.settings if key != along]
    for row in rows:
        label = ", ".join(f"{key} = {shown(result.table[key][row])}" for key in others)
        found.setdefault(label or "test accuracy, %", []).append(row)
    return found


def _moved(result: SweepTables, groups: Mapping[str, Sequence[int]]) -> float:
    """How far epsilon goes along the lines, added up."""
    epsilons = [np.array([result.table["epsilon"][i] for i in group]) for group in groups.values()]
    return sum(float(np.ptp(each)) for each in epsilons)


def _epsilon_label(result: SweepTables) -> str:
    deltas = {each.delta for each in result.finished.values()}
    at = f" at delta = {deltas.pop():g}" if len(deltas) == 1 else ""
    return f"epsilon of the worst client{at}"
