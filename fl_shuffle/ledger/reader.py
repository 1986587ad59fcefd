"""Reading a run's ledger: nothing is written, so a run that is still going on is not disturbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle.accounting.rounds.class_table import COLUMNS, NOISE_KINDS, ClassTable
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.chain import first_link, next_link
from fl_shuffle.ledger.checks import (
    Cell,
    bitmap,
    client_classes,
    damaged,
    real,
    require_facts,
    require_links,
    require_rows,
    text,
    whole,
)
from fl_shuffle.ledger.store import COLUMN_NAMES, SCHEMA_VERSION, Ledger

_STORED = {"specific": "gspa_specific"}
EPSILONS = {name: f"{name}_epsilon" for name in COLUMN_NAMES}
"""What a column's epsilon is called in metrics.csv and in tables of rounds."""
NUMBER = Cell("value", lambda value: isinstance(value, int | float), "a number")


class LedgerView:
    """A ledger, read-only: cheap to open, and a run under way is not disturbed.

    `rows` are the committed rounds in order, each by the columns of metrics.csv: epsilons are
    cumulative, for the worst client, None where a column does not apply. `metrics` maps a round to
    what was measured after it; version 0.1 has none. `notes` lists (round, kind, text), `link` is
    the newest of its attempts' (see `chain`). Raises `RunError` if there is no readable ledger at
    `path`, and if a cell holds what no run writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path) as database:
            written = Ledger(database, path).meta()
            require_readable(path, written)
            self.meta = require_facts(path, written)
            self._read(database)

    def _read(self, database: sqlite3.Connection) -> None:
        path, select = self.path, database.execute
        names = ["round", "n_reports", "gspa_mu", *EPSILONS.values(), "seconds"]
        stored = [_STORED.get(name, name) for name in COLUMN_NAMES]
        columns = ", ".join(["round", "n_reports", "gspa_mu_total", *stored, "seconds"])
        table = select(f"SELECT {columns} FROM rounds ORDER BY round").fetchall()
        require_rows(path, "rounds", table, (
            whole("round", 1), whole("n_reports"), real("gspa_mu_total", optional=True),
            *(real(name, optional=True) for name in (*stored, "seconds")),
        ))  # fmt: skip
        self.rows = [dict(zip(names, row, strict=True)) for row in table]
        self.metrics: dict[int, dict[str, float]] = {}
        old = self.meta["schema"] != SCHEMA_VERSION
        measured = [] if old else select("SELECT round, name, value FROM metrics").fetchall()
        require_rows(path, "metrics", measured, (whole("round"), text("name"), NUMBER))
        for number, name, value in measured:
            self.metrics.setdefault(number, {})[name] = float(value)
        notes = select("SELECT round, kind, text FROM notes ORDER BY rowid").fetchall()
        require_rows(path, "notes", notes, (whole("round"), text("kind"), text("text")))
        self.notes: list[tuple[int, str, str]] = notes
        newest = select("SELECT link FROM reservations ORDER BY attempt DESC LIMIT 1")
        self.link = str((newest.fetchone() or (self.meta["link"],))[0])

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as resolved, in tables."""
        found: dict[str, Any] = self.meta["config"]
        return found

    @property
    def finished(self) -> bool:
        """Whether the run came to its end; summary.json may be lost, this may not."""
        return "finished" in self.meta


class LedgerRecord(LedgerView):
    """All that a reviewer needs of a ledger, whose links are checked.

    `class_of` [clients] indexes `classes`. `rounds`, `reports` and each of `epsilon[name]` have one
    entry per committed round, NaN where a column does not apply. `attempts` lists (round, mask of
    clients) per release, in order. `spend` is every client's (rounds, proven, sum, local)
    [clients, 4] as recorded at the run's end, NaN where a column says nothing, None before that.
    `entries` says how much was written of its attempts (`Ledger.entries`).

    Raises `RunError` also if the plan or the attempts are no longer what was written (see `chain`).
    """

    def _read(self, database: sqlite3.Connection) -> None:
        super()._read(database)
        path, select, ledger = self.path, database.execute, Ledger(database, self.path)
        self.classes = _classes(path, database)
        self.class_of = client_classes(
            path,
            select("SELECT client_id, class_id FROM clients ORDER BY client_id").fetchall(),
            len(self.classes),
        )
        clients = len(self.class_of)
        tried = select("SELECT * FROM reservations ORDER BY attempt").fetchall()
        require_rows(path, "reservations", tried, (
            whole("attempt", 1), whole("round", 1), whole("expected_reports", 0, clients),
            real("epsilon", optional=True), whole("released", 0, 1), bitmap("present", clients),
            text("link"),
        ))  # fmt: skip
        first = first_link(ledger.meta(), self.classes, self.class_of)
        if first != self.meta["link"]:
            raise RunError(
                f"{path} was changed: configuration, classes or clients are not what the run was "
                "started with; put the run's own ledger back"
            )
        self.link = require_links(path, first, tried, next_link)
        self.rounds = np.array([row["round"] for row in self.rows], dtype=np.int64)
        self.reports = np.array([row["n_reports"] for row in self.rows], dtype=np.int64)
        if self.reports.max(initial=0) > clients:
            most = f"a whole number in [0, {clients}]"
            raise damaged(path, "n_reports of rounds", int(self.reports.max()), most)
        self.epsilon = {
            name: np.array([row[key] for row in self.rows], dtype=np.float64)
            for name, key in EPSILONS.items()
        }
        self.attempts = ledger.presence(clients)
        if self.config["run"]["entropy"] == "seeded":
            # A repeated attempt releases the same bits again: it counts once.
            self.attempts = list(dict(self.attempts).items())
        spend = select(
            "SELECT rounds, proven, sum, local FROM client_spend ORDER BY client_id"
        ).fetchall()
        require_rows(path, "client_spend", spend, (
            whole("rounds"), *(real(name, optional=True) for name in ("proven", "sum", "local")),
        ))  # fmt: skip
        self.spend = np.array(spend, dtype=np.float64) if spend else None
        self.entries = ledger.entries


READABLE = (5, SCHEMA_VERSION)
"""Schemas: version 0.1 wrote 5, without metrics and outcome."""


def require_readable(path: Path, meta: Mapping[str, Any]) -> None:
    """Raise `RunError` for a ledger of another version's."""
    if meta.get("schema") not in READABLE:
        raise RunError(
            f"{path} has ledger schema {meta.get('schema')!r}; this version reads "
            f"{' and '.join(map(str, READABLE))}"
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
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A ledger's tables, read-only. Raises `RunError` for what cannot be read as one."""
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
