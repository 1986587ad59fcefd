"""The threads on which the in-process engine plays its nodes; one that hangs is given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition, Lock, Thread

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
        self._threads.append(thread)
        thread.start()

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
