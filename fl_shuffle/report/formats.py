"""Writing tables: for the eye, as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.durable_files import (
    PRIVATE_FOLDER,
    open_private,
    replace_file,
    said_in_one_line,
)
from fl_shuffle._internal.plugins import require_extra

Table = Mapping[str, NDArray[Any] | Sequence[Any]]
"""Columns of equal length by name; NaN or None for a number that does not exist."""


def as_text(table: Table, form: str, width: int | None = None) -> str:
    """Return the table as `table` (aligned columns, see `aligned`), `csv` or `json` (a list of
    objects).

    Numbers that do not exist are `-`, empty, and null; infinity is the text `inf`.
    """
    if form == "json":
        # A line an object: `json` itself lays texts out a cell at a time, seconds for a million.
        lines = [f" {json.dumps(dict(zip(table, row, strict=True)))}" for row in rows(table)]
        return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([list(table), *rows(table)])
        return text.getvalue().rstrip("\n")
    return "\n".join(aligned([list(table), *(map(short, row) for row in rows(table))], width))


def rows(table: Table) -> Iterator[tuple[Any, ...]]:
    """Return the rows, with None for numbers that do not exist, and infinity as the text `inf`."""
    return zip(*map(_cells, table.values()), strict=True)


def _cells(values: NDArray[Any] | Sequence[Any]) -> list[Any]:
    found = _plain(values)
    for place, cell in enumerate(found):
        if isinstance(cell, float) and not math.isfinite(cell):
            found[place] = None if math.isnan(cell) else str(cell)
    return found


def numeric(table: Table) -> list[bool]:
    """Return which columns hold numbers alone (None: there is none)."""
    kinds = [set(map(type, _plain(values))) - {type(None)} for values in table.values()]
    return [bool not in own and all(issubclass(each, int | float) for each in own) for own in kinds]


def _plain(values: NDArray[Any] | Sequence[Any]) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def aligned(lines: Iterable[Iterable[str]], width: int | None = None) -> list[str]:
    """Return rows of cells, the heads first, as lines with columns two blanks apart.

    Columns that do not fit into `width` characters (None: any number will do) follow below, the
    first column before them again.
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    blocks = [[0]]
    for index in range(1, len(widths)):
        taken = sum(widths[other] + 2 for other in blocks[-1]) + widths[index]
        if width is not None and taken > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(index)
    shown: list[str] = []
    for block in blocks:
        padded = ([cell.rjust(widths[index]) for cell in columns[index]] for index in block)
        shown += [""] if shown else []
        shown += ["  ".join(row).rstrip() for row in zip(*padded, strict=True)]
    return shown


def write_table(table: Table, path: Path, form: str) -> None:
    """Write one table into a file that its owner alone may read.

    Raises `ConfigError` for Parquet without pyarrow, `RunError` if the file cannot be written.
    """
    if form != "parquet":
        write_text(as_text(table, form) + "\n", path)
        return
    require_extra("pyarrow", "parquet", "Parquet")
    import pyarrow
    from pyarrow import parquet

    arrow = pyarrow.table(dict(table))
    with said_in_one_line(path):
        replace_file(path, lambda unfinished: parquet.write_table(arrow, unfinished))


def write_text(text: str, path: Path) -> Path:
    """Write a text that its owner alone may read, as private as the runs it tells of; returns where
    it is. Raises `RunError` if it cannot be written."""
    with said_in_one_line(path), open_private(path, "w") as file:
        file.write(text)
    return path


def make_folder(path: Path) -> None:
    """Make a folder that its owner alone enters; raises `RunError` where there can be none."""
    with said_in_one_line(path, "used as a folder"):
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)


def short(value: Any) -> str:
    """Return numbers that are not whole with four significant digits; `-` for what does not
    exist."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
