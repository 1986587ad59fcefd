"""A function's values at several items, worked out by Python processes beside this one."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

MOST_PROCESSES = 8
"""Containers may be given less than the processors that they see."""
POLL_MILLISECONDS = 500
"""So often it is looked whether a process that says nothing is still there."""
_SIZE_BYTES = 8
"""Of an answer's length, which comes first."""

# -P: modules of the working directory must not stand before installed ones. The path is this
# process's own, so that the same code is found.
_START = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from fl_shuffle.accounting.other_processes import serve
serve(sys.stdin.buffer, *map(int, sys.argv[1:]))
"""
_ONE_THREAD = dict.fromkeys(["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"], "1")


def usable_processes() -> int:
    """As many as the processors that this process may use, within reason."""
    if hasattr(os, "sched_getaffinity"):
        return min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    return min(MOST_PROCESSES, os.cpu_count() or 1)


def values_of(
    function: Callable[[Item], Value], items: Sequence[Item], processes: int
) -> list[Value]:
    """`[function(item) for item in items]`, worked out by so many processes: this one is the first.

    `function` is one that a module defines by name, and depends on nothing but its item; items and
    values can be pickled. What another process leaves undone, whyever, is worked out here, where
    it may raise.
    """
    others = [range(first, len(items), processes) for first in range(1, processes)]
    values: dict[int, Value] = {}
    helpers: list[_Helper] = []
    try:
        for share in others:
            helper = _Helper.started()
            if helper is None:
                break
            helpers.append(helper)
            helper.hand_over(function, [items[at] for at in share])
        for at in range(0, len(items), processes):
            values[at] = function(items[at])
        for helper, share in zip(helpers, others, strict=False):
            values.update(zip(share, helper.answer(), strict=False))
    finally:
        for helper in helpers:
            helper.end()
    return [values[at] if at in values else function(item) for at, item in enumerate(items)]


def serve(tasks: IO[bytes], answers: int, parent: int) -> None:
    """In a process beside: the values of one call's share, in one answer when all are there, so
    that it never waits for being listened to."""
    function, items = pickle.load(tasks)
    values = []
    for item in items:
        if os.getppid() != parent:
            return
        values.append(function(item))
    body = pickle.dumps(values)
    with open(answers, "wb") as file:
        file.write(len(body).to_bytes(_SIZE_BYTES, "big") + body)


class _Helper:
    """A process beside, and the pipe that it answers on."""

    def __init__(self, process: subprocess.Popen[bytes], answers: int) -> None:
        self._process = process
        self._answers = answers

    @classmethod
    def started(cls) -> _Helper | None:
        """None where none can be had: the program is no Python, or there is no room for more."""
        if getattr(sys, "frozen", False) or os.name != "posix" or not sys.executable:
            return None
        try:
            ours, theirs = os.pipe()
        except OSError:
            return None
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(theirs), str(os.getpid())],
                stdin=subprocess.PIPE,
                # Anything may print at a start of Python: answers have a pipe of their own.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs],
                env={**os.environ, **_ONE_THREAD},
                # Ctrl-C is for the process that asked, which ends it.
                start_new_session=True,
            )
        except OSError:
            os.close(ours)
            return None
        finally:
            os.close(theirs)
        return cls(process, ours)

    def hand_over(self, function: Callable[[Item], Value], items: list[Item]) -> None:
        """Say what is to be worked out."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pickle.dumps(sys.path) + pickle.dumps((function, items)))
            self._process.stdin.flush()
        except BrokenPipeError:
            # It has ended: there will be no answer.
            pass

    def answer(self) -> list[Any]:
        """The values; none if it ends without."""
        size = self._read(_SIZE_BYTES)
        body = None if size is None else self._read(int.from_bytes(size, "big"))
        values: list[Any] = [] if body is None else pickle.loads(body)
        return values

    def _read(self, size: int) -> bytes | None:
        # Not until the pipe's end: who forked this process in between may hold it open.
        found, waiting = b"", select.poll()
        waiting.register(self._answers, select.POLLIN)
        while len(found) < size:
            ended = self._process.poll() is not None
            if waiting.poll(0 if ended else POLL_MILLISECONDS):
                part = os.read(self._answers, size - len(found))
                if not part:
                    return None
                found += part
            elif ended:
                return None
        return found

    def end(self) -> None:
        """Let go of it, whatever it does."""
        self._process.kill()
        # It also closes its standard input.
        self._process.communicate()
        os.close(self._answers)
