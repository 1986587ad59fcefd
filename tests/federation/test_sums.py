"""Rounds of sums: those that simulated nodes on Ray make of their clients' reports, and those of
pooled noise, which have the distribution of rounds of reports. They are for nobody who wants
reports, and never for a deployment."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.app import app as client_app
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.errors import ConfigError
from fl_shuffle.federation.parts import AggregateFederation, Federation
from fl_shuffle.flower import aggregate_client
from fl_shuffle.flower.messages import TrainRequest, array_record, read_answer, reply_with
from fl_shuffle.flower.private_api import adopt_task_identity
from fl_shuffle.flower.settings import RESOLVED, SIMULATED
from fl_shuffle.gradients import clipper
from fl_shuffle.gradients.sum_of_means import SumOfMeans
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.local import OUT_OF_RANGE, LocalShuffler
from server.app import app as server_app
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of
from tests.gradients.gradient_modules import choose_path
from tests.one_node import OneNode
from tests.small_federation import Launch

EVERYBODY = np.arange(len(SIZES))


def test_sum_that_is_kept_is_that_of_the_same_clients() -> None:
    """Blocks that begin, or end, with the same client are others; what is kept is made once."""
    made = list[tuple[int, ...]]()

    def prepare(clients: np.ndarray) -> Any:
        made.append(tuple(clients.tolist()))
        return lambda parameters, tally: torch.tensor(float(np.sum(2.0**clients)))

    sums = SumOfMeans(
        cast(Any, None), np.ones(8), 2.0**-20, blocks=lambda each: each, prepare=prepare
    )
    blocks = [[0, 1, 2], [0, 1, 2, 3], [1, 2, 3], [0, 2, 3], [3], [0, 1], [0, 1, 2, 3, 4, 5]]
    for _ in range(2):
        for clients in blocks:
            total = sums(torch.zeros(1), np.array(clients), 1)
            assert float(total) == sum(2**client for client in clients)
    assert len(made) == len(blocks) + 1


@pytest.mark.parametrize(("model", "held"), [("linear", 1 << 20), ("mlp", 1), ("own", 1 << 20)])
def test_the_sum_is_that_of_the_reports(
    model: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipper, "HELD_NUMBERS", held)
    config = configured(model=model)
    task, parameters = task_of(config, {4: math.nan}), parameters_of(config)
    for request in (TrainRequest(2, EVERYBODY), TrainRequest(2, np.array([0, 1, 3]))):
        reports = OneNode(config, task).reports(request, parameters)
        total, usable = OneNode(config, task).sum_of_reports(request, parameters)
        np.testing.assert_array_equal(total, reports.astype(np.float64).sum(0))
        assert usable.all() and len(usable) == len(request.clients)


def test_a_report_that_is_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    config, request = configured(), TrainRequest(1, EVERYBODY)
    node, parameters = OneNode(config, task_of(config)), parameters_of(config)
    reports, whole = node.reports(request, parameters), node.federation.randomizer

    def spoilt(rows: torch.Tensor, clients: np.ndarray, number: int) -> torch.Tensor:
        reports = whole(rows, clients, number)
        reports[torch.from_numpy(clients == 2)] = torch.nan
        return reports

    monkeypatch.setattr(node.federation, "randomizer", spoilt)
    total, usable = node.sum_of_reports(request, parameters)
    assert usable.tolist() == [True, True, False, True]
    np.testing.assert_array_equal(total, reports[usable].astype(np.float64).sum(0))


def test_a_sum_that_honest_reports_cannot_have_is_dropped() -> None:
    adopt_task_identity(1)
    model = array_record({"p": np.zeros(3, np.float32)}, shared=True)
    shuffler = LocalShuffler(3, np.full(20, 1.5), SeedTree(1), min_reports=4, keep=False)
    batch = shuffler.open(1, np.ones(20, dtype=bool))
    both, one = np.array([True, True]), np.array([True, False])
    answers: list[dict[str, np.ndarray]] = [
        {"total": np.array([3.0, -3.0, 0.0]), "valid": both},
        {"total": np.array([1.6, 0.0, 0.0]), "valid": one},
        {"total": np.array([np.nan, 0.0, 0.0]), "valid": both},
        {"total": np.zeros(4), "valid": both},
        {"reports": np.ones((2, 3), np.float32)},
        {"total": np.array([np.inf, -np.inf, 1e308]), "valid": both},
        {"total": np.zeros(3), "valid": np.array(True)},
        {"total": np.zeros(3), "valid": np.ones(3, dtype=bool)},
        {"total": np.zeros(3), "valid": np.ones(2)},
        {"total": np.zeros(3, np.float32), "valid": both},
    ]
    for position, answer in enumerate(answers):
        request = TrainRequest(1, 2 * position + np.arange(2), summed=True)
        reply = reply_with(request.message(model, 2), **answer)
        found = read_answer(reply, request, 3, batch.reasons)
        if found is not None:
            batch.add(found, request.clients, position)
        # Nor is one that nobody asked for.
        if "total" in answer:
            assert read_answer(reply, TrainRequest(1, request.clients), 3, Counter()) is None
    assert batch.close().tolist() == [True, True, *[False] * 6, True, True, *[False] * 10]
    released = batch.release()
    assert released.count == 4 and released.total is not None
    assert released.total.tolist() == [5.0, -1.0, 2.0]
    assert batch.reasons == Counter({OUT_OF_RANGE: 6, "wrong shape": 10})


COMPILED: list[tuple[str, dict[str, Any]]] = [
    ("gaussian", {}),
    ("gaussian", {"clip": "average"}),
    ("laplace", {"unit": "client", "client_clip_norm": 0.05}),
    ("gaussian", {"personalization": "clipping"}),
]


@pytest.mark.parametrize(
    ("model", "noise", "privacy"),
    [
        # Slow: whichever comes first compiles their loops.
        *(pytest.param("linear, compiled", *row, marks=pytest.mark.slow) for row in COMPILED),
        ("linear", "gaussian", {"client_clip_norm": 0.05}),
        ("mlp", "laplace", {}),
        ("own", "gaussian", {"unit": "client", "client_clip_norm": 0.05}),
    ],
)
def test_pooled_sums_without_noise_are_those_of_clipped_means(
    model: str, noise: str, privacy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6 of the clients' weighted radii together, on every path, with spoilt records too."""
    if model.endswith("compiled"):
        choose_path(monkeypatch, compiled=True)
    tables = configured(model=model.partition(",")[0], randomizer=noise, **privacy).to_dict()
    tables["budgets"] = {"distribution": "uniform", "low": 0.5, "high": 3.0, "seed": 1}
    tables["server"]["weights"] = "inverse-variance"
    config = parse_config(tables)
    parameters = parameters_of(config)
    task = task_of(config, {0: math.nan, 5: math.inf, 34: 3e38})
    means = OneNode(config, task).means(EVERYBODY, parameters).numpy()
    total = AggregateFederation(config, task).sum_of_means(parameters, EVERYBODY, 1).numpy()
    weighted = task.plan.weight @ means.astype(np.float64)
    reach = float(np.sum(task.plan.weight * task.plan.radius))
    assert np.abs(total - weighted).max() <= 1e-6 * reach
    assert np.abs(total).max() > 1e-3 * reach


