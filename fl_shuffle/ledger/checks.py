"""What may stand in a ledger's cells. SQLite keeps anything anywhere: nothing is taken on trust."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import FlShuffleError, RunError

Rows = Sequence[tuple[Any, ...]]
SHOWN = 40
"""So many characters of a cell are quoted in an error's one line."""
MOST_ROUNDS = 10**9
"""A larger number of a round is nonsense: at a millisecond each it would take eleven days."""


@dataclass(frozen=True)
class Cell:
    """A column's name, which values it may hold, and that in words."""

    name: str
    holds: Callable[[Any], bool]
    allowed: str


def damaged(path: Path, where: str, value: object, allowed: str) -> RunError:
    """The one line about a value that no run has written."""
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + "..."
    return RunError(
        f"{path} is damaged: {where} = {shown}, which must be {allowed}; use an intact copy"
    )


def is_whole(value: Any, minimum: int = 0, maximum: int = MOST_ROUNDS) -> bool:
    """Whether it is a whole number in these limits."""
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum


def whole(name: str, minimum: int = 0, maximum: int = MOST_ROUNDS) -> Cell:
    """A whole number."""
    allowed = f"a whole number in [{minimum}, {maximum}]"
    return Cell(name, lambda value: is_whole(value, minimum, maximum), allowed)


def real(name: str, *, maximum: float = math.inf, optional: bool = False) -> Cell:
    """A number in [0, maximum], infinity included; or none."""

    def holds(value: Any) -> bool:
        if value is None:
            return optional
        return isinstance(value, int | float) and 0.0 <= value <= maximum

    allowed = "a number >= 0" if maximum == math.inf else f"a number in [0, {maximum:g}]"
    return Cell(name, holds, allowed + (" or nothing" if optional else ""))


def text(name: str) -> Cell:
    """A text."""
    return Cell(name, lambda value: isinstance(value, str), "a text")


def bitmap(name: str, clients: int) -> Cell:
    """A bit for each client, or nothing for everybody."""
    size = (clients + 7) // 8

    def holds(value: Any) -> bool:
        return value is None or (isinstance(value, bytes) and len(value) == size)

    return Cell(name, holds, f"{size} bytes, a bit for each client")


def require_rows(path: Path, table: str, rows: Rows, cells: Sequence[Cell]) -> None:
    """Raise `RunError` for the first cell that holds what it may not."""
    for number, row in enumerate(rows):
        for cell, value in zip(cells, row, strict=True):
            if not cell.holds(value):
                where = f"{cell.name} in row {number + 1} of {table}"
                raise damaged(path, where, value, cell.allowed)


def client_classes(path: Path, rows: Rows, classes: int) -> NDArray[np.int64]:
    """The class of each client, from rows (client id, class id) in the order of the ids."""
    table = _whole_numbers(rows)
    if table is None or table[:, 1].min(initial=0) < 0 or table[:, 1].max(initial=0) >= classes:
        cells = (whole("client_id"), whole("class_id", 0, classes - 1))
        require_rows(path, "clients", rows, cells)
        table = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    if not np.array_equal(table[:, 0], np.arange(len(rows))) or not len(rows):
        raise damaged(path, "client_id of clients", len(rows), "0, 1, 2, ... without a gap")
    return np.ascontiguousarray(table[:, 1])


def _whole_numbers(rows: Rows) -> NDArray[np.int64] | None:
    """A million rows at once; None where a cell holds something else."""
    if not all(set(map(type, column)) == {int} for column in zip(*rows, strict=True)):
        return None
    return np.array(rows, dtype=np.int64).reshape(len(rows), 2)


def _is_stamp(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _is_data(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("source"), str):
        return False
    shape = value.get("shape")
    counts = ("records", "classes", "test_records", "held_out")
    return (
        isinstance(shape, list)
        and all(is_whole(size) for size in shape)
        and all(is_whole(value.get(name)) for name in counts)
    )


FACTS = (
    Cell("run", lambda v: isinstance(v, str) and bool(re.fullmatch("[0-9a-f]{32}", v)), "a name"),
    Cell("dimension", lambda value: is_whole(value, 1), "a whole number >= 1"),
    Cell("data", _is_data, "source, records, shape, classes, test_records and held_out"),
    Cell("libraries", _is_texts, "names and versions"),
    *(text(name) for name in ("relation", "test_data", "code_version", "python", "link")),
    whole("records_not_covered"),
    Cell("seed", lambda value: isinstance(value, str | int), "a whole number or a text"),
    Cell("started", _is_stamp, "a date"),
)
FINISHED = Cell("finished", lambda value: value is None or _is_stamp(value), "a date or nothing")
SUMMARY = Cell("summary", lambda value: isinstance(value, dict), "a table")
"""Of version 0.1."""
OUTCOME = Cell("outcome", lambda value: isinstance(value, dict), "a table")


def require_facts(path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with their configuration made whole; raises `RunError` for one that is no fact."""
    optional = [cell for cell in (FINISHED, SUMMARY, OUTCOME) if cell.name in meta]
    for cell in (*FACTS, *optional):
        if not cell.holds(meta.get(cell.name)):
            raise damaged(path, f"{cell.name} of meta", meta.get(cell.name), cell.allowed)
    config = meta.get("config")
    if not isinstance(config, dict):
        raise damaged(path, "config of meta", config, "a configuration")
    try:
        return {**meta, "config": parse_config(config).to_dict()}
    except FlShuffleError as error:
        raise RunError(f"{path} is damaged: its configuration: {error}") from None


def require_links(path: Path, first: str, rows: Iterable[tuple[Any, ...]], link: Any) -> str:
    """The link after the last of these attempts (rows that end with their link), which starts from
    `first`; `link(previous, row)` works one out. Raises `RunError` where a row does not fit."""
    for number, (*row, written) in enumerate(rows, 1):
        first = link(first, tuple(row))
        if row[0] != number or written != first:
            raise RunError(
                f"{path} was changed: attempt {number} (round {row[1]}) is not what was written "
                "there, or one before it is missing; put the run's own ledger back"
            )
    return first
