"""A sweep as one self-contained HTML page: the figure, the table, every run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_shuffle.extras import installed
from fl_shuffle.report.charts import svg_figure
from fl_shuffle.report.markup import CSS, html_table
from fl_shuffle.sweeps.tables import EACH_ALONE, SweepTables, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^Dv<>Ph*X"


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
    figure = accuracy_against_epsilon(result) if installed("matplotlib") else None
    if figure is not None:
        body.append(
            "<h2>Accuracy against epsilon</h2><figure>" + figure + "<figcaption>Mean test accuracy "
            "over the seeds, and one sample standard deviation either way; epsilon is the largest "
            "of the combination's runs.</figcaption></figure>"
        )
    elif not installed("matplotlib"):
        body.append("<p>No figure: it needs matplotlib; pip install 'fl-shuffle[report]'.</p>")
    body += ["<h2>Combinations</h2>", _table(result.table), "<h2>Runs</h2>", _table(result.runs)]
    base = escape(json.dumps(result.sweep.base, indent=2))
    body.append(f"<details><summary>base configuration</summary><pre>{base}</pre></details>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>fl-shuffle sweep {name}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _table(columns: Mapping[str, Sequence[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    return html_table(list(columns), ([shown(cell) for cell in row] for row in rows))


def accuracy_against_epsilon(result: SweepTables) -> str | None:
    """The figure as SVG text; None if no combination has both numbers.

    One line for each combination of the settings but the last, along the last one's values.
    """
    table = result.table
    lines: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    keys = result.settings
    for row in range(len(table["runs"])):
        epsilon, accuracy = table["epsilon"][row], table["accuracy"][row]
        if epsilon is None or accuracy is None or not np.isfinite(epsilon):
            continue
        group = tuple(f"{key} = {shown(table[key][row])}" for key in keys[:-1])
        spread = table["accuracy_sd"][row] or 0.0
        lines.setdefault(group, []).append((epsilon, 100.0 * accuracy, 100.0 * spread))
    if not lines:
        return None

    def draw(axes: Axes) -> None:
        every = [epsilon for line in lines.values() for epsilon, _, _ in line]
        for number, (group, line) in enumerate(lines.items()):
            x, y, error = np.array(sorted(line)).T
            axes.errorbar(
                x, y, error, label=", ".join(group) or None, lw=1.4, capsize=3,
                marker=MARKERS[number % len(MARKERS)],
            )  # fmt: skip
        if max(every) > 20.0 * min(every) > 0.0:
            axes.set_xscale("log")
        axes.set(xlabel=_epsilon_label(result), ylabel="test accuracy, %")

    return svg_figure(draw)


def _epsilon_label(result: SweepTables) -> str:
    deltas = {each.delta for each in result.finished.values()}
    at = f" at delta = {deltas.pop():g}" if len(deltas) == 1 else ""
    return f"epsilon of the worst client{at}"
