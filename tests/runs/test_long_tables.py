"""Tables written many rows at a time hold what they hold written row by row."""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.ledger.long_tables import ROWS_AT_ONCE, fill_table

SIZES = (1, 2, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, ROWS_AT_ONCE + 2, 3 * ROWS_AT_ONCE + 7)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("varying", [True, False])
def test_rows_are_what_the_columns_say(size: int, varying: bool) -> None:
    rng = np.random.default_rng(size)
    numbers = rng.random(size) if varying else np.full(size, 0.25)
    numbers[-1] = np.inf
    columns: list[NDArray[Any]] = [
        np.array(("gaussian", "user"))[np.arange(size) % 2 * varying],
        numbers,
        rng.integers(0, 9, size) if varying else np.full(size, 7),
        np.full(size, np.nan),
        rng.permutation(size),
    ]
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, a TEXT, b REAL, c INT, d REAL, e)")
    database.executemany(
        "INSERT INTO t VALUES (?, 'old', 0.0, 0, 0.0, 0)", ((key,) for key in range(5, 9))
    )
    fill_table(database, "t", *columns)
    fill_table(database, "t", *columns)  # in place of what was there
    nothing = [None] * size
    lists = [column.tolist() for column in columns]
    lists[3] = nothing
    wanted = list(zip(range(size), *lists, strict=True))
    assert database.execute("SELECT * FROM t ORDER BY key").fetchall() == wanted
    assert {type(cell) for row in database.execute("SELECT key, c, e FROM t") for cell in row} == {
        int
    }
