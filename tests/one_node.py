"""Nodes that play one app, and one that plays clients by the client's page itself, with any
records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor

from clients import app as page
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation import Federation
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import TrainRequest, array_record
from fl_shuffle.flower.settings import RESOLVED

App = Callable[[Message, Context], Message]


@contextmanager
def nodes(
    app: App,
    count: int = 1,
    *,
    tables: Mapping[str, Any] | None = None,
    node_config: Mapping[str, Any] | None = None,
    **run_config: Any,
) -> Iterator[InProcessGrid]:
    """Nodes of this process that play `app`, in a run with this configuration.

    `node_config` is what they say of themselves: nothing of a simulation, if it is given.
    """

    def own(message: Message, context: Context) -> Message:
        said = dict(context.node_config if node_config is None else node_config)
        same = context.run_id, context.node_id, said, context.state, context.run_config
        return app(message, Context(*same))

    resolved = {} if tables is None else {RESOLVED: json.dumps(tables)}
    grid = InProcessGrid(own, {**resolved, **run_config}, nodes=count)  # type: ignore[arg-type]
    try:
        yield grid
    finally:
        grid.close()


def replies(app: App, model: ArrayRecord, *requests: TrainRequest, **how: Any) -> list[Message]:
    """What one node answers that gets this model; `how` as for `nodes`."""
    with nodes(app, **how) as grid:
        return list(grid.send_and_receive([request.message(model, 2) for request in requests]))


def reports_of(reply: Message) -> np.ndarray:
    """The reports [k, d] in a reply."""
    found: np.ndarray = reply.content["report"]["reports"].numpy()
    return found


class OneNode:
    """Answers requests with the records of `task` (the configured ones unless given)."""

    def __init__(self, config: Config, task: Task | None = None) -> None:
        self.federation = Federation(config, task or load_task(config))

    def ask(self, request: TrainRequest, parameters: Tensor) -> Message:
        """The page's reply."""
        model = array_record({"p": parameters.numpy()}, shared=True)
        tables = self.federation.config.to_dict()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Federation, "made_of", lambda *_: self.federation)
            return replies(page.app, model, request, tables=tables)[0]

    def means(self, clients: np.ndarray, parameters: Tensor) -> Tensor:
        """Clipped means [k, d]."""
        return self.federation.clipper(parameters, clients, 1)

    def reports(self, request: TrainRequest, parameters: Tensor) -> np.ndarray:
        """Reports [k, d]."""
        return reports_of(self.ask(request, parameters))

    def sum_of_reports(
        self, request: TrainRequest, parameters: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Their sum [d], and of which [k]."""
        record = self.ask(replace(request, summed=True), parameters).content["report"]
        return record["total"].numpy(), record["valid"].numpy()
