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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.durable_files import OWNER_ONLY
from fl_shuffle.errors import RunError
from fl_shuffle.shuffler.remote import wire
from fl_shuffle.shuffler.remote.agreement import Agreement, pieces_of, sum_of_usable
from fl_shuffle.shuffler.remote.wire import ShufflerError

FILE = "shuffler.sqlite"
VERSION = 3
"""Raised whenever a table, or what is in it, changes."""
WAIT_SECONDS = 1.0
"""So long another process that has the file may take to leave it."""

# A round's clients are those who are asked in it while it is open, then those who are in its batch.
SCHEMA = """
CREATE TABLE runs (run TEXT PRIMARY KEY, agreement BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rounds (run TEXT NOT NULL, round INTEGER NOT NULL, state INTEGER NOT NULL,
    clients BLOB NOT NULL, PRIMARY KEY (run, round)) WITHOUT ROWID;
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
THIS_ROUND = "WHERE run = ? AND round = ?"


class Store:
    """The shuffler's durable state. Safe to use from several threads of one process.

    A round is named by its run's agreement and its number: every method raises `ShufflerError` for
    a run that was not begun here, or with other facts, and for what cannot be done with a round
    that stands where it does.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._lock = RLock()

    @classmethod
    def open(cls, directory: Path) -> Store:
        """Return the store in a shuffler's directory, made if there is none.

        It is this object's alone until it is closed. Raises `RunError` if it cannot be used, is
        another version's, or is in use.
        """
        path, database = directory / FILE, None
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
            database = sqlite3.connect(
                path, WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            for pragma in PRAGMAS:
                database.execute(f"PRAGMA {pragma}").fetchall()
            with database:
                database.execute("BEGIN EXCLUSIVE")
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version not in (0, VERSION):
                    raise sqlite3.DatabaseError(f"it is of version {version}, this is {VERSION}")
                for statement in () if version else SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {VERSION}")
        except (OSError, sqlite3.Error) as error:
            if database is not None:
                database.close()
            if "locked" in str(error):
                raise RunError(f"{path} is in use by another shuffler; stop that one") from None
            raise RunError(f"{path} cannot be used as a shuffler's store: {error}") from None
        return cls(database)

    def close(self) -> None:
        """Close the file; everything in it is durable already."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _whole(self) -> Iterator[sqlite3.Connection]:
        """Do all of what is done inside, durably, or nothing."""
        # Where the commit fails, too, nothing of it stays, and nobody sees it.
        with self._lock, self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db

    def state_of(self, agreement: Agreement, number: int) -> tuple[int | None, NDArray[np.bool_]]:
        """Return where a round stands (None: it was not begun), and its clients [clients]: those
        who are asked while it is open, then those who are in its batch."""
        with self._lock:
            row = self._db.execute(
                "SELECT agreement, state, clients FROM runs LEFT JOIN rounds "
                "ON rounds.run = runs.run AND round = ? WHERE runs.run = ?",
                (number, agreement.run),
            ).fetchone()
        if row is None:
            raise ShufflerError("this shuffler does not know the run", "NOT_FOUND")
        facts, state, clients = row
        if facts != agreement.encoded():
            # The analyzer could tell a report by what it is bound to.
            raise ShufflerError(
                "the report belongs to another configuration than the run: send every site the "
                "same configuration"
            )
        if state is None:
            return None, np.zeros(agreement.clients, dtype=bool)
        return state, wire.mask_of(clients, agreement.clients)

    def begin(self, agreement: Agreement, number: int, asked: NDArray[np.bool_]) -> int:
        """Open a round of a run to the clients that are asked (mask [clients]), unless it is closed
        already; returns where it stands.

        What is there of an open round stays, and who is asked in it stays asked: a list that could
        shrink would leave a report alone with those of whom the server likes. (Where nobody is
        asked, all that is there is thrown away.) So are reports of another round that is open.
        """
        run = agreement.run
        with self._whole() as database:
            database.execute("INSERT OR IGNORE INTO runs VALUES (?, ?)", (run, agreement.encoded()))
            state, before = self.state_of(agreement, number)
            if state not in (None, wire.OPEN):
                return state
            kept = number if asked.any() else 0
            wanted = asked | before if kept else asked
            others = "WHERE run = ? AND round <> ?"
            database.execute(f"DELETE FROM reports {others}", (run, kept))
            database.execute(f"DELETE FROM rounds {others} AND state = {wire.OPEN}", (run, kept))
            self._set((run, number), wire.OPEN, wanted)
        return wire.OPEN

    def wants(self, agreement: Agreement, number: int, client: int) -> bool:
        """Return whether a client's reports of an open round are missing; raises as `add` does."""
        state, asked = self.state_of(agreement, number)
        if state != wire.OPEN:
            raise ShufflerError("the round is not open")
        if client >= len(asked) or not asked[client]:
            raise ShufflerError("this client is not asked in this round")
        place = (agreement.run, number, client)
        query = f"SELECT 1 FROM reports {THIS_ROUND} AND client = ? LIMIT 1"
        with self._lock:
            return self._db.execute(query, place).fetchone() is None

    def add(self, agreement: Agreement, number: int, client: int, delivery: bytes) -> None:
        """Keep a client's sealed reports of an open round, one for each of its batches together.
        The first delivery counts, and another one is left aside: acknowledgements get lost."""
        place = (agreement.run, number)
        with self._whole() as database:
            if not self.wants(agreement, number, client):
                return
            sealed = pieces_of(delivery, agreement.sealed_bytes)
            try:
                # Report by report: a copy of another client's would stand beside it in a batch.
                rows = [(*place, hashlib.sha256(each).digest()) for each in sealed]
                database.executemany("INSERT INTO seen VALUES (?, ?, ?)", rows)
            except sqlite3.IntegrityError:
                raise ShufflerError("this sealed report was sent before") from None
            database.executemany(
                "INSERT INTO reports VALUES (?, ?, ?, ?, ?)",
                [(*place, client, batch, report) for batch, report in enumerate(sealed)],
            )

    def close_round(
        self, agreement: Agreement, number: int, minimum: int, private: bytes
    ) -> NDArray[np.bool_]:
        """Close a round. Released are its reports, batch after batch, each in a uniformly random
        order of its own; or (`Agreement.release`) the sum of those that the key `private` opens.

        Returns who is in it (mask [clients]). Raises `ShufflerError`, and the round stays open, if
        usable reports of fewer than `minimum` clients are there. A round that is closed stays as it
        is.
        """
        place = (agreement.run, number)
        with self._whole() as database:
            state, present = self.state_of(agreement, number)
            if state in (wire.CLOSED, wire.HANDED_OVER):
                return present
            present = np.zeros(agreement.clients, dtype=bool)
            found = f"SELECT DISTINCT client FROM reports {THIS_ROUND} ORDER BY client"
            clients, total = [client for (client,) in database.execute(found, place)], None
            if agreement.release == "sum":
                sealed = ((client, self._held(place, client)) for client in clients)
                clients, total = sum_of_usable(sealed, agreement, number, private)
            if len(clients) < max(1, minimum):
                raise ShufflerError(
                    f"fewer than {minimum} usable reports of round {number} are here; nothing is "
                    "released"
                )
            if total is not None:
                database.execute("INSERT INTO batch VALUES (?, ?, 0, ?)", (*place, total))
            else:
                self._permute(place, clients, agreement.batches)
            database.execute(f"DELETE FROM reports {THIS_ROUND}", place)
            database.execute(f"DELETE FROM seen {THIS_ROUND}", place)
            present[clients] = True
            self._set(place, wire.CLOSED, present)
        return present

    def _permute(self, place: tuple[str, int], clients: list[int], batches: int) -> None:
        """Let out the sealed reports of these clients, batch after batch.

        They are written in the order in which they are released: not even where they lie in the
        file tells another one.
        """
        order = list(clients)
        for batch in range(batches):
            # Fisher-Yates over the operating system's entropy: every order is equally likely.
            secrets.SystemRandom().shuffle(order)
            places = enumerate(order, batch * len(order))
            self._db.executemany(
                f"INSERT INTO batch SELECT run, round, ?, sealed FROM reports {THIS_ROUND} "
                "AND client = ? AND batch = ?",
                ((position, *place, client, batch) for position, client in places),
            )

    def batch(
        self, agreement: Agreement, number: int, first: int = 0, most: int = -1
    ) -> list[bytes]:
        """Return what is released of a closed round, from that position on, `most` pieces of it."""
        with self._lock:
            state, _ = self.state_of(agreement, number)
            if state == wire.HANDED_OVER:
                raise ShufflerError("the round was handed over and is gone")
            if state != wire.CLOSED:
                raise ShufflerError("the round is not closed")
            query = f"SELECT content FROM batch {THIS_ROUND} AND position >= ? ORDER BY position "
            place = (agreement.run, number, first, most)
            rows = self._db.execute(f"{query}LIMIT ?", place).fetchall()
        return [bytes(content) for (content,) in rows]

    def hand_over(self, agreement: Agreement, number: int) -> None:
        """Forget a closed round's batch: its step is durable where it was needed. The round stays
        closed."""
        with self._whole() as database:
            state, present = self.state_of(agreement, number)
            if state == wire.CLOSED:
                self._set((agreement.run, number), wire.HANDED_OVER, present)
                database.execute(f"DELETE FROM batch {THIS_ROUND}", (agreement.run, number))

    def _held(self, place: tuple[str, int], client: int) -> list[bytes]:
        """Return a client's sealed reports of an open round, one for each batch."""
        query = f"SELECT sealed FROM reports {THIS_ROUND} AND client = ? ORDER BY batch"
        return [bytes(sealed) for (sealed,) in self._db.execute(query, (*place, client))]

    def _set(self, place: tuple[str, int], state: int, clients: NDArray[np.bool_]) -> None:
        row = (*place, state, wire.bitmap_of(clients))
        self._db.execute("INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?)", row)
