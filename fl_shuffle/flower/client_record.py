"""A site's own record of what its clients have sent, independent of the server's ledger.

A SuperNode started with `--node-config 'budget-store="/path/file.sqlite" lifetime-epsilon=8.0'`
writes every report down before it leaves, and sends no report that would take the account which it
belongs to above the limit, whatever the server asks, in whichever run.

A run's client numbers are no accounts: the server's configuration says which records a number
holds, and forty runs that deal the records anew would give a person forty numbers. Without further
settings the whole site has one account. With `budget-store-config`, the site's own copy of the
study's configuration, the site itself says whose records a client's are: a run that deals them
otherwise is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.durable_files import OWNER_ONLY
from fl_shuffle._internal.renamed import warn_renamed
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.errors import ConfigError, require_open_unit, require_real

BUDGET_STORE = "budget-store"
OLD_BUDGET_STORE = "record"
"""What version 0.2 calls it: a node that names one keeps counting."""
OLD_STORE_CONFIG = "record-config"
"""The same; without it the site would have one account, and no check of how records are dealt."""
STORE_CONFIG = "budget-store-config"
LIFETIME_EPSILON = "lifetime-epsilon"
LIFETIME_DELTA = "lifetime-delta"
DEFAULT_DELTA = 1e-5
"""The delta of a lifetime epsilon for which the node names none."""
WHOLE_SITE = ""
"""The account of everything that a node sends, where clients have none of their own."""
ANY_PARTITION = ("features", "feature_options")
"""Settings of [data] that do not decide whose records a client holds."""

GAUSSIAN, OTHERS = "gaussian", "other noise"
"""Kinds of reports that compose among themselves."""

VERSION = 2
SCHEMA = """
CREATE TABLE IF NOT EXISTS counted (what TEXT NOT NULL, noise TEXT);
CREATE TABLE IF NOT EXISTS sent (
    account TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL, client INTEGER NOT NULL,
    mu REAL NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
    PRIMARY KEY (run, round, client)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sent_of ON sent (account);
"""


@dataclass(frozen=True)
class Accounts:
    """The account of each of a run's clients, and what the site says that an account is.

    `whose` holds the [data] settings that deal records to clients, as the site's own configuration
    has them; None stands for one account of the whole site. `names` are those that the site's data
    give the clients, by number; without them an account is named by the number that the site's own
    configuration gives.
    """

    unit: str = "client"
    whose: Mapping[str, Any] | None = None
    names: Sequence[str] | None = None

    def of(self, clients: NDArray[np.int64]) -> list[str]:
        """Return the name of each of these clients' accounts."""
        if self.whose is None:
            return [WHOLE_SITE] * len(clients)
        if self.names is None:
            return [str(number) for number in clients.tolist()]
        return [self.names[number] for number in clients.tolist()]

    @property
    def text(self) -> str:
        """What an account is, as a record's file keeps it."""
        return json.dumps({"unit": self.unit, "data": self.whose}, sort_keys=True)


class SpentBudget(NamedTuple):
    """What reports cost together: squares of the Gaussian mu, epsilons and deltas that add up."""

    squares: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def plus(self, cost: tuple[float, float, float]) -> SpentBudget:
        """Return the same with a report of this (mu, epsilon, delta)."""
        mu, epsilon, delta = cost
        return SpentBudget(self.squares + mu * mu, self.epsilon + epsilon, self.delta + delta)

    def within(self, epsilon: float, delta: float) -> bool:
        """Return whether this is at most (epsilon, delta), for reports of one kind: Gaussian ones
        compose exactly, and basic composition adds others. Sums are rounded up by more than their
        terms lose."""
        left = delta - self.delta * ROUND_UP
        if left <= 0.0:
            return False
        gaussian = gaussian_epsilon(left, math.sqrt(self.squares * ROUND_UP))
        return bool(gaussian + self.epsilon * ROUND_UP <= epsilon)


class ClientRecord:
    """The reports that this node has sent, durable before they leave.

    The limit is (`epsilon`, `delta`) local differential privacy of everything that one account has
    ever sent, replace-one. An account of the whole site counts each report of each of its clients:
    its guarantee covers everything that the site holds, however a run deals it to clients. An
    account of a client, as the site itself deals its records, covers that client's data or, with
    `privacy.unit = "record"`, one of its records.

    The server may choose every report in view of those before it. Then a limit is valid if it is
    one number of Gaussian reports, the sum of squares of their mu, or one of each of the sums of
    epsilons and deltas; it is not where both kinds share it (docs/research/proofs, section 10). So
    a file holds reports of one kind, that of the first."""

    def __init__(
        self, path: Path, epsilon: float, delta: float, accounts: Accounts | None = None
    ) -> None:
        self._path = path
        self._epsilon = require_real(LIFETIME_EPSILON, epsilon, minimum=0.0, exclusive_minimum=True)
        self._delta = require_open_unit(LIFETIME_DELTA, delta)
        self._accounts = accounts or Accounts()

    @classmethod
    def of(
        cls,
        node_config: Mapping[str, object],
        config: Config,
        *,
        dealt: bool = True,
        names: Sequence[str] | None = None,
        features_use_data: bool = False,
    ) -> ClientRecord | None:
        """Return the record that a node is to keep in a run of this configuration, or None.

        `dealt`: the run's [data] settings deal the records to clients, whom the site's data call
        `names` where they name them; an app of a user's own deals them as its code says, and the
        whole site has one account. Raises `ConfigError` for half of a record, and for a run whose
        reports it could not count.
        """
        if OLD_BUDGET_STORE in node_config:
            if BUDGET_STORE in node_config:
                raise ConfigError(
                    f"node-config names a {OLD_BUDGET_STORE} and a {BUDGET_STORE}, its name today: "
                    f"leave out {OLD_BUDGET_STORE}"
                )
            warn_renamed(f"node-config {OLD_BUDGET_STORE}", BUDGET_STORE)
        if OLD_STORE_CONFIG in node_config:
            raise ConfigError(
                f"node-config names a {OLD_STORE_CONFIG}, which is now called {STORE_CONFIG}: "
                "write the new name"
            )
        path = node_config.get(BUDGET_STORE, node_config.get(OLD_BUDGET_STORE))
        epsilon = node_config.get(LIFETIME_EPSILON)
        own = node_config.get(STORE_CONFIG)
        if path is None and epsilon is None and own is None:
            return None
        for name, value in ((BUDGET_STORE, path), (STORE_CONFIG, own)):
            absolute = isinstance(value, str) and Path(value).is_absolute()
            if not absolute and (name == BUDGET_STORE or value is not None):
                raise ConfigError(f"node-config {name} = {value!r}: must be an absolute file name")
        if epsilon is None:
            raise ConfigError(f"node-config names a {BUDGET_STORE} and no {LIFETIME_EPSILON}")
        _require_countable(config, features_use_data)
        accounts = _accounts(config, None if own is None else str(own), dealt, names)
        delta = node_config.get(LIFETIME_DELTA, DEFAULT_DELTA)
        return cls(Path(str(path)), epsilon, delta, accounts)  # type: ignore[arg-type]

    def debit(
        self,
        run: str,
        round_number: int,
        clients: NDArray[np.int64],
        classes: Sequence[ClientClass],
        times: int = 1,
    ) -> NDArray[np.bool_]:
        """Write down a round's `times` reports of each of these clients; returns whose may be sent.

        Not those whose account would exceed its limit, and not those that have reported on this
        round of this run before: a second report with the same noise would reveal the first one.
        Raises `ConfigError` if the record cannot be written, or counts something else: nothing may
        then be sent.
        """
        try:
            with self._opened() as database:
                noise = self._kind(database, classes)
                sent = self._write(database, (run, round_number), clients, classes, times)
                if any(sent):
                    database.execute("UPDATE counted SET noise = ?", (noise,))
                database.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"node-config {BUDGET_STORE} = {self._path}: {error}") from None
        return np.array(sent, dtype=bool)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, locked for writing; it may name persons, and is its owner's alone to
        read."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))
        with contextlib.closing(
            sqlite3.connect(self._path, timeout=60.0, isolation_level=None)
        ) as database:
            # EXTRA also syncs the folder after the journal is removed. With FULL the journal may
            # return after a power cut and take back a debit whose report has left.
            database.execute("PRAGMA synchronous = EXTRA")
            database.execute("BEGIN IMMEDIATE")
            self._require_mine(database)
            yield database

    def _require_mine(self, database: sqlite3.Connection) -> None:
        """Raise `ConfigError` for a file that counts anything but these accounts; a new file counts
        them from now on."""
        where = f"node-config {BUDGET_STORE} = {self._path}"
        (version,) = database.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not version and not tables:
            for statement in SCHEMA.split(";"):
                database.execute(statement)
            database.execute("INSERT INTO counted VALUES (?, NULL)", (self._accounts.text,))
            database.execute(f"PRAGMA user_version = {VERSION}")
            return
        if not version and "reports" in tables:
            raise ConfigError(
                f"{where}: an older version counted by client number, which a run can assign to "
                "anybody, so its spend belongs to no account; keep the file, name a new one, and "
                f"lower {LIFETIME_EPSILON} by what was spent"
            )
        if version != VERSION or "counted" not in tables:
            raise ConfigError(
                f"{where}: is not a budget store of version {VERSION}; name a new file, or the "
                "right one"
            )
        ((counted,),) = database.execute("SELECT what FROM counted").fetchall()
        if counted != self._accounts.text:
            now = _words_of(self._accounts.text)
            raise ConfigError(
                f"{where}: counts {_words_of(counted)}, and this node {now}; put {STORE_CONFIG} "
                "back as it was, or name a new file"
            )

    def _kind(self, database: sqlite3.Connection, classes: Sequence[ClientClass]) -> str:
        """Return the kind of these reports. Raises `ConfigError` where they do not compose with
        each other, or with those in the file."""
        ((first,),) = database.execute("SELECT noise FROM counted").fetchall()
        kinds = [GAUSSIAN if kind.noise == GAUSSIAN else OTHERS for kind in classes]
        held = str(first or kinds[0])
        if any(noise != held for noise in kinds):
            raise ConfigError(
                f"privacy.randomizer: node-config {BUDGET_STORE} = {self._path} holds reports of "
                f"{held}, and those of another kind of noise would share its limit, which is "
                "proven for one kind alone; name a separate file for them"
            )
        return held

    def _write(
        self,
        database: sqlite3.Connection,
        at: tuple[str, int],
        clients: NDArray[np.int64],
        classes: Sequence[ClientClass],
        times: int,
    ) -> list[bool]:
        """Write down those of these clients' reports that may be sent; which those are."""
        before = database.execute("SELECT client FROM sent WHERE run = ? AND round = ?", at)
        repeated = {client for (client,) in before}
        accounts, spent = self._accounts.of(clients), dict[str, SpentBudget]()
        sent = []
        for client, account, kind in zip(clients.tolist(), accounts, classes, strict=True):
            if account not in spent:
                spent[account] = SpentBudget(
                    *database.execute(
                        "SELECT total(mu * mu), total(epsilon), total(delta) FROM sent "
                        "WHERE account = ?",
                        (account,),
                    ).fetchone()
                )
            cost = _cost(kind, times)
            after = spent[account].plus(cost)
            allowed = client not in repeated and after.within(self._epsilon, self._delta)
            if allowed:
                spent[account] = after
                row = (account, *at, client, *cost)
                database.execute("INSERT INTO sent VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            sent.append(allowed)
        return sent


def _cost(kind: ClientClass, times: int) -> tuple[float, float, float]:
    """Return (mu, epsilon, delta) of this number of reports: a Gaussian part, and a part that adds
    up."""
    if kind.noise == "gaussian":
        return kind.exposure * math.sqrt(times), 0.0, 0.0
    if kind.noise == "laplace":
        return 0.0, kind.exposure * times, 0.0
    return 0.0, kind.epsilon0 * times, kind.delta0 * times


def _require_countable(config: Config, features_use_data: bool) -> None:
    """Raise `ConfigError` for a run whose reports cost more than its configuration says, or may."""
    if config.run.entropy == "seeded":
        raise ConfigError(
            "run.entropy = 'seeded': this node keeps a record of its budget and sends no noise "
            "that the server can remove; use 'system'"
        )
    if config.privacy.randomizer == "declared":
        raise ConfigError(
            "privacy.randomizer = 'declared': this node keeps a record of its budget, and only the "
            "run's configuration says what such reports cost; use 'gaussian'"
        )
    if features_use_data:
        raise ConfigError(
            f"data.features = {config.data.features!r}: this node keeps a record of its budget, "
            "and a client's report would depend on other clients' records; choose other features"
        )


def _accounts(
    config: Config, own: str | None, dealt: bool, names: Sequence[str] | None
) -> Accounts:
    """Return what an account of this node is; raises `ConfigError` for a run that names somebody
    else by it."""
    site = None if own is None else resolve_config(own)
    unit = "client" if site is None else site.privacy.unit
    if config.privacy.unit != unit:
        remedy = f"name the study's configuration as {STORE_CONFIG}" if site is None else "use it"
        raise ConfigError(
            f"privacy.unit = {config.privacy.unit!r}: this node's record counts for {unit!r}; "
            f"{remedy}"
        )
    if site is None or not dealt:
        return Accounts(unit)
    wanted, found = _dealing(site.data), _dealing(config.data)
    for key in sorted({*wanted, *found}):
        if wanted.get(key) != found.get(key):
            raise ConfigError(
                f"data.{key} = {found.get(key)!r}: the run would give clients other records than "
                f"this site's own configuration does ({wanted.get(key)!r}, {own}); use the "
                "site's value"
            )
    return Accounts(unit, wanted, names)


def _dealing(section: DataSection) -> dict[str, Any]:
    """Return the settings that decide whose records a client's account is for.

    Clients that the data name keep their names however many of them take part.
    """
    left_out = {*ANY_PARTITION, *(("clients",) if section.partition == "natural" else ())}
    table: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(section)))
    return {key: value for key, value in table.items() if key not in left_out}


def _words_of(counted: str) -> str:
    """Return what an account is, as `Accounts.text` says it, in an error's line."""
    try:
        found = json.loads(counted)
        unit, data = found["unit"], found["data"]
        if data is None:
            return f"the whole site (privacy.unit = {unit!r})"
        listed = ", ".join(f"{key} = {value!r}" for key, value in data.items() if value)
        return f"clients (privacy.unit = {unit!r}; {listed})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "something else"
