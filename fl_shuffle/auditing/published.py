"""What two runs published, taken apart field by field and compared.

The rule: two runs of one configuration and one seed, on neighbouring data, whose reports are made
equal, publish the same: every file's name, mode and content, every message, and the screen. Only
times and the run's random identifier may differ, in fields that hold nothing else, and they must
look like what they are.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Fields = Mapping[str, str]
"""Where -> what stands there."""

VOLATILE = ("seconds", "accounting_seconds", "started", "finished")
"""Names of fields that hold a time: of day as ISO text, or seconds."""
CLOCKED = "a time"
IDENTIFIER = "run"
"""The name of the field that holds a run's random identifier."""
TIME_OF_DAY = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?([+-]\d\d:\d\d| UTC)?")
SHOWN = 60
"""Letters of a differing value that are printed."""
MESSAGE = "message"
ERROR = "the run ends with an error"
# A checkpoint is written when the clock says so: of two runs the same rounds' are compared.
CHECKPOINT = "checkpoint of round"


@dataclass(frozen=True)
class Difference:
    """A published field that differs between neighbouring data sets; None where it is absent."""

    neighbour: str
    where: str
    first: str | None
    second: str | None

    def text(self) -> str:
        """One line for the reader."""
        first, second = (
            "absent" if value is None else value[:SHOWN] for value in (self.first, self.second)
        )
        return f"{self.neighbour}: {self.where}: {first} / {second}"


@dataclass(frozen=True)
class Published:
    """What was compared: `fields` of the first run, against runs on these `neighbours`."""

    neighbours: tuple[str, ...]
    fields: int
    messages: int
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "neighbours": list(self.neighbours),
            "fields": self.fields,
            "messages": self.messages,
            "differences": [
                {
                    "neighbour": found.neighbour,
                    "where": found.where,
                    "first": found.first,
                    "second": found.second,
                }
                for found in self.differences
            ],
            "notes": list(self.notes),
        }


def compare(neighbour: str, first: Fields, second: Fields) -> list[Difference]:
    """Every field that is not the same in both. Of a run that ended with an error, what it did not
    come to write is no difference of its own."""
    found = []
    # What is said of the run as a whole, then what a message says, explains the rest best.
    for where in sorted(
        {*first, *second}, key=lambda w: (w != ERROR, not w.startswith(MESSAGE), w)
    ):
        values = first.get(where), second.get(where)
        unwritten = values[1] is None and ERROR in second
        by_the_clock = CHECKPOINT in where and None in values
        if values[0] != values[1] and not unwritten and not by_the_clock:
            found.append(Difference(neighbour, where, *values))
    return found


def fields_of(directory: Path) -> dict[str, str]:
    """Everything in a run directory, as fields."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        found[f"{name}: mode"] = oct(path.lstat().st_mode)
        if path.is_file():
            found.update((f"{name}: {where}", value) for where, value in _fields_in(path))
    return found


def _fields_in(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".sqlite":
        yield from _database(path)
    elif path.suffix == ".json":
        yield from leaves(json.loads(path.read_text(encoding="utf-8")))
    elif path.suffix == ".csv":
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
        for number, row in enumerate(rows):
            for name, value in zip(rows[0], row, strict=False):
                yield f"line {number}, {name}", masked(name, value) if number else value
            yield f"line {number}: cells", str(len(row))
    elif path.suffix in (".log", ".html", ".txt"):
        yield from lines(path.read_text(encoding="utf-8", errors="backslashreplace"))
    else:
        content = path.read_bytes()
        yield "bytes", str(len(content))
        yield "digest", hashlib.sha256(content).hexdigest()


def lines(text: str) -> Iterator[tuple[str, str]]:
    """A text's lines, without the times of day in them."""
    for number, line in enumerate(text.splitlines(), 1):
        yield f"line {number}", TIME_OF_DAY.sub(CLOCKED, line)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of a JSON value, with its path."""
    if isinstance(value, dict):
        yield f"{path} keys", json.dumps(list(value))
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield f"{path} length", str(len(value))
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{number}]")
    else:
        yield path, masked(path.rpartition(".")[2], value)


def masked(name: str, value: Any) -> str:
    """The value as text; a time or a run's identifier as the word for it, if its field may hold
    one."""
    text = value if isinstance(value, str) else repr(value)
    if name == IDENTIFIER and re.fullmatch("[0-9a-f]{32}", text):
        return "an identifier"
    if name not in VOLATILE:
        return text
    if TIME_OF_DAY.fullmatch(text):
        return CLOCKED
    try:
        float(text)
    except ValueError:
        return text
    return CLOCKED


def _database(path: Path) -> Iterator[tuple[str, str]]:
    """Every cell of every table, the schema, and how many pages hold what is in no table (how large
    the file is follows from these, and from how long its times are as text)."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        for pragma in ("freelist_count", "user_version"):
            yield pragma, str(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
        schema = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
        yield "schema", repr(schema.fetchall())
        names = [
            name
            for (name,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            )
        ]
        for name in names:
            cursor = connection.execute(f'SELECT * FROM "{name}"')
            columns = [column[0] for column in cursor.description]
            for number, row in enumerate(cursor):
                yield from _row(name, number, dict(zip(columns, row, strict=True)))
    finally:
        connection.close()


def _row(table: str, number: int, row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if table == "meta":
        yield from leaves(json.loads(row["value"]), str(row["key"]))
        return
    place = f"{table}[{number}]"
    if table == "checkpoint":
        place = f"{CHECKPOINT} {row['round']}"
    for column, value in row.items():
        where = f"{place}.{column}"
        if isinstance(value, bytes):
            yield where, f"{len(value)} bytes, {hashlib.sha256(value).hexdigest()}"
        else:
            yield where, masked(column, value)
