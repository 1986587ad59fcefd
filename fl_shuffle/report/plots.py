"""The report's figures as files for papers (PNG, PDF, SVG by matplotlib), and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_shuffle.errors import RunError
from fl_shuffle.plugins import require_extra
from fl_shuffle.report.comparison import figures_together
from fl_shuffle.report.figures import DASHED, DOTTED, Figure, run_figures
from fl_shuffle.report.formats import write_table
from fl_shuffle.report.record import RunRecord

FORMS = ("png", "pdf", "csv")
SIZE = (4.8, 3.3)
"""Inches: a column of a paper, with text of its size."""
RESOLUTION = 300
"""Dots an inch of a PNG."""
COLOURS = {
    "proven": "#1553b6",
    "sum": "#7c3aed",
    "local": "#475569",
    "gspa": "#b4400a",
    "specific": "#8a5a00",
    "lower": "#15803d",
    "sum_lower": "#0f766e",
}
"""As on the page in the light."""


def write_figures(runs: Sequence[RunRecord], folder: Path, form: str) -> list[Path]:
    """Every figure of the page as a file of its own in `folder`: a picture, or its numbers.

    Returns where they are. Raises `ConfigError` for pictures without matplotlib, `RunError` where
    nothing can be written.
    """
    if form != "csv":
        require_extra("matplotlib", "report", f"--{form}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    found: list[tuple[str, Figure]] = []
    for number, run in enumerate(runs, start=1):
        prefix = f"run{number}-" if len(runs) > 1 else ""
        own = run_figures(run) if run.spend is not None else []
        found += [(prefix + figure.name, figure) for figure in own]
    if len(runs) > 1:
        found += [(figure.name, figure) for figure in figures_together(runs)]
    paths = []
    for name, figure in found:
        path = folder / f"{name}.{form}"
        if form == "csv":
            write_table(figure.table(), path, "csv")
        else:
            write_picture(figure, path)
        paths.append(path)
    return paths


def write_picture(figure: Figure, path: Path) -> None:
    """One figure as the picture that the file's ending names; its owner alone may read it.

    Raises `ConfigError` without matplotlib, `RunError` if it cannot be written.
    """
    require_extra("matplotlib", "report", "a figure's picture")
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import MaxNLocator

    style: Any = {
        "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#e5e7eb", "legend.fontsize": 8, "svg.hashsalt": "fl-shuffle",
        "pdf.fonttype": 42,
    }  # fmt: skip
    with rc_context(style):
        canvas = Canvas(figsize=SIZE, layout="constrained")
        axes = canvas.add_subplot()
        for line in figure.shown():
            dashes = "--" if line.kind in DASHED else ":" if line.kind in DOTTED else "-"
            # Lines of runs take the next colour of matplotlib's own.
            options: Any = {"ls": dashes, "lw": 1.5, "label": line.label}
            if line.kind in COLOURS:
                options["color"] = COLOURS[line.kind]
            if line.steps:
                options["drawstyle"] = "steps-post"
            axes.errorbar(line.x, line.y, line.spread, capsize=3, **options)
        axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
        if figure.counts:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xscale("log" if figure.log_x else "linear")
        axes.set_yscale("log" if figure.log_y else "linear")
        if figure.low is not None or figure.high is not None:
            axes.set_ylim(figure.low, figure.high)
        if len(figure.shown()) > 1:
            canvas.legend(loc="outside upper left", ncols=2, frameon=False)
        try:
            # The same numbers give the same file.
            canvas.savefig(path, dpi=RESOLUTION, metadata=_undated(path))
            path.chmod(0o600)
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be written: {error}") from None


def _undated(path: Path) -> dict[str, None]:
    return (
        {} if path.suffix == ".png" else {"CreationDate" if path.suffix == ".pdf" else "Date": None}
    )
