"""Reading a run's ledger: nothing is written, so a run that is still going on is not disturbed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.rounds.class_table import NOISE_KINDS, ClassTable
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError, RunError
from fl_shuffle.ledger.chain import first_link, next_link
from fl_shuffle.ledger.store import SCHEMA_VERSION, Ledger
from fl_shuffle.ledger.tables import EPSILONS, ROUNDS, TABLES, Cell, damaged, read

READABLE = (5, SCHEMA_VERSION)
"""Schemas: version 0.1 wrote 5, without metrics and outcome."""


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
            if written.get("schema") not in READABLE:
                raise RunError(
                    f"{path} has ledger schema {written.get('schema')!r}; this version reads "
                    f"{' and '.join(map(str, READABLE))}"
                )
            self.meta = require_facts(path, written)
            self._read(database, written)

    def _read(self, database: sqlite3.Connection, written: Mapping[str, Any]) -> None:
        path, clients = self.path, self.config["data"]["clients"]
        place = {cell.name: number for number, cell in enumerate(TABLES["rounds"])}
        self.rows = [
            {name: row[place[stored]] for name, stored in ROUNDS.items()}
            for row in read(path, database, "rounds", n_reports=(0, clients))
        ]
        self.metrics: dict[int, dict[str, float]] = {}
        if self.meta["schema"] == SCHEMA_VERSION:
            for number, name, value in read(path, database, "metrics"):
                self.metrics.setdefault(number, {})[name] = float(value)
        self.notes: list[tuple[int, str, str]] = read(path, database, "notes")
        newest = database.execute("SELECT link FROM reservations ORDER BY attempt DESC LIMIT 1")
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
    clients) per release, in order: a round that was tried again after a crash stands there once for
    each attempt that may have released something else. `spend` is every client's (rounds, proven,
    sum, local) [clients, 4] as recorded at the run's end, NaN where a column says nothing, None
    before that. `entries` says how much was written of its attempts (`Ledger.entries`),
    `checkpoint` from where to go on: (round, state), None for a run that never got that far.

    Raises `RunError` also if the plan or the attempts are no longer what was written (see `chain`).
    """

    def _read(self, database: sqlite3.Connection, written: Mapping[str, Any]) -> None:
        super()._read(database, written)
        path = self.path
        self.classes = _classes(path, database)
        self.class_of = _class_of(path, database, len(self.classes))
        first = first_link(written, self.classes, self.class_of)
        if first != self.meta["link"]:
            raise RunError(
                f"{path} was changed: configuration, classes or clients are not what the run was "
                "started with; put the run's own ledger back"
            )
        clients, size = len(self.class_of), (len(self.class_of) + 7) // 8
        limits = {"expected_reports": (0, clients), "present": (size, size)}
        tried = read(path, database, "reservations", **limits)
        self.link = require_links(path, first, tried)
        self.entries = 2 * len(tried) - (not tried[-1][4]) if tried else 0
        self.attempts = [(row[1], _mask(row[5], clients)) for row in tried if row[4]]
        if self.config["run"]["entropy"] == "seeded":
            # A repeated attempt releases the same bits again: it counts once.
            self.attempts = list(dict(self.attempts).items())
        self.rounds = np.array([row["round"] for row in self.rows], dtype=np.int64)
        self.reports = np.array([row["n_reports"] for row in self.rows], dtype=np.int64)
        self.epsilon = {
            name: np.array([row[key] for row in self.rows], dtype=np.float64)
            for name, key in EPSILONS.items()
        }
        spend = read(path, database, "client_spend")
        self.spend = np.array(spend, dtype=np.float64)[:, 1:] if spend else None
        kept = read(path, database, "checkpoint")
        self.checkpoint: tuple[int, bytes | str] | None = kept[0][1:] if kept else None


def _mask(bits: bytes | None, clients: int) -> NDArray[np.bool_]:
    if bits is None:
        return np.ones(clients, dtype=bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=clients).astype(bool)


def _classes(path: Path, database: sqlite3.Connection) -> ClassTable:
    rows = read(path, database, "classes")
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


def _class_of(path: Path, database: sqlite3.Connection, classes: int) -> NDArray[np.int64]:
    rows = read(path, database, "clients", class_id=(0, classes - 1))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    if not np.array_equal(table[:, 0], np.arange(len(rows))) or not len(rows):
        raise damaged(path, "client_id of clients", len(rows), "0, 1, 2, ... without a gap")
    return np.ascontiguousarray(table[:, 1])


def require_links(path: Path, first: str, rows: Sequence[tuple[Any, ...]]) -> str:
    """The link after the last of these rows of `reservations`, from the `first` before all of them;
    raises `RunError` where one does not fit."""
    link = first
    for number, (*row, written) in enumerate(rows, 1):
        link = next_link(link, tuple(row))
        if row[0] != number or written != link:
            raise RunError(
                f"{path} was changed: attempt {number} (round {row[1]}) is not what was written "
                "there, or one before it is missing; put the run's own ledger back"
            )
    return link


FACTS = (
    *(Cell(name, str) for name in ("run", "relation", "test_data", "link", "started")),
    *(Cell(name, str) for name in ("code_version", "python")),
    Cell("dimension", int, 1), Cell("records_not_covered", int),
    *(Cell(name, dict) for name in ("config", "data", "libraries")),
)  # fmt: skip
"""What every ledger knows."""
AT_THE_END = (Cell("finished", str, optional=True), Cell("outcome", dict), Cell("summary", dict))
"""What a finished run's may know; the last of version 0.1."""


def require_facts(path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with their configuration made whole; raises `RunError` for one that is no fact."""
    for cell in (*FACTS, *(cell for cell in AT_THE_END if cell.name in meta)):
        if not cell.holds([meta.get(cell.name)]):
            raise damaged(path, f"{cell.name} of meta", meta.get(cell.name), cell.allowed)
    try:
        return {**meta, "config": parse_config(meta["config"]).to_dict()}
    except FlShuffleError as error:
        raise RunError(f"{path} is damaged: its configuration: {error}") from None


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
