"""Runs that die, and how they go on: for every test about what is left of a run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main
from tests.small_federation import Launch

Crashing = Callable[..., Path]
Refused = Callable[..., str]


class Crash(Exception):
    """The process died here."""


@contextmanager
def dying_after(number: int) -> Iterator[None]:
    """Whatever is played here dies when round `number` is over, before the next is reserved."""
    # Not before somebody asks for it: every test's session reads this file.
    from fl_shuffle.ledger.writer import LedgerWriter

    whole = LedgerWriter.reserve

    def dying(self: LedgerWriter, round_number: int, participants: np.ndarray) -> np.ndarray | None:
        if round_number > number:
            raise Crash
        return whole(self, round_number, participants)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(LedgerWriter, "reserve", dying)
        yield


@pytest.fixture
def crash(launch: Launch, tmp_path: Path) -> Crashing:
    """Have the small federation die after so many rounds; returns its folder, tmp_path/NAME."""

    def run(after: int, *settings: str, name: str = "run", options: tuple[str, ...] = ()) -> Path:
        with dying_after(after):
            launch(name, *settings, options=options)
        return tmp_path / name

    return run


def resume(folder: Path, *options: str) -> int:
    """Go on with a run; the exit code."""
    return main(["simulate", "--resume", str(folder), "--quiet", *options])


def released(ledger: Path) -> list[tuple[int, int, int]]:
    """(round, attempt, how many reports) of everything that this file says was released."""
    select = "SELECT round, attempt, count(*) FROM attendance GROUP BY attempt ORDER BY attempt"
    with closing(sqlite3.connect(ledger)) as database:
        return database.execute(select).fetchall()


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
