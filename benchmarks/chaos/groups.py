"""The groups of faults of `scripts/chaos`, each played by a process that forks others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
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
from benchmarks.chaos.tally import Tally

GROUPS = ("crashes", "kills", "fuzz", "cells", "damages", "replies", "stores", "sealed", "mistakes")
"""The longest come first."""
INPUTS = 1_000_000


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
        return [kills(place, each=each, deadline=time.monotonic() + 0.25 * seconds)]
    if name == "fuzz":
        ledger = _ledger(folder)
        return list(fuzz(place, inputs=INPUTS, seconds=0.35 * seconds, ledger=ledger))
    if name == "cells":
        return [cells(_ledger(folder), place, 0.1 * seconds)]
    short: dict[str, Callable[[Path], Tally]] = {
        "damages": damages,
        "replies": replies,
        "stores": stores,
        "sealed": sealed_reports,
        "mistakes": mistakes,
    }
    return [short[name](place)]


def _ledger(folder: Path) -> Path:
    """That of a run that finished."""
    finished = Federation(folder / "finished", "seeded")
    ended = command(finished.start(), finished.said)
    if ended.code:
        raise RuntimeError(f"the run without a fault failed: {ended.said}")
    return finished.run / "ledger.sqlite"
