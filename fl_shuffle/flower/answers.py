"""What a node is asked, and its answer: single reports, or their exact sum; nothing else leaves.

Which answer it is, is decided once for a request, by `RunParts.answer`. How it is packed, what a
node's own record forbids to send, and whether a shuffler of its own gets the reports instead of the
server is decided here, below the page of the client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor

from fl_shuffle._internal.arrays import Ids, Mask
from fl_shuffle._internal.refusal_log import RefusalLog
from fl_shuffle.configuration.reading import SETTINGS
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import (
    DataError,
    FlShuffleError,
    InvalidValueError,
    ProgramError,
    text_of,
)
from fl_shuffle.flower.client_logs import quiet_on_ray
from fl_shuffle.flower.client_record import ClientRecord
from fl_shuffle.flower.first_trainings import PROGRAM_FAILS
from fl_shuffle.flower.messages import (
    PACKED,
    REPORTS,
    SENT,
    TOTAL,
    VALID,
    TrainRequest,
    expired,
    reply_with,
)
from fl_shuffle.flower.node_registry import held_clients, words_of
from fl_shuffle.flower.private_api import CLIENT_APP_RAISED
from fl_shuffle.flower.remote_shuffler import sender_of
from fl_shuffle.flower.settings import SIMULATED
from fl_shuffle.gradients.clipper import Clipper
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.personal import Randomizer
from fl_shuffle.shuffler.exact_sums import ExactSum
from fl_shuffle.shuffler.remote.agreement import Agreement
from fl_shuffle.shuffler.remote.link import Sender

log = logging.getLogger("fl_shuffle.client")
refusals = RefusalLog(log)
"""What this node does not do that a server asks of it. Nothing here depends on records."""

_SETTING = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")


@dataclass(frozen=True)
class Node:
    """The clients that a node plays, its record of what they have sent, its way to a shuffler."""

    held: range
    record: ClientRecord | None
    sender: Sender | None

    @classmethod
    def of(cls, context: Context, config: Config, **dealt: Any) -> Node:
        """Return the node that a context belongs to, in a run of this configuration.

        `dealt`: how the run deals records to clients, see `ClientRecord.of`. Raises `ConfigError`
        where the node's configuration forbids to take part in it: for reports that a record which
        the node keeps could not count, and where both disagree on the shuffler.
        """
        record = ClientRecord.of(context.node_config, config, **dealt)
        held = held_clients(context.node_config, config.data.clients)
        return cls(held, record, sender_of(config, context.node_config))

    def require_held(self, request: TrainRequest) -> None:
        """Refuse to play clients whose records lie elsewhere; raises `InvalidValueError`."""
        first, last = request.clients[[0, -1]].tolist()
        if first < self.held.start or last >= self.held.stop:
            raise InvalidValueError(
                "requested clients", f"{first} to {last}", f"this node holds {words_of(self.held)}"
            )


class Request(NamedTuple):
    """What the server asks of a node: a round, its model (float32 [d]), whose reports; `summed`:
    or their sum."""

    message: Message
    context: Context
    round: int
    model: Tensor
    clients: Ids
    summed: bool


class Answer(Protocol):
    """Takes the clients' reports, a block of them at a time, and makes the reply."""

    blocks: Iterable[Ids]
    """The request's clients, as many at a time as are held in memory."""

    def add(self, reports: Tensor, clients: Ids) -> None:
        """Take these clients' reports [m k, d], those of a batch together."""

    def message(self) -> Message:
        """Return the reply."""


@dataclass
class ReportsAnswer:
    """Each report by itself [k, d]. The node's own record, if it keeps one, may forbid some."""

    request: Request
    plan: Calibration
    node: Node

    def __post_init__(self) -> None:
        self.blocks: Iterable[Ids] = (self.request.clients,)  # all at once

    def add(self, reports: Tensor, clients: Ids) -> None:
        """See `Answer`: NaN stands for a report that may not be sent."""
        self._rows, self._sent = reports.numpy(), self.allowed(clients)
        self._rows[~np.tile(self._sent, self.plan.reports_per_round)] = np.nan

    def message(self) -> Message:
        """See `Answer`: the reports, and nothing else.

        In a run of few bits they travel packed, but for a node in the server's own process.
        """
        few_bits, request = self.plan.few_bits, self.request
        if few_bits is None or request.context.node_config.get(SIMULATED):
            return reply_with(request.message, **{REPORTS: self._rows})
        of_each = np.tile(request.clients, self.plan.reports_per_round)
        packed = few_bits.packed(np.nan_to_num(self._rows, copy=False), of_each)
        return reply_with(request.message, **{PACKED: packed, SENT: self._sent.astype(np.uint8)})

    def allowed(self, clients: Ids) -> Mask:
        """Return whose report may leave [k]; it is written down before it does."""
        if self.node.record is None:
            return np.ones(len(clients), dtype=bool)
        classes = self.plan.classes_of_each(clients)
        run = str(self.request.context.run_id)
        times = self.plan.reports_per_round
        sent = self.node.record.debit(run, self.request.round, clients, classes, times)
        if not sent.all():
            left = int((~sent).sum())
            said = f"{left} of {len(sent)} clients' reports on round {self.request.round}"
            refusals.note("record", f"{said}: this node's record forbids them")
        return sent


