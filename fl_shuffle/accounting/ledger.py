"""The durable record of a run: an SQLite file that is written before anything is released.

A round is first *reserved* (its worst case, before the model is broadcast) and then *committed*
(what really happened). Committing a round and reserving the next one is one transaction, so a run
pays one disk flush a round, and at every moment the file covers everything that was released.
A seeded simulation may do without that flush (see `spare_flushes`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.events import ClientClass, Spend
from fl_shuffle.errors import RunError

SCHEMA_VERSION = 1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE classes (
    class_id INTEGER PRIMARY KEY, noise TEXT NOT NULL, scale REAL NOT NULL, radius REAL NOT NULL,
    sensitivity REAL NOT NULL, epsilon0 REAL NOT NULL, delta0 REAL NOT NULL,
    records INTEGER NOT NULL, clients INTEGER NOT NULL);
CREATE TABLE clients (client_id INTEGER PRIMARY KEY, class_id INTEGER NOT NULL);
CREATE TABLE reservations (
    attempt INTEGER PRIMARY KEY, round INTEGER NOT NULL, expected_reports INTEGER NOT NULL,
    epsilon REAL);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, n_reports INTEGER NOT NULL, expected_reports INTEGER NOT NULL,
    delta REAL NOT NULL, gspa_mu_round REAL, gspa_mu_total REAL, gspa REAL, gspa_specific REAL,
    proven REAL, local REAL, lower REAL, seconds REAL,
    present BLOB);
CREATE TABLE round_classes (
    round INTEGER NOT NULL, class_id INTEGER NOT NULL, n_reports INTEGER NOT NULL, gspa REAL,
    specific REAL, proven REAL, local REAL, lower REAL, PRIMARY KEY (round, class_id))
    WITHOUT ROWID;
CREATE TABLE notes (round INTEGER NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE client_spend (
    client_id INTEGER PRIMARY KEY, rounds INTEGER NOT NULL, proven REAL, local REAL);
CREATE TABLE checkpoint (only INTEGER PRIMARY KEY CHECK (only = 0), round INTEGER NOT NULL,
    state BLOB NOT NULL);
CREATE VIEW client_rounds AS
    SELECT clients.client_id, round_classes.* FROM round_classes JOIN clients USING (class_id);
"""

COLUMN_NAMES = ("gspa", "specific", "proven", "local", "lower")


