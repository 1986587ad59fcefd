"""Reading a run's ledger: nothing is written, so a run that is still going on is not disturbed."""

from __future__ import annotations

import csv
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.renamed import RenamedKeys, with_new_keys
from fl_shuffle.accounting.add_remove import add_remove_of
from fl_shuffle.accounting.client_classes import NOISE_KINDS
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.events import OLD_COLUMNS
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.ledger import LEDGER, METRICS
from fl_shuffle.ledger.store import SCHEMA_VERSION, UPGRADED, facts_in, first_hash, next_hash
from fl_shuffle.ledger.tables import (
    BY_COLUMN,
    CSV_COLUMNS,
    EPSILONS,
    OLD_CSV,
    OLD_SUMMARY,
    RENAMED_SINCE,
    ROUNDS,
    TABLES,
    Cell,
    columns_with,
    damaged,
    read,
)

FIRST = 5
"""The schema of version 0.1, without metrics and outcome."""
READABLE = (FIRST, UPGRADED, SCHEMA_VERSION)
"""Schemas: version 0.2 wrote 6, without the column `rdp`, and with other names of columns."""


class RunView:
    """A run as its ledger has it, read-only: cheap to open, and a run under way is not disturbed.

    `path` is the run's directory, or a ledger alone. `config` is the configuration as resolved, in
    tables, `delta` that of every epsilon; in a `seeded` run a round that is played again has the
    same bits. `finished` says that the run came to its end: summary.json may be lost, this may not.
    `last_round` is the last recorded one, 0 before the first. `rows` are the committed rounds in
    order, each by the columns of metrics.csv; epsilons are cumulative, nats, of the most exposed
    client, None where a column says nothing. `metrics` maps a round to what was measured after it
    (in version 0.1 its metrics.csv says that), `notes` lists (round, kind, text), `hash` is the
    newest of its attempts'. Raises `RunError` if there is no readable ledger at `path`, and if a
    cell holds what no run writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path = path / LEDGER if path.is_dir() else path
        self.directory = path.parent
        with reading(path) as database:
            written = facts_in(database, path)
            if written.get("schema") not in READABLE:
                raise RunError(
                    f"{path} has ledger schema {written.get('schema')!r}; this version reads "
                    f"{' and '.join(map(str, READABLE))}"
                )
            self.meta = require_facts(path, written)
            self.config: dict[str, Any] = self.meta["config"]
            self.delta = float(self.config["privacy"]["target_delta"])
            self.seeded = bool(self.config["run"]["entropy"] == "seeded")
            self.finished = "finished" in self.meta
            self._read(database, written)

    def _read(self, database: sqlite3.Connection, written: Mapping[str, Any]) -> None:
        path, clients = self.path, self.config["data"]["clients"]
        place = {cell.name: number for number, cell in enumerate(TABLES["rounds"])}
        self._schema = schema = self.meta["schema"]
        self.rows = [
            {name: row[place[stored]] for name, stored in ROUNDS.items()}
            for row in read(path, database, "rounds", schema, num_reports=(0, clients))
        ]
        self.last_round = int(self.rows[-1]["round"]) if self.rows else 0
        self.metrics: dict[int, dict[str, float]] = {}
        if schema == FIRST:
            self.metrics = _metrics_of(self.directory / METRICS)
        else:
            for number, name, value in read(path, database, "metrics", schema):
                self.metrics.setdefault(number, {})[name] = float(value)
        self.notes: list[tuple[int, str, str]] = read(path, database, "notes", schema)
        (name,) = (cell.named_in(schema) for cell in TABLES["reservations"] if cell.name == "hash")
        newest = database.execute(f"SELECT {name} FROM reservations ORDER BY attempt DESC LIMIT 1")
        self.hash = str((newest.fetchone() or (self.meta["hash"],))[0])

    @property
    def epsilon(self) -> float | None:
        """The reported epsilon: that of the column `headline`, which matches what was released;
        infinite where nothing protects anybody."""
        if self.headline == "none" and self.rows:
            return math.inf
        return self.spent(self.headline)

    @property
    def lower(self) -> float | None:
        """What an attack on what was released certainly reaches: never above `epsilon`."""
        return self.spent("sum_lower" if self.headline == "sum" else "shuffled_lower")

    @property
    def headline(self) -> str:
        """The column of the reported epsilon: `sum` where sums alone are released, and it says
        something; `local` where clients declare what they did; `none` without any privacy."""
        if self.config["privacy"]["randomizer"] == "none":
            return "none"
        if self.config["privacy"]["randomizer"] == "declared":
            return "local"
        summed = self.config["privacy"]["release"] == "sum" and self.spent("sum") is not None
        return "sum" if summed else "shuffled"

    def spent(self, column: str) -> float | None:
        """Return epsilon of a column after the last recorded round (nats, most exposed client);
        None where the column says nothing, and before the first round."""
        return self.rows[-1][EPSILONS[column]] if self.rows and column in EPSILONS else None

    @property
    def sum_add_remove(self) -> float | None:
        """Of the column `sum`, in another relation than every other epsilon: see
        `add_remove_epsilon`; None where it does not apply."""
        return add_remove_of(self.config, self.spent("sum"), self.delta)

    def measured(self, name: str) -> float | None:
        """Return a metric of the last recorded round; None if it was not measured then."""
        return self.metrics.get(self.last_round, {}).get(name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Of metrics.csv."""
        found = [name for each in self.metrics.values() for name in each]
        own = [*(self.meta.get("metrics") or ()), *found]
        if self._schema < RENAMED_SINCE:
            # A metric of the user's may have had a name that is a column's since.
            own = [name for name in own if name not in (*CSV_COLUMNS, *OLD_CSV)]
        return columns_with(own)

    def table(self) -> dict[str, NDArray[Any]]:
        """Return the same as metrics.csv: columns by name, one row a round; NaN where there is
        nothing."""
        lines, whole = self.lines, ("round", "num_reports")
        return RenamedKeys(
            {
                name: np.array([row.get(name) for row in lines], int if name in whole else float)
                for name in self.columns
            },
            OLD_CSV,
        )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Those of metrics.csv: each round's `rows` and `metrics` together."""
        return [{**self.metrics.get(row["round"], {}), **row} for row in self.rows]


