"""A function's values at several items, worked out by Python processes beside this one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")

MOST_PROCESSES = 8
"""Containers may be given less than the processors that they see."""

# -P: modules of the working directory must not stand before installed ones. The path is this
# process's own, so that the same code is found.
_START = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from fl_shuffle.accounting.other_processes import serve
serve(sys.stdin.buffer, open(int(sys.argv[1]), "wb"))
"""


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
    it may raise. Each of the others computes with one thread.
    """
    others = [range(first, len(items), processes) for first in range(1, processes)]
    values: dict[int, Value] = {}
    children: list[subprocess.Popen[bytes]] = []
    try:
        # Threads take the answers in: a process that nobody listens to stops at a full pipe.
        with ThreadPoolExecutor(max(1, len(others))) as listeners, _killing(children):
            answers = []
            for share in others:
                started = _started()
                if started is None:
                    break
                child, says = started
                children.append(child)
                answers.append(listeners.submit(_all_of, says))
                _hand_over(child, function, [items[at] for at in share])
            for at in range(0, len(items), processes):
                values[at] = function(items[at])
            for share, found in zip(others, answers, strict=False):
                values.update(zip(share, found.result(), strict=False))
    finally:
        for child in children:
            # It also closes the pipe.
            child.communicate()
    return [values[at] if at in values else function(item) for at, item in enumerate(items)]


@contextmanager
def _killing(children: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever happens inside, these do not outlive it."""
    try:
        yield
    finally:
        for child in children:
            child.kill()


def serve(tasks: IO[bytes], answers: IO[bytes]) -> None:
    """In a process beside: the values of one call's share, one after another."""
    function, items = pickle.load(tasks)
    for item in items:
        pickle.dump(function(item), answers)
        answers.flush()


def _started() -> tuple[subprocess.Popen[bytes], IO[bytes]] | None:
    """A process and what it will say, or none where none can be had."""
    ours, theirs = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable or "", "-P", "-c", _START, str(theirs)],
            stdin=subprocess.PIPE,
            # Anything may print at a start of Python: answers have a pipe of their own.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            # Ctrl-C is for the process that asked, which ends it.
            start_new_session=True,
        )
    except OSError:
        os.close(ours)
        return None
    finally:
        os.close(theirs)
    return child, open(ours, "rb")


def _hand_over(
    child: subprocess.Popen[bytes], function: Callable[[Item], Value], items: list[Item]
) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(pickle.dumps(sys.path) + pickle.dumps((function, items)))
        child.stdin.flush()
    except BrokenPipeError:
        # It has ended: there will be no answers.
        pass


def _all_of(answers: IO[bytes]) -> list[Any]:
    """What a process says before it ends."""
    found: list[Any] = []
    with answers:
        try:
            while True:
                found.append(pickle.load(answers))
        except (EOFError, pickle.UnpicklingError):
            return found
