"""A user's own ClientApp: what its training returns becomes randomized reports.

The app keeps Flower's signatures, and trains as for Flower's own strategies: arrays in, arrays out.
A Flower mod around it clips each client's update, adds the client's own noise, and lets nothing
else leave.
"""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.errors import (
    ConfigError,
    ProgramError,
    RunError,
    require_choice,
    require_integer,
    require_real,
    text_of,
)
from fl_shuffle.federation import RunParts
from fl_shuffle.flower.first_trainings import PROGRAM_FAILS, FirstTrainings, is_simulated
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.messages import (
    CLIENTS,
    CONFIG_RECORD,
    MODEL_RECORD,
    REQUEST_RECORD,
    SERVER_ROUND,
    Layout,
    TrainRequest,
    expired,
    model_in,
    record_in,
    reply_with_arrays,
    reply_with_reports,
    reply_without_metrics,
    trained_in,
)
from fl_shuffle.flower.node_registry import PARTITION, PARTITIONS, holding_in, reply_with_range
from fl_shuffle.flower.own_records import OwnRecords, RecordGradients, RecordsOf
from fl_shuffle.flower.remote_shuffler import require_no_pass
from fl_shuffle.gradients.clipper import ClippedRows, Clipper
from fl_shuffle.gradients.engine import Loss
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.per_client import Ids
from fl_shuffle.run_words import METRICS_STAY
from fl_shuffle.seeds import KEY_BYTES
from fl_shuffle.threads import kept_default_dtype

log = logging.getLogger("fl_shuffle.client")

NOBODY = np.zeros(1, dtype=np.int64)
"""Whose update it is where a message names no clients: the node's own."""
_AS_ZERO = "; it counts as zero, and the report is sent"


class ReportingMod(ABC):
    """What every mod does: ask the app, randomize its update, send nothing else.

    For a ClientApp that answers training messages with its new arrays (as under Flower's own
    strategies). A request for several clients asks the app once for each of them, with
    `context.node_config["partition-id"]` naming the client and `num-partitions` how many there are;
    `context.state` is that client's own, and stays with the node that plays it. The message holds
    `arrays`, and `config` with the server's `train_config` and `server-round`. The update is
    (received - trained). Metrics, sizes and everything else in the reply stay here. An update that
    is not finite counts as zero and is randomized like any other, and so does that of an app that
    raises, or replies with an error or another number of values: a missing report would tell of
    it. The exception and its text go to the log `fl_shuffle.client`.

    An evaluation request never reaches the app, whose answer would be exact numbers about private
    records: the answer is `num-examples` = 1, for Flower's own strategies, and nothing else. The
    log says once that metrics stay here. Of the answer to a query only the range of clients that
    this node plays passes (`fl_shuffle.flower.node_registry`).
    """

    _told = False

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Flower's mod protocol."""
        kind = message.metadata.message_type.split(".")[0]
        if kind == MessageType.QUERY:
            return _answer(message, context, call_next)
        if kind == MessageType.EVALUATE:
            self._tell()
            return reply_without_metrics(message)
        if kind != MessageType.TRAIN:
            log.warning("a message of type %r is not answered", message.metadata.message_type)
            return _error(message)
        return self._train(message, context, call_next)

    def _tell(self) -> None:
        """Say once what will not be sent."""
        if not self._told:
            self._told = True
            log.warning(METRICS_STAY)

    @abstractmethod
    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """The reply to a training message: a report of each client."""