class LedgerRecord(RunView):
    """All that a reviewer needs of a ledger, whose hashes are checked.

    `class_of` [clients] indexes `classes`. `total_epsilon` [clients] is what each client may spend
    in the run (nats), None where budgets are of one report. `rounds`, `reports` and each of
    `epsilons[name]` have an entry per committed round, NaN where a column does not apply.
    `attempts` lists (round, mask of clients, how many of the reports are unusable) per release, in
    order: a round that was tried again after a crash stands there once for each attempt that may
    have released something else. `recorded_spend` is every client's (rounds, shuffled, sum, local)
    [clients, 4] as recorded at the run's end, NaN where a column says nothing, None before that.
    `entries` says how much was written of its attempts (`Ledger.entries`), `checkpoint` from where
    to go on: (round, state), None for a run that never got that far; `first_round` is the one after
    it.

    Raises `RunError` also if the plan or the attempts are no longer what was written.
    """

    def _read(self, database: sqlite3.Connection, written: Mapping[str, Any]) -> None:
        super()._read(database, written)
        path = self.path
        self.classes = _classes(path, database, self._schema)
        self.class_of = _class_of(path, database, self._schema, len(self.classes))
        self.total_epsilon = _totals(path, self.meta, self.class_of, len(self.classes))
        first = first_hash(written, self.classes, self.class_of)
        if first != self.meta["hash"]:
            raise RunError(
                f"{path} was changed: configuration, classes or clients are not what the run was "
                "started with; put the run's own ledger back"
            )
        clients, size = len(self.class_of), (len(self.class_of) + 7) // 8
        limits = {"expected_reports": (0, clients), "present": (size, size)}
        limits["released"] = (0, 1 + clients)
        tried = read(path, database, "reservations", self._schema, **limits)
        self.hash = require_hashes(path, first, tried)
        self.entries = 2 * len(tried) - (not tried[-1][4]) if tried else 0
        released = [(row[1], _mask(row[5], clients), row[4] - 1) for row in tried if row[4]]
        # A repeated attempt of a seeded run releases the same bits again: it counts once.
        self.attempts = (
            list({row[0]: row for row in released}.values()) if self.seeded else released
        )
        table = self.table()
        self.rounds, self.reports = table["round"], table["num_reports"]
        self.epsilons = {name: table[key] for name, key in EPSILONS.items()}
        spend = read(path, database, "client_spend", self._schema)
        self.recorded_spend = np.array(spend, dtype=np.float64)[:, 1:] if spend else None
        kept = read(path, database, "checkpoint", self._schema)
        self.checkpoint: tuple[int, bytes | str] | None = kept[0][1:] if kept else None
        self.first_round = 1 + (self.checkpoint[0] if self.checkpoint else 0)


