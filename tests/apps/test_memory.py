"""What a run holds: four vectors of the model's length, the reports, and what the app holds."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fl_shuffle.flower import ShuffleClientApp
from fl_shuffle.flower.messages import Layout, TrainRequest
from tests.one_node import nodes
from tests.processes import environment, wait_until

SETTINGS = """
run = { rounds = 3, jobs = 1 }
data = { clients = 4 }
privacy = { unit = "client", release = "sum" }
app = { server = "big:server", client = "big:client" }
"""
APP = """
import os
import resource

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy
from fl_shuffle.flower.messages import array_record  # Flower's own arrays are copies as bytes

server, client = ServerApp(), ShuffleClientApp()


@client.train()
def train(message, context):
    weight = message.content["arrays"]["w"].numpy()
    weight += np.float32(0.001)
    arrays = array_record({"w": weight}, shared=False)
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


@server.main()
def main(grid, context):
    first = array_record({"w": np.zeros(int(os.environ["SIZE"]), np.float32)}, shared=True)
    ShuffleStrategy.of(context).start(grid=grid, initial_arrays=first)
    with open("peak", "w") as file:
        file.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="KiB are Linux's")
def test_four_vectors_beside_the_reports(tmp_path: Path) -> None:
    """Beside one report under way, and two of the app's own: what it starts from, what a client
    has trained."""
    (tmp_path / "big.toml").write_text(SETTINGS)
    (tmp_path / "big.py").write_text(APP)
    size, peaks = 10_000_000, []
    for number in (10, size):
        command = ["fl-shuffle", "simulate", "big.toml", "--quiet", "--out", f"run-{number}"]
        own = environment(SIZE=str(number))
        subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, check=True)
        peaks.append(1024 * int((tmp_path / "peak").read_text()))
    assert (peaks[1] - peaks[0]) / (4 * size) < 4 + 1 + 2 + 0.5


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
            request = TrainRequest(1, np.arange(3)).message(model, 2)
            reply = next(iter(grid.send_and_receive([request])))
            given.append(weakref.ref(reply.content["report"]["reports"]))
            assert len(given) == 7 and given[-1]() is not None
            del reply, request, model
            # The node's thread lets go of its task a moment after it has answered.
            wait_until(lambda: not any(each() for each in given), 30.0, "something stays")
    finally:
        gc.enable()
