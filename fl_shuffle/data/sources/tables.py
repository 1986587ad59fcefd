"""Tables with a label column: which columns are inputs, and how their cells become numbers.

Everything is declared in `data.source_options`, nothing is fitted:

- `label`: the column to predict (default `label`); `class_names` lists its texts in order.
- `client`: the column that says whose a record is; in a .csv the first or the last one.
- `columns`: the input columns (default: all others, in the file's order).
- `categories = { sex = ["female", "male"] }`: one input for each of these texts, 1 where it holds.
- `ranges = { age = [0, 100] }`: (cell - 0) / (100 - 0), cut off at 0 and 1.
- `separator` between the cells of a .csv: "," (default), ";", "|" or a tab.
- `decimal` mark of numbers in texts: "." (default) or ",", which needs another separator.

How many records there are, and whose, is public; what a record says must not decide it, nor whether
the file can be read. So **a line of a .csv is a record, whatever is in it**: it ends at a line feed
and nowhere else (a quoted cell holds none), a blank line counts, and what cannot be read, of a line
or of a cell, counts as zero.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.csv_files import real_number
from fl_shuffle._internal.plugins import require_extra
from fl_shuffle.data.owners import owner_names
from fl_shuffle.data.sources.options import FIELD, Target, text_option, texts_option
from fl_shuffle.errors import DataError, InvalidValueError, require_choice, require_real

log = logging.getLogger("fl_shuffle.client")

COLUMN_OPTIONS = ("label", "client", "columns", "categories", "ranges", "separator", "decimal")
SEPARATORS = (",", ";", "\t", "|")
DECIMALS = (".", ",")
PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls the index of a table in a .parquet file: no input unless it is asked for."""
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
NO_CLASS = -1
"""A label that is none of the declared classes: its record counts as zero."""

LONGEST_NUMBER = 1000
"""Characters; a longer cell is no number, and is not read as one."""

CellsByColumn = Mapping[str, Sequence[Any]]
"""Cells by column: texts, or numbers where the file has types."""


def read_table(path: Path, client: str = "", separator: str = ",") -> CellsByColumn:
    """Return the columns of a .csv (with a header) or .parquet file; `client` is the one that says
    whose a record is, `separator` stands between the cells of a .csv. Raises `DataError`."""
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file")
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    if not lines[-1]:
        lines.pop()
    header = _header(path, lines[0] if lines else b"", separator)
    if len(lines) < 2:
        raise DataError(f"{path} holds no record")
    texts = [_line(line) for line in lines[1:]]
    rows = [cells_of(text, len(header), separator) for text in texts]
    table: dict[str, Sequence[str]] = dict(zip(header, zip(*rows, strict=True), strict=True))
    if client in table:
        table[client] = _owners(path, texts, header, client, separator)
    return table


def _header(path: Path, line: bytes, separator: str) -> list[str]:
    try:
        text = line.removesuffix(b"\r").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; save it as CSV (UTF-8)") from None
    header = [name.strip() for name in quoted_cells(text, separator)]
    if "\0" in text or "\r" in text:
        raise DataError(
            f"{path}: line 1, which must name the columns, is not text; save it as CSV (UTF-8), "
            "with a line feed after every record"
        )
    if len(set(header)) != len(header) or "" in header:
        raise DataError(f"{path}: line 1 must name the columns, each with a different name")
    other = next((mark for mark in SEPARATORS if mark != separator and mark in text), "")
    if len(header) == 1 and other:
        raise DataError(
            f"{path}: line 1 has no separator {separator!r}, but it has {other!r}: set "
            f"{FIELD}.separator = {other!r} (and {FIELD}.decimal = ',' if numbers are written 1,5)"
        )
    return header


