"""A Flower mod for apps that keep one of Flower's own strategies.

It has one budget for every client, and no ledger.
"""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext, suppress
from functools import partial
from numbers import Real

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fl_shuffle.accounting.distributions.gaussian_mechanism import analytic_sigma
from fl_shuffle.errors import (
    ConfigError,
    InvalidValueError,
    require_choice,
    require_open_unit,
    require_real,
)
from fl_shuffle.flower.answers import failed
from fl_shuffle.flower.client_logs import quiet_on_ray
from fl_shuffle.flower.client_record import (
    BUDGET_STORE,
    LIFETIME_EPSILON,
    OLD_BUDGET_STORE,
    OLD_STORE_CONFIG,
    STORE_CONFIG,
)
from fl_shuffle.flower.messages import MODEL_RECORD, ArrayLayout, model_in
from fl_shuffle.flower.mods import OwnClients, unanswered
from fl_shuffle.flower.remote_shuffler import SHUFFLER
from fl_shuffle.gradients.clipper import ClippedRows
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.seeds import KEY_BYTES
from fl_shuffle.runs.console_messages import METRICS_STAY

log = logging.getLogger("fl_shuffle.client")

ITSELF = np.zeros(1, dtype=np.int64)
NOT_HERE = (
    SHUFFLER, BUDGET_STORE, OLD_BUDGET_STORE, LIFETIME_EPSILON, STORE_CONFIG, OLD_STORE_CONFIG,
)  # fmt: skip
"""Keys of a node's configuration that this mod does not serve."""


class LocalRandomizerMod:
    """Clip a node's update, add noise, and send nothing else.

    Use it as one of a `ClientApp`'s `mods` under FedAvg, FedAdam, and the like. The app answers
    training messages with its new arrays. Its update (received - trained) is clipped as a whole and
    randomized, so that one report is (epsilon0, delta0) local DP. The answer is the received arrays
    minus the report, and ``num-examples`` = 1. Evaluations never reach the app: their answer is
    ``num-examples`` = 1 alone.

    Parameters
    ----------
    randomizer : {"gaussian", "laplace"}
        Kind of noise.
    epsilon0 : float
        Local epsilon of one report, in nats, above 0.
    delta0 : float, default 0.0
        Local delta of one report: in (0, 1) for "gaussian", 0 for "laplace".
    clip_norm : float, default 1.0
        Clipping norm, above 0: l2 for "gaussian", l1 for "laplace".

    Raises
    ------
    InvalidValueError
        For parameters out of range.
    ConfigError
        When a message comes, on a node with a shuffler or a record of its own.

    Notes
    -----
    Neighbors: replace-one, with unit = client: all of this client's data change, so the sensitivity
    is 2 clip_norm. Gaussian noise has the analytic calibration of Balle and Wang (2018), rounded
    up. Noise of that `scale` comes from the operating system's entropy.

    An update that is not finite, and that of an app that raises, counts as zero and is randomized
    like any other: a missing report would tell of it. The exception goes to the log
    `fl_shuffle.client`.

    Nothing counts what several rounds cost together, and nobody shuffles: `ShuffleClientApp` takes
    every client's budget from a run's configuration instead.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fl_shuffle.flower import LocalRandomizerMod
    >>> mod = LocalRandomizerMod(randomizer="laplace", epsilon0=4.0, clip_norm=0.5)
    >>> app = ClientApp(mods=[mod])
    >>> mod.scale
    0.25
    """

    def __init__(
        self, *, randomizer: str, epsilon0: float, delta0: float = 0.0, clip_norm: float = 1.0
    ) -> None:
        kind = NOISES[require_choice("randomizer", randomizer, NOISES)]
        require_real("epsilon0", epsilon0, minimum=0.0, exclusive_minimum=True)
        clip = require_real("clip_norm", clip_norm, minimum=0.0, exclusive_minimum=True)
        if randomizer == "gaussian":
            require_open_unit("delta0", delta0)
            self.scale = analytic_sigma(epsilon0, delta0, 2.0 * clip)
        else:
            given: object = delta0
            if isinstance(given, bool) or not isinstance(given, Real) or given != 0.0:
                raise InvalidValueError("delta0", delta0, "must be 0 for Laplace noise")
            self.scale = 2.0 * clip / epsilon0
        self._clip = np.array([clip])
        self._randomizer = kind(
            *(np.array([each]) for each in (epsilon0, delta0, clip, self.scale))
        )
        self._untold = [METRICS_STAY]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Follow Flower's mod protocol. What goes wrong on a deployed node is redacted."""
        quiet_on_ray()
        try:
            return self._answer(message, context, call_next)
        except Exception as error:
            return failed(message, context, error)

    def _answer(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.split(".")[0]
        if kind not in (MessageType.TRAIN, MessageType.EVALUATE):
            return unanswered(message)
        for name in NOT_HERE:
            if name in context.node_config:
                does = "sends its reports to the server" if name == SHUFFLER else "counts nothing"
                raise ConfigError(
                    f"node-config names a {name}, and LocalRandomizerMod {does}; start the node "
                    "without, or use ShuffleClientApp"
                )
        with suppress(IndexError):  # once, whichever node comes first
            log.warning(self._untold.pop())
        # Every client weighs the same: its number of examples may be private.
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        if kind == MessageType.TRAIN:
            content[MODEL_RECORD] = self._randomized(message, context, call_next)
        return Message(content, reply_to=message)

    def _randomized(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> ArrayRecord:
        """Return the received arrays minus the report."""
        layout = ArrayLayout.of(model_in(message.content))
        itself = OwnClients(layout, lambda _: nullcontext((message, context)))
        model = torch.from_numpy(layout.flatten(model_in(message.content)))
        updates = partial(itself.updates, call_next)
        clip = ClippedRows(updates, self._clip, self._randomizer.norm)
        stream = NoiseStream(os.urandom(KEY_BYTES), len(model), bits=64)
        report = self._randomizer.reports(clip(model, ITSELF, 0), ITSELF, stream)[0]
        return layout.record((model - report).numpy())
