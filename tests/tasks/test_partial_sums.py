"""Where only the sum of reports is used, simulated nodes on Ray send the sums of theirs."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from fl_shuffle.aggregation.shuffler import ReportBatch
from fl_shuffle.apps import client
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.exchange import BEYOND, taking_partial_sums
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.records import (
    Layout,
    TrainRequest,
    reply_with_reports,
    reply_with_sum_of_reports,
    sum_of_reports,
)
from fl_shuffle.flower.settings import RESOLVED, SIMULATION_VARIABLE
from fl_shuffle.tasks import worker
from fl_shuffle.tasks.worker import Worker
from tests.small_federation import Launch, model_bytes, summary
from tests.tasks.small_tasks import MODELS, configured, parameters_of, task_of


@pytest.mark.parametrize("held", [1, 1 << 20])
@pytest.mark.parametrize("model", MODELS)
def test_the_sum_is_that_of_the_reports(
    model: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HELD_NUMBERS", held)
    config = configured(model=model)
    task, parameters = task_of(config, {4: math.nan}), parameters_of(config)
    for request in (TrainRequest(2, 0, 4), TrainRequest.covering(2, np.array([0, 1, 3]))):
        reports = Worker(config, task).reports(request, parameters)
        total, usable = Worker(config, task).sum_of_reports(request, parameters)
        np.testing.assert_array_equal(total, reports.astype(np.float64).sum(0))
        assert usable.all() and len(usable) == len(request.clients)


def test_a_report_that_is_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured()
    player, parameters = Worker(config, task_of(config)), parameters_of(config)
    reports = player.reports(TrainRequest(1, 0, 4), parameters)
    whole = player.randomize_

    def spoilt(rows: torch.Tensor, clients: np.ndarray, number: int) -> None:
        whole(rows, clients, number)
        rows[clients == 2] = torch.nan

    monkeypatch.setattr(player, "randomize_", spoilt)
    total, usable = player.sum_of_reports(TrainRequest(1, 0, 4), parameters)
    assert usable.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(total, reports[[0, 1, 3]].astype(np.float64).sum(0))


@pytest.mark.parametrize("kind", ["privacy.unit=client", "training.participation=0.6"])
def test_runs_have_the_same_bits(
    kind: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ServerApp of a Ray run, in this process."""
    assert launch("reports", kind, "run.jobs=2") == 0
    asked: list[TrainRequest] = []
    play = Worker.sum_of_reports

    def noted(
        self: Worker, request: TrainRequest, parameters: torch.Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        asked.append(request)
        return play(self, request, parameters)

    monkeypatch.setattr(Worker, "sum_of_reports", noted)
    monkeypatch.setenv(SIMULATION_VARIABLE, "1")
    assert launch("sums", kind, "run.jobs=2") == 0
    assert asked and model_bytes(tmp_path / "reports") == model_bytes(tmp_path / "sums")
    ours, theirs = summary(tmp_path / "reports"), summary(tmp_path / "sums")
    assert ours["proven_epsilon"] == theirs["proven_epsilon"]
    asked.clear()
    # Where each report is looked at there is nothing to add up.
    assert launch("median", kind, "server.analyzer=coordinate-median") == 0 and not asked


def test_a_node_that_is_not_simulated_sends_no_sum() -> None:
    """The server asks for it; but a request is not what makes a simulation."""
    context = Context(
        run_id=1, node_id=2, node_config={}, state=RecordDict(),
        run_config={RESOLVED: Config().to_json()},
    )  # fmt: skip
    model = Layout.flat(3).record(np.zeros(3, np.float32))
    message = TrainRequest(1, 0, 4, summed=True).message(model, 2)
    with pytest.raises(ConfigError):
        client.app(message, context)


def test_a_sum_that_honest_reports_cannot_have_is_dropped() -> None:
    grid = InProcessGrid(client.app, {}, nodes=1)  # messages need a sender
    grid.close()
    turns = [(TrainRequest(1, first, 2, summed=True), 2) for first in range(0, 10, 2)]
    model = Layout.flat(3).record(np.zeros(3, np.float32))
    asked = [request.message(model, node) for request, node in turns]
    batch, present, causes = ReportBatch(3, keep=False), np.zeros(10, dtype=bool), Counter[str]()
    take = taking_partial_sums(turns, batch, present, np.full(10, 1.5), causes)
    both, one = np.array([True, True]), np.array([True, False])
    take(0, reply_with_sum_of_reports(asked[0], np.array([3.0, -3.0, 0.0]), both))
    take(1, reply_with_sum_of_reports(asked[1], np.array([1.6, 0.0, 0.0]), one))
    take(2, reply_with_sum_of_reports(asked[2], np.array([np.nan, 0.0, 0.0]), both))
    take(3, reply_with_sum_of_reports(asked[3], np.zeros(4), both))
    take(4, reply_with_reports(asked[4], np.ones((2, 3), np.float32)))
    assert present.tolist() == [True, True, *[False] * 6, True, True]
    assert batch.count == 4 and batch.release_sum().tolist() == [5.0, -1.0, 2.0]
    assert causes[BEYOND] == 4
    assert sum_of_reports(reply_with_reports(asked[0], np.ones((2, 3), np.float32)), 2, 3) is None
