"""The short form of `scripts/chaos`: some of each kind of fault, and nothing may go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos.crashes import crashes
from benchmarks.chaos.damage import damages
from benchmarks.chaos.federation import finished_ledger, warm
from benchmarks.chaos.fuzzing import fuzz
from benchmarks.chaos.hostile import replies
from benchmarks.chaos.tally import Tally, table


def sound(*tallies: Tally) -> None:
    assert not [problem for tally in tallies for problem in tally.problems]
    assert all(tally.tried == tally.survived for tally in tallies)


@pytest.fixture(autouse=True)
def loaded() -> None:
    warm()


@pytest.mark.slow
def test_crashes_lose_nothing(tmp_path: Path) -> None:
    tallies = list(crashes(tmp_path / "crashes", each=2, seconds=25.0))
    sound(*tallies)
    assert sum(tally.tried for tally in tallies) >= 2


@pytest.mark.slow
def test_damaged_directories_are_refused_or_mended(tmp_path: Path) -> None:
    sound(damages(tmp_path / "damages", ["an older ledger", "half a ledger", "no metrics"]))


@pytest.mark.slow
def test_hostile_replies_are_dropped(tmp_path: Path) -> None:
    kinds = ["truncated", "a header of 3.6 TiB", "3e38", "SystemExit", "None"]
    sound(replies(tmp_path / "replies", kinds))


def test_nonsense_is_one_line(tmp_path: Path) -> None:
    ledger = finished_ledger(tmp_path)
    fuzzed = list(fuzz(tmp_path / "fuzz", ledger, inputs=500, seconds=8.0))
    sound(*fuzzed)
    assert all(tally.tried for tally in fuzzed)


def test_what_goes_wrong_is_counted() -> None:
    tally = Tally("kills", tried=1, survived=1)
    tally.add("one", lost=2)
    tally.add("two", uncounted=1)
    tally.add("three", problem=tally.said("Traceback (most recent call last):\nKeyError: 3"))
    last = table([tally, Tally("none")]).splitlines()[-1].split()
    assert last == ["all", "4", "1", "2", "1", "1", "-"]
    apart = Tally("apart", tried=1, seen=2)
    assert table([tally, apart]).splitlines()[-1].split() == ["all", "5", "1", "2", "1", "1", "2"]
    assert [problem.split(":")[1].strip() for problem in tally.problems] == ["one", "two", "three"]
