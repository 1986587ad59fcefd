"""Faults put into the product one at a time, and the tests that must notice each.

    python -m tests.mutants [NAME ...]      (scripts/test --mutants)

plays `mutants.toml`: every edit in a copy of the repository, with only the tests it names. A fault
that no test notices is a hole in the suite. NAME is a name, an area, or a part of a name.

An edit is a short fragment, which stands once in the function that it names: renames elsewhere in
the file do not matter.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
LONGEST_SECONDS = 900
"""Tests of one mutant that take longer hang."""
NO_LONGER_FITS = "edit no longer fits: update tests/mutants.toml"
OWN = ("fl_shuffle", "clients", "server", "benchmarks", "tests")
# Imported once, before every play is forked off: none of it is the product's own.
LIBRARIES = (
    *("numpy", "scipy.optimize", "scipy.signal", "scipy.special", "scipy.stats", "torch"),
    *("cryptography.hazmat.primitives.ciphers.aead", "hypothesis", "mpmath", "pytest", "rich"),
    *("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "safetensors"),
    *("opacus.grad_sample", "opacus.layers"),
)


@lru_cache(maxsize=32)
def spans_of(text: str) -> dict[str, list[tuple[int, int]]]:
    """Where functions and classes lie in a module's text, by name (`Class.method`), decorators
    included: several places for a name that is defined several times."""
    lines = [0]
    for line in text.split("\n"):
        lines.append(lines[-1] + len(line) + 1)
    found: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                span = lines[first - 1], lines[child.end_lineno or first]
                found.setdefault(prefix + child.name, []).append(span)
                name = f"{prefix}{child.name}."
            visit(child, name)

    visit(ast.parse(text), "")
    return found


@dataclass(frozen=True)
class Mutant:
    """One edit of `file`: the text `old` in `function` (`Class.method`; without one in the whole
    file) becomes `new`. Each of `must_fail` must then fail."""

    name: str
    area: str
    file: str
    old: str
    new: str
    must_fail: tuple[str, ...]
    function: str = ""

    def places(self, text: str) -> list[int]:
        """Where `old` begins in the file's text, within the function."""
        spans = spans_of(text).get(self.function, []) if self.function else [(0, len(text))]
        found = list[int]()
        for start, end in spans:
            at = text.find(self.old, start, end)
            while at >= 0:
                found.append(at)
                at = text.find(self.old, at + 1, end)
        return found

    def applied(self, text: str) -> str:
        """The file's text with the edit; there must be one place for it."""
        (at,) = self.places(text)
        return text[:at] + self.new + text[at + len(self.old) :]

    def why_not(self, root: Path = ROOT) -> str | None:
        """Why the edit cannot be made, if it cannot."""

        def holds(file: str, text: str) -> int:
            path = root / file
            return path.read_text(encoding="utf-8").count(text) if path.is_file() else 0

        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (found := len(self.places(text))) != 1:
            where = f"{self.function} of {self.file}" if self.function else self.file
            return f"{self.name}: {where} holds its text {found} times; {NO_LONGER_FITS}"
        for test in self.must_fail:
            file, _, function = test.partition("::")
            if not holds(file, f"def {function.partition('[')[0]}("):
                return f"{self.name}: there is no {test}; {NO_LONGER_FITS}"
        return None


def mutants() -> list[Mutant]:
    """All of them, in the order of the file."""
    tables: list[dict[str, Any]] = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**table, "must_fail": tuple(table["must_fail"])}) for table in tables]


class _Failed:
    """A plugin of pytest that remembers what failed, and stops where enough has."""

    def __init__(self, enough: Sequence[str]) -> None:
        self.tests: list[str] = []
        self._enough = enough
        self._session: Any = None

    def pytest_sessionstart(self, session: Any) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tests.append(report.nodeid)
            if self._enough and not not_among(self._enough, self.tests):
                self._session.shouldfail = "noticed"


def not_among(tests: Sequence[str], failed: Sequence[str]) -> list[str]:
    """Which of these tests have no case that failed."""
    return [test for test in tests if not any(found.startswith(test) for found in failed)]


