"""A client's own record of what it has sent: its budget does not depend on the server's ledger.

A SuperNode started with `--node-config 'record="/path/file.sqlite" lifetime-epsilon=8.0'` writes
every report down before it leaves, under the client's id, and sends no report that would take that
client above its limit, whatever the server asks, in whichever run.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.errors import ConfigError, require_open_unit, require_real

RECORD = "record"
LIFETIME_EPSILON = "lifetime-epsilon"
LIFETIME_DELTA = "lifetime-delta"
DEFAULT_DELTA = 1e-5
"""The delta of a lifetime epsilon for which the node names none."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
    client INTEGER NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    mu REAL NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    PRIMARY KEY (client, run, round)) WITHOUT ROWID
"""


class ClientRecord:
    """The reports that this node's clients have sent, durable before they leave.

    The limit is (`epsilon`, `delta`) local differential privacy of everything one client has ever
    sent, in the unit of privacy of the runs, replace-one. Gaussian reports compose exactly (the
    squares of their mu add up), Laplace ones by adding their epsilons, and a user's own randomizer
    by adding (epsilon0, delta0); their sum is an upper bound (basic composition).
    """

    def __init__(self, path: Path, epsilon: float, delta: float) -> None:
        self._path = path
        self._epsilon = require_real(LIFETIME_EPSILON, epsilon, minimum=0.0, exclusive_minimum=True)
        self._delta = require_open_unit(LIFETIME_DELTA, delta)

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> ClientRecord | None:
        """The record that a node is to keep, or None; raises `ConfigError` for half of one."""
        path, epsilon = node_config.get(RECORD), node_config.get(LIFETIME_EPSILON)
        if path is None and epsilon is None:
            return None
        if not isinstance(path, str) or not Path(path).is_absolute():
            raise ConfigError(f"node-config {RECORD} = {path!r}: must be an absolute file name")
        if epsilon is None:
            raise ConfigError(f"node-config names a {RECORD} and no {LIFETIME_EPSILON}")
        delta = node_config.get(LIFETIME_DELTA, DEFAULT_DELTA)
        return cls(Path(path), epsilon, delta)  # type: ignore[arg-type]

    def debit(
        self,
        run: str,
        round_number: int,
        clients: NDArray[np.int64],
        classes: Sequence[ClientClass],
        times: int = 1,
    ) -> NDArray[np.bool_]:
        """Write down a round's `times` reports of each of these clients; returns whose may be sent.

        Not those whose limit it would exceed, and not those that have reported on this round of
        this run before: a second report with the same noise would reveal the first one.
        Raises `ConfigError` if the record cannot be written: nothing may then be sent.
        """
        reports = [
            (client, run, round_number, *_cost(kind, times))
            for client, kind in zip(clients.tolist(), classes, strict=True)
        ]
        try:
            with contextlib.closing(
                sqlite3.connect(self._path, timeout=60.0, isolation_level=None)
            ) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(SCHEMA)
                database.execute("BEGIN IMMEDIATE")
                sent = [self._write(database, report) for report in reports]
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise ConfigError(f"node-config {RECORD} = {self._path}: {error}") from None
        return np.array(sent, dtype=bool)

    def _write(
        self, database: sqlite3.Connection, report: tuple[int, str, int, float, float, float]
    ) -> bool:
        """Write a report down, a row of `SCHEMA`, unless it may not be sent."""
        client, run, number, mu, epsilon, delta = report
        squares, epsilons, deltas, repeated = database.execute(
            "SELECT total(mu * mu), total(epsilon), total(delta), total(run = ? AND round = ?) "
            "FROM reports WHERE client = ?",
            (run, number, client),
        ).fetchone()
        left = self._delta - deltas - delta
        if repeated or left <= 0.0:
            return False
        spent = gaussian_epsilon(left, math.sqrt(squares + mu * mu)) + epsilons + epsilon
        within = bool(spent <= self._epsilon)
        if within:
            database.execute("INSERT INTO reports VALUES (?, ?, ?, ?, ?, ?)", report)
        return within


def _cost(kind: ClientClass, times: int) -> tuple[float, float, float]:
    """(mu, epsilon, delta) of so many reports: a Gaussian part and a part that just adds up."""
    if kind.noise == "gaussian":
        return kind.exposure * math.sqrt(times), 0.0, 0.0
    if kind.noise == "laplace":
        return 0.0, kind.exposure * times, 0.0
    return 0.0, kind.epsilon0 * times, kind.delta0 * times
