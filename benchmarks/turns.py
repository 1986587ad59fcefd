"""Running engines as child processes, in turns: arrival of their rounds, and CPU time."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.05
# What a child wrote before it was stopped is read within this time.
SETTLE_SECONDS = 0.02
# A round that took this multiple of its engine's median was stalled by another process.
STALLED = 3.0
ROOT = Path(__file__).resolve().parents[1]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Tenth percentile, median and ninetieth percentile; NaN of nothing."""
    ordered = sorted(values) or [math.nan]
    low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9))
    return low, middle, high


@dataclass
class Measurement:
    """What was seen of one child."""

    start_up: float = math.nan
    """When its first round ended."""
    rounds: int = 0
    turns: list[list[float]] = field(default_factory=list)
    stalled: int = 0
    cpu_per_round: float = math.nan
    finish: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def seconds(self) -> list[float]:
        """Times of single rounds, those of all turns."""
        return list(itertools.chain.from_iterable(self.turns))

    def drop_stalled(self) -> None:
        """Leave out rounds that took much longer than the median; `stalled` counts them."""
        if not self.seconds:
            return
        limit = STALLED * statistics.median(self.seconds)
        kept = [[value for value in turn if value <= limit] for turn in self.turns]
        self.stalled += sum(map(len, self.turns)) - sum(map(len, kept))
        self.turns = kept

    def over(self, other: Measurement) -> tuple[float, float, float]:
        """`spread` of ratios: of the means of each turn to the other's next to it, of all rounds
        where there are no turns side by side."""
        pairs = [
            (left, right)
            for left, right in zip(self.turns, other.turns, strict=False)
            if left and right
        ] or [(self.seconds, other.seconds)]
        return spread(
            statistics.fmean(left) / statistics.fmean(right)
            for left, right in pairs
            if left and right
        )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its reaped children; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return sum(int(value) for value in fields[11:15]) / TICKS


class Child:
    """A running child, with this repository's code and one thread a library; its rounds are told by
    JSON lines on its standard output."""

    def __init__(self, command: Sequence[str], cwd: Path) -> None:
        self.result = Measurement()
        self.arrivals: list[float] = []
        self.started = time.monotonic()
        # Rounds, by position, that span a stop.
        self.stops: list[int] = []
        self.ended = False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": paths},
            cwd=cwd,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.runs:
            self._process.send_signal(number)

    def late(self, limit: float) -> bool:
        """Return whether it runs longer than this number of seconds; it is ended then."""
        if time.monotonic() - self.started <= limit:
            return False
        self.result.failed = f"stopped after {limit:.0f} s"
        self.signal(signal.SIGKILL)
        return True

    def start_up(self) -> None:
        """Wait for its first round, then stop it."""
        while self.runs and not self.arrivals:
            time.sleep(0.01)
        self.signal(signal.SIGSTOP)

    def turn(self, seconds: float) -> tuple[int, float]:
        """Let it go on for so long, then stop it; its rounds and CPU seconds in that time."""
        time.sleep(SETTLE_SECONDS)
        count, used = len(self.arrivals), cpu_seconds(self._process.pid)
        self.stops.append(count)
        self.signal(signal.SIGCONT)
        begun = time.monotonic()
        while self.runs and time.monotonic() - begun < seconds:
            time.sleep(min(SAMPLE_SECONDS, seconds))
        self.signal(signal.SIGSTOP)
        if not self.runs:
            return 0, 0.0
        return len(self.arrivals) - count, cpu_seconds(self._process.pid) - used

    def round_seconds(self) -> list[list[float]]:
        """Times of rounds, turn by turn; those that span a stop are left out."""
        edges = [0, *self.stops, len(self.arrivals)]
        return [
            [b - a for a, b in itertools.pairwise(self.arrivals[first:last])]
            for first, last in itertools.pairwise(edges)
        ]

    def finish(self) -> Measurement:
        """Wait for its end; what is known of start-up and failure goes into the result."""
        code = self._process.wait()
        self._reader.join()
        result = self.result
        result.rounds = len(self.arrivals)
        with self._errors as errors:
            errors.seek(0)
            if code and not result.failed and not self.ended:
                result.failed = f"exit code {code}: {errors.read().strip()[-300:]}"
        if self.arrivals:
            result.start_up = self.arrivals[0] - self.started
            result.turns = self.round_seconds()
            result.drop_stalled()
        return result

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line) if line.startswith("{") else {"event": ""}
            if event["event"] == "round":
                self.arrivals.append(time.monotonic())
            elif event["event"] in ("finish", "tuned"):
                self.result.finish = event


def run_child(command: Sequence[str], cwd: Path, limit: float) -> Measurement:
    """Run to the end (or for `limit` seconds) and measure."""
    child = Child(command, cwd)
    while child.runs and not child.late(limit):
        time.sleep(SAMPLE_SECONDS)
    return child.finish()


def run_in_turns(
    commands: Sequence[Sequence[str]], cwd: Path, limit: float, *, turn: float, seconds: float
) -> list[Measurement]:
    """Run children of one process each, side by side but never two at a time, for `seconds` of
    turns together, or to their ends (0).

    One runs for `turn` seconds while the others are stopped. Every one gets a turn, whatever the
    time. Rounds that span a stop do not count.
    """
    children: list[Child] = []
    try:
        for command in commands:
            children.append(Child(command, cwd))
            children[-1].start_up()
        seen = [(0, 0.0)] * len(children)
        ends = time.monotonic() + seconds if seconds else math.inf
        while time.monotonic() < ends and any(child.runs for child in children):
            for index, child in enumerate(children):
                if child.runs and not child.late(limit):
                    rounds, used = child.turn(turn)
                    seen[index] = seen[index][0] + rounds, seen[index][1] + used
    finally:
        for child in children:
            # Nothing stays behind, stopped; nor if this is interrupted.
            child.ended = child.runs
            child.signal(signal.SIGKILL)
    for child, (rounds, used) in zip(children, seen, strict=True):
        child.finish()
        if rounds:
            child.result.cpu_per_round = used / rounds
    return [child.result for child in children]
