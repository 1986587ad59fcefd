"""Writing tables: for the eye, as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.plugins import require_extra

if TYPE_CHECKING:
    from fl_shuffle.report.tables import Table

TEXT_FORMATS = ("table", "csv", "json")
FORMATS = (*TEXT_FORMATS, "parquet")


@dataclass(frozen=True)
class Grid:
    """A table of a page: numbers (None: there is none) stand right, with all their digits kept.

    The first column names its rows. `cards`: a row becomes a block on narrow screens; other tables
    scroll there, as a region called `label` (or `caption`).
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    label: str = ""
    cards: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone."""
        if not self.rows:
            return [False] * len(self.heads)
        columns = zip(*self.rows, strict=True)
        return [all(not isinstance(cell, str) for cell in column) for column in columns]


def as_text(table: Table, form: str, width: int | None = None) -> str:
    """The table as `table` (aligned columns, see `aligned`), `csv` or `json` (a list of objects).

    Numbers that do not exist are `-`, empty, and null; infinity is the text `inf`.
    """
    if form == "json":
        return _as_json(table)
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table)
        writer.writerows(_rows(table, missing=""))
        return text.getvalue().rstrip("\n")
    shown = [[short(cell) for cell in row] for row in _rows(table, missing=math.nan)]
    return "\n".join(aligned([list(table), *shown], width))


def _as_json(table: Table) -> str:
    """A line an object: `json` itself lays texts out a cell at a time, seconds for a million."""
    heads = (json.dumps(name).replace("%", "%%") for name in table)
    line = " {" + ", ".join(f"{head}: %s" for head in heads) + "}"
    columns = [_json_cells(values) for values in table.values()]
    lines = [line % row for row in zip(*columns, strict=True)]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def _json_cells(values: NDArray[Any]) -> list[str]:
    if values.dtype.kind in "iu":
        return [str(cell) for cell in values.tolist()]
    if values.dtype.kind != "f":
        return [json.dumps(cell) for cell in values.tolist()]
    return [
        repr(cell) if math.isfinite(cell) else "null" if math.isnan(cell) else f'"{cell}"'
        for cell in values.tolist()
    ]


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Rows of cells, the heads first, as lines with columns two blanks apart.

    Columns that do not fit into `width` characters (None: any number will do) follow below, the
    first column before them again.
    """
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    blocks = [[0]]
    for index in range(1, len(widths)):
        taken = sum(widths[other] + 2 for other in blocks[-1]) + widths[index]
        if width is not None and taken > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(index)
    lines: list[str] = []
    for block in blocks:
        lines += [""] if lines else []
        lines += [
            "  ".join(row[index].rjust(widths[index]) for index in block).rstrip() for row in rows
        ]
    return lines


def write_table(table: Table, path: Path, form: str) -> None:
    """Write one table into a file that its owner alone may read.

    Raises `ConfigError` for Parquet without pyarrow, `RunError` if the file cannot be written.
    """
    try:
        if form == "parquet":
            require_extra("pyarrow", "parquet", "Parquet")
            import pyarrow
            from pyarrow import parquet

            with open(path, "wb", opener=_private) as raw:
                parquet.write_table(pyarrow.table(dict(table)), raw)
        else:
            with open(path, "w", encoding="utf-8", newline="", opener=_private) as file:
                file.write(as_text(table, form) + "\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _rows(table: Table, *, missing: Any) -> Iterator[tuple[Any, ...]]:
    """The rows, with `missing` for numbers that do not exist."""
    return zip(*(_cells(values, missing) for values in table.values()), strict=True)


def _cells(values: NDArray[Any], missing: Any) -> list[Any]:
    cells: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        for place in np.flatnonzero(np.isnan(values)):
            cells[place] = missing
    return cells


def short(value: Any) -> str:
    """Numbers that are not whole with four significant digits; `-` for what does not exist."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