def _metrics_of(path: Path) -> dict[int, dict[str, float]]:
    """Return what version 0.1 has written down of each round's metrics, as far as it can be
    read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {
                int(row["round"]): {n: float(row[n]) for n in row if row[n] and n not in ROUNDS}
                for row in csv.DictReader(file)
            }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a run's metrics: {error}") from None


def _mask(bits: bytes | None, clients: int) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(clients, dtype=bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=clients).astype(bool)


def _classes(path: Path, database: sqlite3.Connection, schema: int) -> ClassTable:
    rows = read(path, database, "classes", schema)
    if not rows:
        raise RunError(f"{path} is damaged: it knows no classes; use an intact copy")
    _, noise, *columns, records, _ = zip(*rows, strict=True)
    try:
        return ClassTable.of_columns(
            np.array([NOISE_KINDS.index(name) for name in noise], dtype=np.int8),
            [np.array(column, dtype=np.float64) for column in columns],
            np.array(records, dtype=np.int64),
        )
    except ValueError as error:  # a noise that there is not, or a scale that it cannot have
        raise RunError(f"{path} is damaged: its classes: {error}") from None


def _class_of(
    path: Path, database: sqlite3.Connection, schema: int, classes: int
) -> NDArray[np.int64]:
    rows = read(path, database, "clients", schema, class_id=(0, classes - 1))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    if not np.array_equal(table[:, 0], np.arange(len(rows))) or not len(rows):
        raise damaged(path, "client_id of clients", len(rows), "0, 1, 2, ... without a gap")
    return np.ascontiguousarray(table[:, 1])


def _totals(
    path: Path, meta: Mapping[str, Any], class_of: NDArray[np.int64], classes: int
) -> NDArray[np.float64] | None:
    """Return each client's total [clients]; None where budgets are of reports."""
    totals = meta.get("totals")
    if totals is None:
        return None
    numbers = isinstance(totals, list) and Cell("totals", float, most=math.inf).holds(totals)
    if not numbers or len(totals) != classes:
        raise damaged(path, "totals of meta", totals, f"{classes} numbers")
    return np.array(totals, dtype=np.float64)[class_of]


def require_hashes(path: Path, first: str, rows: Sequence[tuple[Any, ...]]) -> str:
    """Return the hash after the last of these rows of `reservations`, from the `first` before all
    of them; raises `RunError` where one does not fit."""
    last = first
    for number, (*row, written) in enumerate(rows, 1):
        last = next_hash(last, tuple(row))
        if row[0] != number or written != last:
            raise RunError(
                f"{path} was changed: attempt {number} (round {row[1]}) is not what was written "
                "there, or one before it is missing; put the run's own ledger back"
            )
    return last


FACTS = (
    *(Cell(name, str) for name in ("run", "relation", "test_data", "hash", "started")),
    *(Cell(name, str) for name in ("code_version", "python")),
    Cell("dimension", int, 1), Cell("records_not_covered", int),
    *(Cell(name, dict) for name in ("config", "data", "libraries")),
    # From version 0.2 on, and at the end of a run; a summary is one of 0.1.
    Cell("metrics", list, optional=True), Cell("finished", str, optional=True),
    *(Cell(name, dict, optional=True) for name in ("outcome", "summary")),
)  # fmt: skip
"""What a ledger knows."""


def require_facts(path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts by today's names, with their configuration made whole; raises `RunError` for
    one that is no fact."""
    meta = _by_new_names(meta)
    for cell in FACTS:
        if not cell.holds([meta.get(cell.name)]):
            raise damaged(path, f"{cell.name} of meta", meta.get(cell.name), cell.allowed)
    for name in ("started", "finished"):
        try:
            datetime.fromisoformat(meta.get(name) or meta["started"])
        except ValueError:
            raise damaged(path, f"{name} of meta", meta[name], "a date") from None
    if not Cell("version", str).holds(meta["libraries"].values()):
        raise damaged(path, "libraries of meta", meta["libraries"], "names and versions")
    try:
        return {**meta, "config": parse_config(meta["config"]).to_dict()}
    except FlShuffleError as error:
        raise RunError(f"{path} is damaged: its configuration: {error}") from None


def _by_new_names(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a ledger of an older schema as this version names them."""
    if meta["schema"] >= RENAMED_SINCE:
        return meta
    found: dict[str, Any] = with_new_keys(meta, {"link": "hash"})
    for name in ("outcome", "summary"):
        if isinstance(meta.get(name), dict):
            found[name] = told = with_new_keys(meta[name], OLD_SUMMARY)
            for each in set(BY_COLUMN) & set(told):
                told[each] = with_new_keys(told[each], OLD_COLUMNS)
            if told.get("headline") == "proven":
                told["headline"] = "shuffled"
    return found


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger's tables, read-only. Raises `RunError` for what cannot be read as one."""
    if not path.is_file():
        raise RunError(f"{path} does not exist: this is not a run directory")
    try:
        with closing(_open(path)) as database:
            yield database
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        # The last where SQLite's own message quotes a name that is no text.
        raise RunError(f"{path} is not a readable ledger: {error}") from None


def _open(path: Path) -> sqlite3.Connection:
    """Open it read-only, also where no file can be made beside it."""
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
