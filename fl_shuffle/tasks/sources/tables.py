"""Tables with a label column: which columns are inputs, and how their cells become numbers.

Everything is declared in `data.source_options`, nothing is fitted:

- `label`: the column to predict (default `label`); `class_names` lists its texts in order.
- `client`: the column that says whose a record is.
- `columns`: the input columns (default: all others, in the file's order).
- `categories = { sex = ["female", "male"] }`: one input for each of these texts, 1 where it holds.
- `ranges = { age = [0, 100] }`: (cell - 0) / (100 - 0), cut off at 0 and 1.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import DataError, InvalidValueError, require_real
from fl_shuffle.plugins import require_extra
from fl_shuffle.tasks.sources.options import FIELD, Target, text_option, texts_option

log = logging.getLogger("fl_shuffle.client")

COLUMN_OPTIONS = ("label", "client", "columns", "categories", "ranges")
NO_CLASS = -1
"""A label that is none of the declared classes: its record counts as zero."""

Table = Mapping[str, Sequence[Any]]
"""Cells by column: texts, or numbers where the file has types."""


def read_table(path: Path) -> Table:
    """The columns of a .csv (with a header) or .parquet file. Raises `DataError`."""
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            if not header or len(set(header)) != len(header) or "" in header:
                raise DataError(f"{path}: line 1 must name its columns, each by another name")
            # A row of another length is its holder's mistake, as a cell that is no number is.
            width = len(header)
            cells = [(row + [""] * width)[:width] for row in rows if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not cells:
        raise DataError(f"{path} holds no record")
    return dict(zip(header, zip(*cells, strict=True), strict=True))


def _parquet(path: Path) -> Table:
    require_extra("pyarrow", "parquet", f"reading {path}")
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


@dataclass(frozen=True)
class Columns:
    """What the options say about a table's columns."""

    target: Target
    label: str
    client: str
    inputs: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, options: Mapping[str, Any], target: Target) -> Columns:
        """Raises `InvalidValueError` for an option that is not what it must be."""
        tables = {}
        for name in ("categories", "ranges"):
            tables[name] = options.get(name, {})
            if not isinstance(tables[name], Mapping):
                raise InvalidValueError(
                    f"{FIELD}.{name}", tables[name], "must be a table of column names"
                )
        categories = {
            name: texts_option(tables["categories"], name) for name in tables["categories"]
        }
        return cls(
            target,
            text_option(options, "label", "label"),
            text_option(options, "client", ""),
            texts_option(options, "columns"),
            categories,
            {name: _range(name, ends) for name, ends in tables["ranges"].items()},
        )

    def arrays(
        self, path: Path, table: Table
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any] | None]:
        """Inputs [N, k] (NaN where a cell is no number), labels and owners [N] of a table."""
        special = {self.label, self.client} - {""}
        inputs = self.inputs or tuple(name for name in table if name not in special)
        for name in (*special, *inputs, *self.categories, *self.ranges):
            if name not in table:
                raise DataError(
                    f"{path} has no column {name!r}; it has {', '.join(list(table)[:20])}"
                )
        parts = [self._input(name, table[name]) for name in inputs]
        values = np.concatenate(parts, axis=1).astype(np.float32)
        bad = int((~np.isfinite(values).all(axis=1)).sum())
        if bad:
            log.warning(
                "%s: %d records have cells that are no numbers: they count as zero", path, bad
            )
        owners = None if not self.client else np.array([str(one) for one in table[self.client]])
        return values, label_values(table[self.label], self.target), owners

    def _input(self, name: str, cells: Sequence[Any]) -> NDArray[np.float64]:
        if name in self.categories:
            known = self.categories[name]
            texts = np.array([_text(cell) for cell in cells])
            return np.asarray(texts[:, None] == np.array(known)[None, :], dtype=np.float64)
        values = numbers(cells)
        if name in self.ranges:
            low, high = self.ranges[name]
            values = np.clip((values - low) / (high - low), 0.0, 1.0)
        return np.asarray(values[:, None])


def label_values(cells: Sequence[Any], target: Target) -> NDArray[Any]:
    """Labels [N] of a column: float32 numbers to predict (NaN where a cell is none), or int64
    classes (`NO_CLASS` where it is none)."""
    if target.outputs:
        return numbers(cells).astype(np.float32)
    if target.names:
        place = {name: index for index, name in enumerate(target.names)}
        return np.array([place.get(_text(cell), NO_CLASS) for cell in cells], dtype=np.int64)
    values = numbers(cells)
    whole = np.isfinite(values) & (values == np.rint(values)) & (np.abs(values) < 2.0**31)
    return np.where(whole, np.where(whole, values, 0.0), NO_CLASS).astype(np.int64)


def _range(name: str, ends: Any) -> tuple[float, float]:
    field = f"{FIELD}.ranges.{name}"
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise InvalidValueError(field, ends, "must be [lowest, highest]")
    low, high = (require_real(field, end) for end in ends)
    if not low < high:
        raise InvalidValueError(field, list(ends), "must be [lowest, highest], the first below")
    return low, high


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def numbers(cells: Sequence[Any]) -> NDArray[np.float64]:
    """The cells as numbers [N], NaN where one is none."""
    try:
        return np.array(cells, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([_number(cell) for cell in cells])


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return float("nan")
