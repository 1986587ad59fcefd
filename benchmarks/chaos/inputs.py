"""Nonsense as configuration, CSV, query, wire record and command line."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from flwr.app import Array

from benchmarks.chaos.children import command
from benchmarks.chaos.tally import Tally
from fl_shuffle.budgets import read_budgets
from fl_shuffle.cli.bound import _answer_line
from fl_shuffle.configuration.reading import load_config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.estimators.tables import as_numbers, read_values
from fl_shuffle.flower.records import float32_array

CONFIGS = Path(__file__).parents[2] / "fl_shuffle" / "configs" / "quickstart.toml"
BITS = (
    b"=", b"[", b"]", b'"', b"\n", b",", b"nan", b"inf", b"-", b"1e999", b"\0", b"\xff", b"9" * 99,
    b"true", b"1_0", b"\xef\xbb\xbf", b"0x1f", b"2026-01-01", b"{", b"'''", b"run.", b"#",
)  # fmt: skip

Input = tuple[bytes, Callable[[bytes], object]]
"""A good input, and what reads one."""


def mutated(text: bytes, draw: random.Random) -> bytes:
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


def fuzz(folder: Path, *, each: int, seconds: float) -> Iterator[Tally]:
    """`each` mutations of a good input of each kind, or as many as the time allows."""
    folder.mkdir()
    file = folder / "input"
    array = Array(np.arange(12, dtype=np.float32).reshape(3, 4))

    def reads(
        good: bytes, read: Callable[[Path], object]
    ) -> tuple[bytes, Callable[[bytes], object]]:
        def call(content: bytes) -> object:
            file.write_bytes(content)
            return read(file)

        return good, call

    def wire(content: bytes) -> object:
        sent = Array(dtype="float32", shape=(3, 4), stype="numpy.ndarray", data=content)
        found = float32_array(sent)
        if found is not None and found.shape != (3, 4):
            raise AssertionError(f"an array of shape {found.shape} was believed")
        return found

    budgets = b"client_id,epsilon,delta\n" + b"".join(b"%d,1.5,1e-5\n" % i for i in range(6))
    values = b"client_id,value\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(6))
    query = b'{"randomizer": "krr", "k": 4, "epsilon0": 1.0, "clients": 50, "delta": 1e-3}'
    kinds = {
        "configurations": reads(CONFIGS.read_bytes(), load_config),
        "budgets": reads(budgets, lambda path: read_budgets(path, 6)),
        "values to estimate": reads(values, lambda path: as_numbers(read_values(path))),
        "queries": (query, lambda content: _answer_line(content.decode("utf-8", "replace"), {})),
        "arrays on the wire": (array.data, wire),
    }
    for number, (name, (good, call)) in enumerate(kinds.items()):
        tally, draw = Tally(f"fuzzed {name}"), random.Random(number)
        deadline = time.monotonic() + seconds / len(kinds)
        for _ in range(each):
            if time.monotonic() > deadline:
                break
            content = mutated(good, draw)
            problem = ""
            try:
                call(content)
            except FlShuffleError as error:
                problem = "" if str(error) else "an error without a word"
            except Exception as error:
                tally.tracebacks += 1
                problem = f"{type(error).__name__}: {error}"
            tally.add(repr(content[:200]), problem=problem)
        yield tally


def mistakes(folder: Path) -> Tally:
    """What a user can get wrong on the command line: one line, exit code 2."""
    folder.mkdir()
    files = {
        "deep.toml": "x = " + "[" * 50_000,
        "long.toml": "[run]\nseed = " + "9" * 5000,
        "binary.toml": "\0\1\2",
        "deep.jsonl": "[" * 100_000 + "\n",
        "long.jsonl": '{"k": ' + "9" * 5000 + "}\n",
        "budgets.csv": "client_id,epsilon,delta\n" + "9" * 5000 + ",1,1\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "folder.toml").mkdir()
    at = {name: str(folder / name) for name in (*files, "folder.toml", "none.toml", "run")}
    new = ["--quiet", "--out", at["run"], "--rounds", "1"]
    tries: list[list[str]] = [
        *(["simulate", at[name], *new] for name in at if name.endswith(".toml")),
        ["simulate", "/dev/zero", *new],
        ["simulate", "--set", "run.seed=" + "9" * 5000, *new],
        ["simulate", "--set", "run.seed=" + "[" * 50_000, *new],
        ["simulate", "--set", "run", *new],
        ["simulate", "--budgets", at["budgets.csv"], *new],
        ["simulate", "--budgets", "/dev/zero", *new],
        ["simulate", "--budgets", str(folder), *new],
        ["simulate", "--quiet", "--out", "/proc/x", "--rounds", "1"],
        ["simulate", "--quiet", "--out", "/dev/null", "--rounds", "1"],
        ["simulate", "--quiet", "--set", "run.out=/proc", "--rounds", "1"],
        ["simulate", "--resume", "/proc"],
        ["simulate", "--resume", str(folder)],
        ["simulate", "--set", "app.server=os:getcwd", *new],
        ["simulate", "--set", "app.client=os:getcwd", *new],
        ["simulate", "--set", "app.client=no.such:app", *new],
        ["simulate", "--set", "data.source=os:getcwd", *new],
        ["simulate", "--set", "model.kind=os:getcwd", *new],
        ["report", "/proc"],
        ["report", str(folder)],
        ["bound", "--jsonl", at["deep.jsonl"]],
        ["bound", "--jsonl", at["long.jsonl"]],
        ["bound", "--jsonl", str(folder)],
        ["estimate", "mean", "--data", "/dev/zero", "--budgets", "/dev/zero"],
    ]
    tally = Tally("users' mistakes")
    for arguments in tries:
        ended = command(arguments, folder / "said")
        problem = tally.said(ended.said)
        if ended.code != 2 or len(ended.said.strip().splitlines()) != 1:
            problem = problem or f"exit code {ended.code}: {ended.said[-300:]!r}"
        tally.add(" ".join(arguments)[:80], problem=problem)
    return tally
