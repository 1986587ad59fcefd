"""Shuffler, server and nodes killed at any time; stores that are doubled, old, damaged or gone."""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.chaos.apart.parties import (
    NODES,
    RELEASES,
    ROUNDS,
    Parties,
    begun,
    has_ended,
    lost,
    parties,
)
from benchmarks.chaos.children import Fault, command
from benchmarks.chaos.tally import Tally

VICTIMS = ("shuffler", "server", "node")
STRIKES = 2
"""In each run, so that what goes on is struck as well."""
STORE = "shuffler.sqlite"
FINISHED = "that run is finished"
SERVES = 20.0
"""Seconds after which a shuffler that should have refused to serve is ended."""


def kills(
    folder: Path,
    victims: Sequence[str] = VICTIMS,
    *,
    each: int,
    deadline: float = math.inf,
) -> Tally:
    """Each of the victims `each` times, at a random moment, in runs of both kinds, or, once each
    had its turn in both, until the time is up. It is begun again and the run goes on; before the
    last strike memory and files are looked through."""
    tally = Tally("apart: kills of any party", seen=0)
    draw = random.Random(4)
    began = time.monotonic()
    _straight(folder / "straight")
    length = time.monotonic() - began
    for number in range(each):
        for victim in victims:
            release = RELEASES[number % 2]
            if number >= len(RELEASES) and time.monotonic() > deadline:
                return tally
            with parties(folder / f"{victim}-{number}") as found:
                _strike(found, victim, release, draw, length, tally)
            shutil.rmtree(found.folder)
    return tally


def _straight(folder: Path) -> None:
    with parties(folder) as found:
        found.start_server(folder / "run", "reports", resume=False)
        ended = found.wait_for_server()
    if ended.code or lost(folder / "run"):
        raise RuntimeError(f"the run without a fault failed: {ended.said}")


def _strike(
    found: Parties, victim: str, release: str, draw: random.Random, length: float, tally: Tally
) -> None:
    run = found.folder / "run"
    found.start_server(run, release, resume=False)
    seen: list[str] = []
    moments = []
    for strike in range(STRIKES):
        moments.append(draw.uniform(0.0, length))
        until = time.monotonic() + moments[-1]
        while time.monotonic() < until and not has_ended(found.processes["server"]):
            time.sleep(0.005)
        if strike == STRIKES - 1:
            seen = found.seen_in_memory(release)
        _begin_again(found, victim, draw.randrange(NODES), run, release)
    what = f"{victim} ({release}) after {' and '.join(f'{t:.3f}' for t in moments)} s"
    finished(found, run, tally, what, seen=seen)


def _begin_again(found: Parties, victim: str, node: int, run: Path, release: str) -> None:
    if victim == "node":
        found.kill(f"node-{node}")
        found.start_node(node)
    elif victim == "shuffler":
        found.kill("shuffler")
        found.start_shuffler()
    elif not has_ended(found.processes["server"]):
        found.kill("server")
        found.start_server(run, release, resume=begun(run))


def finished(
    found: Parties,
    run: Path,
    tally: Tally,
    what: str,
    *,
    problem: str = "",
    seen: Sequence[str] = (),
) -> None:
    """Wait for the run's end, and count what became of it."""
    lost, uncounted, wrong = came_of(found, run, tally, seen=seen)
    tally.add(what, lost=lost, uncounted=uncounted, problem=problem or wrong)


def came_of(
    found: Parties, run: Path, tally: Tally, *, rounds: int = ROUNDS, seen: Sequence[str] = ()
) -> tuple[int, int, str]:
    """Wait for the run's end: rounds lost, releases uncounted, what else went wrong."""
    ended = found.wait_for_server()
    problem = tally.said(found.texts())
    # Killed after its last word to the ledger: there is nothing to go on with, which is right.
    if ended.code and not (lost(run, rounds) == 0 and FINISHED in ended.said):
        problem = problem or f"exit code {ended.code}: {ended.said[-300:]!r}"
    left = [*seen, *found.seen_in_files(run)]
    tally.seen = (tally.seen or 0) + len(left)
    if left:
        problem = problem or f"seen: {', '.join(sorted(set(left)))}"
    return lost(run, rounds), found.uncounted(run), problem


