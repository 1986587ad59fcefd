"""`scripts/chaos [--minutes M]`: the whole list, and one table."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.apart.hostile import sealed_reports
from benchmarks.chaos.apart.kills import kills, stores
from benchmarks.chaos.children import command
from benchmarks.chaos.crashes import crashes
from benchmarks.chaos.damage import cells, damages
from benchmarks.chaos.federation import Federation, warm
from benchmarks.chaos.fuzzing import fuzz
from benchmarks.chaos.hostile import replies
from benchmarks.chaos.inputs import mistakes
from benchmarks.chaos.tally import Tally, table


def everything(folder: Path, *, minutes: float, each: int) -> Iterator[Tally]:
    """All faults. `each` bounds how many crashes of a kind."""
    os.environ["FL_SHUFFLE_STATE"] = str(folder / "state")
    warm()
    yield from crashes(folder / "crashes", each=each, seconds=18.0 * minutes)
    yield damages(folder / "damages")
    yield replies(folder / "replies")
    yield kills(folder / "kills", each=each, deadline=time.monotonic() + 8.0 * minutes)
    yield stores(folder / "stores")
    yield sealed_reports(folder / "sealed", deadline=time.monotonic() + 10.0 * minutes)
    finished = Federation(folder / "finished", "seeded")
    command(finished.start(), finished.said)
    yield cells(finished.run / "ledger.sqlite", folder / "cells", 6.0 * minutes)
    yield mistakes(folder / "mistakes")
    ledger = finished.run / "ledger.sqlite"
    yield from fuzz(folder / "fuzz", inputs=1_000_000, seconds=8.0 * minutes, ledger=ledger)


def main() -> int:
    """Print the table and what went wrong; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="about so long (10)")
    parser.add_argument("--each", type=int, default=40, help="crashes of each kind (40)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fl-shuffle-chaos-"))
    tallies = []
    try:
        for tally in everything(folder, minutes=options.minutes, each=options.each):
            tallies.append(tally)
            print(f"{tally.name}: {tally.survived} of {tally.tried}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    problems = [problem for tally in tallies for problem in tally.problems]
    print(table(tallies))
    for problem in problems[:50]:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
