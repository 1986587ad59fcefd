"""The tables of a ledger: each column declared once, and by that made, filled and checked.

SQLite keeps anything anywhere: nothing that is read is taken on trust.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_shuffle.accounting.rounds.class_table import COLUMNS
from fl_shuffle.accounting.rounds.events import OLD_COLUMNS
from fl_shuffle.errors import ConfigError, RunError

SHOWN = 40
"""Number of characters of a cell that an error's one line quotes."""
MOST_ROUNDS = 10**9
"""A larger number of a round is nonsense: at a millisecond each it would take eleven days."""

KINDS: dict[type, tuple[str, str]] = {
    int: ("INTEGER", "a whole number"),
    float: ("REAL", "a number"),
    str: ("TEXT", "a text"),
    bytes: ("BLOB", "bytes, a bit for each client"),
    object: ("BLOB", "anything"),
    dict: ("", "a table"),
    list: ("", "a list of texts"),
}
"""What SQLite and a reader call them."""


@dataclass(frozen=True)
class Cell:
    """A column: its name, and values of this kind in [least, most] (of `bytes`, how many).

    A `float` may be a whole number, too, and infinite; an `optional` one may be missing; of an
    `object` nothing is stated. Ledgers have it from schema `since` on, and before schema
    `RENAMED_SINCE` under the name `was`.
    """

    name: str
    kind: type
    least: float = 0
    most: float = MOST_ROUNDS
    optional: bool = False
    sql: str = ""
    since: int = 0
    was: str = ""

    def named_in(self, schema: int) -> str:
        """Return its name in a ledger of this schema; NULL where it has no such column."""
        if schema < self.since:
            return "NULL"
        return self.was if self.was and schema < RENAMED_SINCE else self.name

    @property
    def declared(self) -> str:
        """As SQL has it."""
        own = self.sql or ("" if self.optional else "NOT NULL")
        return f"{self.name} {KINDS[self.kind][0]} {own}"

    @property
    def allowed(self) -> str:
        """What it may hold, in words."""
        limits = f" in [{self.least}, {self.most}]" if self.kind in (int, float) else ""
        size = f"{self.most} " if self.kind is bytes else ""
        return size + KINDS[self.kind][1] + limits + " or nothing" * self.optional

    def holds(self, values: Iterable[Any]) -> bool:
        """Return whether all of these may stand in it."""
        if self.kind is object:
            return True
        found = [value for value in values if not (self.optional and value is None)]
        if not set(map(type, found)) <= ({int, float} if self.kind is float else {self.kind}):
            return False
        if self.kind in (str, dict, list):
            texts = found if self.kind is list else []
            return all(isinstance(one, str) for each in texts for one in each)
        sizes = map(len, found) if self.kind is bytes else found
        return all(self.least <= size <= self.most for size in sizes)


def _key(name: str, least: int = 0) -> Cell:
    return Cell(name, int, least, sql="PRIMARY KEY")


def _real(name: str, most: float = math.inf) -> Cell:
    return Cell(name, float, most=most)


def _reals(*names: str) -> tuple[Cell, ...]:
    since = {"rdp": RDP_SINCE}
    return tuple(
        Cell(name, float, most=math.inf, optional=True, since=since.get(name, 0),
             was=WAS.get(name, ""))
        for name in names
    )  # fmt: skip


RDP_SINCE = 7
"""The schema from which on ledgers have the column `rdp`, and no table of classes in rounds."""
RENAMED_SINCE = 7
"""The schema from which on columns have the names that they have here."""
WAS = {"shuffled": "proven", "shuffled_lower": "lower", "su2025": "gspa_specific"}
"""Columns of epsilons -> what schemas before `RENAMED_SINCE` call them."""
LOWER_NAMES = ("shuffled_lower", "sum_lower")
"""Columns of attacks: of the last round alone, written when the run is over."""
SPENT_NAMES = ("gspa", "su2025", "rdp", "shuffled", "sum", "local")
COLUMN_NAMES = (*SPENT_NAMES, *LOWER_NAMES)
EPSILONS = {name: f"{name}_epsilon" for name in COLUMN_NAMES}
"""What a column's epsilon is called in metrics.csv and in tables of rounds."""
ROUNDS = {
    "round": "round", "num_reports": "num_reports", "gspa_mu": "gspa_mu_total",
    **{EPSILONS[name]: name for name in COLUMN_NAMES},
    "seconds": "seconds",
}  # fmt: skip
"""What stands in both: columns of metrics.csv -> of the table `rounds`."""

ALWAYS = ("accuracy", "loss")
"""Metrics that have their columns whatever is measured; others come behind `seconds`."""
CSV_COLUMNS = (*list(ROUNDS)[:2], *ALWAYS, *list(ROUNDS)[2:])
"""Of metrics.csv."""
OLD_CSV = {
    "n_reports": "num_reports",
    **{f"{old}_epsilon": EPSILONS[new] for old, new in OLD_COLUMNS.items()},
}
"""Columns of metrics.csv as version 0.2 calls them -> their names: for one release the file has
both, the old ones at its end."""
OLD_SUMMARY = {
    "proven_epsilon": "shuffled_epsilon",
    "fewest_reports": "min_reports_per_round",
    "in_plain_words": "description",
    "proven_over_lower": "tightness",
    "ledger_link": "ledger_hash",
}
"""The same of keys of summary.json."""
BY_COLUMN = ("columns", "epsilon_quantiles")
"""Keys of summary.json, and of what a ledger knows of it, with an entry for each column."""
MOST_METRICS = 64
"""Of a user's own: a line stays a line."""

