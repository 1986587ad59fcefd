"""A user's own ClientApp: what its training returns becomes randomized reports.

The app keeps Flower's signatures, and trains as for Flower's own strategies: arrays in, arrays out.
Around it each client's update is clipped, its own noise is added, and nothing else leaves.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle._internal.arrays import Ids
from fl_shuffle.errors import ConfigError, ProgramError, RunError, text_of
from fl_shuffle.federation.parts import RunParts
from fl_shuffle.flower import messages
from fl_shuffle.flower.answers import Request, answered, failed, refusals
from fl_shuffle.flower.client_logs import quiet_on_ray
from fl_shuffle.flower.first_trainings import PROGRAM_FAILS, FirstTrainings
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import kept_default_dtype
from fl_shuffle.flower.node_registry import PARTITION, PARTITIONS
from fl_shuffle.flower.own_records import NodeFault, OwnRecords, RecordGradients, RecordsOf
from fl_shuffle.flower.private_api import CLIENT_APP_RAISED
from fl_shuffle.flower.settings import SIMULATED, is_simulated
from fl_shuffle.gradients.clipper import ClippedRows, Clipper
from fl_shuffle.gradients.engine import Loss
from fl_shuffle.gradients.metric_reports import EvaluatingClipper
from fl_shuffle.gradients.nonfinite_records import NonfiniteRecords

log = logging.getLogger("fl_shuffle.client")

_AS_ZERO = "; it counts as zero, and the report is sent"


def unanswered(message: Message) -> Message:
    """Return the reply to a message that does not reach the app."""
    kind = message.metadata.message_type
    refusals.note("type", f"a message of type {kind!r} is not answered")
    return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)


class ShuffleClientApp(ClientApp):
    """A ClientApp whose training is clipped and randomized as the run's configuration says.

    The server's side is `ShuffleStrategy.of`. Register a training function, or give `records` and
    `model`.

    Parameters
    ----------
    client_fn : object, optional
        Must be left out: a NumPyClient's messages cannot be read here.
    mods : list of Flower mods, optional
        Called before what this app does.
    beside : str or Path, optional
        Your ``__file__``, beside which the configuration and its budgets are looked for.
    records : callable, optional
        ``records(context)`` returns (x, y): the client's records and their labels. Needs `model`.
    model : callable, optional
        ``model()`` returns a torch module with the names and shapes of the server's arrays.
    loss : callable, optional
        ``loss(outputs, y)`` returns a number for each record. By default, cross entropy.

    Raises
    ------
    ConfigError
        For a `client_fn`, and for `records` or `model` alone. When a message comes: where node and
        configuration disagree on the shuffler.
    InvalidValueError
        When a message comes: for a configuration that own apps cannot have, and for clients whose
        records lie on another node.
    ShufflerError
        When a message comes: for a shuffler that refuses or does not answer.

    Notes
    -----
    A request for several clients asks the training once for each of them, with
    ``context.node_config["partition-id"]`` naming the client and ``num-partitions`` how many there
    are; ``context.state`` is that client's own, and stays with the node that runs it. The message
    holds ``arrays``, and ``config`` with the server's ``train_config`` and ``server-round``. The
    update is (received - trained). Metrics, sizes, and everything else in the reply stay here.

    An update that is not finite counts as zero and is randomized like any other, and so does that
    of an app that raises, or replies with an error or another number of values: a missing report
    would tell of it. The exception and its text go to the log `fl_shuffle.client`.

    On a node that has a shuffler of its own, reports go there, and the reply is empty. A question
    is answered with the clients that this node runs (`fl_shuffle.flower.node_registry`): those of
    its ``partition-id`` and ``num-partitions``, or any without; no other message reaches the app.

    With `records` and `model`, a client's report is the clipped gradient of its records on the
    received model, as in the framework's own runs. With ``privacy.unit = "record"`` each record's
    gradient is clipped by itself, in the mean of `data.records_per_client` of them.

    Examples
    --------
    A training function returns its new arrays, as for FedAvg:

    >>> from fl_shuffle.flower import ShuffleClientApp
    >>> app = ShuffleClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     ...
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
        self._beside = beside
        self._records = None
        super().__init__(mods=[*(mods or []), self._answer])

        def never(message: Message, context: Context) -> Message:
            raise AssertionError("the last of the mods answers")

        # What no function is registered for reaches no mod.
        self.query()(never)
        if records is not None and model is not None:
            self._records = OwnRecords(records, model, loss)
            self.train()(never)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, as Flower's `ClientApp` does.

        Every exception, also one of the app's own mods, becomes an error reply here, behind all
        mods: those of an app may look into every reply, and would raise at one without content;
        Flower would send the exception's text to the server.
        """
        quiet_on_ray()
        try:
            return super().__call__(message, context)
        except ProgramError as error:
            if context.node_config.get(SIMULATED):
                return Message(Error(PROGRAM_FAILS, str(error)), reply_to=message)
            return failed(message, context, error)
        except Exception as error:
            return failed(message, context, error)

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer as the last of the mods: with reports, or with this node's clients."""
        kind = message.metadata.message_type.split(".")[0]
        if kind not in (MessageType.TRAIN, MessageType.QUERY) or messages.expired(message):
            return unanswered(message)
        parts = RunParts.of(context, beside=self._beside)
        if kind == MessageType.QUERY:
            return parts.holding(message, context)
        # The lines of clients/app.py, with the app's own training for gradients.
        request = parts.request(message, context)
        answer = parts.answer(request)
        clip = self._clipper(parts, request, call_next)
        return answered(request, answer, clip=clip, randomize=parts.randomizer)

    def _clipper(self, parts: RunParts, request: Request, call_next: ClientAppCallable) -> Clipper:
        """Return the clipper of the app's updates, or of the gradients of its records."""
        config, declared = parts.config, parts.config.privacy.randomizer == "declared"
        clients = OwnClients(
            messages.ArrayLayout.of(messages.model_in(request.message.content)),
            partial(as_client, request, config.data.clients),
            parts.first_trainings if is_simulated(config, request.context.node_config) else None,
        )
        reports = parts.metric_reports
        if self._records is not None:
            if reports is not None:
                raise ProgramError(
                    "privacy.metrics: ShuffleClientApp(records=...) computes none; train in "
                    "@app.train() and return a MetricRecord, or leave privacy.metrics out"
                )
            if declared:
                raise ProgramError(
                    "privacy.randomizer = 'declared': no noise would be added to gradients of "
                    "ShuffleClientApp(records=...); train in @app.train(), or choose gaussian"
                )
            self._records.require_model(clients.layout, config.run.device)
            return partial(clients.means, RecordGradients(self._records, parts))
        if config.privacy.unit == "record" and not declared:
            raise ProgramError(
                "privacy.unit = 'record': an update cannot be clipped record by record; give "
                "ShuffleClientApp(records=..., model=...), or set privacy.unit = 'client'"
            )
        updates = partial(clients.updates, call_next)
        clip = ClippedRows(updates, parts.randomizers.radius, parts.randomizers.norm)
        if reports is None:
            return clip
        return EvaluatingClipper(clip, reports, partial(clients.numbers, call_next, reports.names))


