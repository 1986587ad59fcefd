"""What two runs published, taken apart field by field and compared.

The rule: two runs of one configuration and one seed, on neighbouring data, whose reports are made
equal, publish the same: every file's name, mode and content, every message, and the screen. Only
times and the run's random identifier may differ, in fields that hold nothing else, and they must
look like what they are.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fl_shuffle.auditing.findings import Difference

Fields = Mapping[str, str]
"""Where -> what stands there."""

MOMENT = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?([+-]\d\d:\d\d| UTC)?"
NUMBER = r"-?\d+(\.\d+)?(e[+-]?\d+)?"
TIMED = re.compile(
    rf'("(?:seconds|accounting_seconds|started|finished)": )(?:{NUMBER}|"(?:{MOMENT}|{NUMBER})")'
    r"(?=[,}\]]|$)"
)
"""Fields that hold a time: of day as ISO text, or seconds."""
NAMED = re.compile(r'("run": )"[0-9a-f]{32}"')
"""The field that holds a run's random identifier."""
MESSAGE = "message"
ERROR = "the run ends with an error"
# A checkpoint is written when the clock says so: of two runs the same rounds' are compared.
CHECKPOINT = "checkpoint of round"


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
    """Everything in a run directory: a file's mode, and its content by places."""
    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        found[f"{name}: mode"] = oct(path.lstat().st_mode)
        if path.is_file():
            found |= {f"{name}: {where}": text for where, text in _content(path)}
    return found


def _content(path: Path) -> Iterator[tuple[str, str]]:
    """A file's rows or lines, or a digest of its bytes."""
    if path.suffix == ".sqlite":
        yield from _database(path)
    elif path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8", errors="backslashreplace") as file:
            for number, row in enumerate(csv.DictReader(file), 1):
                yield f"line {number}", without_times(row)
    elif path.suffix in (".json", ".log", ".html", ".txt"):
        text = path.read_text(encoding="utf-8", errors="backslashreplace")
        for number, line in enumerate(text.splitlines(), 1):
            timed = path.suffix == ".log"
            yield f"line {number}", re.sub(MOMENT, "a time", line) if timed else without_times(line)
    else:
        yield "content", shown(path.read_bytes())


def _database(path: Path) -> Iterator[tuple[str, str]]:
    """Every row of every table, the schema, and how many pages hold what is in no table (how large
    the file is follows from these, and from how long its times are as text)."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        schema = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
        yield "schema", repr([tuple(row) for row in schema])
        for pragma in ("freelist_count", "user_version"):
            yield pragma, repr(database.execute(f"PRAGMA {pragma}").fetchone()[0])
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for number, row in enumerate(database.execute(f'SELECT * FROM "{name}"')):
                cells = dict(row)
                place = f"{name}[{number}]"
                if name == "meta":
                    place = cells.pop("key")
                    cells = {place: json.loads(cells["value"])}
                elif name == "checkpoint":
                    place = f"{CHECKPOINT} {cells.pop('round')}"
                yield place, without_times(cells)


def without_times(line: Any) -> str:
    """A line, or values as JSON, with words for the times and the identifier of a run, in fields
    that may hold one."""
    text = line if isinstance(line, str) else json.dumps(line, default=shown)
    return NAMED.sub(r"\1an identifier", TIMED.sub(r"\1a time", text))


def shown(value: bytes) -> str:
    """How many bytes, and a digest of them."""
    return f"{len(value)} bytes, {hashlib.sha256(value).hexdigest()}"