class LocalRandomizerMod(ReportingMod):
    """Clip the update, add noise, send nothing else: with numbers given here, or a run's plan.

    The update is clipped as a whole to `clip_norm` (l2 for `gaussian`, l1 for `laplace`) and
    randomized so that one report is (epsilon0, delta0) local DP for a change of all of this
    client's data (unit = client, replace-one, sensitivity 2 clip_norm; analytic Gaussian
    calibration of Balle and Wang 2018). Noise of that `scale` comes from the operating system's
    entropy. What the app and its messages must look like: `ReportingMod`. `ShuffleClientApp` takes
    every client's budget and noise from the run's configuration instead, so that a ledger counts
    what was sent.

    Under `ShuffleStrategy` it answers with reports, under Flower's own strategies (FedAvg, FedAdam)
    with the received arrays minus the report, and `num-examples` = 1. These count nothing: what
    several rounds cost together is yours to compose.

    Raises `InvalidValueError` for parameters out of range.
    """

    def __init__(
        self, *, randomizer: str, epsilon0: float, delta0: float = 0.0, clip_norm: float = 1.0
    ) -> None:
        kind = NOISES[require_choice("randomizer", randomizer, NOISES)]
        require_real("epsilon0", epsilon0, minimum=0.0, exclusive_minimum=True)
        self._clip = require_real("clip_norm", clip_norm, minimum=0.0, exclusive_minimum=True)
        if randomizer == "gaussian":
            self.scale = analytic_sigma(epsilon0, delta0, 2.0 * self._clip)
        else:
            self.scale = 2.0 * self._clip / epsilon0
        self._kind, self._own = kind, (epsilon0, delta0, self._clip, self.scale)

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        require_no_pass(context.node_config)
        clients = TrainRequest.of(message).clients if _names_clients(message) else NOBODY
        received = model_in(message.content)
        model = torch.from_numpy(Layout.of(received).flatten(received))
        updates = AppUpdates(message, context, call_next)
        clip = ClippedRows(updates, [self._clip], self._kind.norm)
        means = clip(model, clients)
        stream = NoiseStream(os.urandom(KEY_BYTES), means.shape[1], bits=64)
        rows = np.arange(len(means))
        randomizer = self._kind(*(np.full(len(means), value) for value in self._own))
        reports = randomizer.reports(means, rows, stream)
        if _names_clients(message):
            return reply_with_reports(message, reports.numpy())
        if updates.more:
            self._tell()
        # Flower's own strategies average arrays, weighted by a number that may not be private.
        return reply_with_arrays(message, updates.layout, (model - reports[0]).numpy())


