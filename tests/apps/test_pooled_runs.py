"""Runs with pooled noise: for nobody who wants reports, and never in a deployment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.grid import adopt_task_identity
from fl_shuffle.flower.messages import TrainRequest, array_record, reply_with_reports
from fl_shuffle.flower.settings import RESOLVED
from server.app import app as server_app
from tests.small_federation import Launch


@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("training", {"schedule": "sequential"}, "training.schedule = 'sequential'"),
        ("server", {"analyzer": "own:analyzer"}, "server.analyzer = 'own:analyzer'"),
        ("run", {"entropy": "system"}, "run.entropy = 'system'"),
        ("privacy", {"randomizer": "own:randomizer"}, "privacy.randomizer = 'own:randomizer'"),
        ("app", {"server": "own:app"}, "app.server = 'own:app'"),
    ],
)
def test_whoever_wants_reports_is_refused(
    section: str, values: dict[str, Any], reason: str
) -> None:
    tables: dict[str, dict[str, Any]] = {"run": {"noise": "pooled"}}
    tables.setdefault(section, {}).update(values)
    with pytest.raises(InvalidValueError, match="run.noise") as found:
        parse_config(tables)
    assert reason in str(found.value)
    assert "per-report" in str(found.value)


reporting = ClientApp()


@reporting.train()
def report(message: Message, context: Context) -> Message:
    """A user's own client, which sends reports."""
    clients = TrainRequest.of(message).clients
    return reply_with_reports(message, np.zeros((len(clients), 650), np.float32))


def test_a_client_app_that_sends_reports_is_refused(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("own", "run.noise=pooled", f"app.client={__name__}:reporting") != 0
    assert "the client app sends reports" in capsys.readouterr().err


def a_node(**node_config: Any) -> Context:
    """A SuperNode's context: what the server writes, and what its owner does."""
    config = parse_config({"run": {"noise": "pooled"}, "data": {"clients": 4}})
    run_config = {RESOLVED: config.to_json(), "fl-shuffle-simulation": True}
    return Context(7, 3, node_config, RecordDict(), run_config)


def test_a_deployment_plays_no_such_run() -> None:
    """A node sends no sum without noise, whatever the server's configuration says."""
    adopt_task_identity(7)
    model = array_record({"parameters": np.zeros(650, np.float32)}, shared=True)
    message = TrainRequest(1, 0, 4).message(model, 3)
    for node_config in ({}, {"partition-id": 0, "num-partitions": 1}):
        with pytest.raises(ConfigError, match="fl-shuffle simulate"):
            client_app(message, a_node(**node_config))
    with pytest.raises(ConfigError, match="fl-shuffle simulate"):
        server_app(None, a_node())
