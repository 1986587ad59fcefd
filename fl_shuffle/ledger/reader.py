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
from fl_shuffle.ledger.chain import first_link, next_link
from fl_shuffle.ledger.checks import (
    bitmap,
    client_classes,
    real,
    require_facts,
    require_links,
    require_rows,
    text,
    whole,
)
from fl_shuffle.ledger.store import COLUMN_NAMES, SCHEMA_VERSION, Ledger

_LEDGER_COLUMN = {"specific": "gspa_specific"}


@dataclass(frozen=True)
class LedgerRecord:
    """What a ledger holds.

    `class_of` [clients] indexes `classes`. `rounds`, `reports` and each of `epsilon[name]` have one
    entry per committed round; epsilons are cumulative, for the worst client, NaN where a column
    does not apply. `attempts` lists (round, mask of clients) per release, in order; `notes` lists
    (round, kind, text). `spend` is every client's (rounds, proven, sum, local) [clients, 4] as
    recorded at the run's end, NaN where a column says nothing, None before that. `link` is the last
    link of its attempts (see `chain`).
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
    link: str

    @property
    def finished(self) -> bool:
        """Whether the run came to its end; summary.json may be lost, this may not."""
        return "finished" in self.meta


def read_ledger(path: Path) -> LedgerRecord:
    """Everything a reviewer needs.

    Raises `RunError` if there is no readable ledger at `path`, if a cell holds what no run writes,
    and if the plan or the attempts are no longer what was written (see `chain`).
    """
    with _reading(path) as database:
        ledger = Ledger(database, path)
        written = ledger.meta()
        if written.get("schema") != SCHEMA_VERSION:
            raise RunError(
                f"{path} has ledger schema {written.get('schema')!r}; this version reads "
                f"{SCHEMA_VERSION}"
            )
        meta = require_facts(path, written)
        select = database.execute
        classes = _classes(path, database)
        class_of = client_classes(
            path,
            select("SELECT client_id, class_id FROM clients ORDER BY client_id").fetchall(),
            len(classes),
        )
        clients = len(class_of)
        tried = select("SELECT * FROM reservations ORDER BY attempt").fetchall()
        require_rows(path, "reservations", tried, (
            whole("attempt", 1), whole("round", 1), whole("expected_reports", 0, clients),
            real("epsilon", optional=True), whole("released", 0, 1), bitmap("present", clients),
            text("link"),
        ))  # fmt: skip
        first = first_link(written, classes, class_of)
        if first != meta["link"]:
            raise RunError(
                f"{path} was changed: configuration, classes or clients are not what the run was "
                "started with; put the run's own ledger back"
            )
        link = require_links(path, first, tried, next_link)
        names = ", ".join(_LEDGER_COLUMN.get(name, name) for name in COLUMN_NAMES)
        table = select(f"SELECT round, n_reports, {names} FROM rounds ORDER BY round").fetchall()
        require_rows(path, "rounds", table, (
            whole("round", 1), whole("n_reports", 0, clients),
            *(real(name, optional=True) for name in COLUMN_NAMES),
        ))  # fmt: skip
        values = np.array(table, dtype=np.float64).reshape(len(table), 2 + len(COLUMN_NAMES))
        attempts = ledger.presence(clients)
        if meta["config"]["run"]["entropy"] == "seeded":
            # A repeated attempt releases the same bits again: it counts once.
            attempts = list(dict(attempts).items())
        spend = select(
            "SELECT rounds, proven, sum, local FROM client_spend ORDER BY client_id"
        ).fetchall()
        require_rows(path, "client_spend", spend, (
            whole("rounds"), *(real(name, optional=True) for name in ("proven", "sum", "local")),
        ))  # fmt: skip
        notes = select("SELECT round, kind, text FROM notes ORDER BY rowid").fetchall()
        require_rows(path, "notes", notes, (whole("round"), text("kind"), text("text")))
        return LedgerRecord(
            meta=meta,
            classes=classes,
            class_of=class_of,
            rounds=values[:, 0].astype(np.int64),
            reports=values[:, 1].astype(np.int64),
            epsilon={name: values[:, 2 + i] for i, name in enumerate(COLUMN_NAMES)},
            attempts=tuple(attempts),
            notes=tuple(notes),
            spend=np.array(spend, dtype=np.float64) if spend else None,
            link=link,
        )


def _classes(path: Path, database: sqlite3.Connection) -> ClassTable:
    names = ", ".join(COLUMNS)
    rows = database.execute(
        f"SELECT class_id, noise, records, {names} FROM classes ORDER BY class_id"
    ).fetchall()
    most = float(np.finfo(np.float32).max)
    require_rows(path, "classes", rows, (
        whole("class_id", 0, max(0, len(rows) - 1)), text("noise"), whole("records"),
        *(real(name, maximum=1.0 if name == "delta0" else most) for name in COLUMNS),
    ))  # fmt: skip
    if not rows:
        raise RunError(f"{path} is damaged: it knows no classes; use an intact copy")
    _, noise, records, *columns = zip(*rows, strict=True)
    try:
        return ClassTable.of_columns(
            np.array([NOISE_KINDS.index(name) for name in noise], dtype=np.int8),
            [np.array(column, dtype=np.float64) for column in columns],
            np.array(records, dtype=np.int64),
        )
    except ValueError as error:  # a noise that there is not, or a scale that it cannot have
        raise RunError(f"{path} is damaged: its classes: {error}") from None


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise RunError(f"{path} does not exist: this is not a run directory")
    database = None
    try:
        database = _open(path)
        yield database
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        # The last where SQLite's own message quotes a name that is no text.
        raise RunError(f"{path} is not a readable ledger: {error}") from None
    finally:
        if database is not None:
            database.close()


def _open(path: Path) -> sqlite3.Connection:
    """Read-only, also where no file can be made beside it."""
    where = path.resolve().as_uri()
    database = sqlite3.connect(f"{where}?mode=ro", uri=True)
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        # Nobody writes, and nothing of it stands elsewhere.
        database = sqlite3.connect(f"{where}?immutable=1", uri=True)
    return database