def _line(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")


def cells_of(line: str, width: int, separator: str = ",") -> list[str]:
    """Return the cells of a line under a header of `width` names: too few are filled up, too many
    cut off.

    A line that has as many cells as the header without any quoting is taken so: what one cell
    begins with then hides no other.
    """
    plain = line.split(separator)
    if len(plain) == width:
        return [_unquoted(cell) for cell in plain]
    found = quoted_cells(line, separator)
    return (found + [""] * width)[:width]


def _unquoted(cell: str) -> str:
    whole = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if whole else cell


def quoted_cells(line: str, separator: str = ",") -> list[str]:
    """Return the cells between separators, those within quotes left alone; a quote without an end
    reaches to the line's."""
    cells, start = [], 0
    while (end := _end_of_cell(line, start, separator)) >= 0:
        cells.append(_unquoted(line[start:end]))
        start = end + 1
    return [*cells, _unquoted(line[start:])]


def _end_of_cell(line: str, start: int, separator: str) -> int:
    """Return where the separator behind the cell is that begins at `start`; -1 if there is none."""
    if not line.startswith('"', start):
        return line.find(separator, start)
    place = line.find('"', start + 1)
    while place >= 0 and line.startswith('"', place + 1):
        place = line.find('"', place + 2)
    return -1 if place < 0 else line.find(separator, place)


def _owners(
    path: Path, lines: list[str], header: list[str], client: str, separator: str
) -> list[str]:
    """Return the client of every line of a .csv, from that line's cell in the column `client`.

    The cell is the text before the line's first separator, or behind its last one. No text in
    another cell can move either, so no record decides whose it is. Anywhere else one could: the
    column is refused there. Quotes around a name are removed. A separator or a quote in a name is
    refused: whether such a cell ends could depend on the quotes in other cells.
    """
    place, width = header.index(client), len(header)
    if 0 < place < width - 1:
        raise DataError(
            f"{path}: the client column {client!r} is column {place + 1} of {width}: it must be "
            "the first or last one, because a comma in another cell's text could move it; move "
            "the column, or use one file by client (train/NAME.csv)"
        )
    owners = []
    for number, line in enumerate(lines, start=2):
        cell = line.partition(separator)[0] if not place else line.rpartition(separator)[2]
        owner = _unquoted(cell.strip()).strip()
        if '"' in owner:
            raise DataError(
                f"{path}: line {number}: a client's name must not contain a comma or a quote in "
                "a .csv; "
                "rename the client, or use one file by client (train/NAME.csv)"
            )
        if not owner:
            raise DataError(
                f"{path}: line {number} has no client; every line is a record, also a blank "
                "one: add its client, or remove the line"
            )
        owners.append(owner)
    return owners


def _parquet(path: Path) -> CellsByColumn:
    require_extra("pyarrow", "parquet", f"reading {path}")
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not table.num_rows:
        raise DataError(f"{path} holds no record")
    return {name: [_python(cell) for cell in table.column(name)] for name in table.column_names}


def _python(cell: Any) -> Any:
    """Return a cell of a typed file, None for one that Python has no value for (the year
    10,000)."""
    try:
        return cell.as_py()
    except Exception:  # Whatever a library raises of one cell: it must not end the others' run.
        return None


@dataclass(frozen=True)
class ColumnOptions:
    """What the options say about a table's columns."""

    target: Target
    label: str
    client: str
    inputs: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float]]
    separator: str = ","
    decimal: str = "."

    @classmethod
    def of(cls, options: Mapping[str, Any], target: Target) -> ColumnOptions:
        """Raise `InvalidValueError` for an option that is not what it must be."""
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
        separator = require_choice(
            f"{FIELD}.separator", text_option(options, "separator", ","), SEPARATORS
        )
        decimal = require_choice(f"{FIELD}.decimal", text_option(options, "decimal", "."), DECIMALS)
        if decimal == separator:
            raise InvalidValueError(
                f"{FIELD}.decimal", decimal, f"needs a different {FIELD}.separator, for example ';'"
            )
        return cls(
            target,
            text_option(options, "label", "label"),
            text_option(options, "client", ""),
            texts_option(options, "columns"),
            categories,
            {name: _range(name, ends) for name, ends in tables["ranges"].items()},
            separator,
            decimal,
        )

    def arrays(
        self, path: Path, table: CellsByColumn, *, public: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any] | None]:
        """Return inputs [N, k] (NaN where a cell is no number), labels and owners [N] of a table.

        Raises `DataError` for a column that is not there and, in `public` records, for a cell that
        cannot be read. In private ones it counts as zero, and only this machine's log says so.
        """
        special = {self.label, self.client} - {""}
        inputs = self.inputs or tuple(
            name for name in table if name not in special and not PANDAS_INDEX.fullmatch(name)
        )
        for name in (*special, *inputs, *self.categories, *self.ranges):
            if name not in table:
                raise DataError(
                    f"{path} has no column {name!r}; it has {', '.join(list(table)[:20])}"
                )
        if not inputs:
            raise DataError(f"{path} has no input column beside {' and '.join(sorted(special))}")
        with np.errstate(over="ignore"):
            parts = [self._input(name, table[name]).astype(np.float32) for name in inputs]
        labels = label_values(table[self.label], self.target, self.decimal)
        wrong = ~np.isfinite(labels) if self.target.outputs else labels == NO_CLASS
        if public:
            for name, part in zip(inputs, parts, strict=True):
                bad = np.asarray(~np.isfinite(part).all(axis=1))
                self._require_readable(path, name, table[name], bad, "a finite number")
            wanted = "a finite number" if self.target.outputs else "one of the declared classes"
            self._require_readable(path, self.label, table[self.label], wrong, wanted)
        else:
            unread = [np.asarray(~np.isfinite(part).all(axis=1)) for part in parts]
            self._log_unreadable(path, (*inputs, self.label), [*unread, wrong.reshape(-1)])
        owners = None
        if self.client:
            owners = owner_names(table[self.client], lambda number: row_of(path, number))
        return np.concatenate(parts, axis=1), labels, owners

    def _require_readable(
        self, path: Path, name: str, cells: Sequence[Any], bad: NDArray[np.bool_], wanted: str
    ) -> None:
        """Raise `DataError` if any of a public column's cells is bad."""
        places = np.flatnonzero(bad)
        if not places.size:
            return
        first = int(places[0])
        value = repr(cells[first])
        remedy = f"; correct it, leave the column out ({FIELD}.columns), or declare its categories"
        if wanted != "a finite number":
            remedy = f"; correct it, or {FIELD}.class_names"
        elif isinstance(cells[first], str) and DECIMAL_COMMA.fullmatch(cells[first].strip()):
            remedy = f"; for a decimal comma set {FIELD}.decimal = ',' (and a separator, as ';')"
        raise DataError(
            f"{row_of(path, first)}: column {name!r} holds {value[:60]}, as {places.size:,} of "
            f"{len(cells):,} test records do; it must be {wanted}{remedy}"
        )

    def _log_unreadable(
        self, path: Path, names: Sequence[str], bad: Sequence[NDArray[np.bool_]]
    ) -> None:
        """Say in the holder's own log how many private records count as zero, and for what.

        Nobody else may learn of it, and the run continues, even if no cell of a column can be read:
        with one cell more it would have gone on, too.
        """
        records = int(np.logical_or.reduce(bad).sum())
        if not records:
            return
        counts = {name: int(one.sum()) for name, one in zip(names, bad, strict=True)}
        columns = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        log.warning(
            "%s: %d records have cells that are no numbers or classes: they count as zero (by "
            "column: %s; separator %r, decimal mark %r)",
            path, records, columns, self.separator, self.decimal,
        )  # fmt: skip
        whole = [repr(name) for name, count in counts.items() if count == len(bad[0])]
        if whole:
            log.error(
                "%s: no cell of %s can be read, so NO record of this file trains anything, and "
                "only this log says so: correct it, set %s.decimal, separator, categories or "
                "class_names, or leave the column out (%s.columns)",
                path, " and ".join(whole), FIELD, FIELD,
            )  # fmt: skip

    def _input(self, name: str, cells: Sequence[Any]) -> NDArray[np.float64]:
        if name in self.categories:
            place = {known: index for index, known in enumerate(self.categories[name])}
            # Not as an array of texts: each would have the room of the longest.
            holds = np.zeros((len(cells), len(place)))
            for row, cell in zip(holds, cells, strict=True):
                if (index := place.get(_text(cell))) is not None:
                    row[index] = 1.0
            return holds
        values = numbers(cells, self.decimal)
        if name in self.ranges:
            low, high = self.ranges[name]
            values = np.clip((values - low) / (high - low), 0.0, 1.0)
        return np.asarray(values[:, None])


