"""Running one engine as a child process: arrival of its rounds, CPU time and memory of its tree."""

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
PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Measurement:
    """What was seen of one child and everything it started."""

    start_up: float = float("nan")
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


def run_child(
    command: Sequence[str],
    *,
    environment: dict[str, str],
    cwd: Path,
    limit: float,
    poll: Callable[[], int] | None = None,
) -> Measurement:
    """Run to the end (or for `limit` seconds) and measure.

    A child tells of its rounds by JSON lines on its standard output; with `poll`, which returns how
    many rounds have finished, they are asked for instead.
    """
    result = Measurement()
    before = set(descendants(os.getpid()))
    started = time.monotonic()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd
    )
    arrivals: list[float] = []
    cpu: list[tuple[int, float]] = []
    errors: list[str] = []

    def ours() -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in before]

    def note(count: int) -> None:
        now = time.monotonic()
        arrivals.extend([now] * (count - len(arrivals)))

    def read_output() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "round":
                note(len(arrivals) + 1)
            elif event["event"] in ("finish", "tuned"):
                result.finish = event

    def read_errors() -> None:
        assert child.stderr is not None
        errors.extend(child.stderr)

    readers = [threading.Thread(target=task) for task in (read_output, read_errors)]
    for reader in readers:
        reader.start()
    while child.poll() is None:
        if time.monotonic() - started > limit:
            result.failed = f"stopped after {limit:.0f} s"
            break
        if poll is not None:
            note(max(poll(), len(arrivals)))
        pids = ours()
        result.peak_mib = max(result.peak_mib, memory_mib(pids))
        cpu.append((len(arrivals), cpu_seconds(pids)))
        time.sleep(0.02 if poll is not None and not arrivals else SAMPLE_SECONDS)
    for pid in reversed(ours()):
        end(pid)
    code = child.wait()
    for reader in readers:
        reader.join()
    if code and not result.failed:
        result.failed = f"exit code {code}: {''.join(errors[-3:]).strip()[-300:]}"
    if arrivals:
        result.start_up = arrivals[0] - started
        result.seconds = [b - a for a, b in itertools.pairwise(arrivals)]
    during = [(count, used) for count, used in cpu if count >= 1]
    if during and during[-1][0] > during[0][0]:
        (first, low), (last, high) = during[0], during[-1]
        result.cpu_per_round = (high - low) / (last - first)
    return result
