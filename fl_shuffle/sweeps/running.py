"""Playing the points of a sweep, as many at once as asked for, each in a process of `worker`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import IO, Any, cast

from fl_shuffle.errors import ConfigError, RunError, require_integer
from fl_shuffle.sweeps.directory import run_path, state_of
from fl_shuffle.sweeps.points import Sweep, SweepPoint

WORKER = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from fl_shuffle.sweeps import worker
worker.main()
"""
"""It finds modules where this process does, and does not run the caller's script: that may start
this very sweep."""
DIED = "its process died: it was killed, or memory ran out"


@dataclass(frozen=True)
class SweepEvent:
    """What came of a point: a `round_number` that is released and written down; or, where that is
    None, its end. `kept`: it was over before this call. `error`: it ended without a result; what it
    released is in its ledger, and resuming continues."""

    point: SweepPoint
    round_number: int | None = None
    kept: bool = False
    error: str = ""


def run_sweep(
    directory: Path, sweep: Sweep, *, jobs: int, observe: Callable[[SweepEvent], None] | None
) -> None:
    """Run every point of the sweep in `directory` that has no result yet, `jobs` at once.

    `observe` is called with every event, one at a time, from this call's threads; what it raises
    stops the sweep. Raises `InvalidValueError` for `jobs`. Interrupted (Ctrl-C), the workers are
    stopped first.
    """
    require_integer("jobs", jobs, minimum=1, maximum=1024)
    if (os.cpu_count() or 1) < jobs:
        raise ConfigError(f"jobs = {jobs}: this machine has {os.cpu_count()} processors; use fewer")
    speaking, stopped = threading.Lock(), threading.Event()
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    waiting = list[SweepPoint]()

    def tell(event: SweepEvent) -> None:
        with speaking:
            if observe is not None:
                observe(event)

    for point in sweep.points:
        if state_of(run_path(directory, point)) == "finished":
            tell(SweepEvent(point, kept=True))
        else:
            waiting.append(point)
    points, workers = iter(waiting), list[Popen[str]]()

    def play_all() -> None:
        """Play one point after another, until none is left."""
        worker = None
        for point in points:
            with speaking:
                if stopped.is_set():
                    return
                if worker is None or worker.poll() is not None:
                    worker = ends.enter_context(_started())
                    workers.append(worker)
            tables, error = point.config.to_dict(), DIED
            # Threads change no result: several runs share the machine.
            tables["run"]["jobs"] = tables["run"]["jobs"] or threads
            for found in _played(worker, run_path(directory, point), tables):
                if "round" in found:
                    tell(SweepEvent(point, found["round"]))
                error = found.get("error", error)
            if not stopped.is_set():
                tell(SweepEvent(point, error=error))

    with contextlib.ExitStack() as ends, ThreadPoolExecutor(jobs) as pool:
        try:
            players = [pool.submit(play_all) for _ in range(min(jobs, len(waiting)))]
            wait(players, return_when=FIRST_EXCEPTION)
        finally:
            with speaking:
                stopped.set()
            for worker in workers:
                with contextlib.suppress(OSError):
                    cast(IO[str], worker.stdin).close()
    for player in players:
        player.result()


def _started() -> Popen[str]:
    try:
        return Popen(
            [sys.executable, "-c", WORKER, json.dumps(sys.path)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # what the terminal sends is for who started it
        )  # fmt: skip
    except OSError as error:
        raise RunError(f"a worker process cannot be started: {error}") from None


def _played(worker: Popen[str], path: Path, tables: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the worker tells of this run: its rounds and its end, unless it dies before."""
    with contextlib.suppress(OSError, ValueError):
        print(json.dumps({"path": str(path), "tables": tables}), file=worker.stdin, flush=True)
    for line in cast(IO[str], worker.stdout):
        if not line.endswith("\n"):  # it died while it said this
            break
        found = json.loads(line)
        yield found
        if "error" in found:
            return
    worker.wait()
