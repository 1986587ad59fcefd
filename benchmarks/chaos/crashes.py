"""Runs that are killed, interrupted or run out of space, and then continued."""

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
SIZES = [0, 100, 1000, 4096, 8192, 20_000, 50_000, 90_000]
AT_A_FILE, AT_ANY_TIME = "kills at a file", "kills at any time"
INTERRUPTS, FULL = "Ctrl-C at any time", "files that cannot grow"


def crashes(folder: Path, *, each: int, seconds: float) -> Iterator[Tally]:
    """Each kind of crash `each` times, in seeded and in system runs, or until the time is up."""
    deadline = time.monotonic() + seconds
    draw = random.Random(1)
    straight = Federation(folder / "straight", "seeded")
    length = straight.play()
    model = straight.model()
    tallies = {name: Tally(name) for name in (AT_A_FILE, AT_ANY_TIME, INTERRUPTS, FULL)}
    for number in range(each):
        for kind, tally in tallies.items():
            if time.monotonic() > deadline:
                break
            place = Federation(folder / "crashed", ("seeded", "system")[number % 2])
            fault = {
                AT_A_FILE: Fault(folder=place.run, event=draw.randint(1, EVENTS)),
                AT_ANY_TIME: Fault(seconds=draw.uniform(0.0, length)),
                INTERRUPTS: Fault(seconds=draw.uniform(0.0, length), signal=signal.SIGINT),
                FULL: Fault(largest=draw.choice(SIZES)),
            }[kind]
            _strike(place, fault, tally, model)
            shutil.rmtree(place.folder)
    yield from tallies.values()
    yield _at_once(folder, 1 + each // 4)


def _strike(place: Federation, fault: Fault, tally: Tally, model: bytes) -> None:
    """Twice, so that going on is struck, too; then to the end."""
    place.testify()
    struck = (0, 130) if fault.signal == signal.SIGINT else (0, -fault.signal)
    codes = struck if fault.largest is None else (0, 2)
    problem = tally.wrong(command(place.start(), place.said, fault), *codes)
    if not place.finished():
        second = command(place.go_on(), place.said, fault)
        problem = problem or tally.said(second.said)
    if not place.finished():
        problem = problem or tally.wrong(command(place.go_on(), place.said), 0)
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
    """Start the run, or continue it, and have it killed after it released more than `rounds`."""
    for event in range(20, EVENTS, 5):
        command(place.go_on(), place.said, Fault(folder=place.run, event=event))
        path = place.run / "ledger.sqlite"
        if path.exists() and len(LedgerRecord(path).attempts) > rounds:
            return


def _at_once(folder: Path, pairs: int) -> Tally:
    """Two processes start, or continue, the same run at the same time: one does, one is told."""
    tally = Tally("two processes, one run directory")
    for number in range(pairs):
        place = Federation(folder / "pair", "system")
        if number % 2:
            crashed(place, 0)
        arguments = place.go_on()
        others = [place.folder / "first", place.folder / "second"]
        both = [begin(partial(main, arguments), said) for said in others]
        ended = [end(process, said) for process, said in zip(both, others, strict=True)]
        problem = "".join(tally.said(one.said) for one in ended)
        if sorted(one.code for one in ended) != [0, 2]:
            problem = problem or f"exit codes {[one.code for one in ended]}"
        tally.add(arguments[1], lost=place.lost(), uncounted=place.uncounted(), problem=problem)
        shutil.rmtree(place.folder)
    return tally
