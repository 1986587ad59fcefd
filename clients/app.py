"""The Flower ClientApp. It runs unchanged on the in-process, Simulation and Deployment Engines."""

from __future__ import annotations

from threading import Lock

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.worker import Worker
from fl_shuffle.flower.records import (
    MODEL_RECORD,
    PARAMETERS,
    TrainRequest,
    reply_with_reports,
)
from fl_shuffle.flower.roster import reply_with_holding, require_held
from fl_shuffle.flower.settings import config_of

app = ClientApp()
_workers: dict[str, Worker] = {}
_lock = Lock()


def worker_for(context: Context) -> Worker:
    """This process's worker for the run's configuration, built on first use."""
    config = config_of(context)
    key = f"{context.run_id} {config.to_json()}"  # two runs never share a source of noise
    with _lock:
        if key not in _workers:
            torch.set_num_threads(1)
            _workers.clear()
            _workers[key] = Worker(config)
        return _workers[key]


@app.train()
def train(message: Message, context: Context) -> Message:
    """Compute the requested clients' reports from the broadcast model."""
    request = TrainRequest.of(message)
    require_held(request.clients, context, config_of(context).data.clients)
    model = message.content.array_records[MODEL_RECORD]
    parameters = torch.tensor(model[PARAMETERS].numpy())
    return reply_with_reports(message, worker_for(context).reports(request, parameters))


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node plays."""
    return reply_with_holding(message, context, config_of(context).data.clients)
