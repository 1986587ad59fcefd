"""Runs with pooled noise: one set of bits, the accounting of reports, and never in a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fl_shuffle import federation
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import TrainRequest, array_record, reply_with_reports
from fl_shuffle.flower.settings import RESOLVED, SIMULATION_VARIABLE
from server.app import app as server_app
from tests.apps.test_same_bits import KINDS
from tests.gradients.tuning import choose_path
from tests.small_federation import Launch, model_bytes, summary

POOLED = "run.noise=pooled"

pytestmark = pytest.mark.usefixtures("coarse_pairs")


# The record unit has sums without rows; the client unit's come from rows.
@pytest.mark.parametrize(
    ("kind", "compiled"),
    [
        ((), True),
        (KINDS["laplace, ragged"], True),
        (KINDS["laplace, ragged"], False),
        (KINDS["network, part, unequal"], False),
    ],
    ids=["client unit, compiled", "record unit, compiled", "record unit", "network"],
)
def test_jobs_do_not_matter(
    kind: tuple[str, ...],
    compiled: bool,
    launch: Launch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_path(monkeypatch, compiled=compiled)
    settings = (*kind, "budgets.levels=2", "run.rounds=2")
    for jobs in (1, 4):
        assert launch(str(jobs), *settings, POOLED, f"run.jobs={jobs}") == 0
    assert launch("reports", *settings) == 0
    assert model_bytes(tmp_path / "1") == model_bytes(tmp_path / "4")
    assert model_bytes(tmp_path / "1") != model_bytes(tmp_path / "reports")
    # One mechanism, one price.
    ours, theirs = summary(tmp_path / "1"), summary(tmp_path / "reports")
    for name in ("proven_epsilon", "columns", "epsilon_quantiles", "gspa_mu"):
        assert ours[name] == theirs[name]


@pytest.mark.slow
def test_flowers_ray_engine_gives_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    kind = KINDS["network, part, unequal"]
    assert launch("here", *kind, POOLED, "run.jobs=1") == 0
    assert launch("ray", *kind, POOLED, options=("--engine", "ray", "--jobs", "2")) == 0
    assert model_bytes(tmp_path / "here") == model_bytes(tmp_path / "ray")


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
    assert "\n" not in str(found.value)


reporting = ClientApp()


@reporting.train()
def report(message: Message, context: Context) -> Message:
    """A user's own client, which sends reports."""
    clients = TrainRequest.of(message).clients
    return reply_with_reports(message, np.zeros((len(clients), 650), np.float32))


def test_a_client_app_that_sends_reports_is_refused(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("own", POOLED, f"app.client={__name__}:reporting") != 0
    assert "the client app sends reports" in capsys.readouterr().err


def a_node(monkeypatch: pytest.MonkeyPatch, **node_config: Any) -> Context:
    """A SuperNode's context: what the server writes, and what its owner does."""
    monkeypatch.delenv(SIMULATION_VARIABLE, raising=False)
    config = parse_config({"run": {"noise": "pooled"}, "data": {"clients": 4}})
    run_config = {RESOLVED: config.to_json(), "fl-shuffle-simulation": True}
    return Context(
        run_id=7, node_id=3, node_config=node_config, state=RecordDict(), run_config=run_config
    )


def test_a_deployed_node_sends_no_sum_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the server's configuration says."""
    InProcessGrid(ClientApp(), {}, nodes=1).close()  # messages get their sender
    model: ArrayRecord = array_record({"parameters": np.zeros(650, np.float32)}, shared=True)
    message = TrainRequest(1, 0, 4).message(model, 3)
    played = []
    monkeypatch.setattr(federation, "load_task", lambda *_: played.append(1))
    for node_config in ({}, {"partition-id": 0, "num-partitions": 1}):
        with pytest.raises(ConfigError, match="fl-shuffle simulate"):
            client_app(message, a_node(monkeypatch, **node_config))
    assert not played


def test_a_deployed_server_starts_no_such_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="fl-shuffle simulate"):
        server_app(None, a_node(monkeypatch))  # type: ignore[arg-type]
