"""Handing the points of a sweep to worker processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_shuffle.errors import ConfigError, RunError, require_integer
from fl_shuffle.sweeps.directory import SweepDirectory, state_of
from fl_shuffle.sweeps.points import Point


@dataclass(frozen=True)
class PointRound:
    """A round of a run is released and written down."""

    point: Point
    round_number: int


@dataclass(frozen=True)
class PointFinished:
    """A run is over; `kept`: it was over before this call."""

    point: Point
    kept: bool


@dataclass(frozen=True)
class PointFailed:
    """A run ended without a result; what it released is in its ledger, and resuming goes on."""

    point: Point
    error: str


SweepEvent = PointRound | PointFinished | PointFailed


def run_sweep(
    directory: SweepDirectory, *, jobs: int = 1, observe: Callable[[SweepEvent], None] | None = None
) -> list[PointFailed]:
    """Run every point that has no result yet, `jobs` at once; returns those that failed.

    `observe` is called with every event, one at a time, from this call's threads; what it raises
    stops the sweep. Raises `InvalidValueError` for `jobs`. Interrupted (Ctrl-C), the workers are
    stopped first.
    """
    require_integer("jobs", jobs, minimum=1, maximum=1024)
    if (os.cpu_count() or 1) < jobs:
        raise ConfigError(f"jobs = {jobs}: this machine has {os.cpu_count()} processors; use fewer")
    waiting: queue.SimpleQueue[Point] = queue.SimpleQueue()
    speaking = threading.Lock()
    failed: list[PointFailed] = []

    def tell(event: SweepEvent) -> None:
        with speaking:
            if isinstance(event, PointFailed):
                failed.append(event)
            if observe is not None:
                observe(event)

    for point in directory.sweep.points:
        if state_of(directory.run_path(point)) == "finished":
            tell(PointFinished(point, kept=True))
        else:
            waiting.put(point)
    teams = [_Team(directory, waiting, tell, jobs) for _ in range(min(jobs, waiting.qsize()))]
    try:
        for team in teams:
            team.start()
        for team in teams:
            while team.is_alive():
                # A join without a limit would not let Ctrl-C through.
                team.join(0.2)
    finally:
        for team in teams:
            team.stop()
    for team in teams:
        if team.broken is not None:
            raise team.broken
    return failed


class _Team(threading.Thread):
    """One worker process and the thread that feeds it."""

    def __init__(
        self,
        directory: SweepDirectory,
        waiting: queue.SimpleQueue[Point],
        tell: Callable[[SweepEvent], None],
        jobs: int,
    ) -> None:
        super().__init__(daemon=True)
        self.broken: BaseException | None = None
        self._directory = directory
        self._waiting = waiting
        self._tell = tell
        self._threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self) -> None:
        try:
            while not self._stopped:
                try:
                    point = self._waiting.get_nowait()
                except queue.Empty:
                    break
                self._play(point)
        except BaseException as error:  # the caller's own, from `observe`: raised there
            self.broken = error
        finally:
            self.stop()

    def stop(self) -> None:
        """End the worker, as Ctrl-C would."""
        self._stopped = True
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _play(self, point: Point) -> None:
        process = self._process = self._process or _worker()
        assert process.stdin is not None and process.stdout is not None
        task = {
            "run": str(self._directory.run_path(point)),
            "config": _tables(point, self._threads),
        }
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer["event"] == "round":
                    self._tell(PointRound(point, int(answer["round"])))
                    continue
                if answer["event"] == "finished":
                    self._tell(PointFinished(point, kept=False))
                else:
                    self._tell(PointFailed(point, str(answer["error"])))
                return
        except BrokenPipeError:
            pass
        if self._stopped:
            return
        code = process.wait()
        self._process = None
        self._tell(PointFailed(point, f"its process ended with {_meaning(code)}"))


def _worker() -> subprocess.Popen[str]:
    # -P: modules of the working directory must not stand before installed ones.
    command = [sys.executable, "-P", "-m", "fl_shuffle.sweeps.worker"]
    # The worker inherits it and lets signals through once it can end without a traceback.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"a worker process cannot be started: {error}") from None


def _tables(point: Point, threads: int) -> dict[str, Any]:
    """The point's configuration; its threads, which change no result, where several runs share
    the machine."""
    config = point.config
    if threads and not config.run.jobs:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, jobs=threads))
    return config.to_dict()


def _meaning(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
