"""The Flower ClientApp. It runs unchanged on the in-process, Simulation and Deployment Engines."""

from __future__ import annotations

import logging
from threading import Lock

import numpy as np
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import DataError, FlShuffleError, InvalidValueError
from fl_shuffle.flower.apart.parties import (
    agreement_of,
    hand_over,
    reply_with_nothing,
    run_named_in,
    sender_of,
)
from fl_shuffle.flower.client_record import ClientRecord, allowed_by_record, require_protecting
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.records import (
    MODEL_RECORD,
    PARAMETERS,
    TrainRequest,
    arrays_in,
    expired,
    float32_array,
    reply_with_reports,
    reply_with_sum,
    reply_with_sum_of_reports,
)
from fl_shuffle.flower.roster import reply_with_holding, require_held
from fl_shuffle.flower.settings import SIMULATED, config_of, require_simulated
from fl_shuffle.tasks.worker import Worker
from fl_shuffle.threads import keep_one_thread

log = logging.getLogger("fl_shuffle.client")

app = ClientApp()
_workers: list[tuple[int, Config, Worker]] = []
_lock = Lock()


def worker_for(context: Context) -> Worker:
    """This process's worker for the run's configuration, built on first use."""
    config = config_of(context)
    with _lock:
        for run, known, worker in _workers:
            # Two runs never share a source of noise.
            if run == context.run_id and known == config:
                return worker
        keep_one_thread()
        _workers.clear()
        worker = Worker(config)
        _workers.append((context.run_id, config, worker))
        return worker


@app.train()
def train(message: Message, context: Context) -> Message:
    """Compute the requested clients' reports from the broadcast model."""
    config = config_of(context)
    request = TrainRequest.of(message, config.data.clients)
    require_held(request, context, config.data.clients)
    if expired(message):
        return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)
    require_protecting(context, config)
    sender = sender_of(config, context.node_config)
    run = None if sender is None else run_named_in(message)
    model = arrays_in(message.content, MODEL_RECORD)
    values = None if model is None else float32_array(model[PARAMETERS])
    if values is None:
        raise InvalidValueError("model", "its bytes", "must be one whole float32 array")
    parameters = torch.from_numpy(values)
    pooled = config.run.noise == "pooled"
    if pooled or request.summed:
        require_simulated(context)
    try:
        worker = worker_for(context)
        if pooled:
            return reply_with_sum(message, worker.sum_of_means(request, parameters))
        if request.summed and ClientRecord.of(context.node_config) is None:
            return reply_with_sum_of_reports(message, *worker.sum_of_reports(request, parameters))
        reports = worker.reports(request, parameters)
    except DataError:
        # What is wrong with records is between them and whoever keeps them.
        return _failed(message, request)
    except FlShuffleError:
        raise
    except Exception:
        if config.run.engine == "in-process" and context.node_config.get(SIMULATED):
            raise  # The engine in this process tells the user, and nobody else.
        # Flower would send the exception's text, which may quote private records, to the server.
        return _failed(message, request)
    sent = allowed_by_record(request, context, config, worker.plan)
    if sender is not None and run is not None:
        agreement = agreement_of(run, config, worker.plan, reports.shape[1])
        hand_over(sender, agreement, request, reports, sent)
        sender.close()
        return reply_with_nothing(message)
    reports[~sent] = np.nan
    return reply_with_reports(message, reports)


def _failed(message: Message, request: TrainRequest) -> Message:
    """Log the exception here, and reply that there was one."""
    log.exception("round %d failed on this node", request.round_number)
    return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node plays."""
    return reply_with_holding(message, context, config_of(context).data.clients)
