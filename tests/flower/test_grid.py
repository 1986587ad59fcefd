"""Nodes in this process and elsewhere: what is raised where, and who is waited for how long."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from threading import Event
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_shuffle.flower import grid as module
from fl_shuffle.flower.grid import InProcessGrid, adopt_task_identity, exchange, stamp
from tests.one_node import nodes

TIMEOUT = 30.0


def empty(message: Message, context: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def asked(count: int, node_of: Callable[[int], int]) -> list[Message]:
    return [Message(RecordDict(), node_of(i), "train", ttl=TIMEOUT) for i in range(count)]


def test_what_goes_wrong_while_a_reply_is_taken_is_raised() -> None:
    taken: list[int] = []

    def take(position: int, reply: Message) -> None:
        taken.append(position)
        if position == 3:
            raise RuntimeError("of the server's own making")

    with nodes(empty, 2) as grid:
        with pytest.raises(RuntimeError, match="of the server's own making"):
            grid.exchange(asked(6, lambda i: 2 + i % 2), take)
        assert 3 in taken
        taken.clear()
        grid.exchange(asked(3, lambda i: 2 + i % 2), take)
        assert sorted(taken) == [0, 1, 2]


def test_a_node_s_state_is_one_request_s_at_a_time() -> None:
    """Two threads play six requests to one node: each counts on from what the one before left."""
    seen = []

    def client(message: Message, context: Context) -> Message:
        count = context.state.get("count") or MetricRecord({"n": 0})
        seen.append(count["n"])
        time.sleep(0.01)
        context.state["count"] = MetricRecord({"n": count["n"] + 1})
        return empty(message, context)

    with closing(InProcessGrid(client, {}, nodes=2, trusted=False)) as grid:  # type: ignore[arg-type]
        replies = list(grid.send_and_receive(asked(6, lambda _: 2)))
    assert not any(reply.has_error() for reply in replies) and seen == list(range(6))


@pytest.mark.parametrize("hangs", [False, True])
def test_its_threads_end_with_it(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gave back torch's memory while the interpreter ended aborted the process; one that
    hangs in a user's code is not waited for."""
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.1 if hangs else 60.0)
    begun, left, before = Event(), Event(), threading.active_count()

    def call() -> None:
        begun.set()
        left.wait(60.0 if hangs else 0.3)

    grid = InProcessGrid(ClientApp(), {}, nodes=2)
    grid.begin(call)
    assert begun.wait(60.0)
    grid.close()
    assert threading.active_count() == before + hangs
    left.set()


def test_threads_read_arrays_while_garbage_is_collected() -> None:
    """Of CPython 3.11 before 3.11.8 they disturbed each other's parsing of NumPy's headers."""
    record = ArrayRecord([np.zeros((3, 4))])

    def client(message: Message, context: Context) -> Message:
        for _ in range(600):
            record.to_numpy_ndarrays()
        return empty(message, context)

    def python(phase: str, info: dict[str, int]) -> None:
        """As Hypothesis and finalizers do: other threads get their turn."""
        for _ in range(50):
            len(info)

    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    gc.callbacks.append(python)
    try:
        with nodes(client, 4) as grid:
            sys.setswitchinterval(1e-6)
            gc.set_threshold(5)
            replies = list(grid.send_and_receive(asked(4, lambda i: 2 + i)))
    finally:
        gc.callbacks.remove(python)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(before)
    assert len(replies) == 4 and not any(reply.has_error() for reply in replies)


class SlowNodes:
    """Nodes that answer a second after they are asked, but for those that never do; and a clock."""

    def __init__(self, never: set[int]) -> None:
        self.now, self.never = 0.0, never
        self.waiting: dict[str, tuple[float, Message]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = {stamp(each).metadata.message_id: (self.now + 1.0, each) for each in messages}
        self.waiting |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        due = [one for when, one in map(self.waiting.get, message_ids) if when <= self.now]  # type: ignore[misc]
        answering = [one for one in due if one.metadata.dst_node_id not in self.never]
        return [Message(RecordDict(), reply_to=one) for one in answering]


@pytest.mark.parametrize("slow", [set(), {3}, {2, 9}])
def test_slow_nodes_cost_one_timeout_and_nobody_else(
    slow: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid: Any = SlowNodes(slow)
    monkeypatch.setattr(module, "time", grid)
    adopt_task_identity(1)
    taken: dict[int, Message] = {}
    exchange(grid, asked(12, lambda i: i + 1), taken.__setitem__, window=4, timeout=TIMEOUT)
    assert {position + 1 for position in taken} == set(range(1, 13)) - slow
    assert grid.now <= (TIMEOUT if slow else 6.0) + module.LONGEST_POLL_SECONDS
