"""Reading the users' values from a CSV file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.csv_files import looks_like_number, read_rows, real_number, whole_number
from fl_shuffle.errors import DataError

COLUMNS = ["client_id", "value"]


def read_values(path: str | Path) -> tuple[list[str], list[str] | None]:
    """The `value` of each client from a CSV with columns `client_id,value`; and clients' names.

    Clients numbered 0 .. n-1 may stand in any order and come in that of their numbers, without
    names; named ones (text) come as they stand. Raises `DataError` naming the file and line for a
    missing or unreadable file, wrong columns, an empty line, duplicate clients, and numbers with
    gaps.
    """
    source = Path(path)
    rows = read_rows(source, "data file", DataError)
    header = [cell.strip() for cell in rows[0]] if rows else []
    if header != COLUMNS:
        found = ",".join(header) or "an empty line"
        raise DataError(f"data file {source} line 1: columns must be client_id,value, got {found}")
    if len(rows) == 1:
        raise DataError(f"data file {source} holds no clients")
    values: dict[str, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        where = f"data file {source} line {number}"
        if len(row) != 2 or not row[0].strip() or not row[1].strip():
            raise DataError(f"{where}: expected client_id,value, got {','.join(row)!r}")
        client = row[0].strip()
        if client in values:
            raise DataError(f"{where}: client {client} appears twice; keep one line per client")
        values[client] = row[1].strip()
    numbers = {whole_number(client): value for client, value in values.items()}
    if numbers.keys() == set(range(len(values))):
        return [numbers[client] for client in range(len(values))], None
    if all(looks_like_number(client) for client in values):
        raise DataError(
            f"data file {source}: clients that are numbered must be numbered from 0 without gaps"
        )
    return list(values.values()), list(values)


def as_numbers(values: list[str]) -> NDArray[np.float64]:
    """Float64 [n]; raises `DataError` naming the first client whose value is no finite number."""
    numbers = np.empty(len(values))
    for client, value in enumerate(values):
        number = real_number(value)
        numbers[client] = math.nan if number is None else number
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