class Copy:
    """A copy of the working tree, in which one play at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, names.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def start(self, mutant: Mutant | None, tests: Sequence[str]) -> int:
        """Fork off a play of these tests, on a mutant until all have failed; returns its process
        id."""
        if mutant is not None:
            path = self.folder / mutant.file
            text = path.read_text(encoding="utf-8")
            path.write_text(mutant.applied(text), encoding="utf-8")
            # Python compares times in whole seconds with those of what it compiled.
            Path(cache_from_source(str(path))).unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os._exit(self._play(tests, mutant.must_fail if mutant else ()))
        return child

    def restore(self, mutant: Mutant) -> None:
        path = self.folder / mutant.file
        shutil.copy2(ROOT / mutant.file, path)
        Path(cache_from_source(str(path))).unlink(missing_ok=True)

    def outcome(self) -> dict[str, Any] | None:
        """What the last play left; None if it did not come to its end."""
        path = self.folder / ".outcome"
        found = json.loads(path.read_text()) if path.exists() else None
        path.unlink(missing_ok=True)
        return found

    @property
    def output(self) -> str:
        return (self.folder / ".output").read_text(encoding="utf-8", errors="replace")

    def _play(self, tests: Sequence[str], enough: Sequence[str]) -> int:
        with open(self.folder / ".output", "w", encoding="utf-8") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        signal.alarm(LONGEST_SECONDS)
        os.chdir(self.folder)
        sys.path[:] = [str(self.folder), *(p for p in sys.path if p not in ("", str(ROOT)))]
        os.environ["PYTHONPATH"] = str(self.folder)
        for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
            del sys.modules[name]
        pytest = import_module("pytest")
        failed = _Failed(enough)
        options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore"]
        code = int(pytest.main([*options, *tests], plugins=[failed]))
        where = import_module("fl_shuffle").__file__
        if where is None or not Path(where).is_relative_to(self.folder):
            print(f"{where} was played, not the copy in {self.folder}")
            return 1
        outcome = {"code": code, "failed": failed.tests}
        (self.folder / ".outcome").write_text(json.dumps(outcome))
        sys.stdout.flush()
        return 0


def verdict(mutant: Mutant, outcome: dict[str, Any] | None) -> str:
    """What came of a play: noticed, or what is wrong."""
    if outcome is None:
        return "did not come to its end"
    # 0: all passed, 1: some failed. Anything else says that tests could not be collected or run.
    if outcome["code"] not in (0, 1):
        return f"could not be played: pytest ended with {outcome['code']}"
    blind = not_among(mutant.must_fail, outcome["failed"])
    return "NOT NOTICED by " + ", ".join(blind) if blind else "noticed"


def play(chosen: Sequence[Mutant], jobs: int) -> list[str]:
    """Play these mutants, `jobs` at a time; returns what went wrong, a line each."""
    wrong = [why for mutant in chosen if (why := mutant.why_not()) is not None]
    if wrong:
        return wrong
    for name in LIBRARIES:
        import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder, str(number))) for number in range(jobs)]
        tests = list(dict.fromkeys(test for mutant in chosen for test in mutant.must_fail))
        print(f"{len(tests)} tests without any fault:", flush=True)
        # Each copy has its share of their files.
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        shares = [tuple(files[number::jobs]) for number in range(min(jobs, len(files)))]
        for child in [
            copy.start(None, [test for test in tests if test.startswith(share)])
            for copy, share in zip(copies, shares, strict=False)
        ]:
            os.waitpid(child, 0)
        failed: list[str] = []
        for copy in copies[: len(shares)]:
            found = copy.outcome()
            if found is None or found["code"] not in (0, 1):
                return [f"tests cannot be played on what is not changed:\n{copy.output}"]
            failed += found["failed"]
        # What fails anyway notices nothing.
        failing = [test for test in tests if not not_among([test], failed)]
        wrong = [
            f"{mutant.name}: {test} fails without any fault"
            for mutant in chosen
            for test in mutant.must_fail
            if test in failing
        ]
        able = [mutant for mutant in chosen if not set(mutant.must_fail) & set(failing)]
        return wrong + _rounds(able, copies)


def _rounds(waiting: list[Mutant], copies: list[Copy]) -> list[str]:
    wrong: list[str] = []
    free, playing = list(copies), dict[int, tuple[Copy, Mutant, float]]()
    while waiting or playing:
        while waiting and free:
            copy, mutant = free.pop(), waiting.pop(0)
            playing[copy.start(mutant, mutant.must_fail)] = copy, mutant, time.monotonic()
        child, _ = os.wait()
        copy, mutant, started = playing.pop(child)
        found = verdict(mutant, copy.outcome())
        copy.restore(mutant)
        free.append(copy)
        print(f"  {found}: {mutant.name} ({time.monotonic() - started:.0f} s)", flush=True)
        if found != "noticed":
            last = "\n".join(copy.output.strip().splitlines()[-8:])
            wrong.append(f"{mutant.name}: {found}\n{last}")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/test --mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(arguments)
    names = given.names or [""]
    chosen = [each for each in mutants() if any(n == each.area or n in each.name for n in names)]
    if not chosen:
        parser.error(f"no mutant is called {' or '.join(names)}; see {LIST.relative_to(ROOT)}")
    wrong = play(chosen, min(max(1, given.jobs), len(chosen)))
    print("\n".join(wrong) or f"all {len(chosen)} faults are noticed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