@dataclass
class SealedAnswer(ReportsAnswer):
    """Each report sealed and submitted to the node's own shuffler, those of a client together; the
    server's reply is empty."""

    agreement: Agreement

    def add(self, reports: Tensor, clients: Ids) -> None:
        """See `Answer`."""
        assert self.node.sender is not None
        sent = self.allowed(clients)
        of_each = reports.numpy().reshape(self.agreement.batches, len(clients), -1).swapaxes(0, 1)
        for client, own in zip(clients[sent].tolist(), of_each[sent], strict=True):
            self.node.sender.send(self.agreement, self.request.round, client, own)

    def message(self) -> Message:
        """See `Answer`: that the request was worked on."""
        return Message(RecordDict(), reply_to=self.request.message)


class SumAnswer:
    """The exact sum [d] of the reports, and of which clients: for simulations, where the way to the
    server is dear. What is no honest report is left out, as the shuffler would leave it out."""

    def __init__(self, request: Request, plan: Calibration, blocks: Iterable[Ids]) -> None:
        self.blocks = blocks
        self._request = request
        self._largest = plan.largest
        self._sum = ExactSum(len(request.model), plan.group)
        self._valid: list[Mask] = []

    def add(self, reports: Tensor, clients: Ids) -> None:
        """See `Answer`."""
        self._valid.append(self._sum.add(reports, self._largest[clients]))

    def message(self) -> Message:
        """See `Answer`: the sum, and nothing else."""
        arrays = {TOTAL: self._sum.total.numpy(), VALID: np.concatenate(self._valid)}
        return reply_with(self._request.message, **arrays)


def answered(request: Request, answer: Answer, *, clip: Clipper, randomize: Randomizer) -> Message:
    """Return the reply to a request, whose clients are clipped and randomized block by block.

    The page `clients/app.py` and an app of a user's own both end with it.
    """
    for clients in answer.blocks:
        means = clip(request.model, clients, request.round)
        reports = randomize(means, clients, request.round)
        answer.add(reports, clients)
    return answer.message()


def failed(message: Message, context: Context, error: Exception) -> Message:
    """Return the reply to a message on which this node fails; the exception goes to the node's log.

    What an exception says may quote records, or name one of the node's clients, files or addresses.
    So the server gets what `told_of` leaves of it. In a simulation the exception is raised again,
    for the engine in this process to show its user, unless it is about records.
    """
    if context.node_config.get(SIMULATED) and not isinstance(error, DataError):
        raise error
    if isinstance(error, FlShuffleError) and not isinstance(error, DataError | ProgramError):
        # A request that this node refuses: one line for each kind, however often it is sent.
        name = type(error).__name__
        refusals.note(name, f"a {message.metadata.message_type} request: {name}: {text_of(error)}")
    else:
        log.error("round %s failed on this node", message.metadata.group_id, exc_info=error)
    program = isinstance(error, ProgramError)
    code = PROGRAM_FAILS if program else CLIENT_APP_RAISED
    return Message(Error(code, told_of(error) or None), reply_to=message)


def told_of(error: Exception) -> str:
    """Return what the server may read of an error: its class, and the settings of the run's
    configuration that it names. Nothing where the fault may lie in records: even its class would
    tell of them."""
    if isinstance(error, DataError) or not isinstance(error, FlShuffleError):
        return ""
    if isinstance(error, ProgramError) and error.place:
        named = error.place  # its text quotes what the app raised
    else:
        words = set(_SETTING.findall(text_of(error)))
        named = ", ".join(key for key in SETTINGS if key in words)
    return f"{type(error).__name__}: {named}" if named else type(error).__name__


def redact_errors(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Return a Flower mod: an exception becomes a reply by `failed`, since Flower would send its
    text.

    Nobody waits for the answer to a request that has expired, and it is not worked on.
    """
    quiet_on_ray()
    if expired(message):
        refusals.note("expired", "a request that had expired when it came")
        return Message(Error(code=CLIENT_APP_RAISED), reply_to=message)
    try:
        return call_next(message, context)
    except Exception as error:
        return failed(message, context, error)
