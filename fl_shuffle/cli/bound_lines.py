"""`fl-shuffle bound --jsonl`: one question a line in, one answer a line out."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any, NoReturn

from fl_shuffle.accounting.queries.many import Answers, Asked
from fl_shuffle.accounting.queries.query import LARGEST_MATRIX
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.settings_schema import json_ready

BATCH_LINES = 256
"""Number of lines that are read before the first of them is answered ..."""
LARGEST_LINE = LARGEST_MATRIX
"""... and number of bytes: a longer line is refused, as a longer file of a matrix is."""


def answer_lines(arguments: Namespace, values: Mapping[str, Any]) -> int:
    """Answer every line of `arguments.jsonl`; exit code 1 where one of them has no answer.

    Raises `ConfigError` where the command asks for something else, too.
    """
    named = ("config", "set", "grid", "solve_for", "all", "explain", "certificate", "over", "plot")
    others = [*values, *(name for name in named if getattr(arguments, name))]
    for name in others:
        shown = "CONFIG" if name == "config" else f"--{name.replace('_', '-')}"
        raise ConfigError(f"{shown} cannot be combined with --jsonl: write it into each line")
    refused, number = 0, 0
    with _opened(arguments.jsonl) as file, Answers() as answers:
        for lines in _batches(file):
            read = [_question(line) for line in lines]
            found = iter(answers.ask(each for each in read if not isinstance(each, ConfigError)))
            for each in read:
                number += 1
                answer = each if isinstance(each, ConfigError) else next(found)
                refused += isinstance(answer, FlShuffleError)
                print(_said(answer, number), flush=False)
            sys.stdout.flush()
    return 1 if refused else 0


def _said(answer: object, number: int) -> str:
    if isinstance(answer, FlShuffleError):
        answer = {"line": number, "error": " ".join(str(answer).split())}
    return json.dumps(json_ready(answer), allow_nan=False)


def _opened(name: str) -> Any:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--jsonl {name} cannot be read: {error}") from None


def _batches(file: IO[bytes]) -> Iterator[list[bytes | None]]:
    """Yield lines, some at a time; None for one that is too long."""
    batch, size = list[bytes | None](), 0
    while line := file.readline(LARGEST_LINE + 1):
        whole = len(line) <= LARGEST_LINE
        while len(line) > LARGEST_LINE and not line.endswith(b"\n"):
            line = file.readline(LARGEST_LINE + 1)
        batch.append(line if whole else None)
        size += len(line)
        if len(batch) == BATCH_LINES or size > LARGEST_LINE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _question(line: bytes | None) -> Asked | ConfigError:
    """Return the object that a line is, or what is wrong with it."""
    if line is None:
        return ConfigError(f"a line may have at most {LARGEST_LINE:,} bytes")
    try:
        text = line.decode("utf-8-sig").strip()
        if not text:
            return ConfigError("an empty line; each line is a JSON object of a question's names")
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once_each)
    except UnicodeDecodeError:
        return ConfigError("the line is not UTF-8")
    except RecursionError:
        return ConfigError("the line is nested too deeply")
    except ValueError as error:
        return ConfigError(f"the line is not JSON: {error}")
    if not isinstance(found, dict):
        return ConfigError("the line must be a JSON object of a query's names and values")
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is given twice; give it once")
    return found
