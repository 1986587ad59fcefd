"""Rounds with pooled noise have the law of rounds of reports: equal sums, noise equal in law. They
are for nobody who wants reports, and never for a deployment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.grid import adopt_task_identity
from fl_shuffle.flower.messages import TrainRequest, array_record, reply_with
from fl_shuffle.flower.settings import RESOLVED
from server.app import app as server_app
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of
from tests.gradients.gradient_modules import choose_path
from tests.one_node import OneNode
from tests.small_federation import Launch


@pytest.mark.parametrize(
    ("model", "noise", "privacy"),
    [
        ("linear, compiled", "gaussian", {}),
        ("linear, compiled", "gaussian", {"clip": "average"}),
        ("linear, compiled", "laplace", {"unit": "client", "client_clip": 0.05}),
        ("linear, compiled", "gaussian", {"personalization": "clipping"}),
        ("linear", "gaussian", {"client_clip": 0.05}),
        ("mlp", "laplace", {}),
        ("own", "gaussian", {"unit": "client", "client_clip": 0.05}),
    ],
)
def test_without_noise_the_sums_are_equal(
    model: str, noise: str, privacy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6 of the clients' weighted radii together, on every path, with spoilt records too."""
    if model.endswith("compiled"):
        choose_path(monkeypatch, compiled=True)
    name = model.split(",", maxsplit=1)[0]
    tables = configured(model=name, randomizer=noise, **privacy).to_dict()
    tables["budgets"] = {"distribution": "uniform", "low": 0.5, "high": 3.0, "seed": 1}
    tables["server"]["weights"] = "inverse-variance"
    means = []
    for run in ("per-report", "pooled"):
        tables["run"]["noise"] = run
        config = parse_config(tables)
        task = task_of(config, {0: math.nan, 5: math.inf, 34: 3e38})
        everybody = np.arange(len(SIZES))
        means.append(OneNode(config, task).means(everybody, parameters_of(config)).numpy())
    weighted = task.plan.weight @ means[0].astype(np.float64)
    reach = float(np.sum(task.plan.weight * task.plan.radius))
    assert np.abs(means[1] - weighted).max() <= 1e-6 * reach
    assert np.abs(means[1]).max() > 1e-3 * reach


reporting = ClientApp()


@reporting.train()
def report(message: Message, context: Context) -> Message:
    """A user's own client, which sends reports."""
    clients = TrainRequest.of(message).clients
    return reply_with(message, reports=np.zeros((len(clients), 650), np.float32))


def test_a_client_app_that_sends_reports_is_refused(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("own", "run.noise=pooled", f"app.client={__name__}:reporting") != 0
    assert "the client app sends reports" in capsys.readouterr().err


def test_a_deployment_plays_no_such_run() -> None:
    """A node sends no sum without noise, whatever the server's configuration says."""
    config = parse_config({"run": {"noise": "pooled"}, "data": {"clients": 4}})
    run_config = {RESOLVED: config.to_json(), "fl-shuffle-simulation": True}
    adopt_task_identity(7)
    model = array_record({"parameters": np.zeros(650, np.float32)}, shared=True)
    message = TrainRequest(1, np.arange(4)).message(model, 3)
    for node_config in ({}, {"partition-id": 0, "num-partitions": 1}):
        context = Context(7, 3, node_config, RecordDict(), run_config)
        with pytest.raises(ConfigError, match="fl-shuffle simulate"):
            client_app(message, context)
    with pytest.raises(ConfigError, match="fl-shuffle simulate"):
        server_app(None, context)