LARGEST_COLUMN = {"delta0": 1.0, "epsilon0": math.inf}
"""Of columns of classes that have another limit than float32."""
_CHECKPOINT = Cell("only", int, sql="PRIMARY KEY CHECK (only = 0)")
TABLES: dict[str, tuple[Cell, ...]] = {
    "meta": (Cell("key", str, sql="PRIMARY KEY"), Cell("value", str)),
    "classes": (
        _key("class_id"), Cell("noise", str),
        # Without noise epsilon0 is infinite, and with some of it finite (`ClassTable`).
        *(_real(name, LARGEST_COLUMN.get(name, float(np.finfo(np.float32).max)))
          for name in COLUMNS),
        Cell("records", int), Cell("clients", int),
    ),
    "clients": (_key("client_id"), Cell("class_id", int)),
    "reservations": (
        _key("attempt", 1), Cell("round", int, 1), Cell("expected_reports", int),
        # 1, and one more for each of its reports that cannot be used: 0 until it is released.
        *_reals("epsilon"), Cell("released", int),
        Cell("present", bytes, optional=True), Cell("hash", str, was="link"),
    ),
    "rounds": (
        _key("round", 1), Cell("num_reports", int, was="n_reports"), Cell("expected_reports", int),
        _real("delta"),
        *_reals("gspa_mu_round", *(list(ROUNDS.values())[2:])),
    ),
    # A metric that is NaN has no row.
    "metrics": (Cell("round", int), Cell("name", str), Cell("value", float, -math.inf, math.inf)),
    "notes": (Cell("round", int), Cell("kind", str), Cell("text", str)),
    "client_spend": (_key("client_id"), Cell("rounds", int), *_reals("shuffled", "sum", "local")),
    # A state is a text where it lies in a file: that file's digest (see `state_file`).
    "checkpoint": (_CHECKPOINT, Cell("round", int), Cell("state", object)),
}  # fmt: skip

PAIRS = {"metrics": "round, name"}
"""Keys of two columns."""
# The view unpacks `present`: one row for each report that was released. Client k is bit 7 - k % 8
# (of value 128 >> k % 8) of byte k // 8, as numpy.packbits has it; NULL is everybody.
PARTICIPATION = """
CREATE VIEW participation AS
    SELECT round, attempt, client_id FROM reservations CROSS JOIN clients
    WHERE released AND (present IS NULL OR 1 & (
        instr('123456789ABCDEF', substr(hex(substr(present, client_id / 8 + 1, 1)),
            client_id % 8 / 4 + 1, 1)) >> (3 - client_id % 4)))"""
ATTENDANCE = "CREATE VIEW attendance AS SELECT * FROM participation"
"""The name that version 0.2 has for it."""


def read(
    path: Path, database: sqlite3.Connection, table: str, schema: int, **limits: tuple[int, int]
) -> list[tuple[Any, ...]]:
    """Return a table's rows in their order; `limits` are those of columns in this ledger.

    `schema` is the ledger's: its columns may have older names, and those that it does not have yet
    are read as NULL. Raises `RunError` for the first cell that holds what it may not.
    """
    cells = [
        replace(cell, least=limits[cell.name][0], most=limits[cell.name][1])
        if cell.name in limits
        else cell
        for cell in TABLES[table]
    ]
    order = PAIRS.get(table) or "rowid"
    names = ", ".join(cell.named_in(schema) for cell in cells)
    rows = database.execute(f"SELECT {names} FROM {table} ORDER BY {order}").fetchall()
    for cell, values in zip(cells, zip(*rows, strict=True), strict=False):
        if not cell.holds(values):
            number = next(n for n, value in enumerate(values) if not cell.holds([value]))
            where = f"{cell.name} in row {number + 1} of {table}"
            raise damaged(path, where, values[number], cell.allowed)
    return rows


def damaged(path: Path, where: str, value: object, allowed: str) -> RunError:
    """Return the one line about a value that no run has written."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
    return RunError(
        f"{path} is damaged: {where} = {shown}, which must be {allowed}; use an intact copy"
    )


def columns_with(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of metrics.csv where these are measured.

    Raises `ConfigError` for names that are no column's, or another one's already.
    """
    own = tuple(name for name in dict.fromkeys(metrics) if name not in ALWAYS)
    for name in own:
        if not name.isidentifier() or name in (*CSV_COLUMNS, *OLD_CSV):
            raise ConfigError(
                f"a metric is named {name!r}: a name has letters, digits and _ only, and is none "
                "of metrics.csv's own columns"
            )
    if len(own) > MOST_METRICS:
        raise ConfigError(f"{len(own)} metrics are measured; at most {MOST_METRICS} are kept")
    return (*CSV_COLUMNS, *own)
