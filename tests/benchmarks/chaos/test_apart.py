"""The short form of what `scripts/chaos` does to a shuffler apart."""

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
from benchmarks.chaos.federation import note, warm
from benchmarks.chaos.tally import Tally


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
