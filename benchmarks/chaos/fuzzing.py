"""Nonsense as configuration, CSV, query, wire record and ledger file, in this process.

Every input is a good one with a few bytes, pieces or values changed, drawn from a seed and the
kind's name. It is read or refused with a `FlShuffleError` that says something; whatever else
happens is a traceback.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from benchmarks.chaos.tally import Tally
from fl_shuffle._internal.plugins import registered
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.budgets import read_budgets
from fl_shuffle.configuration.reading import parse_config, parsed, resolve_config, set_value
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.flower.messages import (
    REPORT_RECORD,
    REPORTS,
    REQUEST_RECORD,
    TrainRequest,
    array_record,
    float32_array,
    read_answer,
)
from fl_shuffle.flower.node_registry import HOLDING_RECORD, holding_in, read_supernodes
from fl_shuffle.flower.private_api import adopt_task_identity, stamp
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.report import page
from fl_shuffle.report.record import read_run
from fl_shuffle.shuffler.local import Reports
from fl_shuffle.shuffler.remote.credentials import Pass
from fl_shuffle.shuffler.remote.sealing import KEY_BYTES

CONFIGS = Path(__file__).parents[2] / "configs" / "quickstart.toml"
BITS = (
    b"=", b"[", b"]", b'"', b"\n", b",", b"nan", b"inf", b"-", b"1e999", b"\0", b"\xff", b"9" * 99,
    b"true", b"1_0", b"\xef\xbb\xbf", b"0x1f", b"2026-01-01", b"{", b"'''", b"run.", b"#",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2**31, 2**63 - 1, -(2**63), 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"),
    "", "x", "file", "gaussian", "a:b", "\0", "9" * 99, True, False, b"", b"\xff" * 5, [], [1],
)  # fmt: skip
"""What may stand in a record, and most of it in JSON."""
NONSENSE: tuple[Any, ...] = (
    None, "", "x", "nan", -1, 0, 2**62, -1.5, 1e308, float("inf"), b"", b"\0\xff" * 9, "[" * 50_000,
    "9" * 5000, "{}", "[]", "null", '"x"', "NaN", '{"a": {"b": []}}',
)  # fmt: skip
"""What is written into a cell of a ledger."""
PLAIN = tuple(value for value in VALUES if not isinstance(value, bytes))

Draw = random.Random


@dataclass(frozen=True)
class Kind:
    """Inputs of one kind: what makes one, what reads it, and their share of all inputs."""

    name: str
    make: Callable[[Draw], Any]
    read: Callable[[Any], object]
    share: float


def mutated(text: bytes, draw: Draw) -> bytes:
    """A few bytes or pieces changed, taken out, put in or doubled."""
    found = bytearray(text)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(found) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            found[place:place] = draw.choice(BITS)
        elif kind == 1:
            del found[place : place + draw.randint(1, 12)]
        elif kind == 2 and place < len(found):
            found[place] = draw.randrange(256)
        else:
            end = place + draw.randint(1, 40)
            found[place:place] = found[place:end]
    return bytes(found)


def kinds(folder: Path, ledger: Path) -> list[Kind]:
    """All of them; `ledger` is that of a finished run."""
    folder.mkdir()
    file = folder / "input"
    file.touch(mode=0o600)

    def text(name: str, good: bytes, read: Callable[[Path], object], share: float) -> Kind:
        def call(content: bytes) -> object:
            file.write_bytes(content)
            return read(file)

        return Kind(name, lambda draw: mutated(good, draw), call, share)

    rows = [f"{i},1.5,1e-5\n".encode() for i in range(6)]
    budgets = b"client_id,epsilon,delta\n" + b"".join(rows)
    nodes = b"supernode,partition-id,num-partitions\n7,0,2\nSHA256:" + b"a" * 43 + b",1,2\n"
    query = b'{"randomizer": "krr", "k": 4, "epsilon0": 1.0, "clients": 50, "delta": 1e-3}'
    tables = Config().to_dict()
    cells = _cells(ledger)
    array = Array(np.arange(12, dtype=np.float32).reshape(3, 4))
    return [
        text("configurations", CONFIGS.read_bytes(), resolve_config, 0.1),
        Kind("configured values", lambda draw: _tables(tables, draw), parse_config, 0.15),
        Kind("overrides", lambda draw: mutated(b"run.seed=[1, 2]", draw), _override, 0.12),
        text("budgets", budgets, lambda path: read_budgets(path, 6), 0.08),
        text("SuperNode files", nodes, lambda path: read_supernodes(path, 6), 0.05),
        Kind("queries", lambda draw: mutated(query, draw), _query, 0.005),
        Kind("arrays on the wire", lambda draw: mutated(array.data, draw), _array, 0.25),
        text("passes to a shuffler", _pass(folder), lambda path: Pass.read(path, "site"), 0.02),
        Kind("records on the wire", _records, _reply, 0.08),
        text("ledger files", ledger.read_bytes(), LedgerRecord, 0.02),
        Kind("cells of a ledger", lambda draw: draw.choice(cells), Reported(ledger, folder), 0.003),
    ]


def _tables(good: dict[str, dict[str, Any]], draw: Draw) -> dict[str, Any]:
    found: dict[str, Any] = {name: dict(table) for name, table in good.items()}
    for _ in range(draw.randint(1, 3)):
        name = draw.choice(list(found))
        if draw.random() < 0.05:
            found[name] = draw.choice(PLAIN)
        elif isinstance(found[name], dict):
            key = draw.choice([*found[name], "nothing"])
            found[name][key] = draw.choice(PLAIN)
    return found


def _override(content: bytes) -> object:
    tables = Config().to_dict()
    set_value(tables, *parsed(content.decode("utf-8", "replace")))
    return parse_config(tables)


def _query(content: bytes) -> object:
    try:
        values = json.loads(content.decode("utf-8", "replace"))
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("not an object")
    return bound(BoundQuery.from_mapping(values))


def _array(content: bytes) -> object:
    sent = Array(dtype="float32", shape=(3, 4), stype="numpy.ndarray", data=content)
    found = float32_array(sent)
    if found is not None and found.shape != (3, 4):
        raise AssertionError(f"an array of shape {found.shape} was believed")
    return found


def _records(draw: Draw) -> RecordDict:
    good = {"round": 1, "first": 0, "span": 3, "bitmap": b"\xe0"}
    for _ in range(draw.randint(1, 2)):
        good[draw.choice(list(good))] = draw.choice(VALUES)
    data = Array(np.ones((3, 4), dtype=np.float32)).data
    sent = Array(
        dtype=draw.choice(["float32", "float64", "object", "", "x"]),
        shape=draw.choice([(3, 4), (4, 3), (-1, 4), (2**40, 2**40), (), (12,)]),
        stype=draw.choice(["numpy.ndarray", "x", ""]),
        data=mutated(data, draw) if draw.random() < 0.5 else data,
    )
    holding = {"first": draw.choice(VALUES), "count": draw.choice(VALUES)}
    return RecordDict(
        {
            REQUEST_RECORD: ConfigRecord(good),  # type: ignore[arg-type]
            HOLDING_RECORD: ConfigRecord(holding),
            REPORT_RECORD: ArrayRecord({draw.choice([REPORTS, "x"]): sent}),
        }
    )


def _reply(content: RecordDict) -> object:
    """What a node and the server make of it."""
    reply = Message(content, reply_to=_question())
    found = read_answer(reply, TrainRequest(1, np.arange(3)), 4, Counter())
    if found is not None:
        assert isinstance(found, Reports)
        if found.rows.shape != (3, 4) or found.rows.dtype != np.float32:
            raise AssertionError(f"{found.rows.dtype} of shape {found.rows.shape} was believed")
    holding = holding_in(reply, 50)
    if holding is not None and not 0 <= holding.start <= holding.stop <= 50:
        raise AssertionError(f"the claim {holding} was believed")
    request = TrainRequest.of(reply, 50)
    return request.clients


@cache
def _question() -> Message:
    model = array_record({"p": np.zeros(3, np.float32)}, shared=True)
    return stamp(TrainRequest(1, np.arange(3)).message(model, 2))


Cell = tuple[str, str, str, Any]
"""Of a ledger: table, column, which rows, and what is written into them."""


def _cells(ledger: Path) -> list[Cell]:
    with closing(sqlite3.connect(ledger)) as database:
        facts = [f"key = '{key}'" for (key,) in database.execute("SELECT key FROM meta")]
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return [
            (table, column[1], rows, value)
            for (table,) in tables
            for column in database.execute(f'PRAGMA table_info("{table}")')
            for rows in (facts if table == "meta" else ["TRUE"])
            for value in NONSENSE
        ]


class Reported:
    """A report of a finished run with nonsense in one cell of its ledger."""

    def __init__(self, ledger: Path, folder: Path) -> None:
        self._ledger, self._folder = ledger, folder / "reported"
        self._folder.mkdir()

    def __call__(self, cell: Cell) -> object:
        table, column, rows, value = cell
        place = self._folder / "ledger.sqlite"
        shutil.copy(self._ledger, place)
        with closing(sqlite3.connect(place)) as database:
            try:
                with database:
                    database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {rows}', [value])
            except sqlite3.IntegrityError:
                return None
        return page.render([read_run(self._folder)])


def _pass(folder: Path) -> bytes:
    path, secret = folder / "pass", "5a" * KEY_BYTES
    Pass("localhost:1", "a certificate", secret, secret).write(path, "site")
    return path.read_bytes()


_registered = cache(registered)
"""What installed packages offer does not change meanwhile, and looking takes a millisecond."""


def fuzz(
    folder: Path, ledger: Path, *, inputs: int = 1_000_000, seconds: float, seed: int = 1
) -> Iterator[Tally]:
    """`inputs` of all kinds together by their shares, or as many as the time allows."""
    adopt_task_identity(1)
    found = kinds(folder, ledger)
    whole = sum(kind.share for kind in found)
    end = time.monotonic() + seconds
    with mock.patch("fl_shuffle._internal.plugins.registered", _registered):
        for number, kind in enumerate(found):
            now = time.monotonic()
            deadline = now + (end - now) / (len(found) - number)
            yield _fuzz(kind, round(inputs * kind.share / whole), deadline, seed)


def _fuzz(kind: Kind, inputs: int, deadline: float, seed: int) -> Tally:
    tally, draw = Tally(f"fuzzed {kind.name}"), Draw(f"{seed} {kind.name}")
    for _ in range(inputs):
        if time.monotonic() > deadline:
            break
        content = kind.make(draw)
        problem = ""
        try:
            kind.read(content)
        except FlShuffleError as error:
            problem = "" if str(error) else "an error without a word"
        except Exception as error:
            tally.tracebacks += 1
            problem = f"{type(error).__name__}: {error}"
        tally.add(repr(content)[:200], problem=problem)
    return tally
