"""Shuffler, server and nodes killed at any time."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.apart.parties import NODES, RELEASES, Party, parties
from benchmarks.chaos.tally import Tally

VICTIMS = ("shuffler", "server", "node")
STRIKES = 2
"""In each run, so that resumed processes are struck as well."""


def kills(folder: Path, victims: Sequence[str] = VICTIMS, *, each: int, seconds: float) -> Tally:
    """Each of the victims `each` times, at a random moment, in runs of both kinds, or, once each
    had its turn in both, until the time is up. It is begun again and the run goes on; before the
    last strike memory and files are looked through."""
    tally = Tally("apart: kills of any party", seen=0)
    draw = random.Random(4)
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    with parties(folder) as found:
        found.start_server(folder / "run", "reports")
        if problem := found.came_of(folder / "run", tally)[2]:
            raise RuntimeError(f"the run without a fault failed: {problem}")
    shutil.rmtree(folder)
    length = time.monotonic() - began
    for number in range(each):
        for victim in victims:
            if number >= len(RELEASES) and time.monotonic() > deadline:
                return tally
            moments = [draw.uniform(0.0, length) for _ in range(STRIKES)]
            _strike(folder, victim, RELEASES[number % 2], moments, draw.randrange(NODES), tally)
            shutil.rmtree(folder)
    return tally


def _strike(
    folder: Path, victim: str, release: str, moments: Sequence[float], node: int, tally: Tally
) -> None:
    run = folder / "run"
    with parties(folder) as found:
        found.start_server(run, release)
        party: Party = found.nodes[node] if victim == "node" else getattr(found, victim)
        seen: list[str] = []
        for strike, moment in enumerate(moments, 1):
            until = time.monotonic() + moment
            while time.monotonic() < until and not found.server.ended():
                time.sleep(0.005)
            if strike == len(moments):
                seen = found.seen_in_memory(release)
            if not party.ended():
                party.kill()
                party.start()
        lost, uncounted, problem = found.came_of(run, tally, seen)
    what = f"{victim} ({release}) after {' and '.join(f'{t:.3f}' for t in moments)} s"
    tally.add(what, lost=lost, uncounted=uncounted, problem=problem)
