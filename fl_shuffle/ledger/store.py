"""The durable record of a run: an SQLite file that is written before anything is released.

A round is first *reserved* (its worst case, before the model is broadcast) and then *committed*
(whose reports arrived), before anything of it leaves the shuffler. The caller flushes where a
release follows, so at every moment the file covers everything that was released. In a seeded
simulation committing a round and reserving the next one is one transaction (see
`outlive_the_process_only`).

Every attempt at a round is a row of `reservations`, linked to the one before it (see `chain`), and
a release is recorded under the attempt that made it. SQLite's write-ahead log is merged into the
file whenever that is made durable: a copy of the one file is enough for a report.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.rounds.class_table import COLUMNS, NOISE_KINDS, ClassTable
from fl_shuffle.accounting.rounds.events import ClientClass, Spend
from fl_shuffle.durable_files import replace_file
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.chain import first_link, next_link

if TYPE_CHECKING:
    from fl_shuffle.accounting.columns import ClientTotals
    from fl_shuffle.accounting.rounds.events import Column

STATE = "state-"
"""Begins the name of a file beside the ledger with a large model's state; its digest ends it."""
SCHEMA_VERSION = 6
"""Raised whenever a table changes: another version's ledger is refused, not misread."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE classes (
    class_id INTEGER PRIMARY KEY, noise TEXT NOT NULL, scale REAL NOT NULL, radius REAL NOT NULL,
    sensitivity REAL NOT NULL, epsilon0 REAL NOT NULL, delta0 REAL NOT NULL,
    records INTEGER NOT NULL, clients INTEGER NOT NULL);
CREATE TABLE clients (client_id INTEGER PRIMARY KEY, class_id INTEGER NOT NULL);
CREATE TABLE reservations (
    attempt INTEGER PRIMARY KEY, round INTEGER NOT NULL, expected_reports INTEGER NOT NULL,
    epsilon REAL, released INTEGER NOT NULL, present BLOB, link TEXT NOT NULL);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, n_reports INTEGER NOT NULL, expected_reports INTEGER NOT NULL,
    delta REAL NOT NULL, gspa_mu_round REAL, gspa_mu_total REAL, gspa REAL, gspa_specific REAL,
    proven REAL, sum REAL, local REAL, lower REAL, sum_lower REAL, seconds REAL);
CREATE TABLE round_classes (
    round INTEGER NOT NULL, class_id INTEGER NOT NULL, n_reports INTEGER NOT NULL, gspa REAL,
    specific REAL, proven REAL, sum REAL, local REAL, lower REAL, sum_lower REAL,
    PRIMARY KEY (round, class_id)) WITHOUT ROWID;
CREATE TABLE metrics (
    round INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (round, name))
    WITHOUT ROWID;
CREATE TABLE notes (round INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE client_spend (
    client_id INTEGER PRIMARY KEY, rounds INTEGER NOT NULL, proven REAL, sum REAL, local REAL);
CREATE TABLE checkpoint (only INTEGER PRIMARY KEY CHECK (only = 0), round INTEGER NOT NULL,
    state BLOB NOT NULL);
CREATE VIEW attendance AS
    SELECT round, attempt, client_id FROM reservations CROSS JOIN clients
    WHERE released AND (present IS NULL OR 1 & (
        instr('123456789ABCDEF', substr(hex(substr(present, client_id / 8 + 1, 1)),
            client_id % 8 / 4 + 1, 1)) >> (3 - client_id % 4)));
"""
# The view unpacks `present`: one row for each report that was released. Client k is bit 7 - k % 8
# (of value 128 >> k % 8) of byte k // 8, as numpy.packbits has it; NULL is everybody.
# A checkpoint's state is a text where it lies in a file: that file's digest (see `state_file`).
# A metric that is NaN has no row in `metrics`.
# round_classes speaks of the most exposed client of each listed class (a few dozen of the most
# exposed classes, see the accountant); how many of any class reported follows from attendance and
# clients. A client's own numbers: client_spend.

