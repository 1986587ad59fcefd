"""Runs that are killed, interrupted or run out of space, and then gone on with."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.chaos.children import Fault, begin, command, end
from benchmarks.chaos.federation import Federation
from benchmarks.chaos.tally import Tally
from fl_shuffle.cli import main
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.report.record import read_run

EVENTS = 130
"""About as many dealings with files and statements as a run of this length has."""


def crashes(folder: Path, *, each: int, seconds: float) -> Iterator[Tally]:
    """Each kind of crash `each` times, in seeded and in system runs, or until the time is up."""
    deadline = time.monotonic() + seconds
    draw = random.Random(1)
    straight = Federation(folder / "straight", "seeded")
    began = time.monotonic()
    done = command(straight.start(), straight.said)
    length = time.monotonic() - began
    if done.code:
        raise RuntimeError(f"the run without a fault failed: {done.said}")
    model = straight.model()
    tallies = {name: Tally(name) for name in ("kills at a file", "kills at any time",
               "Ctrl-C at any time", "files that cannot grow")}  # fmt: skip
    for number in range(each):
        for kind, tally in tallies.items():
            entropy = ("seeded", "system")[number % 2]
            if time.monotonic() > deadline:
                break
            place = Federation(folder / f"{kind.replace(' ', '-')}-{number}", entropy)
            _strike(place, _fault(kind, place, draw, length), tally, model)
            shutil.rmtree(place.folder)
    yield from tallies.values()
    yield _at_once(folder, 1 + each // 4)


def _fault(kind: str, place: Federation, draw: random.Random, length: float) -> Fault:
    if kind == "kills at a file":
        return Fault(folder=place.run, event=draw.randint(1, EVENTS))
    if kind == "files that cannot grow":
        return Fault(largest=draw.choice([0, 100, 1000, 4096, 8192, 20_000, 50_000, 90_000]))
    struck = signal.SIGINT if kind.startswith("Ctrl") else signal.SIGKILL
    return Fault(seconds=draw.uniform(0.0, length), signal=struck)


def _strike(place: Federation, fault: Fault, tally: Tally, model: bytes) -> None:
    """Twice, so that going on is struck, too; then to the end."""
    place.testify()
    first = command(place.start(), place.said, fault)
    problem = tally.said(first.said)
    if fault.signal == signal.SIGINT and first.code not in (0, 130):
        problem = problem or f"exit code {first.code} after Ctrl-C: {first.said[-200:]!r}"
    if fault.largest is not None and first.code not in (0, 2):
        problem = problem or f"exit code {first.code} without space: {first.said[-200:]!r}"
    if not place.finished():
        second = command(place.go_on(), place.said, fault)
        problem = problem or tally.said(second.said)
    if not place.finished():
        last = command(place.go_on(), place.said)
        problem = problem or tally.said(last.said)
        if last.code:
            problem = problem or f"could not go on: {last.said[-300:]!r}"
    if not place.finished():
        tally.add(str(fault), lost=1, problem=problem or "the run did not finish")
        return
    if not (place.run / "summary.json").exists():
        command(place.resume(), place.said)
    if place.entropy == "seeded" and place.model() != model:
        problem = problem or "another model than without the fault"
    _ = read_run(place.run).totals
    tally.add(str(fault), lost=place.lost(), uncounted=place.uncounted(), problem=problem)


def crashed(place: Federation, rounds: int) -> None:
    """Start the run, or go on with it, and have it killed after it released more than `rounds`."""
    for event in range(20, EVENTS, 5):
        command(place.go_on(), place.said, Fault(folder=place.run, event=event))
        path = place.run / "ledger.sqlite"
        if path.exists() and len(LedgerRecord(path).attempts) > rounds:
            return


def _at_once(folder: Path, pairs: int) -> Tally:
    """Two processes start, or go on with, the same run at the same time: one does, one is told."""
    tally = Tally("two processes, one run directory")
    for number in range(pairs):
        place = Federation(folder / f"pair-{number}", "system")
        if number % 2:
            crashed(place, 0)
        arguments = place.go_on()
        others = [place.folder / "first", place.folder / "second"]
        both = [begin(partial(main, arguments), said) for said in others]
        ended = [end(process, said) for process, said in zip(both, others, strict=True)]
        problem = "".join(tally.said(one.said) for one in ended)
        if sorted(one.code for one in ended) != [0, 2]:
            problem = problem or f"exit codes {[one.code for one in ended]}"
        lost = place.lost() if place.finished() else 1
        tally.add(arguments[1], lost=lost, uncounted=place.uncounted(), problem=problem)
        shutil.rmtree(place.folder)
    return tally
