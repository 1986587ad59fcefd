"""The threads on which the in-process engine plays its nodes; one that hangs is given up."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from queue import SimpleQueue
from threading import Condition, Lock, RLock, Thread
from typing import Any

Call = Callable[[], None]
Job = tuple["Future[None]", Call]

CLOSING_SECONDS = 10.0
"""So long a call that is under way when the threads are stopped is waited for."""


class NodeThreads:
    """`count` daemon threads that run calls in the order they were submitted.

    Unlike those of an executor they do not keep the interpreter from ending while a call hangs.
    Each begins with `prepare`.
    """

    def __init__(self, count: int, prepare: Call) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._prepare = prepare
        self._lock = Lock()
        self._given_up: set[Future[None]] = set()
        self._threads: list[Thread] = []
        parse_one_at_a_time()
        for _ in range(count):
            self._start()

    def submit(self, call: Call) -> Future[None]:
        """Have it run; the future tells of its end, and holds what it raised."""
        future: Future[None] = Future()
        self._jobs.put((future, call))
        return future

    def give_up(self, futures: Iterable[Future[None]]) -> int:
        """Wait no longer for these: those not begun never will be, and a thread that is busy with
        one of the others gets a successor. Returns how many had begun."""
        begun = 0
        for future in futures:
            if future.cancel():
                continue
            with self._lock:
                if future.done():
                    continue
                self._given_up.add(future)
            begun += 1
            self._start()
        return begun

    def close(self) -> None:
        """End the threads; whoever hangs is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        deadline = time.monotonic() + CLOSING_SECONDS
        hanging = len(self._given_up)
        for thread in self._threads:
            if not hanging:
                thread.join(max(0.0, deadline - time.monotonic()))
        self._threads.clear()

    def _start(self) -> None:
        thread = Thread(target=self._work, daemon=True)
        thread.start()  # May raise, where the machine has no room for one.
        self._threads.append(thread)

    def _work(self) -> None:
        self._prepare()
        while (job := self._jobs.get()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            raised: BaseException | None = None
            try:
                call()
            except BaseException as error:
                raised = error
            with self._lock:
                if future in self._given_up:
                    self._given_up.discard(future)
                    return  # a successor has taken this thread's place
                if raised is None:
                    future.set_result(None)
                else:
                    future.set_exception(raised)
            del job, future, call, raised


class Gate:
    """Lets threads through until it is shut; when `shut` returns nobody is inside any more."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self._open = True

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Whether it was open; while inside, `shut` waits."""
        with self._changed:
            through = self._open
            self._inside += through
        try:
            yield through
        finally:
            if through:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    def shut(self) -> None:
        """From now on nobody gets through."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: self._inside == 0)


def parse_one_at_a_time() -> None:
    """Have threads take turns in `ast.parse` from now on, where CPython is older than 3.11.8.

    It counts the depth of all threads' parsing together there, and raises `SystemError` in one of
    them where the collection of garbage lets two meet. NumPy reads the header of every array so.
    """
    if sys.version_info >= (3, 11, 8) or hasattr(ast.parse, "__wrapped__"):
        return
    parse, turn = ast.parse, RLock()

    @wraps(parse)
    def parse_in_turn(*arguments: Any, **options: Any) -> Any:
        with turn:
            return parse(*arguments, **options)

    ast.parse = parse_in_turn
