"""What the shuffler keeps: sealed reports until their round is closed, then the batch alone.

One SQLite file, durable before anything is acknowledged. A run has one open round at most; a round
goes from open to closed to handed over, never back; the reports of one that is open are thrown away
when another one is begun. Closing is one transaction: the batch, in its random order, takes the
place of the reports, and which client sent which is gone. What is released of a round is that
batch, the same bytes however often it is asked for. No times, no order of arrival, no addresses are
written.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.durable_files import OWNER_ONLY
from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement

FILE = "shuffler.sqlite"
VERSION = 2
"""Raised whenever a table, or what is in it, changes."""

SCHEMA = """
CREATE TABLE runs (run TEXT PRIMARY KEY, agreement BLOB NOT NULL, open INTEGER,
    asked BLOB) WITHOUT ROWID;
CREATE TABLE rounds (run TEXT NOT NULL, round INTEGER NOT NULL, attendance BLOB NOT NULL,
    handed_over INTEGER NOT NULL, PRIMARY KEY (run, round)) WITHOUT ROWID;
CREATE TABLE reports (run TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL,
    batch INTEGER NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (run, round, client, batch)) WITHOUT ROWID;
CREATE TABLE seen (run TEXT NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (run, round, digest)) WITHOUT ROWID;
CREATE TABLE batch (run TEXT NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL,
    content BLOB NOT NULL, PRIMARY KEY (run, round, position)) WITHOUT ROWID;