class Ledger:
    """One run's SQLite file. Build with `create` or `open`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        meta: Mapping[str, Any],
        classes: Iterable[ClientClass],
        class_of: NDArray[np.int64],
    ) -> Ledger:
        """A new ledger that holds the plan. Raises `RunError` if the file already exists."""
        if path.exists():
            raise RunError(f"{path} already exists; choose another --out, or --resume the run")
        ledger = cls(_connect(path), path)
        members = np.bincount(class_of)
        with ledger._db:
            for statement in SCHEMA.split(";"):
                ledger._db.execute(statement)
            ledger._db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in meta.items()],
            )
            ledger._db.executemany(
                "INSERT INTO classes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (index, c.noise, c.scale, c.radius, c.sensitivity, c.epsilon0, c.delta0,
                     c.records, int(members[index]))
                    for index, c in enumerate(classes)
                ],
            )  # fmt: skip
            ledger._db.executemany(
                "INSERT INTO clients VALUES (?, ?)", enumerate(class_of.tolist())
            )
        return ledger

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """An existing ledger. Raises `RunError` if there is none or it cannot be read."""
        if not path.is_file():
            raise RunError(f"{path} does not exist: this is not a run directory")
        ledger = cls(_connect(path), path)
        version = ledger.meta().get("schema")
        if version != SCHEMA_VERSION:
            raise RunError(
                f"{path} has ledger schema {version!r}; this version reads {SCHEMA_VERSION}"
            )
        return ledger

    def spare_flushes(self) -> None:
        """From now on commits outlive this process, but the last few need not outlive the machine.

        The file stays consistent. For runs whose lost rounds are replayed to the same bits: nothing
        is then released that the file, once resumed, does not cover.
        """
        self._db.execute("PRAGMA synchronous = NORMAL")

    def close(self) -> None:
        """Write what is pending and close the file."""
        self.flush()
        self._db.close()

    def flush(self) -> None:
        """Make everything recorded so far durable."""
        self._db.commit()

    def meta(self) -> dict[str, Any]:
        """The run's facts: configuration, versions, seed, data fingerprint."""
        try:
            rows = self._db.execute("SELECT key, value FROM meta").fetchall()
        except sqlite3.DatabaseError as error:
            raise RunError(f"{self.path} is not a readable ledger: {error}") from None
        return {key: json.loads(value) for key, value in rows}

    def reserve(self, round_number: int, expected_reports: int, epsilon: float) -> None:
        """Book a round's worst case; durable, together with everything recorded before it."""
        self._db.execute(
            "INSERT INTO reservations (round, expected_reports, epsilon) VALUES (?, ?, ?)",
            (round_number, expected_reports, _real(epsilon)),
        )
        self.flush()

    def record(
        self,
        spend: Spend,
        counts: Mapping[int, int],
        expected_reports: int,
        present: NDArray[np.bool_],
        seconds: float,
    ) -> None:
        """Stage what a round really was; the next `reserve` or `flush` makes it durable."""
        worst = [_real(spend.columns[name].worst) for name in COLUMN_NAMES]
        bitmap = None if present.all() else np.packbits(present).tobytes()
        self._db.execute(
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (spend.round_number, spend.n_reports, expected_reports, spend.delta,
             spend.mu_round, spend.mu_total, *worst, seconds, bitmap),
        )  # fmt: skip
        self._db.executemany(
            "INSERT OR REPLACE INTO round_classes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (spend.round_number, index, count,
                 *(_real(spend.columns[name].epsilon.get(index)) for name in COLUMN_NAMES))
                for index, count in counts.items()
            ],
        )  # fmt: skip

    def note(self, round_number: int, kind: str, text: str) -> None:
        """Stage a remark that a reviewer should see."""
        self._db.execute("INSERT INTO notes VALUES (?, ?, ?)", (round_number, kind, text))

    def checkpoint(self, round_number: int, state: bytes) -> None:
        """Stage what is needed to go on after `round_number` if the process dies."""
        self._db.execute(
            "INSERT OR REPLACE INTO checkpoint VALUES (0, ?, ?)", (round_number, state)
        )

    def load_checkpoint(self) -> tuple[int, bytes] | None:
        """The latest (round, state), or None for a run that never got that far."""
        row = self._db.execute("SELECT round, state FROM checkpoint").fetchone()
        return None if row is None else (int(row[0]), bytes(row[1]))

    def presence(self, clients: int) -> list[tuple[int, NDArray[np.bool_]]]:
        """Whose reports were released, as (round, mask) per attempt at a round, in order.

        An attempt that was reserved but not recorded, or that a later attempt at the same round
        overwrote, counts as released by everybody: the crash may have come after the release.
        """
        rows = self._db.execute(
            "SELECT reservations.round, rounds.round IS NOT NULL AND attempt = "
            "(SELECT max(attempt) FROM reservations AS later WHERE later.round = rounds.round), "
            "present FROM reservations LEFT JOIN rounds USING (round) ORDER BY attempt"
        ).fetchall()
        everybody = np.ones(clients, dtype=bool)
        return [
            (
                int(number),
                everybody
                if bitmap is None or not recorded
                else np.unpackbits(np.frombuffer(bitmap, np.uint8), count=clients).astype(bool),
            )
            for number, recorded, bitmap in rows
        ]

    def set_meta(self, key: str, value: Any) -> None:
        """Add or change one fact."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def write_client_spend(
        self,
        rounds: NDArray[np.int64],
        proven: NDArray[np.float64],
        local: NDArray[np.float64],
    ) -> None:
        """Stage every client's own totals: rounds taken part in, and both epsilons."""
        self._db.executemany(
            "INSERT OR REPLACE INTO client_spend VALUES (?, ?, ?, ?)",
            zip(
                range(len(rounds)),
                rounds.tolist(),
                map(_real, proven.tolist()),
                map(_real, local.tolist()),
                strict=True,
            ),
        )


def _connect(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.DatabaseError as error:
        raise RunError(f"{path} cannot be opened as a ledger: {error}") from None
    return connection


def _real(value: float | None) -> float | None:
    """SQLite stores infinities; NaN would silently become NULL, so it is refused earlier."""
    return None if value is None else float(value)
