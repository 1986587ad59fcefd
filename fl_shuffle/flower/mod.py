"""Client mods that turn any ClientApp's model updates into randomized reports."""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real
from fl_shuffle.flower.apart.parties import (
    agreement_of,
    hand_over,
    reply_with_nothing,
    require_no_pass,
    run_named_in,
    sender_of,
)
from fl_shuffle.flower.client_record import allowed_by_record
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.records import (
    CLIENTS,
    MODEL_RECORD,
    REQUEST_RECORD,
    Layout,
    TrainRequest,
    expired,
    reply_with_reports,
)
from fl_shuffle.flower.roster import (
    PARTITION,
    PARTITIONS,
    holding_in,
    reply_with_holding,
    reply_with_range,
    require_held,
)
from fl_shuffle.flower.settings import config_of
from fl_shuffle.planned_noise import PlannedNoise
from fl_shuffle.randomizer_plan import RandomizerPlan, make_plan
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.vector import NORMS, VectorRandomizer, clip_rows
from fl_shuffle.threads import keep_one_thread

log = logging.getLogger("fl_shuffle.client")

NOBODY = np.zeros(1, dtype=np.int64)
"""Whose update it is where a message names no clients: the node's own."""
SERVER_ROUND = "server-round"
"""What Flower's own strategies call the number of the round."""


@dataclass(frozen=True)
class ClientPlan:
    """What a run's configuration says about clients whose data and model are a user's own."""

    config: Config
    budgets: Budgets
    plan: RandomizerPlan

    @classmethod
    def of(cls, config: Config) -> ClientPlan:
        """Raises `InvalidValueError` for a configuration that own apps cannot be run with."""
        if config.privacy.unit != "client":
            raise InvalidValueError(
                "privacy.unit",
                config.privacy.unit,
                "must be client for an app of your own: its update is clipped as a whole",
            )
        if config.run.noise == "pooled":
            raise InvalidValueError(
                "run.noise",
                "pooled",
                "must be per-report for an app of your own: its clients send reports",
            )
        budgets = make_budgets(config.budgets, config.data.clients)
        # How many records a client has is its own affair, and changes nothing for this unit.
        plan = make_plan(config, budgets, np.ones(config.data.clients, dtype=np.int64))
        return cls(config, budgets, plan)

    @property
    def noise(self) -> PlannedNoise:
        """What turns clipped updates into reports; made anew for every message, so that entropy of
        the operating system is never used twice."""
        return PlannedNoise(self.config, self.plan, self.budgets)


_plans: list[tuple[Config, ClientPlan]] = []
_lock = Lock()


def plan_of(context: Context, beside: str | Path | None) -> ClientPlan:
    """The plan of the run that a context belongs to; kept for its next message.

    Of a seeded run the app, too, computes with one thread in this process: its last bits hang on
    their number, and are to be the same on every engine.
    """
    config = config_of(context, beside)
    with _lock:
        if not _plans or _plans[0][0] != config:
            _plans[:] = [(config, ClientPlan.of(config))]
            if config.run.entropy == "seeded":
                keep_one_thread()
        return _plans[0][1]


@contextmanager
def as_client(
    message: Message, context: Context, client: int, total: int | None
) -> Iterator[tuple[Message, Context]]:
    """The request as one of its clients gets it, with a context of that client's own.

    What the app leaves in `state` is kept in the node's, under the client's number.
    """
    request = message.content.config_records[REQUEST_RECORD]
    own_request = ConfigRecord({SERVER_ROUND: request["round"], "client": client})
    own_message = copy.copy(message)
    own_message.content = RecordDict(
        {MODEL_RECORD: message.content.array_records[MODEL_RECORD], REQUEST_RECORD: own_request}
    )
    mark = f"client-{client}/"
    own = {name.removeprefix(mark): r for name, r in context.state.items() if name.startswith(mark)}
    own_context = copy.copy(context)
    own_context.state = RecordDict(own)
    own_context.node_config = {**context.node_config, PARTITION: client}
    if total is not None:
        own_context.node_config[PARTITIONS] = total
    yield own_message, own_context
    for name in own:
        del context.state[mark + name]
    for name, record in own_context.state.items():
        context.state[mark + name] = record


