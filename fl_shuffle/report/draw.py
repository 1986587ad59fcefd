"""Figures drawn by matplotlib: the same one as SVG in a page, and as a file for a paper."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from fl_shuffle._internal.durable_files import said_in_one_line
from fl_shuffle.errors import RunError
from fl_shuffle.report.figures import STYLES, Figure, run_figures
from fl_shuffle.report.formats import make_folder, write_table
from fl_shuffle.report.many import figures_together
from fl_shuffle.report.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PICTURES: Final = ("png", "pdf", "svg")
SIZE: Final = (4.8, 3.3)
"""Inches: a column of a paper, with text of its size; still readable on a telephone."""
VIEW: Final = " ".join(f"{72.0 * inches:g}" for inches in SIZE)
"""The same in units of SVG."""
LEGEND_LINE: Final = 0.17
"""Inches that a line of a file's legend takes ..."""
LEGEND_WIDTH: Final = 56
"""... and characters that one holds."""
RESOLUTION: Final = 300
"""Dots an inch of a PNG."""
UNDATED: Final[dict[str, dict[str, None]]] = {
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
"""Metadata of a file: the same numbers give the same file, which tells no time."""
STYLE_SHEET: Final = Path(__file__).parent / "templates" / "page.css"
TWO_DECADES = 100.0
"""Ratio of a logarithmic axis's ends below which it has ticks at 1, 2 and 5."""


class Stroke(NamedTuple):
    """How a line looks: a color of the style sheet, lengths of dashes and gaps, its width."""

    colour: str
    dashes: tuple[int, ...] = ()
    width: float = 1.8


_RUNS = ("shuffled", "gspa", "shuffled_lower", "sum", "su2025", "local", "sum_lower", "ink")
DASHED, DOTTED, MIXED = (6, 3), (2, 2), (8, 2, 2, 2)
_DASHES = ((), DASHED, DOTTED, MIXED)
STROKES: Final = {
    "shuffled": Stroke("shuffled"),
    "sum": Stroke("sum"),
    "local": Stroke("local", width=1.2),
    "gspa": Stroke("gspa", DASHED, 1.5),
    "su2025": Stroke("su2025", DASHED, 1.5),
    "rdp": Stroke("rdp", width=1.2),
    "rdp-published": Stroke("rdp", DASHED, 1.5),
    "shuffled_lower": Stroke("shuffled_lower", DOTTED),
    "sum_lower": Stroke("sum_lower", DOTTED),
    "target": Stroke("ink", width=0.9),
    "accuracy": Stroke("shuffled"),
    "guessing": Stroke("quiet", width=1.0),
    **{
        f"quantile-{n}": Stroke(colour, width=2.2 if colour == "ink" else 1.4)
        for n, colour in enumerate(("quiet", "su2025", "ink", "sum", "shuffled"))
    },
    **{f"client-{n}": Stroke(_RUNS[n - 3], MIXED, 2.2) for n in range(STYLES)},
    **{f"run-{n}": Stroke(_RUNS[n], _DASHES[n % len(_DASHES)]) for n in range(STYLES)},
    **{
        f"{word}-{n}": Stroke(_RUNS[n], dashes)
        for word, dashes in (("proven", ()), ("published", DASHED), ("lower", DOTTED))
        for n in range(STYLES)
    },
}
"""Kind of a line -> its stroke: solid ones are guarantees, dashed ones published formulas that are
none, dotted ones what an attack reaches."""


@cache
def colours() -> dict[str, str]:
    """Name -> color of the style sheet by daylight, which is what goes into files."""
    light = STYLE_SHEET.read_text(encoding="utf-8").partition("@media")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))


def inline(figure: Figure, name: str) -> str:
    """Return the figure, called `name` in its page, without its legend: the inside of an SVG
    element whose `VIEW` is that of every figure.

    Colors are names of the page's style sheet, which follow it in the dark and on paper. Text is
    escaped.
    """
    file = io.StringIO()
    _save(figure, file, legend=False, form="svg", salt=name)
    text = file.getvalue()
    body = text[text.index('<g id="figure_1">') : text.rindex("</svg>")]
    # No clip paths are needed, and no name may occur twice in a page: those of markers are salted.
    named = r'<defs>\s*<clipPath.*?</defs>\s*|(?<=<g) id="[^"]*"| clip-path="[^"]*"|<!--.*?-->\s*'
    body = re.sub(named, "", body, flags=re.DOTALL)
    for colour in {stroke.colour for stroke in STROKES.values()} | {"rule"}:
        body = body.replace(colours()[colour], f"var(--{colour})")
    return body


def write_picture(figure: Figure, path: Path) -> None:
    """Write one figure as the picture that the file's ending names; its owner alone may read it.

    Raises `RunError` if it cannot be written.
    """
    form = path.suffix.lower().removeprefix(".")
    if form not in PICTURES:
        raise RunError(f"{path} cannot be written: the name must end in {', '.join(PICTURES)}")
    with said_in_one_line(path):
        _save(figure, path, legend=len(figure.shown()) > 1, form=form)
        path.chmod(0o600)