LOWER_NAMES = ("lower", "sum_lower")
"""Columns of attacks: of the last round alone, written when the run is over."""
COLUMN_NAMES = ("gspa", "specific", "proven", "sum", "local", *LOWER_NAMES)


class Ledger:
    """One run's SQLite file. Build with `create` or `open`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path
        self._merges = True
        # The attempt that may be released: its row before that, and the link before it.
        self._attempt: tuple[tuple[Any, ...], str] | None = None
        self._first = self._link = ""
        self._new_state = False

    @classmethod
    def create(
        cls,
        path: Path,
        meta: Mapping[str, Any],
        classes: Iterable[ClientClass],
        class_of: NDArray[np.int64],
    ) -> Ledger:
        """A new ledger that holds the plan, in a file that its owner alone may read.

        The file appears in one step, whole. Raises `RunError` if it already exists or cannot be
        created.
        """
        if path.exists():
            raise RunError(f"{path} already exists; choose another --out, or --resume the run")
        kinds = ClassTable.of(classes)
        facts = {**meta, "link": first_link(meta, kinds, class_of)}

        def write(unfinished: Path) -> None:
            database = sqlite3.connect(unfinished)
            try:
                database.execute("BEGIN")
                for statement in SCHEMA.split(";"):
                    database.execute(statement)
                database.executemany(
                    "INSERT INTO meta VALUES (?, ?)",
                    [(key, json.dumps(value)) for key, value in facts.items()],
                )
                _fill(
                    database,
                    "classes",
                    np.array(NOISE_KINDS)[kinds.noise],
                    *(getattr(kinds, name) for name in (*COLUMNS, "records")),
                    np.bincount(class_of, minlength=len(kinds)),
                )
                _fill(database, "clients", class_of)
                database.commit()
            finally:
                database.close()

        try:
            replace_file(path, write)
        except OSError as error:
            raise RunError(f"{path} cannot be created: {error.strerror}") from None
        return cls.open(path, any_schema=True)

    @classmethod
    def open(cls, path: Path, *, any_schema: bool = False) -> Ledger:
        """An existing ledger. Raises `RunError` if there is none or it cannot be read."""
        if not path.is_file():
            raise RunError(f"{path} does not exist: this is not a run directory")
        ledger = cls(_connect(path), path)
        meta = ledger.meta()
        version = meta.get("schema")
        if version != SCHEMA_VERSION and not any_schema:
            raise RunError(
                f"{path} has ledger schema {version!r}, and this version goes on with runs of "
                f"schema {SCHEMA_VERSION} alone; go on with the version that began it"
            )
        ledger._first = str(meta.get("link", ""))
        ledger._link = ledger._newest()[1]
        return ledger

    def outlive_the_process_only(self) -> None:
        """From now on commits outlive this process, but the last few need not outlive the machine,
        nor stand in the one file before the next checkpoint.

        The file stays consistent. For runs whose lost rounds are replayed to the same bits: nothing
        is then released that the file, once resumed, does not cover.
        """
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._merges = False

    def close(self) -> None:
        """Write what is pending and close the file."""
        self.flush()
        self._db.close()

    def flush(self) -> None:
        """Make everything recorded so far durable."""
        self._db.commit()
        if self._merges:
            self._merge()
            if self._new_state:
                self._forget_states()

    def finish(self) -> None:
        """Make everything durable, and leave nothing in the file that is in no table.

        Pages of replaced rows would tell when checkpoints were written, so how fast rounds were.
        """
        self._db.execute("DELETE FROM checkpoint WHERE typeof(state) = 'text'")
        self._db.commit()
        self._merge()
        self._db.execute("VACUUM")
        # Whoever reads the file later needs no side files. A reader that has it open now keeps it
        # from changing its mode: it is complete all the same.
        with suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA journal_mode = DELETE")
        self._forget_states()

    def _merge(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _forget_states(self, *new: str) -> None:
        """The state that is recorded is durable: remove the files of all but it and a new one."""
        kept = {f"{STATE}{digest}" for digest in (*new, *(self.load_checkpoint() or ())[1:])}
        for path in self.path.parent.glob(f"{STATE}*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)
        self._new_state = False

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """What is staged inside is staged as a whole, or not at all if it is interrupted."""
        if not self._db.in_transaction:
            self._db.execute("BEGIN")
        self._db.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK TO part")
            raise
        finally:
            self._db.execute("RELEASE part")

    def meta(self) -> dict[str, Any]:
        """The run's facts: configuration, versions, seed, sizes and shapes of the data."""
        try:
            rows = self._db.execute("SELECT key, value FROM meta").fetchall()
            return {str(key): json.loads(value) for key, value in rows}
        except (sqlite3.DatabaseError, TypeError, ValueError, RecursionError) as error:
            raise RunError(f"{self.path} is not a readable ledger: {error}") from None

    def reserve(
        self,
        round_number: int,
        expected_reports: int,
        epsilon: float,
        released: NDArray[np.bool_] | None = None,
    ) -> int:
        """Book a round's worst case; durable, together with everything recorded before it.

        `released` is the mask of clients whose reports will be used as they come, before the round
        is recorded; None if nothing leaves the shuffler before that. Returns the attempt's number.
        Raises `RunError` if somebody else has written an attempt since this ledger's last one.
        """
        newest, link = self._newest()
        if link != self._link:
            raise RunError(
                f"another process writes in {self.path}: this one stops, and releases nothing more"
            )
        present = None if released is None else _bitmap(released)
        row = (newest + 1, round_number, expected_reports, _real(epsilon),
               int(released is not None), present)  # fmt: skip
        before, self._link = self._link, next_link(self._link, row)
        self._db.execute(
            "INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, self._link)
        )
        self._attempt = (row, before)
        self.flush()
        return newest + 1

    def record(
        self,
        attempt: int,
        spend: Spend,
        counts: Mapping[int, int],
        expected_reports: int,
        present: NDArray[np.bool_],
        seconds: float | None,
    ) -> None:
        """Stage what a round really was; the next `reserve` or `flush` makes it durable.

        `attempt` is the number that `reserve` gave, `counts` are the reports of the classes that
        are written down one by one. `seconds` is None where times are not published. Raises
        `RunError` if that attempt is not this ledger's last one.
        """
        if self._attempt is None or self._attempt[0][0] != attempt:
            raise RunError(f"attempt {attempt} is not the one under way in {self.path}")
        reserved, before = self._attempt
        row = (*reserved[:4], 1, _bitmap(present))
        link = next_link(before, row)
        spent = [spend.columns[name] for name in COLUMN_NAMES if name not in LOWER_NAMES]
        with self._all_or_nothing():
            self._db.execute(
                "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL,"
                " ?)",
                (spend.round_number, spend.n_reports, expected_reports, spend.delta,
                 spend.mu_round, spend.mu_total, *(_real(column.worst) for column in spent),
                 seconds),
            )  # fmt: skip
            changed = self._db.execute(
                "UPDATE reservations SET released = 1, present = ?, link = ? "
                "WHERE attempt = ? AND round = ? AND link = ?",
                (row[5], link, attempt, spend.round_number, self._link),
            ).rowcount
            if changed != 1:
                raise RunError(
                    f"attempt {attempt} at round {spend.round_number} is no longer in {self.path} "
                    "as it was reserved: another process writes there; nothing is released"
                )
            self._db.executemany(
                "INSERT OR REPLACE INTO round_classes VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
                [
                    (spend.round_number, index, count,
                     *(_real(column.epsilon.get(index)) for column in spent))
                    for index, count in counts.items()
                ],
            )  # fmt: skip
        self._link = link

    def _newest(self) -> tuple[int, str]:
        """The number and link of the newest attempt; 0 and the first link before there is one."""
        row = self._db.execute(
            "SELECT attempt, link FROM reservations ORDER BY attempt DESC LIMIT 1"
        ).fetchone()
        return (0, self._first) if row is None else (int(row[0]), str(row[1]))

    @property
    def entries(self) -> int:
        """Two for each attempt, less one for a newest one that is not released yet: this number
        rises with everything that is written down before a release."""
        row = self._db.execute(
            "SELECT attempt, released FROM reservations ORDER BY attempt DESC LIMIT 1"
        ).fetchone()
        return 0 if row is None else 2 * int(row[0]) - (not row[1])

    def note(self, round_number: int, kind: str, text: str) -> None:
        """Stage a note that a reviewer should see."""
        self._db.execute("INSERT INTO notes VALUES (?, ?, ?)", (round_number, kind, text))

    def record_metrics(
        self, round_number: int, metrics: Mapping[str, float], seconds: float | None
    ) -> None:
        """Stage what was measured after a round, and how long all of it took (None where times are
        not published); durable together with its checkpoint."""
        self._db.executemany(
            "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?)",
            [(round_number, n, value) for n, value in metrics.items() if not math.isnan(value)],
        )
        self._db.execute("UPDATE rounds SET seconds = ? WHERE round = ?", (seconds, round_number))

    def record_attacks(self, round_number: int, columns: Mapping[str, Column]) -> None:
        """Stage what attacks on all rounds up to this last one reach: the columns `LOWER_NAMES`."""
        for name in LOWER_NAMES:
            column = columns[name]
            self._db.execute(
                f"UPDATE rounds SET {name} = ? WHERE round = ?", (_real(column.worst), round_number)
            )
            self._db.executemany(
                f"UPDATE round_classes SET {name} = ? WHERE round = ? AND class_id = ?",
                [(_real(value), round_number, index) for index, value in column.epsilon.items()],
            )

    def checkpoint(self, round_number: int, state: bytes | str) -> None:
        """Stage what is needed to go on after `round_number` if the process dies: itself, or the
        digest of the file that it is in, durably.

        Where the log is not merged at every flush, what was flushed before is merged here.
        """
        if not self._merges:
            self._db.commit()
            self._merge()
        if isinstance(state, str):
            if not self._merges:
                self._forget_states(state)
            self._new_state = True
        self._db.execute(
            "INSERT OR REPLACE INTO checkpoint VALUES (0, ?, ?)", (round_number, state)
        )

    def load_checkpoint(self) -> tuple[int, bytes | str] | None:
        """The latest (round, state or its file's digest), or None for a run that never got that
        far."""
        row = self._db.execute("SELECT round, state FROM checkpoint").fetchone()
        return None if row is None else (int(row[0]), row[1])

    def presence(self, clients: int) -> list[tuple[int, NDArray[np.bool_]]]:
        """Whose reports were released, as (round, mask) per attempt at a round, in order.

        A round that was tried again after a crash is listed once for each attempt that may have
        released something; an attempt that ended before its reports left the shuffler is not.
        """
        rows = self._db.execute(
            "SELECT round, present FROM reservations WHERE released ORDER BY attempt"
        ).fetchall()
        return [
            (
                int(number),
                np.ones(clients, dtype=bool)
                if bitmap is None
                else np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool),
            )
            for number, bitmap in rows
        ]

    def set_meta(self, key: str, value: Any) -> None:
        """Add or change one fact."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def write_client_spend(self, totals: ClientTotals) -> None:
        """Stage every client's own totals: rounds taken part in, and its epsilons."""
        columns = (totals.rounds, totals.proven, totals.sum, totals.local)
        # A column that says nothing is NaN, which SQLite keeps as NULL.
        _fill(self._db, "client_spend", *columns)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        raise RunError(f"{path} cannot be opened as a ledger: {error}") from None
    return connection


def _fill(database: sqlite3.Connection, table: str, *columns: NDArray[Any]) -> None:
    """Make these columns [rows] a table's whole content; its key, before them, counts from 0."""
    database.execute(f"DELETE FROM {table}")
    cells = ", ".join("?" * (1 + len(columns)))
    rows = zip(itertools.count(), *(column.tolist() for column in columns), strict=False)
    database.executemany(f"INSERT INTO {table} VALUES ({cells})", rows)


def _bitmap(present: NDArray[np.bool_]) -> bytes | None:
    """One bit per client; None for everybody."""
    return None if present.all() else np.packbits(present).tobytes()


def _real(value: float | None) -> float | None:
    """SQLite stores infinities; NaN would silently become NULL, so it is refused earlier."""
    return None if value is None else float(value)
