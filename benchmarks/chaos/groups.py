"""`scripts/chaos [--minutes M]`: the whole list, two groups of faults at a time, and one table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.chaos.apart.kills import kills
from benchmarks.chaos.crashes import crashes
from benchmarks.chaos.damage import damages
from benchmarks.chaos.federation import finished_ledger, warm
from benchmarks.chaos.fuzzing import fuzz
from benchmarks.chaos.hostile import replies
from benchmarks.chaos.peers import peers_of_shuffler, peers_of_superlink
from benchmarks.chaos.tally import Tally, table

GROUPS = ("crashes", "kills", "superlink", "fuzz", "damages", "replies", "shuffler")
"""The longest come first."""
AT_A_TIME = 2


def ready(state: Path) -> None:
    """Make this process one that plays groups of faults."""
    os.environ["FL_SHUFFLE_STATE"] = str(state)
    warm()


def play(name: str, folder: Path, minutes: float, each: int) -> list[Tally]:
    """One of the groups, in a process of its own. Those that try as much as time allows have about
    `minutes` together; `each` bounds how many crashes and kills of a kind."""
    folder.mkdir()
    place, seconds = folder / "place", 60.0 * minutes
    if name == "crashes":
        return list(crashes(place, each=each, seconds=0.35 * seconds))
    if name == "kills":
        return [kills(place, each=each, seconds=0.25 * seconds)]
    if name == "fuzz":
        return list(fuzz(place, finished_ledger(folder), seconds=0.45 * seconds))
    others = {
        "damages": damages,
        "replies": replies,
        "superlink": peers_of_superlink,
        "shuffler": peers_of_shuffler,
    }
    return [others[name](place)]


def everything(folder: Path, *, minutes: float, each: int) -> Iterator[Tally]:
    """All faults."""
    spawn, state = get_context("spawn"), folder / "state"
    with ProcessPoolExecutor(AT_A_TIME, spawn, initializer=ready, initargs=(state,)) as pool:
        found = [pool.submit(play, name, folder / name, minutes, each) for name in GROUPS]
        for tallies in found:
            yield from tallies.result()


def main() -> int:
    """Print what went wrong as it comes, and the table; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="about so long (10)")
    parser.add_argument("--each", type=int, default=40, help="crashes of each kind (40)")
    options = parser.parse_args()
    began = time.monotonic()
    tallies = []
    with tempfile.TemporaryDirectory(
        prefix="fl-shuffle-chaos-", ignore_cleanup_errors=True
    ) as name:
        for tally in everything(Path(name), minutes=options.minutes, each=options.each):
            tallies.append(tally)
            said = [f"{tally.name}: {tally.survived} of {tally.tried}", *tally.problems]
            print("\n".join(said), file=sys.stderr, flush=True)
    print(table(tallies))
    print(f"{(time.monotonic() - began) / 60.0:.1f} minutes")
    return int(any(tally.problems for tally in tallies))
