"""A picture of bounds over one number of a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.report.figures import STYLES, Figure, PlotLine
from fl_shuffle.report.formats import write_table

ENDINGS = ("png", "svg", "pdf", "csv")
WORDS = {
    Status.PROVEN: "proven",
    Status.AS_PUBLISHED: "published",
    Status.LOWER_BOUND: "lower",
}
"""Status -> the strokes of its lines (`draw.STROKES`), in the order of a table's columns."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One method's numbers over the values; `refusal` says why the first missing one is missing."""

    method: str
    numbers: Vector
    status: Status
    source: str
    refusal: str
    randomizer: str | None = None
    """Named where a picture holds curves of several."""

    @classmethod
    def of(
        cls,
        method: str,
        answers: Sequence[Guarantee | FlShuffleError],
        asked: str,
        randomizer: str | None = None,
    ) -> Curve | str:
        """Return the numbers (`asked`: epsilon or delta) of these answers; where all are refusals
        the first one's text."""
        given = [each for each in answers if isinstance(each, Guarantee)]
        refused = [" ".join(str(each).split()) for each in answers if each not in given]
        if not given:
            return refused[0]
        numbers = [
            getattr(each, asked) if isinstance(each, Guarantee) else np.nan for each in answers
        ]
        first = given[0]
        refusal = refused[0] if refused else ""
        return cls(method, np.array(numbers), first.status, first.source, refusal, randomizer)

    @property
    def name(self) -> str:
        """The method, after the randomizer where there are several."""
        return name_of(self.method, self.randomizer)

    @property
    def label(self) -> str:
        """The legend's."""
        return f"{self.name} ({self.status})"


def name_of(method: str, randomizer: str | None) -> str:
    """Return the name of one curve in tables, legends, and refusals."""
    return method if randomizer is None else f"{randomizer}: {method}"


def curves_figure(axis: str, values: Vector, y_label: str, curves: Sequence[Curve]) -> Figure:
    """Return the picture of all curves: dashed ones are formulas as published, dotted ones lower
    bounds."""
    lines = [
        PlotLine.of(f"{WORDS[curve.status]}-{place % STYLES}", curve.label, values, curve.numbers)
        for place, curve in enumerate(curves)
    ]
    return Figure("bounds", axis.replace("_", " "), y_label, lines, stretched="xy")


def require_ending(path: Path) -> str:
    """Return what the file's name says that it is. Raises `ConfigError` for another ending, or
    where no folder could hold the file."""
    form = path.suffix.lower().removeprefix(".")
    if form not in ENDINGS:
        raise ConfigError(f"--plot {path}: the name must end in {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")
    return form


def write_curves(figure: Figure, path: Path) -> None:
    """Write the picture, or its numbers (csv), as the file's ending says."""
    if require_ending(path) == "csv":
        write_table(figure.table(), path, "csv")
        return
    from fl_shuffle.report.draw import write_picture

    write_picture(figure, path)
