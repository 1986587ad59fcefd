"""Where only the sum of reports is used, simulated nodes on Ray send the sums of theirs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

from clients.app import app
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.answers import read_answer
from fl_shuffle.flower.grid import adopt_task_identity
from fl_shuffle.flower.messages import (
    Layout,
    TrainRequest,
    reply_with,
)
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.gradients import clipper
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import OUT_OF_RANGE, LocalShuffler
from tests.federation.small_tasks import configured, parameters_of, task_of
from tests.one_node import OneNode


@pytest.mark.parametrize(("model", "held"), [("linear", 1 << 20), ("mlp", 1), ("own", 1 << 20)])
def test_the_sum_is_that_of_the_reports(
    model: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipper, "HELD_NUMBERS", held)
    config = configured(model=model)
    task, parameters = task_of(config, {4: math.nan}), parameters_of(config)
    for request in (TrainRequest(2, np.arange(4)), TrainRequest(2, np.array([0, 1, 3]))):
        reports = OneNode(config, task).reports(request, parameters)
        total, usable = OneNode(config, task).sum_of_reports(request, parameters)
        np.testing.assert_array_equal(total, reports.astype(np.float64).sum(0))
        assert usable.all() and len(usable) == len(request.clients)


def test_a_report_that_is_none_is_left_out() -> None:
    config = configured()
    player, parameters = OneNode(config, task_of(config)), parameters_of(config)
    reports = player.reports(TrainRequest(1, np.arange(4)), parameters)
    whole = player.federation.randomizer

    def spoilt(rows: torch.Tensor, clients: np.ndarray, number: int) -> torch.Tensor:
        reports = whole(rows, clients, number)
        reports[torch.from_numpy(clients == 2)] = torch.nan
        return reports

    player.federation.randomizer = spoilt
    total, usable = player.sum_of_reports(TrainRequest(1, np.arange(4)), parameters)
    assert usable.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(total, reports[[0, 1, 3]].astype(np.float64).sum(0))


def test_a_node_that_is_not_simulated_sends_no_sum() -> None:
    """The server asks for it; but a request is not what makes a simulation."""
    context = Context(1, 2, {}, RecordDict(), {RESOLVED: Config().to_json()})
    model = Layout.flat(3).record(np.zeros(3, np.float32))
    with pytest.raises(ConfigError):
        app(TrainRequest(1, np.arange(4), summed=True).message(model, 2), context)


def test_a_sum_that_honest_reports_cannot_have_is_dropped() -> None:
    adopt_task_identity(1)
    model = Layout.flat(3).record(np.zeros(3, np.float32))
    shuffler = LocalShuffler(3, np.full(10, 1.5), SeedTree(1), min_reports=4, keep=False)
    batch = shuffler.open(1, np.ones(10, dtype=bool))
    both, one = np.array([True, True]), np.array([True, False])
    for position, answer in enumerate(
        (
            {"total": np.array([3.0, -3.0, 0.0]), "valid": both},
            {"total": np.array([1.6, 0.0, 0.0]), "valid": one},
            {"total": np.array([np.nan, 0.0, 0.0]), "valid": both},
            {"total": np.zeros(4), "valid": both},
            {"reports": np.ones((2, 3), np.float32)},
        )
    ):
        request = TrainRequest(1, np.array([2 * position, 2 * position + 1]), summed=True)
        found = read_answer(
            reply_with(request.message(model, 2), **answer), request, 3, batch.reasons
        )
        if found is not None:
            batch.add(found, request.clients, position)
    assert batch.close().tolist() == [True, True, *[False] * 6, True, True]
    released = batch.release()
    assert released.count == 4 and released.total is not None
    assert released.total.tolist() == [5.0, -1.0, 2.0]
    assert batch.reasons == Counter({OUT_OF_RANGE: 4, "wrong shape": 2})
    # Nor is one that nobody asked for.
    unasked = TrainRequest(1, np.arange(2))
    total = reply_with(unasked.message(model, 2), total=np.ones(3), valid=both)
    assert read_answer(total, unasked, 3, Counter()) is None
