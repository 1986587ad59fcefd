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
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.durable_files import OWNER_ONLY
from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote.agreement import Agreement, sum_of_usable

FILE = "shuffler.sqlite"
VERSION = 2
"""Raised whenever a table, or what is in it, changes."""
WAIT_SECONDS = 1.0
"""So long another process that has the file may take to leave it."""

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
Place = tuple[str, int]
"""A run's identifier, and a round's number."""


class Taken(Enum):
    """What became of a sealed report."""

    ACCEPTED = "accepted"
    ALREADY = "this client's report on this round is here already"
    REPLAYED = "this sealed report was sent before"
    NOT_OPEN = "the round is not open"
    NOT_ASKED = "this client is not asked in this round"


class Store:
    """The shuffler's durable state. Safe to use from several threads of one process."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._lock = RLock()

    @classmethod
    def open(cls, directory: Path) -> Store:
        """The store in a shuffler's directory, made if there is none.

        It is this object's alone until it is closed. Raises `RunError` if it cannot be used, is
        another version's, or is in use.
        """
        path = directory / FILE
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
            database = sqlite3.connect(
                path, WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
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
        return cls(database)

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
            if self.attendance((run, round_number)) is not None:
                return False
            kept = round_number if asked.any() else 0
            database.execute("DELETE FROM reports WHERE run = ? AND round <> ?", (run, kept))
            before, wanted = self._asked((run, kept)), np.packbits(asked)
            if before is not None:
                wanted |= np.frombuffer(before, np.uint8)
            database.execute(
                "UPDATE runs SET open = ?, asked = ? WHERE run = ?",
                (round_number, wanted.tobytes(), run),
            )
        return True

    def agreement(self, run: str) -> Agreement | None:
        """The facts of a run, or None if it is not known."""
        row = self._row("SELECT agreement FROM runs WHERE run = ?", (run,))
        return None if row is None else Agreement(**json.loads(row[0]))

    def add(self, place: Place, client: int, delivery: bytes) -> Taken:
        """Keep a client's sealed reports of an open round, one for each of its batches together.
        The first delivery counts; the very same bytes may come again, as they do when an
        acknowledgement was lost."""
        with self._whole() as database:
            agreement, asked = self.agreement(place[0]), self._asked(place)
            if agreement is None or asked is None:
                return Taken.NOT_OPEN
            if client >= 8 * len(asked) or not asked[client // 8] >> (7 - client % 8) & 1:
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

    def close_round(self, place: Place, minimum: int, private: bytes) -> NDArray[np.bool_] | None:
        """Close a round. Released are its reports, batch after batch, each in a uniformly random
        order of its own; or (`Agreement.release`) the sum of those that the key `private` opens.

        Returns who is in it (mask [clients]); None, and the round stays open, if usable reports of
        fewer than `minimum` clients are there. A round that is closed stays as it is.
        """
        with self._whole() as database:
            present, agreement = self.attendance(place), self.agreement(place[0])
            if present is not None or agreement is None or self._asked(place) is None:
                return present
            if agreement.release == "sum":
                found = sum_of_usable(self._deliveries(place), agreement, place[1], private)
                clients, pieces = found[0], iter([found[1]])
            else:
                clients = self._clients(place)
                pieces = self._permuted(place, clients, agreement.batches)
            if len(clients) < max(1, minimum):
                return None
            database.executemany(
                "INSERT INTO batch VALUES (?, ?, ?, ?)",
                ((*place, position, piece) for position, piece in enumerate(pieces)),
            )
            present = np.zeros(agreement.clients, dtype=bool)
            present[clients] = True
            database.execute("DELETE FROM reports WHERE run = ? AND round = ?", place)
            database.execute("DELETE FROM seen WHERE run = ? AND round = ?", place)
            database.execute("UPDATE runs SET open = NULL WHERE run = ?", place[:1])
            bitmap = np.packbits(present).tobytes()
            database.execute("INSERT INTO rounds VALUES (?, ?, ?, 0)", (*place, bitmap))
        return present

    def _clients(self, place: Place) -> list[int]:
        """Who has sent reports of a round."""
        chosen = "SELECT DISTINCT client FROM reports WHERE run = ? AND round = ? ORDER BY client"
        return [int(client) for (client,) in self._db.execute(chosen, place)]

    def _deliveries(self, place: Place) -> Iterable[tuple[int, list[bytes]]]:
        """Each client of a round, and its sealed reports."""
        chosen = "SELECT client, sealed FROM reports WHERE run = ? AND round = ? "
        rows = self._db.execute(f"{chosen}ORDER BY client, batch", place)
        for client, own in groupby(rows, itemgetter(0)):
            yield int(client), [bytes(sealed) for _, sealed in own]

    def _permuted(self, place: Place, clients: list[int], batches: int) -> Iterator[bytes]:
        """The sealed reports of a round, batch after batch."""
        order = list(clients)
        for batch in range(batches):
            # Fisher-Yates over the operating system's entropy: every order is equally likely.
            secrets.SystemRandom().shuffle(order)
            for client in order:
                (sealed,) = self._db.execute(
                    "SELECT sealed FROM reports WHERE run = ? AND round = ? AND client = ? "
                    "AND batch = ?",
                    (*place, client, batch),
                ).fetchone()
                yield sealed

    def attendance(self, place: Place) -> NDArray[np.bool_] | None:
        """Who is in a closed round's batch (mask [clients]); None while it is not closed."""
        row = self._row("SELECT attendance FROM rounds WHERE run = ? AND round = ?", place)
        agreement = self.agreement(place[0])
        if row is None or agreement is None:
            return None
        bits = np.frombuffer(row[0], np.uint8)
        return np.unpackbits(bits, count=agreement.clients).astype(bool)

    def batch(self, place: Place, first: int = 0, most: int = -1) -> list[bytes]:
        """What is released of a closed round, from that position on, `most` pieces of it; nothing
        once it is handed over."""
        with self._lock:
            rows = self._db.execute(
                "SELECT content FROM batch WHERE run = ? AND round = ? AND position >= ? "
                "ORDER BY position LIMIT ?",
                (*place, first, most),
            ).fetchall()
        return [bytes(content) for (content,) in rows]

    def hand_over(self, place: Place) -> None:
        """Forget a closed round's batch: its step is durable where it was needed. The round stays
        closed."""
        with self._whole() as database:
            if self.attendance(place) is not None:
                marked = "UPDATE rounds SET handed_over = 1 WHERE run = ? AND round = ?"
                database.execute(marked, place)
                database.execute("DELETE FROM batch WHERE run = ? AND round = ?", place)

    def handed_over(self, place: Place) -> bool:
        """Whether a round's batch is gone for good."""
        row = self._row("SELECT handed_over FROM rounds WHERE run = ? AND round = ?", place)
        return row is not None and bool(row[0])

    def _asked(self, place: Place) -> bytes | None:
        """Who is asked in a round, a bit each; None unless it is open."""
        row = self._row("SELECT asked FROM runs WHERE run = ? AND open = ?", place)
        return None if row is None else bytes(row[0])

    def _row(self, query: str, values: tuple[str | int, ...]) -> tuple[bytes, ...] | None:
        with self._lock:
            found: tuple[bytes, ...] | None = self._db.execute(query, values).fetchone()
        return found


def _unusable(path: Path, error: Exception) -> RunError:
    if "locked" in str(error):
        return RunError(f"{path.parent} is in use by another shuffler; stop that one first")
    return RunError(f"{path} cannot be used as a shuffler's store: {error}")
