"""Runs that die, and how they go on: for every test about what is left of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fl_shuffle.cli import main
from tests.small_federation import Launch, stored

if TYPE_CHECKING:
    from fl_shuffle.runs.run import Run

Crashing = Callable[..., Path]
Refused = Callable[..., str]
SYSTEM = "run.entropy=system"


class Crash(Exception):
    """The process died here."""


@contextmanager
def dying_after(number: int, at: str = "reserve") -> Iterator[None]:
    """Whatever is played here dies when round `number` is over, before the next is reserved.

    `at` "commit": it is killed when that round is committed and nothing of it is released; what was
    not flushed is lost. "finish": it dies when all is played, before the run is finished.
    """
    # Not before somebody asks for it: every test's session reads this file.
    from fl_shuffle.runs.run import Run

    whole, killed = getattr(Run, at), list[tuple[Path, Path]]()

    def dying(self: Run, *given: Any, **named: Any) -> Any:
        if at == "finish" or (at == "reserve" and given[0] > number):
            raise Crash
        found = whole(self, *given, **named)
        if at == "commit" and given[0] == number:
            folder = self.ledger.path.parent
            killed.append((folder, shutil.copytree(folder, folder.with_name("killed"))))
            raise Crash
        return found

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Run, at, dying)
        yield
    for folder, left in killed:
        shutil.rmtree(folder)
        left.rename(folder)


@pytest.fixture
def crash(launch: Launch, tmp_path: Path) -> Crashing:
    """Have the small federation die after so many rounds; returns its folder, tmp_path/NAME."""

    def run(
        after: int, *settings: str, name: str = "run", at: str = "reserve",
        options: tuple[str, ...] = (),
    ) -> Path:  # fmt: skip
        with dying_after(after, at):
            launch(name, *settings, options=options)
        return tmp_path / name

    return run


def resume(folder: Path, *options: str) -> int:
    """Go on with a run; the exit code."""
    return main(["simulate", "--resume", str(folder), "--quiet", *options])


def released(run: Path) -> list[tuple[int, int, int]]:
    """(round, attempt, how many reports) of everything that its ledger says was released."""
    select = "SELECT round, attempt, count(*) FROM participation GROUP BY attempt ORDER BY attempt"
    return stored(run, select)


@contextmanager
def opened(folder: Path, clients: int, **privacy: Any) -> Iterator[Run]:
    """A run of clients that are all of one kind, open, with its ledger and its accountant; nobody
    plays it."""
    from fl_shuffle.configuration.reading import parse_config
    from fl_shuffle.federation import RunParts
    from fl_shuffle.runs.directory import RunPlace
    from fl_shuffle.runs.run import open_run

    tables = {
        "run": {"entropy": "system"},
        "data": {"clients": clients},
        "privacy": {"unit": "client", **privacy},
        "budgets": {"distribution": "constant", "epsilon": 8.0},
    }
    parts, dimension = RunParts.made_of(parse_config(tables)), 10
    facts, accountant = parts.facts(dimension, ()), parts.accountant(dimension)
    with open_run(facts, RunPlace(folder), accountant, lambda event: None) as run:
        yield run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line with which going on is refused; the ledger stays as it was."""

    def run(folder: Path, *options: str) -> str:
        capsys.readouterr()
        before = (folder / "ledger.sqlite").read_bytes()
        assert resume(folder, *options) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert (folder / "ledger.sqlite").read_bytes() == before
        return said

    return run
