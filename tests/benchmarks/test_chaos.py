"""The short form of `scripts/chaos`: some of each kind of fault, and nothing may go wrong."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chaos.apart.kills import kills
from benchmarks.chaos.apart.memory import found_in_memory
from benchmarks.chaos.apart.parties import Parties
from benchmarks.chaos.crashes import crashes
from benchmarks.chaos.damage import damages
from benchmarks.chaos.federation import finished_ledger, note, warm
from benchmarks.chaos.fuzzing import fuzz
from benchmarks.chaos.hostile import replies
from benchmarks.chaos.peers import peers_of_shuffler, peers_of_superlink
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


def short_form(folder: Path) -> Tally:
    """In a process of its own: what is forked must not hold what others know."""
    warm()
    return kills(folder / "kills", each=1, seconds=0.0)


@pytest.mark.slow
def test_nothing_is_lost_or_seen(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        tally = pool.submit(short_form, tmp_path).result(timeout=900)
    assert tally.problems == []
    assert (tally.tried, tally.survived, tally.seen) == (3, 3, 0)


def besieged(folder: Path) -> list[Tally]:
    """As above."""
    warm()
    return [peers_of_shuffler(folder / "shuffler"), peers_of_superlink(folder / "superlink")]


@pytest.mark.slow
def test_peers_that_fill_a_port_stop_no_run(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        tallies = pool.submit(besieged, tmp_path).result(timeout=1800)
    sound(*tallies)
    assert [tally.tried for tally in tallies] == [3, 3] and tallies[0].seen == 0


def test_what_lies_where_it_must_not_is_found(tmp_path: Path) -> None:
    """A piece of a report in a store, a run's file, or a process's memory."""
    found, run = Parties(tmp_path), tmp_path / "run"
    for folder in (found.store, found.passes, run):
        folder.mkdir()
    found.key.write_text(bytes(range(32)).hex())
    for number in range(3):
        (found.passes / f"site-{number}.json").write_text(f'{{"token": "{number:064x}"}}')
    piece = np.linspace(0.1, 0.8, 8, dtype="<f4").tobytes()
    note(tmp_path / "witness-reports", piece.hex())
    for kept, metrics, seen in (
        (b"a" * 33, b"b" * 33, []),
        (b"a" + piece + b"a", b"b" * 33, ["the shuffler's files"]),
        (piece, f"{1:064x}".encode(), ["the shuffler's files", "the run's files"]),
    ):
        (found.store / "kept").write_bytes(kept)
        (run / "metrics").write_bytes(metrics)
        assert found.seen_in_files(run) == seen
    held = bytes(reversed(piece))
    assert found_in_memory(os.getpid(), [held]) == {held}
