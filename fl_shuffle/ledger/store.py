"""The durable record of a run: an SQLite file that is written before anything is released.

A round is first *reserved* (its worst case, before the model is broadcast) and then *committed*
(whose reports arrived), before anything of it leaves the shuffler. The caller flushes where a
release follows, so at every moment the file covers everything that was released. In a seeded
simulation committing a round and reserving the next one is one transaction.

Every attempt at a round is a row of `reservations`, and a release is recorded under the attempt
that made it. Attempts are a hash chain: each carries a digest of its row and of everything before
it. A ledger whose attempts were changed, taken out, put in another order or mixed with another
run's no longer fits its hashes. There is no key: a forger can compute new ones, but the last hash
stands in summary.json, too. Hashes are made of cells of the ledger alone, so they tell nothing that
it does not tell. SQLite's write-ahead log is merged into the
file whenever that is made durable: a copy of the one file is enough for a report.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.durable_files import replace_file, said_in_one_line
from fl_shuffle.accounting.client_classes import NOISE_KINDS, ClientClass
from fl_shuffle.accounting.rounds.class_table import COLUMNS, ClassTable
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.errors import RunError
from fl_shuffle.ledger.tables import (
    ATTENDANCE,
    LOWER_NAMES,
    PAIRS,
    PARTICIPATION,
    ROUNDS,
    SPENT_NAMES,
    TABLES,
    Cell,
)

if TYPE_CHECKING:
    from fl_shuffle.accounting.columns import ClientTotals
    from fl_shuffle.accounting.rounds.events import Column

STATE = "state-"
"""Begins the name of a file beside the ledger with a large model's state; its digest ends it."""
SCHEMA_VERSION = 7
"""Raised whenever a table changes: another version's ledger is refused, not misread."""
UPGRADED = 6
"""Runs of this schema go on after `upgrade_ledger`."""

CHANGEABLE = (
    *("run.rounds", "run.out", "run.jobs", "run.timeout", "run.supernodes", "run.ray_address"),
    "run.checkpoint_every",
    *("data.root", "budgets.file"),
)
"""Settings that may differ when a run is resumed. Where the data and budgets lie may, too: what
is in them is compared."""

PLANNED = "planned_rounds"
"""The fact that says for how many rounds a run was planned, where rounds were added since."""
WITNESS_AT = 21
"""The byte of a run directory's lock file from which on the ledger tells of itself there, a line
each: how many entries it has (a number of 20 digits), and of which run it is. Before that stands
whose directory it is."""

COVERED = ("schema", "seed", "data", "relation", "dimension")


def first_hash(
    meta: Mapping[str, Any], classes: Iterable[ClientClass], class_of: NDArray[np.int64]
) -> str:
    """Return the hash before the first attempt: who the clients are, and what they were
    promised."""
    facts = {key: meta.get(key) for key in COVERED}
    # The chain of an upgraded ledger continues as it was begun.
    facts["schema"] = meta.get("chain_schema", facts["schema"])
    config = settings_of(meta.get("config", {}))
    facts["config"] = {key: value for key, value in config.items() if key not in CHANGEABLE}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    table = ClassTable.of(classes)
    for name in ("noise", *COLUMNS, "records"):
        kind = {"noise": "<i1", "records": "<i8"}.get(name, "<f8")
        digest.update(np.ascontiguousarray(getattr(table, name), dtype=kind).data)
    digest.update(np.ascontiguousarray(class_of, dtype="<i8").data)
    return digest.hexdigest()


