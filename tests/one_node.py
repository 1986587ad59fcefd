"""A node that plays clients by the client's page itself, with any records."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from torch import Tensor

from clients import app as page
from fl_shuffle import federation as federation_module
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation import Federation
from fl_shuffle.flower.grid import adopt_task_identity, stamp
from fl_shuffle.flower.messages import Layout, TrainRequest, reports_of, sum_of_reports
from fl_shuffle.flower.settings import RESOLVED, SIMULATED, config_of

_runs = count(1)


class OneNode:
    """Answers requests with the records of `task` (the configured ones unless given)."""

    def __init__(self, config: Config, task: Task | None = None) -> None:
        self.federation = Federation(config, task or load_task(config))
        self._run = next(_runs)

    def ask(self, request: TrainRequest, parameters: Tensor, **node_config: Any) -> Message:
        """The page's reply."""
        config = self.federation.config
        adopt_task_identity(self._run)
        context = Context(
            run_id=self._run,
            node_id=2,
            node_config={SIMULATED: True, **node_config},
            state=RecordDict(),
            run_config={RESOLVED: config.to_json()},
        )
        key = Federation, self._run, config_of(context)
        federation_module._kept[:] = [(key, self.federation)]
        model = Layout.flat(len(parameters)).record(parameters.numpy())
        message = stamp(request.message(model, 2, clients=config.data.clients))
        return page.app(message, context)

    def means(self, clients: np.ndarray, parameters: Tensor) -> Tensor:
        """Clipped means [k, d]."""
        return self.federation.clipper(parameters, clients)

    def reports(self, request: TrainRequest, parameters: Tensor) -> np.ndarray:
        """Reports [k, d]."""
        found = reports_of(self.ask(request, parameters))
        assert found is not None
        return found

    def sum_of_reports(
        self, request: TrainRequest, parameters: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """Their sum [d], and of which [k]."""
        summed = TrainRequest(
            request.round_number, request.first, request.span, request.bitmap, summed=True
        )
        reply = self.ask(summed, parameters)
        found = sum_of_reports(reply, len(request.clients), len(parameters))
        assert found is not None
        return found
