"""What of a request a node holds once it has answered: nothing."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fl_shuffle.flower import ShuffleClientApp
from fl_shuffle.flower.messages import Layout, TrainRequest
from tests.one_node import nodes


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_nothing_of_a_request_waits_for_the_collector() -> None:
    """Flower's views of a message's records are cycles: a model would stay for many rounds."""
    app, given = ShuffleClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy())})
        given.extend(weakref.ref(each["w"]) for each in (message.content["arrays"], arrays))
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    tables = {
        "data": {"clients": 3},
        "privacy": {"unit": "client"},
        "app": {"client": "a:b", "server": "a:b"},
    }
    layout = Layout(("w",), ((5,),), ("float32",))
    gc.collect()
    gc.disable()
    try:
        with nodes(app, tables=tables) as grid:
            model = layout.record(np.zeros(5, np.float32))
            request = TrainRequest(1, 0, 3).message(model, 2)
            reply = next(iter(grid.send_and_receive([request])))
            given.append(weakref.ref(reply.content["report"]["reports"]))
            assert len(given) == 7 and given[-1]() is not None
            del reply, request, model
            # The node's thread lets go of its task a moment after it has answered.
            wait_until(lambda: not any(each() for each in given))
            assert [each() for each in given] == [None] * 7
    finally:
        gc.enable()
