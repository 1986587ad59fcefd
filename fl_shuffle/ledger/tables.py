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
from fl_shuffle.errors import ConfigError, RunError

SHOWN = 40
"""So many characters of a cell are quoted in an error's one line."""
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
    `object` nothing is said.
    """

    name: str
    kind: type
    least: float = 0
    most: float = MOST_ROUNDS
    optional: bool = False
    sql: str = ""

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
        """Whether all of these may stand in it."""
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
    return tuple(Cell(name, float, most=math.inf, optional=True) for name in names)


LOWER_NAMES = ("lower", "sum_lower")
"""Columns of attacks: of the last round alone, written when the run is over."""
SPENT_NAMES = ("gspa", "specific", "proven", "sum", "local")
COLUMN_NAMES = (*SPENT_NAMES, *LOWER_NAMES)
EPSILONS = {name: f"{name}_epsilon" for name in COLUMN_NAMES}
"""What a column's epsilon is called in metrics.csv and in tables of rounds."""
ROUNDS = {
    "round": "round", "n_reports": "n_reports", "gspa_mu": "gspa_mu_total",
    **{EPSILONS[name]: {"specific": "gspa_specific"}.get(name, name) for name in COLUMN_NAMES},
    "seconds": "seconds",
}  # fmt: skip
"""What stands in both: columns of metrics.csv -> of the table `rounds`."""

ALWAYS = ("accuracy", "loss")
"""Metrics that have their columns whatever is measured; others come behind `seconds`."""
CSV_COLUMNS = (*list(ROUNDS)[:2], *ALWAYS, *list(ROUNDS)[2:])
"""Of metrics.csv."""
MOST_METRICS = 64
"""Of a user's own: a line stays a line."""

_CHECKPOINT = Cell("only", int, sql="PRIMARY KEY CHECK (only = 0)")
TABLES: dict[str, tuple[Cell, ...]] = {
    "meta": (Cell("key", str, sql="PRIMARY KEY"), Cell("value", str)),
    "classes": (
        _key("class_id"), Cell("noise", str),
        *(_real(name, 1.0 if name == "delta0" else float(np.finfo(np.float32).max))
          for name in COLUMNS),
        Cell("records", int), Cell("clients", int),
    ),
    "clients": (_key("client_id"), Cell("class_id", int)),
    "reservations": (
        _key("attempt", 1), Cell("round", int, 1), Cell("expected_reports", int),
        # 1, and one more for each of its reports that cannot be used: 0 until it is released.
        *_reals("epsilon"), Cell("released", int),
        Cell("present", bytes, optional=True), Cell("link", str),
    ),
    "rounds": (
        _key("round", 1), Cell("n_reports", int), Cell("expected_reports", int), _real("delta"),
        *_reals("gspa_mu_round", *(list(ROUNDS.values())[2:])),
    ),
    # Of the most exposed client of each listed class (a few dozen of the most exposed classes, see
    # the accountant); how many of any class reported follows from attendance and clients.
    "round_classes": (
        Cell("round", int, 1), Cell("class_id", int), Cell("n_reports", int), *_reals(*COLUMN_NAMES)
    ),
    # A metric that is NaN has no row.
    "metrics": (Cell("round", int), Cell("name", str), Cell("value", float, -math.inf, math.inf)),
    "notes": (Cell("round", int), Cell("kind", str), Cell("text", str)),
    "client_spend": (_key("client_id"), Cell("rounds", int), *_reals("proven", "sum", "local")),
    # A state is a text where it lies in a file: that file's digest (see `state_file`).
    "checkpoint": (_CHECKPOINT, Cell("round", int), Cell("state", object)),
}  # fmt: skip

PAIRS = {"round_classes": "round, class_id", "metrics": "round, name"}
"""Keys of two columns."""
# The view unpacks `present`: one row for each report that was released. Client k is bit 7 - k % 8
# (of value 128 >> k % 8) of byte k // 8, as numpy.packbits has it; NULL is everybody.
ATTENDANCE = """
CREATE VIEW attendance AS
    SELECT round, attempt, client_id FROM reservations CROSS JOIN clients
    WHERE released AND (present IS NULL OR 1 & (
        instr('123456789ABCDEF', substr(hex(substr(present, client_id / 8 + 1, 1)),
            client_id % 8 / 4 + 1, 1)) >> (3 - client_id % 4)))"""


def read(
    path: Path, database: sqlite3.Connection, table: str, **limits: tuple[int, int]
) -> list[tuple[Any, ...]]:
    """A table's rows in their order; `limits` are those of columns in this ledger.

    Raises `RunError` for the first cell that holds what it may not.
    """
    cells = [
        replace(cell, least=limits[cell.name][0], most=limits[cell.name][1])
        if cell.name in limits
        else cell
        for cell in TABLES[table]
    ]
    order = PAIRS.get(table) or "rowid"
    names = ", ".join(cell.name for cell in cells)
    rows = database.execute(f"SELECT {names} FROM {table} ORDER BY {order}").fetchall()
    for cell, values in zip(cells, zip(*rows, strict=True), strict=False):
        if not cell.holds(values):
            number = next(n for n, value in enumerate(values) if not cell.holds([value]))
            where = f"{cell.name} in row {number + 1} of {table}"
            raise damaged(path, where, values[number], cell.allowed)
    return rows


def damaged(path: Path, where: str, value: object, allowed: str) -> RunError:
    """The one line about a value that no run has written."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
    return RunError(
        f"{path} is damaged: {where} = {shown}, which must be {allowed}; use an intact copy"
    )


def columns_with(metrics: Iterable[str]) -> tuple[str, ...]:
    """The columns of metrics.csv where these are measured.

    Raises `ConfigError` for names that are no column's, or another one's already.
    """
    own = tuple(name for name in dict.fromkeys(metrics) if name not in ALWAYS)
    for name in own:
        if not name.isidentifier() or name in CSV_COLUMNS:
            raise ConfigError(
                f"a metric is named {name!r}: a name has letters, digits and _ only, and is none "
                "of metrics.csv's own columns"
            )
    if len(own) > MOST_METRICS:
        raise ConfigError(f"{len(own)} metrics are measured; at most {MOST_METRICS} are kept")
    return (*CSV_COLUMNS, *own)
