"""A user's own ClientApp under a run's configuration: its clients' plan, and one at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.flower.records import MODEL_RECORD, REQUEST_RECORD
from fl_shuffle.flower.roster import PARTITION, PARTITIONS
from fl_shuffle.flower.settings import config_of
from fl_shuffle.planned_noise import PlannedNoise
from fl_shuffle.randomizer_plan import RandomizerPlan, make_plan

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
    """The plan of the run that a context belongs to; kept for its next message."""
    config = config_of(context, beside)
    with _lock:
        if not _plans or _plans[0][0] != config:
            _plans[:] = [(config, ClientPlan.of(config))]
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
