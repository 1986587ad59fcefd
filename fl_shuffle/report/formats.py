"""Writing tables: for the eye, as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_shuffle.errors import RunError
from fl_shuffle.plugins import require_extra

if TYPE_CHECKING:
    from fl_shuffle.report.tables import Table

TEXT_FORMATS = ("table", "csv", "json")
FORMATS = (*TEXT_FORMATS, "parquet")


def as_text(table: Table, form: str, width: int | None = None) -> str:
    """The table as `table` (aligned columns, see `aligned`), `csv` or `json` (a list of objects).

    Numbers that do not exist are `-`, empty, and null; infinity is the text `inf`.
    """
    rows = _rows(table)
    if form == "json":
        named = [dict(zip(table, map(_json, row), strict=True)) for row in rows]
        return json.dumps(named, indent=1)
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table)
        writer.writerows([["" if _missing(cell) else cell for cell in row] for row in rows])
        return text.getvalue().rstrip("\n")
    return "\n".join(
        aligned([list(table), *([_shown(cell) for cell in row] for row in rows)], width)
    )


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


def _rows(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(values.tolist() for values in table.values()), strict=True))


def _missing(cell: Any) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _json(cell: Any) -> Any:
    if _missing(cell):
        return None
    return str(cell) if isinstance(cell, float) and math.isinf(cell) else cell


def _shown(cell: Any) -> str:
    if _missing(cell):
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
