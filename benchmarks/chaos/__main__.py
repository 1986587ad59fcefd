"""`scripts/chaos [--minutes M]`: the whole list, two groups of faults at a time, and one table."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.chaos.groups import GROUPS, play, ready
from benchmarks.chaos.tally import Tally, table

AT_A_TIME = 2


def everything(folder: Path, *, minutes: float, each: int) -> Iterator[Tally]:
    """All faults."""
    spawn = get_context("spawn")
    state = folder / "state"
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
    folder = Path(tempfile.mkdtemp(prefix="fl-shuffle-chaos-"))
    began = time.monotonic()
    tallies = []
    try:
        for tally in everything(folder, minutes=options.minutes, each=options.each):
            tallies.append(tally)
            said = [f"{tally.name}: {tally.survived} of {tally.tried}", *tally.problems]
            print("\n".join(said), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(tallies))
    print(f"{(time.monotonic() - began) / 60.0:.1f} minutes")
    return int(any(tally.problems for tally in tallies))


if __name__ == "__main__":
    sys.exit(main())