refusing = ClientApp()


@refusing.train()
def refuse(message: Message, context: Context) -> Message:
    """A user's own client, of which no report comes."""
    raise ConfigError("of the client's own making")


def test_errors_of_a_users_own_client_are_reports_that_are_missing(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever class it borrows: only the framework's own app may end a run."""
    assert launch("own", f"app.client={__name__}:refusing") != 0
    assert "0 usable reports arrived" in capsys.readouterr().err


@pytest.mark.parametrize("node_config", [{}, {"partition-id": 0, "num-partitions": 1}], ids=str)
@pytest.mark.parametrize("app", [client_app, aggregate_client.app], ids=["page", "aggregate"])
@pytest.mark.parametrize(("noise", "summed"), [("per-sum", False), ("per-report", True)])
def test_a_node_that_is_not_simulated_sends_no_sum(
    noise: str, summed: bool, app: ClientApp, node_config: dict[str, Any]
) -> None:
    """Whatever the server's configuration or its request says: neither makes a simulation."""
    config = parse_config({"run": {"noise": noise}, "data": {"clients": 4}})
    run_config: dict[str, Any] = {RESOLVED: config.to_json(), "fl-shuffle-simulation": True}
    adopt_task_identity(7)
    message = TrainRequest(1, EVERYBODY, summed).message(
        array_record({"p": np.zeros(650, np.float32)}, shared=True), 3
    )
    context = Context(7, 3, node_config, RecordDict(), run_config)
    if app is aggregate_client.app:  # nor does a run that this process has simulated before
        Federation.of(Context(7, 3, {SIMULATED: True}, RecordDict(), run_config))
    reply = app(message, context)
    run_cache.forget()
    assert reply.has_error() and reply.error.reason.startswith("ConfigError")
    if noise == "per-sum":
        with pytest.raises(ConfigError, match="fl-shuffle simulate"):
            server_app(None, context)


def test_page_of_a_client_never_leaves_its_noise_out() -> None:
    """Not where a simulation draws the sum's noise either: another app plays its clients."""
    config = configured(noise="per-sum")
    task, parameters = task_of(config), parameters_of(config)
    request = TrainRequest(1, EVERYBODY)
    reports = OneNode(config, task).reports(request, parameters)
    alone = OneNode(configured(), task).reports(request, parameters)
    np.testing.assert_array_equal(reports, alone)
    assert (np.linalg.norm(reports, axis=1) > task.plan.radius).all()


def test_client_without_noise_answers_no_run_of_reports() -> None:
    config = configured()
    context = Context(8, 3, {SIMULATED: True}, RecordDict(), {RESOLVED: config.to_json()})
    with pytest.raises(ConfigError, match="'per-report': clients add their own noise"):
        AggregateFederation.of(context)