def row_of(path: Path, number: int) -> str:
    """Return where a record stands, in words; line 1 of a .csv is its header."""
    where = f"line {number + 2}" if path.suffix == ".csv" else f"row {number + 1}"
    return f"{path}: {where}"


def label_values(cells: Sequence[Any], target: Target, decimal: str = ".") -> NDArray[Any]:
    """Return labels [N] of a column: float32 numbers to predict (NaN where a cell is none), or
    int64 classes (`NO_CLASS` where it is none)."""
    if target.outputs:
        with np.errstate(over="ignore"):
            return numbers(cells, decimal).astype(np.float32)
    if target.names:
        place = {name: index for index, name in enumerate(target.names)}
        return np.array([place.get(_text(cell), NO_CLASS) for cell in cells], dtype=np.int64)
    values = numbers(cells, decimal)
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


def numbers(cells: Sequence[Any], decimal: str = ".") -> NDArray[np.float64]:
    """Return the cells as numbers [N], NaN where one is none. Each by itself: what another cell
    holds changes none."""
    return np.array([_number(cell, decimal) for cell in cells], dtype=np.float64)


def _number(cell: Any, decimal: str) -> float:
    if isinstance(cell, str):
        if decimal == ",":
            # A dot would be a mark of thousands, or a number of another file: it is neither.
            cell = "" if "." in cell else cell.replace(",", ".")
        found = None if len(cell) > LONGEST_NUMBER else real_number(cell)
        return math.nan if found is None else found
    try:
        return float(cell)
    except (TypeError, ValueError, ArithmeticError):
        return math.nan
