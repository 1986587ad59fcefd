"""A client mod that turns any ClientApp's model update into one randomized report."""

from __future__ import annotations

import logging
import os

import numpy as np
import torch
from flwr.app import Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.errors import require_choice, require_real
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.records import MODEL_RECORD, Layout, reply_with_reports
from fl_shuffle.flower.roster import holding_in, reply_with_range
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.vector import NORMS, VectorRandomizer, clip_rows

log = logging.getLogger("fl_shuffle.client")


class LocalRandomizerMod:
    """Clip the update, add noise, send nothing else.

    For a ClientApp that answers training messages with its new arrays (as under Flower's own
    strategies): the update (received - trained) is clipped as a whole to `clip_norm` (l2 for
    `gaussian`, l1 for `laplace`) and randomized so that one report is (epsilon0, delta0) local DP
    for a change of all of this client's data (unit = client, replace-one, sensitivity 2 clip_norm;
    analytic Gaussian calibration of Balle and Wang 2018). Noise comes from the operating system's
    entropy. Metrics, sizes and everything else in the reply stay here. An update that is not
    finite counts as zero and is randomized like any other: a missing report would tell of it.

    Of an app that fails, or replies with an error, only that fact leaves: the exception and its
    text go to the log `fl_shuffle.client`. An evaluation request is answered with an error and
    never reaches the app: its answer would be exact numbers about private records. Of the answer
    to a query only the range of clients that this node plays passes (`fl_shuffle.flower.roster`).

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

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Flower's mod protocol."""
        kind = message.metadata.message_type.split(".")[0]
        if kind == MessageType.QUERY:
            return self._answer(message, context, call_next)
        if kind != MessageType.TRAIN:
            log.warning("a message of type %r is not answered", message.metadata.message_type)
            return _error(message)
        received = message.content.array_records[MODEL_RECORD]
        layout = Layout.of(received)
        before = layout.flatten(received)
        try:
            reply = call_next(message, context)
            if reply.has_error():
                log.error("the app replied with an error: %s", reply.error)
                return _error(message)
            after = layout.flatten(reply.content.array_records[MODEL_RECORD])
            with np.errstate(over="ignore", invalid="ignore"):
                update = torch.from_numpy((before - after)[None, :].astype(np.float32))
        except Exception:
            # Flower would send the exception's text to the server, and it may quote records.
            log.exception("training failed on this node")
            return _error(message)
        valid = clip_rows(update, self._clip, self.randomizer.norm)
        stream = NoiseStream(os.urandom(32), update.shape[1], bits=64)
        if not valid.all():
            log.warning("the update is not finite; it counts as zero, and the report is sent")
        self.randomizer.randomize_(update, [0], stream)
        return reply_with_reports(message, update.numpy())

    @staticmethod
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
