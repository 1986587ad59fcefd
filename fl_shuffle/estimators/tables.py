"""Reading the users' values from a CSV file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.budgets import table_rows
from fl_shuffle.errors import DataError

COLUMNS = ["client_id", "value"]


def read_values(path: str | Path) -> list[str]:
    """The `value` of clients 0 .. n-1 from a CSV with columns `client_id,value`, in any order.

    Raises `DataError` naming the file and line for a missing or unreadable file, a byte-order mark,
    wrong columns, an empty line, an id that is no whole number >= 0, and duplicate or missing
    clients.
    """
    source = Path(path)
    rows = table_rows(source, "data", DataError)
    header = [cell.strip() for cell in rows[0]] if rows else []
    if header != COLUMNS:
        found = ",".join(header) or "an empty line"
        raise DataError(f"data file {source} line 1: columns must be client_id,value, got {found}")
    if len(rows) == 1:
        raise DataError(f"data file {source} holds no clients")
    values: dict[int, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        where = f"data file {source} line {number}"
        if len(row) != 2 or not row[1].strip():
            raise DataError(f"{where}: expected client_id,value, got {','.join(row)!r}")
        try:
            client = int(row[0])
        except ValueError:
            client = -1
        if client < 0:
            raise DataError(f"{where}: client_id = {row[0]!r} must be a whole number >= 0")
        if client in values:
            raise DataError(f"{where}: client {client} appears twice; keep one line per client")
        values[client] = row[1].strip()
    absent = next((client for client in range(len(values)) if client not in values), None)
    if absent is not None:
        raise DataError(
            f"data file {source}: client {absent} is missing; number clients from 0 without gaps"
        )
    return [values[client] for client in range(len(values))]


def as_numbers(values: list[str]) -> NDArray[np.float64]:
    """Float64 [n]; raises `DataError` naming the first client whose value is no finite number."""
    numbers = np.empty(len(values))
    for client, value in enumerate(values):
        try:
            numbers[client] = float(value)
        except ValueError:
            numbers[client] = math.nan
        if not math.isfinite(numbers[client]):
            raise DataError(f"value of client {client} = {value!r}: must be a finite number")
    return numbers


def as_codes(values: list[str], categories: list[str]) -> NDArray[np.int64]:
    """Each value's place in `categories`; raises `DataError` naming a value that is not there."""
    place = {category: code for code, category in enumerate(categories)}
    missing = next((c for c, value in enumerate(values) if value not in place), None)
    if missing is not None:
        raise DataError(
            f"value of client {missing} = {values[missing]!r}: is not one of the categories "
            f"{', '.join(categories[:10])}{', ...' if len(categories) > 10 else ''}"
        )
    return np.array([place[value] for value in values], dtype=np.int64)