class ShuffleMod(ReportingMod):
    """Clips and randomizes each client's update as the run's configuration says.

    On a node that has a shuffler of its own reports go there, and the reply is empty. Relative
    paths of the configuration are looked for beside the file `beside` first. Raises, when a message
    comes, `InvalidValueError` for a configuration that own apps cannot have, and for clients whose
    records lie on another node; `ConfigError` where node and configuration disagree on the
    shuffler; `ShufflerError` for one that refuses or does not answer; `ProgramError` for a mistake
    of the app.

    `ClientApp(mods=[ShuffleMod(beside=__file__)])` is enough in simulations. Nodes that hold a part
    of the clients each say which: that is what `ShuffleClientApp(mods=[...])` adds.
    """

    def __init__(self, beside: str | Path | None = None, records: OwnRecords | None = None) -> None:
        self._beside = beside
        self._records = records

    def _train(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        # The lines of clients/app.py, with the app's own training for gradients.
        parts = RunParts.of(context, beside=self._beside)
        request = parts.request(message, context)
        if expired(message):
            return _error(message)
        answer = parts.answer(request)
        first = parts.first_trainings if is_simulated(parts.config, context.node_config) else None
        clip = self._clipper(parts, AppUpdates(message, context, call_next, first))
        for clients in answer.blocks:
            means = clip(request.model, clients)
            answer.add(parts.randomizer(means, clients, request.round), clients)
        return answer.message()

    def _clipper(self, parts: RunParts, updates: AppUpdates) -> Clipper:
        """Of the app's updates, or of the gradients of its records."""
        declared = parts.config.privacy.randomizer == "declared"
        if self._records is not None:
            if declared:
                raise ProgramError(
                    "privacy.randomizer = 'declared': no noise would be added to gradients of "
                    "ShuffleClientApp(records=...); train in @app.train(), or choose gaussian"
                )
            self._records.require_model(updates.layout)
            return RecordMeans(updates, RecordGradients(self._records, parts))
        if parts.config.privacy.unit == "record" and not declared:
            raise ProgramError(
                "privacy.unit = 'record': an update cannot be clipped by the record; give "
                "ShuffleClientApp(records=..., model=...), or set privacy.unit = 'client'"
            )
        return ClippedRows(updates, parts.update_clips, parts.randomizers.norm)


class ShuffleClientApp(ClientApp):
    """A ClientApp whose training is clipped and randomized as the run's configuration says.

        app = ShuffleClientApp(beside=__file__)

        @app.train()
        def train(message, context): ...  # returns its new arrays, as for FedAvg

    Of several clients on a node each is asked by itself (see `ReportingMod`). It answers which
    clients the node plays: those of its `partition-id` and `num-partitions`, or any without. The
    server's side is `ShuffleStrategy.of`. `beside`: your `__file__`, beside which the configuration
    and its budgets are looked for; `mods` are called before that of this app. Raises `ConfigError`
    for a `client_fn`.

    With `records`, `model` and, if it is not cross entropy, `loss` there is no training function:

        app = ShuffleClientApp(beside=__file__, records=records, model=Net)

        def records(context): ...  # returns (x, y): the client's records and their labels

    A client's report is then the clipped gradient of its records on the received model, as in the
    framework's own runs; with `privacy.unit = "record"` each record's by itself, in the mean of
    `data.records` of them. `model()` is a torch module with the names and shapes of the server's
    arrays; `loss(outputs, y)` gives a number for each record.
    """

    def __init__(
        self,
        client_fn: object = None,
        mods: list[Mod] | None = None,
        *,
        beside: str | Path | None = None,
        records: RecordsOf | None = None,
        model: Callable[[], nn.Module] | None = None,
        loss: Loss | None = None,
    ) -> None:
        if (records is None) != (model is None) or (records is None and loss is not None):
            raise ConfigError(
                "ShuffleClientApp: records=... and model=... go together, and loss=... with them"
            )
        if client_fn is not None:
            raise ConfigError(
                "ShuffleClientApp(client_fn): a NumPyClient's messages cannot be read here; use "
                "Flower's Message API, app = ShuffleClientApp() and @app.train()"
            )
        own = None if records is None or model is None else OwnRecords(records, model, loss)
        super().__init__(mods=[*(mods or []), ShuffleMod(beside, own)])
        if own is not None:

            @self.train()
            def train(message: Message, context: Context) -> Message:
                raise AssertionError("the gradients are those of the records")

        @self.query()
        def holding(message: Message, context: Context) -> Message:
            return RunParts.of(context, beside=beside).holding(message, context)

    def __call__(self, message: Message, context: Context) -> Message:
        """See Flower's `ClientApp`. A mistake of the app becomes an error reply here, behind all
        mods: those of an app may look into every reply, and would raise at one without content."""
        try:
            return super().__call__(message, context)
        except ProgramError as error:
            return Message(Error(PROGRAM_FAILS, str(error)), reply_to=message)


class AppUpdates:
    """`Rows` of an app's own training, for a clipper: (received - trained) of each client.

    Zero where training failed: whether it fails hangs on its records, so that nothing but this
    node's log may tell.
    """

    def __init__(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        first: FirstTrainings | None = None,
    ) -> None:
        """`first`: who judges whether failures are a mistake of the app; see `ProgramError`."""
        self._message = message
        self._context = context
        self._call_next = call_next
        self._first = first
        self.more = False
        """Whether the app has replied more than arrays."""
        self.layout = Layout.of(model_in(message.content))

    def __call__(self, parameters: Tensor, clients: Ids, tally: NonfiniteRecords) -> Tensor:
        """float32 [k, d]; what is not finite is the clipper's affair."""
        received = parameters.numpy()

        def update(client: int, row: NDArray[np.float32]) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                self._train(client, row)
                np.subtract(received, row, out=row)

        return self.each(clients, len(parameters), update)

    def each(
        self, clients: Ids, dimension: int, compute: Callable[[int, NDArray[np.float32]], None]
    ) -> Tensor:
        """A row for each client, float32 [k, d], which `compute` fills, zero where it raises."""
        rows = np.zeros((len(clients), dimension), dtype=np.float32)
        for row, client in zip(rows, clients.tolist(), strict=True):
            failure: BaseException | None = None
            try:
                compute(client, row)
            except (Exception, SystemExit) as error:
                # Flower would send the exception's text to the server, and it may quote records.
                failure = error
                row[:] = 0.0
                what = f"{type(error).__name__}: {text_of(error)}"
                log.exception(
                    "training failed on this node: client %d: %s%s", client, what, _AS_ZERO
                )
            if self._first is not None:
                self._first.tell(failure)
        return torch.from_numpy(rows)

    def _train(self, client: int, trained: NDArray[np.float32]) -> None:
        """Put the client's arrays after its training into `trained` [d]; raises what went wrong."""
        with kept_default_dtype():
            reply: Any = self._ask(client)
        if not isinstance(reply, Message):
            raise RunError(f"the app returned {type(reply).__name__}, no message")
        if reply.has_error():
            raise RunError(f"the app replied with an error: {text_of(reply.error)}")
        self.more = self.more or len(reply.content) > 1
        self.layout.flatten(trained_in(reply.content), trained)

    def _ask(self, client: int) -> Message:
        if not _names_clients(self._message):
            return self._call_next(self._message, self._context)
        with self.as_client(client) as (message, context):
            return self._call_next(message, context)

    def as_client(self, client: int) -> AbstractContextManager[tuple[Message, Context]]:
        """What one of the request's clients gets."""
        return _as_client(self._message, self._context, client)


class RecordMeans:
    """A `Clipper` of the app's own records, each client's by itself; zero where it cannot be."""

    def __init__(self, updates: AppUpdates, gradients: RecordGradients) -> None:
        self._updates = updates
        self._gradients = gradients

    def __call__(self, parameters: Tensor, clients: Ids) -> Tensor:
        """See `Clipper`."""

        def mean(client: int, row: NDArray[np.float32]) -> None:
            with self._updates.as_client(client) as (_, context), kept_default_dtype():
                row[:] = self._gradients.row(parameters, client, context).cpu().numpy()

        return self._updates.each(clients, len(parameters), mean)


@contextmanager
def _as_client(
    message: Message, context: Context, client: int
) -> Iterator[tuple[Message, Context]]:
    """The request as one of its clients gets it, with a context of that client's own.

    What the app leaves in `state` is kept in the node's, under the client's number.
    """
    request = record_in(message.content, REQUEST_RECORD, ConfigRecord) or ConfigRecord()
    settings = record_in(message.content, CONFIG_RECORD, ConfigRecord) or ConfigRecord()
    own_message, frozen = copy.copy(message), Frozen.read(message.content)
    trained = model_in(message.content)
    own_message.content = RecordDict(
        {
            MODEL_RECORD: trained if frozen is None else frozen.whole(trained),
            CONFIG_RECORD: ConfigRecord({**settings, SERVER_ROUND: request["round"]}),
        }
    )
    mark = f"client-{client}/"
    own = {name.removeprefix(mark): r for name, r in context.state.items() if name.startswith(mark)}
    own_context = copy.copy(context)
    own_context.state = RecordDict(own)
    own_context.node_config = {**context.node_config, PARTITION: client}
    total = request.get(CLIENTS)
    if total is not None:
        own_context.node_config[PARTITIONS] = require_integer(CLIENTS, total, minimum=1)
    yield own_message, own_context
    for name in own:
        del context.state[mark + name]
    for name, record in own_context.state.items():
        context.state[mark + name] = record


def _names_clients(message: Message) -> bool:
    return record_in(message.content, REQUEST_RECORD, ConfigRecord) is not None


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
