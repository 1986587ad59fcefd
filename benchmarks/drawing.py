"""How every picture of the documents is drawn: an SVG, and its data beside it as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_rows(stem: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write `stem`.csv."""
    with stem.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(
            [f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in rows
        )


def pyplot_for(stem: Path) -> Any:
    """Return pyplot, set so that a picture of the same data is the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    # Letters of 12 points can still be read where a telephone shows the picture 350 pixels wide.
    mpl.rcParams.update(
        {"svg.hashsalt": stem.name, "svg.fonttype": "none", "font.size": 12, "legend.fontsize": 11}
    )
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, axes: Any, stem: Path) -> None:
    """Write `stem`.svg, with a grid and a legend."""
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(
        stem.with_suffix(".svg"), format="svg", metadata={"Date": None}, bbox_inches="tight"
    )
