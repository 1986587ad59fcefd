"""Running engines as child processes: arrival of their rounds, CPU time and memory."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.25
# What a child wrote before it was stopped is read within this time.
SETTLE_SECONDS = 0.02
# A round that took so many times its engine's median was stalled by somebody else.
STALLED = 3.0


@dataclass
class Measurement:
    """What was seen of one child."""

    start_up: float = float("nan")
    """When its first round ended."""
    ended_after: float = float("nan")
    rounds: int = 0
    turns: list[list[float]] = field(default_factory=list)
    stalled: int = 0
    cpu: float = float("nan")
    cpu_per_round: float = float("nan")
    peak_mib: float = 0.0
    finish: dict[str, float] = field(default_factory=dict)
    failed: str = ""

    @property
    def seconds(self) -> list[float]:
        """Times of single rounds, those of all turns."""
        return list(itertools.chain.from_iterable(self.turns))

    def quantile(self, share: float) -> float | None:
        """Of the times of single rounds."""
        ordered = sorted(self.seconds)
        return ordered[round(share * (len(ordered) - 1))] if ordered else None

    def drop_stalled(self) -> None:
        """Leave out rounds that took much longer than the median; `stalled` counts them."""
        if not self.seconds:
            return
        limit = STALLED * statistics.median(self.seconds)
        kept = [[value for value in turn if value <= limit] for turn in self.turns]
        self.stalled += sum(map(len, self.turns)) - sum(map(len, kept))
        self.turns = kept

    @property
    def accounting_share(self) -> float | None:
        """Time of the accountant and the ledger, the first round's included, per round."""
        if "accounting_seconds" not in self.finish or not self.seconds:
            return None
        spent = self.finish["accounting_seconds"] / self.finish["rounds"]
        return spent / statistics.median(self.seconds)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its reaped children; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return sum(int(value) for value in fields[11:15]) / TICKS


def memory_mib(pid: int) -> float:
    """The highest resident size that it has had so far; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


class Child:
    """A running child; its rounds are told by JSON lines on its standard output."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], cwd: Path) -> None:
        self.result = Measurement()
        self.arrivals: list[float] = []
        self.started = time.monotonic()
        # Rounds, by position, that span a stop; the position from which it ran without others.
        self.stops: list[int] = []
        self.alone: int | None = None
        self.ended = False
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self.pid = self._process.pid
        self._readers = [
            threading.Thread(target=task) for task in (self._read_output, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.runs:
            os.kill(self.pid, number)

    def start_up(self) -> None:
        """Wait for its first round, then stop it."""
        while self.runs and not self.arrivals:
            self.see_memory()
            time.sleep(0.01)
        self.signal(signal.SIGSTOP)

    def turn(self, seconds: float, least: int = 0) -> tuple[int, float]:
        """Let it go on for so long, then stop it; its rounds and CPU seconds in that time.

        Until `least` rounds have ended it goes on for up to ten times as long.
        """
        time.sleep(SETTLE_SECONDS)
        count, used = len(self.arrivals), cpu_seconds(self.pid)
        self.stops.append(count)
        self.signal(signal.SIGCONT)
        begun = time.monotonic()
        while self.runs and time.monotonic() - begun < seconds * (
            10.0 if len(self.arrivals) - count < least else 1.0
        ):
            self.see_memory()
            time.sleep(min(0.05, seconds))
        self.signal(signal.SIGSTOP)
        if not self.runs:
            return 0, 0.0
        self.see_memory()
        return len(self.arrivals) - count, cpu_seconds(self.pid) - used

    def see_memory(self) -> None:
        """Keep the most memory that it was seen to hold."""
        self.result.peak_mib = max(self.result.peak_mib, memory_mib(self.pid))

    def round_seconds(self) -> list[list[float]]:
        """Times of rounds, turn by turn; those that span a stop are left out.

        Only turns with others by its side count, if there are any.
        """
        edges = [0, *self.stops, len(self.arrivals)]
        turns = [
            (last, [b - a for a, b in itertools.pairwise(self.arrivals[first:last])])
            for first, last in itertools.pairwise(edges)
        ]
        together = [own for last, own in turns if self.alone is None or last <= self.alone]
        return together if any(together) else [own for _, own in turns]

    def finish(self) -> Measurement:
        """Wait for its end; what is known of start-up and failure goes into the result."""
        code = self._process.wait()
        self.result.ended_after = time.monotonic() - self.started
        for reader in self._readers:
            reader.join()
        result = self.result
        result.rounds = len(self.arrivals)
        if code and not result.failed and not self.ended:
            result.failed = f"exit code {code}: {''.join(self._errors[-3:]).strip()[-300:]}"
        if self.arrivals:
            result.start_up = self.arrivals[0] - self.started
            result.turns = self.round_seconds()
            result.drop_stalled()
        return result

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "round":
                self.arrivals.append(time.monotonic())
            elif event["event"] in ("finish", "tuned"):
                self.result.finish = event

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


def run_child(
    command: Sequence[str], *, environment: dict[str, str], cwd: Path, limit: float
) -> Measurement:
    """Run to the end (or for `limit` seconds) and measure."""
    child = Child(command, environment, cwd)
    result = child.result
    cpu: list[tuple[int, float]] = []
    while child.runs:
        if time.monotonic() - child.started > limit:
            result.failed = f"stopped after {limit:.0f} s"
            child.signal(signal.SIGKILL)
            break
        child.see_memory()
        cpu.append((len(child.arrivals), cpu_seconds(child.pid)))
        time.sleep(SAMPLE_SECONDS)
    child.finish()
    result.cpu = cpu[-1][1] if cpu else result.cpu
    during = [(count, used) for count, used in cpu if count >= 1]
    if during and during[-1][0] > during[0][0]:
        (first, low), (last, high) = during[0], during[-1]
        result.cpu_per_round = (high - low) / (last - first)
    return result


def run_in_turns(
    commands: Sequence[Sequence[str]],
    *,
    environment: dict[str, str],
    cwd: Path,
    limit: float,
    turn: float | Sequence[float],
    seconds: float = 0.0,
    least: int = 0,
) -> list[Measurement]:
    """Run children of one process each, side by side but never two at a time, for `seconds` of
    turns together, or to their ends (0).

    One runs for `turn` seconds (or its own of them) while the others are stopped. Every one gets a
    turn, whatever the time, and in each about `least` rounds (see `Child.turn`). Rounds that span a
    stop do not count, nor, if others were measured, those of the last child when the others have
    ended.
    """
    children: list[Child] = []
    turns = [turn] * len(commands) if isinstance(turn, float) else list(turn)
    try:
        for command in commands:
            children.append(Child(command, environment, cwd))
            children[-1].start_up()
        seen = [(0, 0.0)] * len(children)
        ends = time.monotonic() + seconds if seconds else math.inf
        while time.monotonic() < ends and (
            alive := [index for index, child in enumerate(children) if child.runs]
        ):
            for index in alive:
                child = children[index]
                if time.monotonic() - child.started > limit:
                    child.result.failed = f"stopped after {limit:.0f} s"
                    child.signal(signal.SIGKILL)
                    continue
                apart = len(alive) < len(children)
                if apart and child.alone is None:
                    child.alone = len(child.arrivals)
                rounds, used = child.turn(turns[index], least)
                if not apart:
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