@contextmanager
def as_client(request: Request, count: int, client: int) -> Iterator[tuple[Message, Context]]:
    """Yield the request as one of the run's `count` clients gets it, with a context of its own.

    What the app leaves in `state` is kept in the node's, under the client's number.
    """
    message, context = copy.copy(request.message), copy.copy(request.context)
    given, state = message.content, context.state
    said = messages.record_in(given, messages.CONFIG_RECORD, ConfigRecord) or ConfigRecord()
    settings = ConfigRecord({**said, messages.SERVER_ROUND: request.round})
    trained, frozen = messages.model_in(given), Frozen.read(given)
    model = trained if frozen is None else frozen.whole(trained)
    message.content = RecordDict({messages.MODEL_RECORD: model, messages.CONFIG_RECORD: settings})
    mark = f"client-{client}/"
    own = {name.removeprefix(mark): r for name, r in state.items() if name.startswith(mark)}
    context.state = RecordDict(own)
    context.node_config = {**context.node_config, PARTITION: client, PARTITIONS: count}
    yield message, context
    for name in own:
        del state[mark + name]
    for name, record in context.state.items():
        state[mark + name] = record


@dataclass
class OwnClients:
    """A request's clients, each asked by itself for a row.

    Zero where that fails: whether it fails depends on its records, so that nothing but this node's
    log may tell. What fails without them is raised (`NodeFault`), and the request is not answered.
    `layout` is that of the model; `as_client` gives a client's message and context; `first` raises
    `ProgramError` for the app's mistake.
    """

    layout: messages.ArrayLayout
    as_client: Callable[[int], AbstractContextManager[tuple[Message, Context]]]
    first: FirstTrainings | None = None

    def updates(
        self,
        call_next: ClientAppCallable,
        model: Tensor,
        clients: Ids,
        _round: int,
        tally: NonfiniteRecords,
    ) -> Tensor:
        """Return `Rows` of the app's own training, float32 [k, d].

        They are (received - trained) of each client; what is not finite is the clipper's affair.
        """
        received = model.numpy()

        def update(message: Message, context: Context, row: NDArray[np.float32]) -> None:
            reply: Any = call_next(message, context)
            if not isinstance(reply, Message):
                raise RunError(f"the app returned {type(reply).__name__}; it must return a Message")
            if reply.has_error():
                raise RunError(f"the app replied with an error: {text_of(reply.error)}")
            with np.errstate(over="ignore", invalid="ignore"):
                self.layout.flatten(messages.trained_in(reply.content), row)
                np.subtract(received, row, out=row)

        return self._rows(clients, update)

    def numbers(
        self, call_next: ClientAppCallable, names: tuple[str, ...], _model: Tensor, clients: Ids
    ) -> NDArray[np.float64]:
        """Return the numbers of these names in each client's reply, [k, m].

        NaN where there is none. Nothing else of the reply is read.
        """

        def read(message: Message, context: Context, row: NDArray[np.float32]) -> None:
            reply: Any = call_next(message, context)
            found = [
                record for record in reply.content.values() if isinstance(record, MetricRecord)
            ]
            for column, name in enumerate(names):
                values: list[Any] = [record[name] for record in found if name in record]
                row[column] = float(values[0]) if len(values) == 1 else np.nan

        return self._rows(clients, read, len(names), np.nan).double().numpy()

    def means(
        self, gradients: RecordGradients, model: Tensor, clients: Ids, round_number: int
    ) -> Tensor:
        """Return a `Clipper` of the app's own records, each client's by itself."""

        def mean(message: Message, context: Context, row: NDArray[np.float32]) -> None:
            client = int(context.node_config[PARTITION])
            row[:] = gradients.row(model, client, round_number, context).cpu().numpy()

        return self._rows(clients, mean)

    def _rows(
        self,
        clients: Ids,
        compute: Callable[[Message, Context, NDArray[np.float32]], None],
        width: int | None = None,
        missing: float = 0.0,
    ) -> Tensor:
        """Return a row for each client, float32 [k, d], or as wide as asked for.

        `compute` fills it from what the client gets: its message and context. It is `missing`
        where that fails.
        """
        size = self.layout.size if width is None else width
        rows = np.full((len(clients), size), missing, dtype=np.float32)
        for row, client in zip(rows, clients.tolist(), strict=True):
            failure: BaseException | None = None
            try:
                with self.as_client(client) as (message, context), kept_default_dtype():
                    compute(message, context, row)
            except (NodeFault, KeyboardInterrupt):
                # It depends on no record: better no report than zeros and noise in every round.
                raise
            except BaseException as error:  # a library's panic on a record is no Exception
                # Flower would send the exception's text to the server, and it may quote records.
                failure = error
                row[:] = missing
                what = f"{type(error).__name__}: {text_of(error)}"
                log.exception(
                    "training failed on this node: client %d: %s%s", client, what, _AS_ZERO
                )
            if self.first is not None:
                self.first.tell(failure)
        return torch.from_numpy(rows)
