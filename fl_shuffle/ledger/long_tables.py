"""Writing tables of millions of rows."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

ROWS_AT_ONCE = 100
"""Rows that are written with one statement."""


def fill_table(database: sqlite3.Connection, table: str, *columns: NDArray[Any]) -> None:
    """Make these columns [rows] a table's whole content; its key, before them, counts from 0.

    For millions of rows: many with a statement, keys given by SQLite, what is the same in all rows
    handed over once a statement. Row by row takes three times as long.
    """
    database.execute(f"DELETE FROM {table}")
    same = [bool((column == column[:1]).all()) for column in columns]
    common = [column[0].item() for column, one in zip(columns, same, strict=True) if one]
    own = [column.tolist() for column, one in zip(columns, same, strict=True) if not one]
    size, width = len(columns[0]), len(own)

    def statement(rows: int, key: str) -> str:
        fresh, lines = itertools.count(len(common) + 1), []
        for _ in range(rows):
            shared = itertools.count(1)
            numbers = (next(shared) if one else next(fresh) for one in same)
            lines.append(f"({key}, {', '.join(f'?{number}' for number in numbers)})")
        return f"INSERT INTO {table} VALUES {', '.join(lines)}"

    flat = list(itertools.chain.from_iterable(zip(*own, strict=True)))

    def rows(first: int, last: int, at_once: int) -> Iterator[list[Any]]:
        for start in range(first, last, at_once):
            yield common + flat[width * start : width * (start + at_once)]

    # SQLite goes on counting from the first key; whole blocks next, then what is left.
    whole = 1 + (size - 1) // ROWS_AT_ONCE * ROWS_AT_ONCE
    database.executemany(statement(1, "0"), rows(0, 1, 1))
    database.executemany(statement(ROWS_AT_ONCE, "NULL"), rows(1, whole, ROWS_AT_ONCE))
    database.executemany(statement(1, "NULL"), rows(whole, size, 1))
