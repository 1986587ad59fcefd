"""Running engines as child processes: arrival of their rounds, CPU time and memory."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.25
# What a child wrote before it was stopped is read within this time.
SETTLE_SECONDS = 0.02
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Measurement:
    """What was seen of one child and everything it started."""

    start_up: float = float("nan")
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu_per_round: float = float("nan")
    peak_mib: float = 0.0
    finish: dict[str, float] = field(default_factory=dict)
    failed: str = ""


def adopt_orphans() -> None:
    """Make detached grandchildren ours, so that none of a tree's processes goes unseen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Process ids below `root`, itself included if it lives."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields:
                parents[int(name)] = int(fields[1])
    found, wave = [], [root]
    while wave:
        found += wave
        wave = [pid for pid, parent in parents.items() if parent in wave]
    return [pid for pid in found if pid in parents]


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of live processes and of their reaped children."""
    stats = [_stat(pid) for pid in pids]
    return sum(sum(int(value) for value in stat[11:15]) for stat in stats if stat) / TICKS


def memory_mib(pids: Sequence[int]) -> float:
    """Proportional set size of all: pages that several processes share are counted once.

    Of one process alone, its highest resident size so far: adding up pages stops what it does.
    """
    if len(pids) == 1:
        return _peak_mib(pids[0])
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _peak_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def end(pid: int) -> None:
    """End one process that this benchmark started."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


class Child:
    """A running child; its rounds are told by JSON lines on its standard output."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], cwd: Path) -> None:
        self.result = Measurement()
        self.arrivals: list[float] = []
        self.started = time.monotonic()
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

    def note(self, count: int) -> None:
        """So many rounds have finished by now."""
        now = time.monotonic()
        self.arrivals.extend([now] * (count - len(self.arrivals)))

    def signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.runs:
            os.kill(self.pid, number)

    def finish(self) -> Measurement:
        """Wait for its end; what is known of start-up and failure goes into the result."""
        code = self._process.wait()
        for reader in self._readers:
            reader.join()
        result = self.result
        result.rounds = len(self.arrivals)
        if code and not result.failed:
            result.failed = f"exit code {code}: {''.join(self._errors[-3:]).strip()[-300:]}"
        if self.arrivals:
            result.start_up = self.arrivals[0] - self.started
        return result

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "round":
                self.note(len(self.arrivals) + 1)
            elif event["event"] in ("finish", "tuned"):
                self.result.finish = event

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


def run_child(
    command: Sequence[str],
    *,
    environment: dict[str, str],
    cwd: Path,
    limit: float,
    poll: Callable[[], int] | None = None,
) -> Measurement:
    """Run to the end (or for `limit` seconds) and measure.

    With `poll`, which returns how many rounds have finished, they are asked for.
    """
    before = set(descendants(os.getpid()))
    child = Child(command, environment, cwd)
    result = child.result
    cpu: list[tuple[int, float]] = []

    def ours() -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in before]

    while child.runs:
        if time.monotonic() - child.started > limit:
            result.failed = f"stopped after {limit:.0f} s"
            break
        if poll is not None:
            child.note(max(poll(), len(child.arrivals)))
        pids = ours()
        result.peak_mib = max(result.peak_mib, memory_mib(pids))
        cpu.append((len(child.arrivals), cpu_seconds(pids)))
        time.sleep(0.02 if poll is not None and not child.arrivals else SAMPLE_SECONDS)
    for pid in reversed(ours()):
        end(pid)
    child.finish()
    result.seconds = [b - a for a, b in itertools.pairwise(child.arrivals)]
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
    turn: float,
) -> list[Measurement]:
    """Run children of one process each to their ends, side by side but never two at a time.

    One runs for `turn` seconds while the others are stopped. Rounds that span a stop do not count,
    nor, if others were measured, those of the last child when the others have ended.
    """
    children: list[Child] = []
    used = [0.0] * len(commands)
    done = [0] * len(commands)
    alone = [10**9] * len(commands)
    spans: list[set[int]] = [set() for _ in commands]
    for command in commands:
        child = Child(command, environment, cwd)
        children.append(child)
        while child.runs and not child.arrivals:
            child.result.peak_mib = max(child.result.peak_mib, memory_mib([child.pid]))
            time.sleep(0.01)
        child.signal(signal.SIGSTOP)
    while any(child.runs for child in children):
        alive = [index for index, child in enumerate(children) if child.runs]
        for index in alive:
            child = children[index]
            if time.monotonic() - child.started > limit:
                child.result.failed = f"stopped after {limit:.0f} s"
                child.signal(signal.SIGKILL)
                continue
            time.sleep(SETTLE_SECONDS)
            count, before = len(child.arrivals), cpu_seconds([child.pid])
            spans[index].add(count)
            if len(alive) == 1 < len(children):
                alone[index] = min(alone[index], count)
            child.signal(signal.SIGCONT)
            ends = time.monotonic() + turn
            while child.runs and time.monotonic() < ends:
                time.sleep(min(0.05, turn))
            child.signal(signal.SIGSTOP)
            if child.runs:
                child.result.peak_mib = max(child.result.peak_mib, memory_mib([child.pid]))
                if len(alive) == len(children):
                    used[index] += cpu_seconds([child.pid]) - before
                    done[index] += len(child.arrivals) - count
    for index, child in enumerate(children):
        result = child.finish()
        seconds = [
            (position, b - a)
            for position, (a, b) in enumerate(itertools.pairwise(child.arrivals), start=1)
            if position not in spans[index]
        ]
        together = [value for position, value in seconds if position < alone[index]]
        result.seconds = together or [value for _, value in seconds]
        if done[index]:
            result.cpu_per_round = used[index] / done[index]
    return [child.result for child in children]
