"""A picture of the clients' labels, with one bar for each client."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fl_shuffle._internal.arrays import Counts
from fl_shuffle._internal.durable_files import said_in_one_line
from fl_shuffle.report.curves import require_ending
from fl_shuffle.report.draw import RESOLUTION, UNDATED, drawn_in_style

MOST_BARS = 60
"""A picture shows at most this many clients, evenly spread over their numbers."""
HEIGHT = 3.3
"""Inches of a picture."""
NAMED_COLORS = 20
"""Classes that have a color of their own in the legend; of more a scale of colors is drawn."""


def write_labels(path: Path, counts: Counts, outside: Counts, names: Sequence[str]) -> None:
    """Write a picture of the counts, or the counts themselves (csv), as the name's ending says.

    Only its owner may read the file: it says what the clients hold.

    Parameters
    ----------
    path : Path
        Ends in .png, .svg, .pdf, or .csv.
    counts : int64 [clients, classes]
        Records of each class.
    outside : int64 [clients]
        Records whose label is no class; they stand in the table alone.
    names : sequence of str
        The clients' names.

    Raises
    ------
    ConfigError
        For another ending, or a folder that is not there.
    RunError
        If the file cannot be written.
    """
    form = require_ending(path)
    with said_in_one_line(path):
        path.touch(mode=0o600)
        path.chmod(0o600)
        if form == "csv":
            _write_table(path, counts, outside, names)
        else:
            _write_picture(path, form, counts, names)


def _write_table(path: Path, counts: Counts, outside: Counts, names: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        classes = [f"class_{label}" for label in range(counts.shape[1])]
        table.writerow(["client", *classes, "no_class"])
        for name, row, none in zip(names, counts, outside, strict=True):
            table.writerow([name, *row.tolist(), int(none)])


def _write_picture(path: Path, form: str, counts: Counts, names: Sequence[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    shown = np.unique(np.linspace(0, clients - 1, min(clients, MOST_BARS)).round().astype(int))
    with drawn_in_style():
        width = float(np.clip(1.5 + 0.14 * len(shown), 4.8, 10.0))
        figure = Figure(figsize=(width, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        palette = colormaps["tab20" if classes <= NAMED_COLORS else "viridis"]
        below = np.zeros(len(shown))
        for label in range(classes):
            color = palette(label if classes <= NAMED_COLORS else label / (classes - 1))
            heights = counts[shown, label]
            axes.bar(np.arange(len(shown)), heights, bottom=below, width=0.85, color=color,
                     label=str(label) if classes <= NAMED_COLORS else None)  # fmt: skip
            below += heights
        axes.grid(visible=False, axis="x")
        axes.set_axisbelow(True)
        step = max(1, len(shown) // 10)
        axes.set_xticks(np.arange(len(shown))[::step], [names[k] for k in shown[::step]],
                        rotation=45 * any(len(names[k]) > 4 for k in shown))  # fmt: skip
        some = f" ({len(shown)} of {clients:,} are shown)" if len(shown) < clients else ""
        axes.set(xlabel=f"client{some}", ylabel="records of each class")
        if classes <= NAMED_COLORS:
            figure.legend(title="class", loc="outside right center", fontsize=7.5)
        figure.savefig(path, format=form, dpi=RESOLUTION, metadata=UNDATED.get(form))