"""
# Rows lie in the order of their keys: that of arrival is in none of the tables.
PRAGMAS = (
    # From the first transaction on nobody else reads the file, who could keep one from its commit.
    "locking_mode = EXCLUSIVE",
    # What is deleted is overwritten, and no log of pages remains beside the file.
    "journal_mode = TRUNCATE",
    "synchronous = FULL",
    "secure_delete = ON",
)


class Taken(Enum):
    """What became of a sealed report."""

    ACCEPTED = "accepted"
    ALREADY = "this client's report on this round is here already"
    REPLAYED = "this sealed report was sent before"
    NOT_OPEN = "the round is not open"
    NOT_ASKED = "this client is not asked in this round"


@dataclass(frozen=True)
class Summed:
    """A sum over the clients whose reports were usable: their ids, and what is released."""

    clients: list[int]
    content: bytes


Adding = Callable[[Iterable[tuple[int, list[bytes]]]], Summed]
"""Adds up what clients have sent, as (client, its sealed reports)."""


class Store:
    """The shuffler's durable state. Safe to use from several threads of one process."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self._lock = RLock()
        self.path = path

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The store in a shuffler's directory, made if there is none.

        It is this object's alone until it is closed. Raises `RunError` if it cannot be used, is
        another version's, or is in use.
        """
        path = directory / FILE
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise _unusable(path, error) from None
        try:
            for pragma in PRAGMAS:
                database.execute(f"PRAGMA {pragma}").fetchall()
            database.execute("BEGIN EXCLUSIVE")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise RunError(f"{path} is of version {version}; this program reads {VERSION}")
            database.execute("COMMIT")
        except BaseException as error:
            database.close()
            if isinstance(error, sqlite3.Error):
                raise _unusable(path, error) from None
            raise
        return cls(database, path)

    def close(self) -> None:
        """Close the file; everything in it is durable already."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """All of what is done inside, durably, or nothing."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                # A commit that fails may leave its transaction open: what is in it is not durable,
                # and nobody may see it.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def begin(self, agreement: Agreement, round_number: int, asked: NDArray[np.bool_]) -> bool:
        """Open a round of a run to the clients that are asked (mask [clients]); returns False, and
        opens nothing, if it is closed already.

        What is there of an open round stays, and who is asked in it stays asked: a list that could
        shrink would leave a report alone with those of whom the server likes. (Where nobody is
        asked, all that is there is thrown away.) So are reports of another round that is open.
        Raises `RunError` if the run is known with other facts.
        """
        run = agreement.run
        with self._whole() as database:
            known = self.agreement(run)
            if known is None:
                row = (run, agreement.encoded())
                database.execute("INSERT INTO runs VALUES (?, ?, NULL, NULL)", row)
            elif known != agreement:
                raise RunError("this run is known with other facts; start a new run")
            if self._attendance(run, round_number) is not None:
                return False
            database.execute(
                "DELETE FROM reports WHERE run = ? AND round <> ?", (run, round_number)
            )
            wanted = np.packbits(asked)
            if not asked.any():
                place = (run, round_number)
                database.execute("DELETE FROM reports WHERE run = ? AND round = ?", place)
            elif self._is_open(run, round_number):
                (before,) = database.execute(
                    "SELECT asked FROM runs WHERE run = ?", (run,)
                ).fetchone()
                wanted |= np.frombuffer(before, np.uint8)
            database.execute(
                "UPDATE runs SET open = ?, asked = ? WHERE run = ?",
                (round_number, wanted.tobytes(), run),
            )
        return True

    def agreement(self, run: str) -> Agreement | None:
        """The facts of a run, or None if it is not known."""
        with self._lock:
            row = self._db.execute("SELECT agreement FROM runs WHERE run = ?", (run,)).fetchone()
        return None if row is None else Agreement.decoded(row[0])

    def add(self, run: str, round_number: int, client: int, delivery: bytes) -> Taken:
        """Keep a client's sealed reports of an open round, one for each of its batches together.
        The first delivery counts; the very same bytes may come again, as they do when an
        acknowledgement was lost."""
        place = (run, round_number)
        with self._whole() as database:
            agreement = self.agreement(run)
            if agreement is None or not self._is_open(*place):
                return Taken.NOT_OPEN
            if not self._is_asked(run, client):
                return Taken.NOT_ASKED
            sealed = agreement.sealed_reports(delivery)
            held = database.execute(
                "SELECT sealed FROM reports WHERE run = ? AND round = ? AND client = ? "
                "ORDER BY batch",
                (*place, client),
            ).fetchall()
            if held:
                same = sealed == [report for (report,) in held]
                return Taken.ACCEPTED if same else Taken.ALREADY
            # Report by report: a copy of another client's would stand beside it in a batch.
            digests = [hashlib.sha256(each).digest() for each in sealed]
            fresh = database.executemany(
                "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)",
                [(*place, digest) for digest in digests],
            ).rowcount
            if fresh != len(digests):
                return Taken.REPLAYED
            database.executemany(
                "INSERT INTO reports VALUES (?, ?, ?, ?, ?)",
                [(*place, client, batch, report) for batch, report in enumerate(sealed)],
            )
        return Taken.ACCEPTED

    def shuffle(self, run: str, round_number: int, minimum: int) -> NDArray[np.bool_] | None:
        """Close a round: its reports are released batch after batch, each in a uniformly random
        order of its own.

        Returns who is in it (mask [clients]); None, and the round stays open, if fewer than
        `minimum` reports are there. A round that is closed stays as it is.
        """
        place = (run, round_number)
        with self._whole() as database:
            present = self._attendance(*place)
            if present is not None:
                return present
            clients = self._clients(*place) if self._is_open(*place) else []
            if len(clients) < max(1, minimum):
                return None
            agreement = self.agreement(run)
            assert agreement is not None
            order = list(clients)
            for batch in range(agreement.batches):
                # Fisher-Yates over the operating system's entropy: every order is equally likely.
                secrets.SystemRandom().shuffle(order)
                for position, client in enumerate(order, start=batch * len(order)):
                    database.execute(
                        "INSERT INTO batch SELECT run, round, ?, sealed FROM reports "
                        "WHERE run = ? AND round = ? AND client = ? AND batch = ?",
                        (position, *place, client, batch),
                    )
            return self._closed(*place, clients)

    def add_up(
        self, run: str, round_number: int, minimum: int, adding: Adding
    ) -> NDArray[np.bool_] | None:
        """Close a round: the sum of its usable reports is the batch. As `shuffle` for the rest."""
        place = (run, round_number)
        with self._whole() as database:
            present = self._attendance(*place)
            if present is not None:
                return present
            if not self._is_open(*place):
                return None
            rows = database.execute(
                "SELECT client, sealed FROM reports WHERE run = ? AND round = ? "
                "ORDER BY client, batch",
                place,
            )
            total = adding(
                (int(client), [bytes(sealed) for _, sealed in own])
                for client, own in groupby(rows, itemgetter(0))
            )
            if len(total.clients) < max(1, minimum):
                return None
            database.execute("INSERT INTO batch VALUES (?, ?, 0, ?)", (*place, total.content))
            return self._closed(*place, total.clients)

    def _closed(self, run: str, round_number: int, clients: list[int]) -> NDArray[np.bool_]:
        agreement = self.agreement(run)
        assert agreement is not None
        present = np.zeros(agreement.clients, dtype=bool)
        present[clients] = True
        place = (run, round_number)
        self._db.execute("DELETE FROM reports WHERE run = ? AND round = ?", place)
        self._db.execute("DELETE FROM seen WHERE run = ? AND round = ?", place)
        self._db.execute("UPDATE runs SET open = NULL WHERE run = ?", (run,))
        bitmap = np.packbits(present).tobytes()
        self._db.execute("INSERT INTO rounds VALUES (?, ?, ?, 0)", (*place, bitmap))
        return present

    def attendance(self, run: str, round_number: int) -> NDArray[np.bool_] | None:
        """Who is in a closed round's batch (mask [clients]); None while it is not closed."""
        with self._lock:
            return self._attendance(run, round_number)

    def batch(self, run: str, round_number: int) -> Iterator[bytes]:
        """What is released of a closed round, piece by piece; nothing once it is handed over."""
        position = 0
        while True:
            with self._lock:
                row = self._db.execute(
                    "SELECT content FROM batch WHERE run = ? AND round = ? AND position = ?",
                    (run, round_number, position),
                ).fetchone()
            if row is None:
                return
            yield bytes(row[0])
            position += 1

    def hand_over(self, run: str, round_number: int) -> None:
        """Forget a closed round's batch: its step is durable where it was needed. The round stays
        closed."""
        with self._whole() as database:
            place = (run, round_number)
            database.execute("UPDATE rounds SET handed_over = 1 WHERE run = ? AND round = ?", place)
            database.execute(
                "DELETE FROM batch WHERE run = ? AND round = ? AND EXISTS (SELECT 1 FROM rounds "
                "WHERE rounds.run = batch.run AND rounds.round = batch.round)",
                place,
            )

    def handed_over(self, run: str, round_number: int) -> bool:
        """Whether a round's batch is gone for good."""
        with self._lock:
            row = self._db.execute(
                "SELECT handed_over FROM rounds WHERE run = ? AND round = ?", (run, round_number)
            ).fetchone()
        return row is not None and bool(row[0])

    def _is_open(self, run: str, round_number: int) -> bool:
        row = self._db.execute("SELECT open FROM runs WHERE run = ?", (run,)).fetchone()
        return row is not None and row[0] == round_number

    def _is_asked(self, run: str, client: int) -> bool:
        row = self._db.execute("SELECT asked FROM runs WHERE run = ?", (run,)).fetchone()
        return client < 8 * len(row[0]) and bool(row[0][client // 8] >> (7 - client % 8) & 1)

    def _attendance(self, run: str, round_number: int) -> NDArray[np.bool_] | None:
        row = self._db.execute(
            "SELECT attendance, agreement FROM rounds JOIN runs USING (run) "
            "WHERE run = ? AND round = ?",
            (run, round_number),
        ).fetchone()
        if row is None:
            return None
        count = Agreement.decoded(row[1]).clients
        return np.unpackbits(np.frombuffer(row[0], np.uint8), count=count).astype(bool)

    def _clients(self, run: str, round_number: int) -> list[int]:
        rows = self._db.execute(
            "SELECT DISTINCT client FROM reports WHERE run = ? AND round = ? ORDER BY client",
            (run, round_number),
        ).fetchall()
        return [int(client) for (client,) in rows]


def _unusable(path: Path, error: Exception) -> RunError:
    return RunError(f"{path} cannot be used as a shuffler's store: {error}")