class ReportingMod(ABC):
    """What every mod does: ask the app, randomize its update, send nothing else.

    For a ClientApp that answers training messages with its new arrays (as under Flower's own
    strategies). A request for several clients asks the app once for each of them, with
    `context.node_config["partition-id"]` naming the client and `num-partitions` how many there are;
    `context.state` is that client's own, and stays with the node that plays it. The update is
    (received - trained). Metrics, sizes and everything else in the reply stay here. An update that
    is not finite counts as zero and is randomized like any other: a missing report would tell of
    it.

    Of an app that fails, or replies with an error, only that fact leaves: the exception and its
    text go to the log `fl_shuffle.client`. An evaluation request is answered with an error and
    never reaches the app: its answer would be exact numbers about private records. Of the answer to
    a query only the range of clients that this node plays passes (`fl_shuffle.flower.roster`).
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Flower's mod protocol."""
        kind = message.metadata.message_type.split(".")[0]
        if kind == MessageType.QUERY:
            return _answer(message, context, call_next)
        if kind != MessageType.TRAIN:
            log.warning("a message of type %r is not answered", message.metadata.message_type)
            return _error(message)
        return self._train(message, context, call_next)

    @abstractmethod
    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """The reply to a training message: reports, or that there are none."""


class LocalRandomizerMod(ReportingMod):
    """Clip the update, add noise, send nothing else: with numbers given here, or a run's plan.

    The update is clipped as a whole to `clip_norm` (l2 for `gaussian`, l1 for `laplace`) and
    randomized so that one report is (epsilon0, delta0) local DP for a change of all of this
    client's data (unit = client, replace-one, sensitivity 2 clip_norm; analytic Gaussian
    calibration of Balle and Wang 2018). Noise comes from the operating system's entropy. What the
    app and its messages must look like: `ReportingMod`. `ShuffleClientApp` takes every client's
    budget and noise from the run's configuration instead, so that a ledger counts what was sent.

    Raises `InvalidValueError` for parameters out of range.
    """

    def __init__(
        self, *, randomizer: str, epsilon0: float, delta0: float = 0.0, clip_norm: float = 1.0
    ) -> None:
        require_choice("randomizer", randomizer, NORMS)
        require_real("epsilon0", epsilon0, minimum=0.0, exclusive_minimum=True)
        self._clip = require_real("clip_norm", clip_norm, minimum=0.0, exclusive_minimum=True)
        if randomizer == "gaussian":
            scale = analytic_sigma(epsilon0, delta0, 2.0 * self._clip)
        else:
            scale = 2.0 * self._clip / epsilon0
        self.randomizer = VectorRandomizer(randomizer, scale, self._clip)

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        require_no_pass(context.node_config)
        clients = _request_in(message).clients if _names_clients(message) else NOBODY
        updates = _updates(message, context, call_next, clients)
        if updates is None:
            return _error(message)
        finite = _clipped_(updates, self._clip, self.randomizer.norm)
        stream = NoiseStream(os.urandom(32), updates.shape[1], bits=64)
        self.randomizer.randomize_(updates, clients, stream)
        return reply_with_reports(message, _without(updates, finite))


class PlannedMod(ReportingMod):
    """Clips and randomizes each client's update as the run's configuration says.

    On a node that has a shuffler apart reports go there, and the reply is empty. Relative paths of
    the configuration are looked for beside the file `beside` first. Raises `InvalidValueError`,
    when a message comes, for a configuration that own apps cannot have, and for clients whose
    records lie on another node; `ConfigError` where node and configuration disagree on the
    shuffler; `ShufflerError` for one that refuses or does not answer.
    """

    def __init__(self, beside: str | Path | None) -> None:
        self._beside = beside

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        plan: ClientPlan = plan_of(context, self._beside)
        total = plan.config.data.clients
        request = TrainRequest.of(message, total)
        require_held(request, context, total)
        if expired(message):
            return _error(message)
        sender = sender_of(plan.config, context.node_config)
        run = None if sender is None else run_named_in(message)
        clients = request.clients
        updates = _updates(message, context, call_next, clients)
        if updates is None:
            return _error(message)
        sent = _clipped_(updates, plan.plan.clip[clients], plan.plan.norm)
        if plan.plan.client_clip is not None:
            clip_rows(updates, plan.plan.client_clip, plan.plan.norm)
        plan.noise.randomize_(updates, clients, request.round_number)
        sent &= allowed_by_record(request, context, plan.config, plan.plan)
        if sender is None or run is None:
            return reply_with_reports(message, _without(updates, sent))
        agreement = agreement_of(run, plan.config, plan.plan, updates.shape[1])
        hand_over(sender, agreement, request, updates.numpy(), sent)
        sender.close()
        return reply_with_nothing(message)


