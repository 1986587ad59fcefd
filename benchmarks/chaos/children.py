"""Commands in forked children, which can be killed, limited or interrupted at any place."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fl_shuffle._internal.interrupts import INTERRUPTED
from fl_shuffle.ledger import store

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "sqlite3.connect")
"""What a run does to files, as Python's audit hooks name it."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (minus the signal that killed it), and what it said."""

    code: int
    said: str


@dataclass(frozen=True)
class Fault:
    """When a child is struck: at its n-th dealing with a file of `folder` or statement of a
    ledger, or after `seconds`; or no file may grow beyond `largest` bytes."""

    folder: Path | None = None
    event: int = 0
    seconds: float | None = None
    signal: int = signal.SIGKILL
    largest: int | None = None


def command(arguments: Sequence[str], said: Path, fault: Fault | None = None) -> Ended:
    """Run `fl-shuffle` with these arguments in a child; what it prints goes through `said`."""
    from fl_shuffle.cli import main

    return child(lambda: main(arguments), said, fault)


def begin(call: Callable[[], int], said: Path, fault: Fault | None = None) -> int:
    """Start a child; its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A child does not look through what its parent holds, nor finalises it.
    gc.freeze()
    # Until the command begins nothing of it can answer an interrupt.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = os.fork()
    if process:
        gc.unfreeze()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process
    code = INTERRUPTED
    try:
        # The session's own output and input are not the child's.
        output = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", closefd=False, encoding="utf-8", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _prepare(fault)
        with suppress(KeyboardInterrupt):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            code = 70
        if code == 70:
            code = call()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except SystemExit as exited:  # argparse
        code = exited.code if isinstance(exited.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # where no file may grow
                stream.flush()
        os._exit(code)


def has_ended(process: int) -> bool:
    """Whether a child has come to its end; it can still be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(process: int, said: Path) -> Ended:
    """Wait for it."""
    _, status = os.waitpid(process, 0)
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), text)


def child(call: Callable[[], int], said: Path, fault: Fault | None = None) -> Ended:
    """Run it to its end, or to the fault."""
    process = begin(call, said, fault)
    if fault is not None and fault.seconds is not None:
        deadline = time.monotonic() + fault.seconds
        while time.monotonic() < deadline:
            if has_ended(process):
                break
            time.sleep(0.002)
        else:
            os.kill(process, fault.signal)
    return end(process, said)


def _prepare(fault: Fault | None) -> None:
    if fault is None:
        return
    if fault.largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.largest, fault.largest))
    if fault.folder is None or not fault.event:
        return
    left, folder = [fault.event], str(fault.folder)

    def count(*_: object) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), fault.signal)

    def strike(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS and any(folder in str(argument) for argument in arguments):
            count()

    def traced(path: Path, synchronous: str) -> sqlite3.Connection:
        connection = connect(path, synchronous)
        connection.set_trace_callback(count)
        return connection

    connect, store._connect = store._connect, traced
    sys.addaudithook(strike)
