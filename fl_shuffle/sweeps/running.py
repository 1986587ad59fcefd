"""Playing the points of a sweep, each in a process that is not this one.

As many pools as runs go on at once, and one process a pool: one that dies takes its own point with
it and no other, and libraries and data are loaded once a pool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_EXCEPTION,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, FlShuffleError, RunError, require_integer
from fl_shuffle.ledger import LEDGER
from fl_shuffle.ledger.reader import reading
from fl_shuffle.sweeps.directory import run_path, state_of
from fl_shuffle.sweeps.points import Point, Sweep

LOOK_SECONDS = 0.5
"""Pause between two looks at how far a run is."""
PATIENCE_SECONDS = 20.0
"""A run that was asked to stop and has not by then is killed; its ledger stays whole."""


@dataclass(frozen=True)
class SweepEvent:
    """What came of a point: a `round_number` that is released and written down; or, where that is
    None, its end. `kept`: it was over before this call. `error`: it ended without a result; what it
    released is in its ledger, and resuming goes on."""

    point: Point
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
    waiting: queue.SimpleQueue[Point] = queue.SimpleQueue()
    speaking = threading.Lock()

    def tell(event: SweepEvent) -> None:
        with speaking:
            if observe is not None:
                observe(event)

    for point in sweep.points:
        if state_of(run_path(directory, point)) == "finished":
            tell(SweepEvent(point, kept=True))
        else:
            waiting.put(point)
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    stopped = threading.Event()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            players = [
                pool.submit(_play_all, directory, waiting, threads, tell, stopped)
                for _ in range(min(jobs, waiting.qsize()))
            ]
            wait(players, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
    for player in players:
        player.result()


def _play_all(
    directory: Path,
    waiting: queue.SimpleQueue[Point],
    threads: int,
    tell: Callable[[SweepEvent], None],
    stopped: threading.Event,
) -> None:
    """Play one point after another until none is left, or `stopped`."""
    with contextlib.ExitStack() as pools:
        pool = None
        while not stopped.is_set():
            try:
                point = waiting.get_nowait()
            except queue.Empty:
                return
            if pool is None:
                pool = pools.enter_context(ProcessPoolExecutor(1, _Apart(), _begin))
                process = _process_of(pool)
            path = run_path(directory, point)
            played = pool.submit(_play, path, _tables(point, threads))
            with _ended(played, process):
                for number in _rounds(path, played, stopped):
                    tell(SweepEvent(point, number))
            try:
                error = played.result()
            except BrokenProcessPool:
                error, pool = "its process died: it was killed, or memory ran out", None
            if not stopped.is_set():
                tell(SweepEvent(point, error=error))


def _rounds(path: Path, played: Future[str], stopped: threading.Event) -> Iterator[int]:
    """The number of every round as it appears in the run's ledger, until it is played."""
    told = _last_round(path)
    while not stopped.is_set():
        over = played.done()  # before the look: no round is missed
        last = _last_round(path)
        yield from range(told + 1, last + 1)
        told = max(told, last)
        if over:
            return
        wait([played], LOOK_SECONDS)


def _last_round(path: Path) -> int:
    try:
        with reading(path / LEDGER) as ledger:
            found = ledger.execute("SELECT coalesce(max(round), 0) FROM rounds").fetchone()
    except RunError:
        return 0  # not there yet; who plays the run says what is wrong with it
    return int(found[0])


@contextlib.contextmanager
def _ended(played: Future[str], process: int) -> Iterator[None]:
    """What is still being played when this is left is stopped as Ctrl-C would."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            if not played.done():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
                wait([played], PATIENCE_SECONDS)


def _tables(point: Point, threads: int) -> dict[str, Any]:
    """The point's configuration; its threads, which change no result, where several runs share
    the machine."""
    config = point.config
    if threads and not config.run.jobs:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, jobs=threads))
    return config.to_dict()


# The pool's process: how it begins, and what it does there.


class _Process(SpawnProcess):
    """One that does not run the caller's script: that may start this very sweep."""

    _hidden = threading.Lock()

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:
        with _Process._hidden:
            script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = script


class _Apart(SpawnContext):
    Process = _Process


def _process_of(pool: ProcessPoolExecutor) -> int:
    """Start the pool's process; Ctrl-C does not reach it before it can end without a traceback."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(os.getpid).result()
    except (OSError, BrokenProcessPool) as error:
        raise RunError(f"a worker process cannot be started: {error}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _begin() -> None:
    os.setsid()  # what the terminal sends is for who started it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.stdout = sys.stderr  # what a user's module prints is no result
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _play(path: Path, tables: dict[str, Any]) -> str:
    """Run the point to its end; returns what went wrong, in one line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        from fl_shuffle.runs.directory import RunPlace
        from fl_shuffle.runs.resume import unfinished_config
        from fl_shuffle.simulation.launch import simulate
        from fl_shuffle.threads import one_thread

        resumed = state_of(path) == "unfinished"
        config = unfinished_config(path) if resumed else parse_config(tables)
        with one_thread():
            simulate(config, RunPlace(path, "yes" if resumed else "no"))
        over = state_of(path) == "finished"
        return "" if over else "the run ended without a result; see its run.log"
    except FlShuffleError as error:
        return " ".join(str(error).split())
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # a user's module may raise anything; the other points go on
        return f"{type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