def _names_clients(message: Message) -> bool:
    return "first" in message.content.config_records.get(REQUEST_RECORD, ConfigRecord())


def _request_in(message: Message) -> TrainRequest:
    return TrainRequest.of(message, _total(message))


def _total(message: Message) -> int | None:
    """How many clients the run has, where the server says."""
    total = message.content.config_records.get(REQUEST_RECORD, ConfigRecord()).get(CLIENTS)
    return None if total is None else require_integer(CLIENTS, total, minimum=1)


def _updates(
    message: Message, context: Context, call_next: ClientAppCallable, clients: NDArray[np.int64]
) -> Tensor | None:
    """Each client's update (received - trained), float32 [k, d]: infinite for one whose training
    failed; None if all did."""
    received = message.content.array_records[MODEL_RECORD]
    layout = Layout.of(received)
    before = layout.flatten(received)
    rows = np.full((len(clients), len(before)), np.inf, dtype=np.float32)
    total, failed = _total(message), 0
    for row, client in zip(rows, clients.tolist(), strict=True):
        try:
            if _names_clients(message):
                with as_client(message, context, client, total) as (own_message, own_context):
                    reply = call_next(own_message, own_context)
            else:
                reply = call_next(message, context)
            if reply.has_error():
                log.error("the app replied with an error: %s", reply.error)
                failed += 1
                continue
            after = layout.flatten(reply.content.array_records[MODEL_RECORD])
            with np.errstate(over="ignore", invalid="ignore"):
                update = (before - after).astype(np.float32)
        except Exception as error:
            # Flower would send the exception's text to the server, and it may quote records.
            log.exception(
                "training failed on this node: client %d: %s: %s",
                client,
                type(error).__name__,
                error,
            )
            failed += 1
            continue
        if update.shape != row.shape:
            log.error("the app returned %d numbers instead of %d", update.size, row.size)
            failed += 1
            continue
        # Infinite stands for a failure; what is not finite here counts as zero.
        row[:] = update if np.isfinite(update).all() else np.nan
    return None if failed == len(clients) else torch.from_numpy(rows)


def _clipped_(updates: Tensor, clip: NDArray[np.float64] | float, norm: int) -> NDArray[np.bool_]:
    """Clip in place; returns whose update there is [k]. What is not finite becomes zero."""
    there = ~torch.isinf(updates).all(dim=1).numpy()
    valid = clip_rows(updates, clip, norm)
    if not valid[there].all():
        log.warning("an update is not finite; it counts as zero, and the report is sent")
    return np.asarray(there)


def _without(reports: Tensor, there: NDArray[np.bool_]) -> NDArray[np.float32]:
    """The reports [k, d], NaN where there was no update: the server counts them as absent."""
    values: NDArray[np.float32] = reports.numpy()
    values[~there] = np.nan
    return values


class ShuffleClientApp(ClientApp):
    """A ClientApp whose training is clipped and randomized as the run's configuration says.

        app = ShuffleClientApp(beside=__file__)

        @app.train()
        def train(message, context): ...  # returns its new arrays, as for FedAvg

    Of several clients on a node each is asked by itself (see `ReportingMod`). It answers which
    clients the node plays: those of its `partition-id` and `num-partitions`, or any without. The
    server's side is `fl_shuffle.apps.FederationSettings`. `beside`: your `__file__`, beside which
    the configuration and its budgets are looked for; `mods` are called before that of this app.
    """

    def __init__(self, *, beside: str | Path | None = None, mods: list[Mod] | None = None) -> None:
        super().__init__(mods=[*(mods or []), PlannedMod(beside)])

        @self.query()
        def holding(message: Message, context: Context) -> Message:
            config = config_of(context, beside)
            return reply_with_holding(message, context, config.data.clients)


def _answer(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    try:
        reply = call_next(message, context)
        held = None if reply.has_error() else holding_in(reply)
    except Exception:
        log.exception("a query failed on this node")
        held = None
    return _error(message) if held is None else reply_with_range(message, *held)


def _error(message: Message) -> Message:
    """That something failed, and nothing else."""
    return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)
