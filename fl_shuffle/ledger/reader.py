"""Reading a run's ledger: nothing is written, so a run that is still going on is not disturbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.rounds.class_table import COLUMNS, NOISE_KINDS, ClassTable
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.store import COLUMN_NAMES, SCHEMA_VERSION, Ledger

_LEDGER_COLUMN = {"specific": "gspa_specific"}


@dataclass(frozen=True)
class LedgerRecord:
    """What a ledger holds.

    `class_of` [clients] indexes `classes`. `rounds`, `reports` and each of `epsilon[name]` have one
    entry per committed round; epsilons are cumulative, for the worst client, NaN where a column
    does not apply. `attempts` lists (round, mask of clients) per release, in order; `notes` lists
    (round, kind, text). `spend` is every client's (rounds, proven, sum, local) [clients, 4] as
    recorded at the run's end, NaN where a column says nothing, None before that.
    """

    meta: dict[str, Any]
    classes: ClassTable
    class_of: NDArray[np.int64]
    rounds: NDArray[np.int64]
    reports: NDArray[np.int64]
    epsilon: dict[str, NDArray[np.float64]]
    attempts: tuple[tuple[int, NDArray[np.bool_]], ...]
    notes: tuple[tuple[int, str, str], ...]
    spend: NDArray[np.float64] | None


def read_ledger(path: Path) -> LedgerRecord:
    """Everything a reviewer needs. Raises `RunError` if there is no readable ledger at `path`."""
    with _reading(path) as database:
        ledger = Ledger(database, path)
        meta = ledger.meta()
        if meta.get("schema") != SCHEMA_VERSION:
            raise RunError(
                f"{path} has ledger schema {meta.get('schema')!r}; this version reads "
                f"{SCHEMA_VERSION}"
            )
        names = ", ".join(_LEDGER_COLUMN.get(name, name) for name in COLUMN_NAMES)
        select = database.execute
        table = select(f"SELECT round, n_reports, {names} FROM rounds ORDER BY round").fetchall()
        values = np.array(table, dtype=np.float64).reshape(len(table), 2 + len(COLUMN_NAMES))
        class_of = select("SELECT class_id FROM clients ORDER BY client_id").fetchall()
        attempts = ledger.presence(len(class_of))
        if meta["config"]["run"]["entropy"] == "seeded":
            # A repeated attempt releases the same bits again: it counts once.
            attempts = list(dict(attempts).items())
        spend = select("SELECT rounds, proven, sum, local FROM client_spend ORDER BY client_id")
        recorded = np.array(spend.fetchall(), dtype=np.float64)
        return LedgerRecord(
            meta=meta,
            classes=_classes(database),
            class_of=np.array(class_of, dtype=np.int64).ravel(),
            rounds=values[:, 0].astype(np.int64),
            reports=values[:, 1].astype(np.int64),
            epsilon={name: values[:, 2 + i] for i, name in enumerate(COLUMN_NAMES)},
            attempts=tuple(attempts),
            notes=tuple(select("SELECT round, kind, text FROM notes ORDER BY rowid")),
            spend=recorded if len(recorded) else None,
        )


def _classes(database: sqlite3.Connection) -> ClassTable:
    names = ", ".join(COLUMNS)
    rows = database.execute(f"SELECT noise, records, {names} FROM classes ORDER BY class_id")
    noise, records, *columns = zip(*rows.fetchall(), strict=True)
    return ClassTable.of_columns(
        np.array([NOISE_KINDS.index(name) for name in noise], dtype=np.int8),
        [np.array(column, dtype=np.float64) for column in columns],
        np.array(records, dtype=np.int64),
    )


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise RunError(f"{path} does not exist: this is not a run directory")
    database = None
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        yield database
    except sqlite3.DatabaseError as error:
        raise RunError(f"{path} is not a readable ledger: {error}") from None
    finally:
        if database is not None:
            database.close()
