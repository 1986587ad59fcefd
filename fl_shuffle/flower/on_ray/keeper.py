"""Runs a program and ends with it, or with who started it, all that came of it.

    python -I keeper.py OWNER FOLDER PROGRAM ARGUMENT ...

The owner is the process whose run this is. When it is gone (terminated, killed, its terminal
closed), when the program has ended, or on SIGTERM, every process that descends from the program is
ended: asked first, and killed if it stays. If the owner is gone FOLDER, its private one, is removed
too. Needs nothing but the standard library, so that it is there before anything else.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

POLL_SECONDS = 0.25
"""Pause between two looks at owner and program."""
PATIENCE_SECONDS = 10.0
"""Who was asked to end is killed after that."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""Of Linux' prctl(2)."""


def main(arguments: list[str]) -> int:
    """Returns the program's exit code, 1 where it was ended."""
    owner, folder, command = int(arguments[0]), Path(arguments[1]), arguments[2:]
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, ask)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    _control(PR_SET_CHILD_SUBREAPER, 1)
    # Where this process is killed, the program is, and all that watches it goes with it. (There
    # are no threads here.)
    program = subprocess.Popen(command, preexec_fn=_die_with_the_parent)  # noqa: PLW1509
    while program.poll() is None and os.getppid() == owner and not asked:
        time.sleep(POLL_SECONDS)
    gone = os.getppid() != owner
    _end(program)
    if gone:
        shutil.rmtree(folder, ignore_errors=True)
    return program.returncode if program.returncode is not None and not gone else 1


def _end(program: subprocess.Popen[bytes]) -> None:
    """Ask the program to end, then everybody; kill who has not by then."""
    known = descendants(os.getpid())
    with suppress(ProcessLookupError):
        program.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while program.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while known := _alive(known | descendants(os.getpid())):
            for process in known:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)


def descendants(root: int) -> set[int]:
    """The processes that descend from this one; the adopted ones, too, where Linux has them."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    left = [root]
    while left:
        new = [child for child in children.get(left.pop(), ()) if child not in found]
        found.update(new)
        left += new
    return found


def _parents() -> list[tuple[int, int]]:
    """(process, its parent) of every process of the machine."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
        ).stdout
        return [(int(a), int(b)) for a, b in (line.split() for line in listed.splitlines())]
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # The name, in brackets, may hold anything.
                after = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if after[0] != "Z":
                    found.append((int(folder.name), int(after[1])))
    return found


def _alive(processes: set[int]) -> set[int]:
    """Those that are still there, and no zombies: children of this process are waited for."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return processes & {process for process, _ in _parents()}


def _die_with_the_parent() -> None:
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
