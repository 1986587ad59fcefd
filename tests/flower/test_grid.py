"""The in-process engine's own: what is raised where."""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import closing
from threading import Event

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_shuffle.flower import grid as grid_module
from fl_shuffle.flower.grid import InProcessGrid


def test_what_goes_wrong_while_a_reply_is_taken_is_raised() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    def take(position: int, reply: Message) -> None:
        taken.append(position)
        if position == 3:
            raise RuntimeError("of the server's own making")

    taken: list[int] = []
    with closing(InProcessGrid(app, {}, nodes=2)) as grid:
        messages = [Message(RecordDict(), 2 + i % 2, "train") for i in range(6)]
        with pytest.raises(RuntimeError, match="of the server's own making"):
            grid.exchange(messages, take)
        assert 3 in taken
        taken.clear()
        grid.exchange([Message(RecordDict(), 2 + i % 2, "train") for i in range(3)], take)
        assert sorted(taken) == [0, 1, 2]


def test_a_node_s_state_is_one_request_s_at_a_time() -> None:
    """Two threads play six requests to one node: each counts on from what the one before left."""
    seen = []

    def client(message: Message, context: Context) -> Message:
        count = context.state.get("count") or MetricRecord({"n": 0})
        seen.append(count["n"])
        time.sleep(0.01)
        context.state["count"] = MetricRecord({"n": count["n"] + 1})
        return Message(RecordDict(), reply_to=message)

    app = ClientApp()
    app.train()(client)
    messages = [Message(RecordDict(), 2, "train") for _ in range(6)]
    with closing(InProcessGrid(app, {}, nodes=2, trusted=False)) as grid:
        assert not any(reply.has_error() for reply in grid.send_and_receive(messages))
    assert seen == list(range(6))


@pytest.mark.parametrize("hangs", [False, True])
def test_its_threads_end_with_it(hangs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gave back torch's memory while the interpreter ended aborted the process; one that
    hangs in a user's code is not waited for."""
    monkeypatch.setattr(grid_module, "JOIN_SECONDS", 0.1 if hangs else 60.0)
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
    record, read = ArrayRecord([np.zeros((3, 4))]), 600

    def client(message: Message, context: Context) -> Message:
        for _ in range(read):
            record.to_numpy_ndarrays()
        return Message(RecordDict(), reply_to=message)

    app = ClientApp()
    app.train()(client)
    grid = InProcessGrid(app, {}, nodes=4)
    before, threshold = sys.getswitchinterval(), gc.get_threshold()

    def python(phase: str, info: dict[str, int]) -> None:
        """As Hypothesis and finalizers do: other threads get their turn."""
        for _ in range(50):
            len(info)

    gc.callbacks.append(python)
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(5)
        messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
    finally:
        gc.callbacks.remove(python)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(before)
        grid.close()
    assert len(replies) == 4 and not any(reply.has_error() for reply in replies)