Trouble = Callable[[Parties, Path, str], str]
"""Something done to a run's store or directory; says what went wrong."""


def stores(
    folder: Path, names: Sequence[str] | None = None, releases: Sequence[str] = RELEASES
) -> Tally:
    """Each of `TROUBLES`, in runs of both kinds: it is refused in one line, and with the right
    files the run goes on."""
    tally = Tally("apart: doubled and older stores", seen=0)
    for name in names or list(TROUBLES):
        for release in releases:
            with parties(folder / f"{name.replace(' ', '-')}-{release}") as found:
                run = found.folder / "run"
                problem = TROUBLES[name](found, run, release)
                finished(found, run, tally, f"{name} ({release})", problem=problem)
            shutil.rmtree(found.folder)
    return tally


def _doubled(found: Parties, run: Path, release: str) -> str:
    found.start_server(run, release, resume=False)
    return _refused_to_serve(found, "in use")


def _refused_to_serve(found: Parties, word: str) -> str:
    said = found.folder / "said-second"
    ended = command(["shuffler", "serve", str(found.store)], said, Fault(seconds=SERVES))
    lines = ended.said.strip().splitlines()
    if ended.code not in (1, 2) or len(lines) != 1 or word not in lines[0]:
        return f"a shuffler served, or said no one line: {ended.code} {ended.said[-300:]!r}"
    return ""


def _stopped(found: Parties, run: Path, release: str, dies: str) -> None:
    """The server dies in round 2, and the shuffler with it."""
    found.start_server(run, release, resume=begun(run), dies=dies)
    ended = found.wait_for_server()
    if ended.code != -9:
        raise RuntimeError(f"the server did not die: {ended.code} {ended.said[-500:]!r}")
    found.kill("shuffler")


def _with_files(
    found: Parties, run: Path, release: str, put: Callable[[], object], word: str
) -> str:
    """Go on with a store that `put` has changed: refused in a line with `word`, and nobody is
    asked for anything; then the right one is put back, and the run goes on."""
    right = found.folder / "right"
    shutil.copytree(found.store, right)
    put()
    before = found.witnessed("reports")
    found.start_shuffler()
    found.start_server(run, release, resume=True)
    ended = found.wait_for_server()
    sent = found.witnessed("reports") != before
    found.kill("shuffler")
    shutil.rmtree(found.store)
    right.rename(found.store)
    found.start_shuffler()
    found.start_server(run, release, resume=True)
    line = ended.said.strip().splitlines()[-1:]
    if ended.code not in (1, 2) or word not in "".join(line):
        return f"not refused: {ended.code} {ended.said[-300:]!r}"
    return "reports were sent" if sent else ""


def _older(found: Parties, run: Path, release: str) -> str:
    _stopped(found, run, release, "open")
    older = found.folder / "older"
    shutil.copytree(found.store, older)
    found.start_shuffler()
    _stopped(found, run, release, "counted")

    def put() -> None:
        shutil.rmtree(found.store)
        older.rename(found.store)

    return _with_files(found, run, release, put, "older than the run")


def _gone(found: Parties, run: Path, release: str) -> str:
    _stopped(found, run, release, "counted")
    return _with_files(found, run, release, (found.store / STORE).unlink, "older than the run")


def _half(found: Parties, run: Path, release: str) -> str:
    """Half a store is none: the shuffler does not serve, and with the whole one the run goes on."""
    _stopped(found, run, release, "open")
    path = found.store / STORE
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    problem = _refused_to_serve(found, "cannot be used")
    path.write_bytes(whole)
    found.start_shuffler()
    found.start_server(run, release, resume=True)
    return problem


TROUBLES: dict[str, Trouble] = {
    "two shufflers": _doubled,
    "an older store": _older,
    "no store": _gone,
    "half a store": _half,
}
