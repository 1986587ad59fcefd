"""The ClientApp that `flwr run .` starts. Copy it and edit it.

It runs unchanged on the in-process, Simulation and Deployment Engines. Only randomized reports
leave a node: `client.train` clips, randomizes and packs them.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_shuffle.apps import client

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """The requested clients' reports, computed from the broadcast model."""
    return client.train(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients this node plays."""
    return client.query(message, context)