def next_hash(previous: str, attempt: tuple[Any, ...]) -> str:
    """Return the hash after a row of `reservations`, given as (attempt, round, expected reports,
    epsilon, released, present)."""
    return hashlib.sha256(f"{previous} {attempt!r}".encode()).hexdigest()


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `section.key` -> value of nested tables."""
    return {
        f"{name}.{key}": value for name, table in config.items() for key, value in table.items()
    }


class Ledger:
    """One run's SQLite file, which is there.

    With `lock`, a descriptor, it writes down in this lock file, beside itself, which run's it is
    and how many entries it has: one that is put back later, and has fewer, is older than the run.

    `replayed`: commits outlive this process, but the last few need not outlive the machine, nor
    stand in the one file before the next checkpoint. The file stays consistent. For runs whose lost
    rounds are replayed to the same bits: nothing is then released that the file, once resumed, does
    not cover.

    Raises `RunError` for a file that cannot be read, or of another schema.
    """

    def __init__(self, path: Path, lock: int | None = None, *, replayed: bool = False) -> None:
        self.path = path
        self._db = _connect(path, "NORMAL" if replayed else "FULL")
        meta = facts_in(self._db, path)
        version = meta.get("schema")
        if version != SCHEMA_VERSION:
            raise RunError(
                f"{path} has ledger schema {version!r}, but this version continues only runs of "
                f"schema {SCHEMA_VERSION} ; continue with the version that began it"
            )
        self.run = str(meta.get("run", ""))
        """The run's random identifier, the same after a resume."""
        self._lock, self._merges = lock, not replayed
        # The attempt that may be released: its row before that, and the hash before it.
        self._attempt: tuple[tuple[Any, ...], str] | None = None
        self._first = str(meta.get("hash", ""))
        self._hash = self._newest()[2]

    @property
    def entries(self) -> int:
        """Two for each attempt, less one for a newest one that is not released yet: this number
        rises with everything that is written down before a release."""
        newest, released, _ = self._newest()
        return 2 * newest - (not released)

    def close(self) -> None:
        """Write what is pending and close the file."""
        self.flush()
        self._db.close()

    def flush(self) -> None:
        """Make everything recorded so far durable. Raises `OSError` where it cannot be told."""
        self._db.commit()
        if self._lock is not None:
            told = f"{self.entries:20d}\n{self.run}\n"
            os.pwrite(self._lock, told.encode("ascii", "replace"), WITNESS_AT)
        if self._merges:
            self._merge()

    def finish(
        self,
        totals: ClientTotals,
        last_round: int,
        attacks: Mapping[str, Column],
        facts: Mapping[str, Any],
    ) -> None:
        """Write every client's own totals, what attacks on all rounds up to the last one reach
        (nothing where none was played), and facts; make everything durable, and leave nothing in
        the file that is in no table.

        Pages of replaced rows would tell when checkpoints were written, so how fast rounds were.
        The last state stays, and so does what the lock file tells: rounds may be added to a
        finished run, and an older copy of its ledger must be known as one then, too.
        """
        # A column that says nothing is NaN, which SQLite keeps as NULL.
        columns = (totals.rounds, totals.shuffled, totals.sum, totals.local)
        fill(self._db, "client_spend", *columns)
        for name, column in attacks.items():
            worst = (column.worst, last_round)
            self._db.execute(f"UPDATE rounds SET {name} = ? WHERE round = ?", worst)
        for key, value in facts.items():
            self.set_meta(key, value)
        self.flush()
        self._merge()
        self._db.execute("VACUUM")
        # A later reader of the file needs no side files. A reader that has it open now keeps it
        # from changing its mode: it is complete all the same.
        with suppress(sqlite3.OperationalError):
            self._db.execute("PRAGMA journal_mode = DELETE")
        self._forget_states()

    def reopen(self) -> None:
        """Stage that the run goes on: `finish` is taken back, what was released stays.

        Attacks are computed after the last round alone, which the last one so far is no more.
        """
        self._db.execute("DELETE FROM client_spend")
        nothing = ", ".join(f"{name} = NULL" for name in LOWER_NAMES)
        self._db.execute(f"UPDATE rounds SET {nothing}")
        self._db.execute("DELETE FROM meta WHERE key IN ('outcome', 'finished')")

    def _merge(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _forget_states(self, *new: str) -> None:
        """Remove the files of all states but the recorded one, which is durable, and a new one."""
        row = self._db.execute("SELECT state FROM checkpoint WHERE typeof(state) = 'text'")
        kept = {f"{STATE}{digest}" for digest in (*new, *(row.fetchone() or ()))}
        for path in self.path.parent.glob(f"{STATE}*"):
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def reserve(
        self,
        round_number: int,
        expected_reports: int,
        epsilon: float,
        released: NDArray[np.bool_] | None = None,
    ) -> None:
        """Book a round's worst case; durable, together with everything recorded before it.

        `released` is the mask of clients whose reports will be used as they come, before the round
        is recorded; None if nothing leaves the shuffler before that.
        Raises `RunError` if somebody else has written an attempt since this ledger's last one.
        """
        newest, _, last = self._newest()
        if last != self._hash:
            raise RunError(
                f"another process writes in {self.path}: this one stops, and releases nothing more"
            )
        present = None if released is None else _bitmap(released)
        used = int(released is not None)
        row = (newest + 1, round_number, expected_reports, float(epsilon), used, present)
        before, self._hash = self._hash, next_hash(self._hash, row)
        insert(self._db, "reservations", [(*row, self._hash)], new=True)
        self._attempt = (row, before)
        self.flush()

    def record(self, spend: Spend, present: NDArray[np.bool_]) -> None:
        """Stage what the reserved round really was; the next `reserve` or `flush` makes it durable.

        If it is interrupted, nothing is staged. Raises `RunError` if the round is not the reserved
        one.
        """
        if self._attempt is None or self._attempt[0][1] != spend.round_number:
            raise RunError(f"round {spend.round_number} is not the one under way in {self.path}")
        reserved, before = self._attempt
        self._record((*reserved[:4], 1, _bitmap(present)), before, spend)

    def amend(self, spend: Spend, present: NDArray[np.bool_], unusable: int) -> bool:
        """Stage that `unusable` of the newest attempt's reports hide nobody, and what it costs;
        returns whether the ledger did not know that. The recorded number never falls.

        Otherwise as `record`. Raises `RunError` if the newest attempt is not this round's, with
        these reports.
        """
        newest = self._db.execute(
            "SELECT attempt, round, expected_reports, epsilon, released, present, hash "
            "FROM reservations ORDER BY attempt DESC LIMIT 2"
        ).fetchall()
        known = newest[0] if newest else (0,) * 7
        if (known[1], known[5], known[6]) != (spend.round_number, _bitmap(present), self._hash):
            raise RunError(
                f"the newest attempt in {self.path} is not round {spend.round_number} with these "
                "reports: another process writes there; nothing more is released"
            )
        before = newest[1][6] if len(newest) > 1 else self._first
        # Reports that hid nobody once never hide anybody again, whatever is asked later.
        released = max(known[4], 1 + unusable)
        self._record((*known[:4], released, known[5]), before, spend)
        return bool(known[4] != released)

    def unusable(self, round_number: int) -> int:
        """Return how many reports of the newest attempt are known to hide nobody; 0 where it is
        not this round's."""
        newest = self._db.execute(
            "SELECT round, released FROM reservations ORDER BY attempt DESC LIMIT 1"
        ).fetchone()
        return max(0, newest[1] - 1) if newest and newest[0] == round_number else 0

    def _record(self, row: tuple[Any, ...], before: str, spend: Spend) -> None:
        """Stage the newest attempt's row as it is now, and what the round has spent."""
        now = next_hash(before, row)
        spent = [spend.columns[name] for name in SPENT_NAMES]
        later = [None] * len(LOWER_NAMES)
        whole = (spend.round_number, spend.num_reports, row[2], spend.delta, spend.mu_round,
                 spend.mu_total, *(one.worst for one in spent), *later, None)  # fmt: skip
        try:
            insert(self._db, "rounds", [whole])
            changed = self._db.execute(
                "UPDATE reservations SET released = ?, present = ?, hash = ? "
                "WHERE attempt = ? AND round = ? AND hash = ?",
                (row[4], row[5], now, *row[:2], self._hash),
            ).rowcount
            if changed != 1:
                raise RunError(
                    f"attempt {row[0]} at round {spend.round_number} is no longer in {self.path} "
                    "as it was reserved: another process writes there; nothing is released"
                )
        except BaseException:
            self._db.rollback()  # to the reservation, which is durable
            raise
        self._hash = now

    def _newest(self) -> tuple[int, int, str]:
        """Return the number, release and hash of the newest attempt; before there is one the first
        hash."""
        found = self._db.execute(
            "SELECT attempt, released, hash FROM reservations ORDER BY attempt DESC LIMIT 1"
        ).fetchone()
        return (0, 1, self._first) if found is None else found

    def note(self, round_number: int, kind: str, text: str) -> None:
        """Stage a note that a reviewer should see."""
        insert(self._db, "notes", [(round_number, kind, text)])

    def record_metrics(
        self, round_number: int, metrics: Mapping[str, float], seconds: float | None
    ) -> dict[str, Any]:
        """Stage what was measured after a round, and how long all of it took (None where times are
        not published); durable together with its checkpoint. Returns the round's line of
        metrics.csv."""
        found = {name: value for name, value in metrics.items() if not math.isnan(value)}
        insert(self._db, "metrics", [(round_number, *each) for each in found.items()])
        self._db.execute("UPDATE rounds SET seconds = ? WHERE round = ?", (seconds, round_number))
        query = f"SELECT {', '.join(ROUNDS.values())} FROM rounds WHERE round = ?"
        stored = self._db.execute(query, (round_number,)).fetchone()
        return {**dict(zip(ROUNDS, stored, strict=True)), **found}

    def checkpoint(self, round_number: int, state: bytes | str) -> None:
        """Stage what is needed to go on after `round_number` if the process dies: itself, or the
        digest of the file that it is in, durably.

        Where the log is not merged at every flush, what was flushed before is merged here.
        """
        if not self._merges:
            self._db.commit()
            self._merge()
        if isinstance(state, str):
            self._forget_states(state)
        insert(self._db, "checkpoint", [(0, round_number, state)])

    def change_settings(self, config: Mapping[str, Any]) -> None:
        """Add what may change of a resumed run, as it is in this resolved configuration.

        Everything else stays as it was written: it is in the chain, and a version that knows other
        settings would name them differently.
        """
        facts = facts_in(self._db, self.path)
        stored = facts["config"]
        if config["run"]["rounds"] != stored["run"]["rounds"]:
            # The first number stays: the learning rate was planned for it.
            self.set_meta(PLANNED, facts.get(PLANNED, stored["run"]["rounds"]))
        for key in CHANGEABLE:
            section, name = key.split(".")
            stored.setdefault(section, {})[name] = config[section][name]
        self.set_meta("config", stored)

    def set_meta(self, key: str, value: Any) -> None:
        """Add or change one fact."""
        insert(self._db, "meta", [(key, json.dumps(value))])


def create_ledger(
    path: Path, meta: Mapping[str, Any], classes: Iterable[ClientClass], class_of: NDArray[np.int64]
) -> None:
    """Create a new ledger that holds the plan, in a file that its owner alone may read.

    The file appears in one step, whole. Raises `RunError` if it cannot be created.
    """
    kinds = ClassTable.of(classes)
    facts = {**meta, "hash": first_hash(meta, kinds, class_of)}

    def write(unfinished: Path) -> None:
        with closing(sqlite3.connect(unfinished)) as database:
            database.execute("BEGIN")
            create_tables(database)
            insert(database, "meta", ((key, json.dumps(value)) for key, value in facts.items()))
            columns = [getattr(kinds, name) for name in (*COLUMNS, "records")]
            sizes = np.bincount(class_of, minlength=len(kinds))
            fill(database, "classes", np.array(NOISE_KINDS)[kinds.noise], *columns, sizes)
            fill(database, "clients", class_of)
            database.commit()

    with said_in_one_line(path, "created"):
        replace_file(path, write)


def upgrade_ledger(path: Path, rdp: Mapping[int, float | None]) -> None:
    """Bring the ledger of an unfinished run from schema `UPGRADED` to this one, or leave it as it
    is.

    `rdp` is the new column of the rounds that it holds. The chain stays that of the old schema,
    which `chain_schema` says from now on. Raises `RunError` if the ledger cannot be changed.
    """
    try:
        with closing(_connect(path, "FULL")) as database:
            # SQLite changes tables within a transaction, which Python does not begin for them.
            database.isolation_level = None
            database.execute("BEGIN IMMEDIATE")
            try:
                # The old view stands in the way of new names; it is made again below.
                database.execute("DROP VIEW IF EXISTS attendance")
                database.execute("DROP TABLE round_classes")
                for table, cells in TABLES.items():
                    for cell in cells:
                        _bring(database, table, cell)
                new = [(value, number) for number, value in rdp.items()]
                database.executemany("UPDATE rounds SET rdp = ? WHERE round = ?", new)
                _create_views(database)
                database.execute("UPDATE meta SET key = 'hash' WHERE key = 'link'")
                facts = {"chain_schema": UPGRADED, "schema": SCHEMA_VERSION}
                insert(database, "meta", ((key, json.dumps(fact)) for key, fact in facts.items()))
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise RunError(f"{path} cannot be brought to schema {SCHEMA_VERSION}: {error}") from None


def facts_in(database: sqlite3.Connection, path: Path) -> dict[str, Any]:
    """Return the run's facts: configuration, versions, seed, sizes and shapes of the data."""
    try:
        rows = database.execute("SELECT key, value FROM meta").fetchall()
        return {str(key): json.loads(value) for key, value in rows}
    except (sqlite3.DatabaseError, TypeError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is not a readable ledger: {error}") from None


def witnessed(lock: int) -> tuple[str, int]:
    """Return (run, entries) as a ledger has last told them to this lock file; ("", 0) if none
    has."""
    told = os.pread(lock, 64 + WITNESS_AT, WITNESS_AT).split()
    if len(told) != 2 or not told[0].isdigit():
        return "", 0
    return told[1].decode("ascii", errors="replace"), int(told[0])


def create_tables(database: sqlite3.Connection) -> None:
    """Make all of them, empty."""
    for name, cells in TABLES.items():
        parts = [cell.declared for cell in cells]
        pair = PAIRS.get(name)
        rest = f", PRIMARY KEY ({pair})) WITHOUT ROWID" if pair else ")"
        database.execute(f"CREATE TABLE {name} ({', '.join(parts)}{rest}")
    _create_views(database)


def _create_views(database: sqlite3.Connection) -> None:
    for view in (PARTICIPATION, ATTENDANCE):
        database.execute(view)


def _bring(database: sqlite3.Connection, table: str, cell: Cell) -> None:
    """Have a column of schema `UPGRADED` as this schema has it."""
    old = cell.named_in(UPGRADED)
    if old == "NULL":
        database.execute(f"ALTER TABLE {table} ADD COLUMN {cell.declared}")
    elif old != cell.name:
        database.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {cell.name}")


def insert(
    database: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]], *, new: bool = False
) -> None:
    """Write rows; one of the same key is replaced, unless all must be new."""
    verb, cells = "INSERT" if new else "INSERT OR REPLACE", ", ".join("?" * len(TABLES[table]))
    # By name: the columns of an upgraded ledger stand in another order.
    names = ", ".join(cell.name for cell in TABLES[table])
    database.executemany(f"{verb} INTO {table} ({names}) VALUES ({cells})", rows)


def fill(database: sqlite3.Connection, table: str, *columns: NDArray[Any]) -> None:
    """Make these columns [rows] a table's whole content; its key, before them, counts from 0."""
    database.execute(f"DELETE FROM {table}")
    rows = zip(itertools.count(), *(column.tolist() for column in columns), strict=False)
    insert(database, table, rows)


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    except sqlite3.DatabaseError as error:
        raise RunError(f"{path} cannot be opened as a ledger: {error}") from None
    return connection


def _bitmap(present: NDArray[np.bool_]) -> bytes | None:
    """Return one bit per client; None for everybody."""
    return None if present.all() else np.packbits(present).tobytes()