def write_figures(runs: Sequence[RunRecord], folder: Path, form: str) -> list[Path]:
    """Return every figure of the page as a file of its own in `folder`: a picture, or its numbers.

    Returns where they are. Raises `RunError` where nothing can be written.
    """
    figures = []
    for number, run in enumerate(runs, start=1):
        prefix = f"run{number}-" if len(runs) > 1 else ""
        own = run_figures(run) if run.spend is not None else []
        figures += [replace(figure, name=prefix + figure.name) for figure in own]
    figures += figures_together(runs) if len(runs) > 1 else []
    return write_each(figures, folder, form)


def write_each(figures: Sequence[Figure], folder: Path, form: str) -> list[Path]:
    """Write figures into `folder` under their names, as pictures or as tables of numbers (csv)."""
    make_folder(folder)
    paths = []
    for figure in figures:
        paths.append(folder / f"{figure.name}.{form}")
        if form == "csv":
            write_table(figure.table(), paths[-1], "csv")
        else:
            write_picture(figure, paths[-1])
    return paths


def matplotlib_figure(figure: Figure) -> Canvas:
    """Return the figure as a `matplotlib.figure.Figure`, drawn in the style of the report."""
    from matplotlib import rc_context

    with rc_context(_style("fl-shuffle")):
        return _canvas(figure, legend=len(figure.shown()) > 1)


@contextmanager
def drawn_in_style() -> Iterator[None]:
    """Draw what is drawn inside in the style of the report."""
    from matplotlib import rc_context

    with rc_context(_style("fl-shuffle")):
        yield


def _style(salt: str) -> Any:
    """Return Matplotlib settings of every figure; `salt` makes the names inside an SVG file
    unique."""
    ink, quiet, rule = (colours()[name] for name in ("ink", "quiet", "rule"))
    return {
        "font.size": 10, "legend.fontsize": 8.5, "axes.spines.top": False, "axes.grid": True,
        "axes.spines.right": False, "grid.color": rule, "grid.linewidth": 0.7, "text.color": ink,
        "axes.labelcolor": ink, "axes.edgecolor": quiet, "xtick.labelcolor": quiet,
        "ytick.labelcolor": quiet, "xtick.bottom": False, "ytick.left": False,
        "xtick.minor.bottom": False, "ytick.minor.left": False, "svg.fonttype": "none",
        "svg.hashsalt": salt, "pdf.fonttype": 42,
    }  # fmt: skip


def _save(figure: Figure, file: Any, *, legend: bool, form: str, salt: str = "fl-shuffle") -> None:
    from matplotlib import rc_context

    with rc_context(_style(salt)):
        canvas = _canvas(figure, legend=legend)
        canvas.savefig(file, format=form, dpi=RESOLUTION, metadata=UNDATED.get(form),
                       transparent=legend is False)  # fmt: skip


def _canvas(figure: Figure, *, legend: bool) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=SIZE, layout="constrained")
    axes = canvas.add_subplot()
    lines = figure.shown()
    # The highest in the legend lies on top.
    for order, line in enumerate(lines):
        stroke = STROKES[line.kind]
        x, y = line.x, line.y
        if line.steps and x.size:
            # A share holds from its value on, up to the next one; nobody lies below the first.
            x, y = np.append(x[:1], x), np.append(0.0, y)
        axes.errorbar(
            x, y, line.spread, color=colours()[stroke.colour], linewidth=stroke.width,
            linestyle=(0, stroke.dashes) if stroke.dashes else "-",
            label=textwrap.fill(line.label, LEGEND_WIDTH),
            marker="o" if line.few else None, markersize=4, capsize=3, zorder=3.0 - 0.01 * order,
            drawstyle="steps-post" if line.steps else "default",
        )  # fmt: skip
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    _scale(axes, figure, "x")
    _scale(axes, figure, "y")
    if figure.low is not None or figure.high is not None:
        axes.set_ylim(figure.low, figure.high)
    if legend:
        # One column, and room for it: nothing of a name is cut off.
        rows = sum(len(textwrap.wrap(line.label, LEGEND_WIDTH)) for line in lines)
        canvas.set_size_inches(SIZE[0], SIZE[1] + LEGEND_LINE * rows)
        canvas.legend(loc="outside upper left", ncols=1, frameon=False)
    return canvas


def _scale(axes: Any, figure: Figure, name: str) -> None:
    """Set few round labels; whole ones on an axis that counts."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis = getattr(axes, f"{name}axis")
    if figure.is_log(name):
        axes.set(**{f"{name}scale": "log"})
        subs = (1.0, 2.0, 5.0) if figure.ratio(name) < TWO_DECADES else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    else:
        whole = name == "x" and figure.counts
        steps = [1, 2, 5, 10]
        axis.set_major_locator(
            MaxNLocator(6, integer=whole, steps=steps, min_n_ticks=1 if whole else 2)
        )
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
