"""A federation of a user's own apps: a short server, any ClientApp, and a run like any other."""

from __future__ import annotations

import inspect
import json
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from torch import nn

import fl_shuffle as fs
from benchmarks.chaos.hostile import Silent
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, PrivacyBudgetError
from fl_shuffle.federation import RunParts
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy
from fl_shuffle.flower.configured import NOT_TAKEN
from fl_shuffle.flower.messages import Layout, TrainRequest
from fl_shuffle.flower.settings import RESOLVED, SIMULATED
from fl_shuffle.randomizer_plan import RandomizerPlan
from fl_shuffle.runs.events import unobserved
from tests.one_node import App, nodes, reports_of
from tests.small_federation import model_bytes

CLIENTS, DIMENSION = 24, 6
GOAL = torch.linspace(-1.0, 1.0, DIMENSION)

server, client = ServerApp(), ShuffleClientApp()
results: list[Result] = []
seen: list[tuple[int, int, int]] = []
"""(client, clients, how often it was asked before, by its own state) of every training."""


def model() -> nn.Module:
    linear = nn.Linear(DIMENSION, 1, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def distance(number: int, arrays: ArrayRecord) -> dict[str, float]:
    weight = torch.from_numpy(arrays["weight"].numpy())[0]
    return {"loss": float(((weight - GOAL) ** 2).sum()), "largest": float(weight.abs().max())}


@server.main()
def serve(grid: Grid, context: Context) -> None:
    strategy = ShuffleStrategy.of(context)
    initial = ArrayRecord(model().state_dict())
    results.append(strategy.start(grid=grid, initial_arrays=initial, evaluate_fn=distance))


@client.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    asked = int(context.state.metric_records.get("own", MetricRecord({"asked": 0}))["asked"])
    context.state["own"] = MetricRecord({"asked": asked + 1})
    seen.append((number, int(context.node_config["num-partitions"]), asked))
    arrays = message.content.array_records["arrays"]
    weight = arrays["weight"].numpy()
    trained = weight + 0.5 * (GOAL.numpy() - weight)
    # As under Flower's own strategies, which read metrics; here they stay on the node.
    metrics = MetricRecord({"num-examples": 7, "loss": float(np.sum(weight))})
    content = RecordDict({"arrays": ArrayRecord({"weight": Array(trained)}), "metrics": metrics})
    return Message(content, reply_to=message)


def settings(**run: Any) -> dict[str, Any]:
    return {
        "run": {"rounds": 4, "seed": 3, **run},
        "data": {"clients": CLIENTS},
        "privacy": {"unit": "client", "clip_norm": 1.0},
        "budgets": {"distribution": "uniform", "low": 40.0, "high": 90.0},
        "app": {"server": f"{__name__}:server", "client": f"{__name__}:client"},
    }


def test_a_run_of_own_apps_is_a_run_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen.clear()
    result = fs.simulate(settings(jobs=3), out=tmp_path / "run")
    assert sorted(seen) == sorted((k, CLIENTS, r) for k in range(CLIENTS) for r in range(4))
    assert result.accuracy is None and result.summary["loss"] < 0.2
    assert result.summary["metrics"] == {"largest": result.metrics["largest"][-1]}
    spend = result.ledger.client(7)
    assert spend.rounds == 4 and 40.0 <= spend.epsilon0 <= 90.0
    # Flower's own result, with what was measured of the initial model.
    measured = results[-1].evaluate_metrics_serverapp
    assert sorted(measured) == [0, 1, 2, 3, 4]
    assert measured[0]["loss"] == pytest.approx(float((GOAL**2).sum()))
    assert distance(4, results[-1].arrays) == dict(measured[4])
    assert "the clients' own" in unescape(result.report(tmp_path / "page.html").read_text())
    assert main(["ledger", str(tmp_path / "run"), "--client", "7"]) == 0
    with pytest.raises(FlShuffleError, match="is your own"):
        _ = result.model
    # Its bits do not hang on the number of nodes.
    fs.simulate(settings(jobs=1), out=tmp_path / "alone")
    assert model_bytes(tmp_path / "alone") == model_bytes(tmp_path / "run")


def ask(app: App, request: TrainRequest, weight: float = 0.0, **how: Any) -> Message:
    """What one node answers; `how` as for `nodes`."""
    layout = Layout.of(ArrayRecord(model().state_dict()))
    start = layout.record(np.full(DIMENSION, weight, np.float32))
    with nodes(app, **{"tables": settings(), **how}) as grid:
        return next(iter(grid.send_and_receive([request.message(start, 2)])))


@pytest.mark.parametrize(("entropy", "threads"), [("seeded", 1), ("system", 2)])
def test_a_nodes_threads_change_no_bit_of_a_seeded_run(entropy: str, threads: int) -> None:
    """In a process of another engine, which gives apps as many as it likes."""
    used: list[int] = []
    own = ShuffleClientApp()

    @own.train()
    def counting(message: Message, context: Context) -> Message:
        used.append(torch.get_num_threads())
        return train(message, context)

    def with_two(message: Message, context: Context) -> Message:
        torch.set_num_threads(2)
        return own(message, context)

    ask(with_two, TrainRequest(1, np.arange(4, 6)), tables=settings(entropy=entropy))
    assert used == [threads, threads]


@pytest.mark.parametrize("engine", ["here", "flwr run"])
def test_how_to_go_on_is_said_for_the_engine_that_plays(engine: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_config = {RESOLVED: json.dumps(settings()), "run-directory": str(run)}
    expected = {
        "here": f"fl-shuffle simulate --resume {run} --data-unchanged",
        "flwr run": f"flwr run . --run-config \"run-directory='{run}' resume='data-unchanged'\"",
    }
    # An app whose nodes are nobody's: a query is answered, training is not.
    with nodes(ShuffleClientApp(), **run_config) as grid:
        grid.observer = None if engine == "flwr run" else unobserved
        with pytest.raises(PrivacyBudgetError) as raised:
            server(grid, Context(1, 1, {}, RecordDict(), dict(run_config)))
    assert str(raised.value).endswith(f"go on with: {expected[engine]}")


def test_a_deployed_node_tells_nobody_that_all_its_clients_fail() -> None:
    """With noise of its own, and unless whoever started the node says that it is a simulation."""
    failing = ShuffleClientApp()

    @failing.train()
    def fail(message: Message, context: Context) -> Message:
        raise RuntimeError("a secret")

    for simulated in (False, True):
        said = {SIMULATED: True} if simulated else {}
        how = {"tables": settings(entropy="system"), "node_config": said}
        reply = ask(failing, TrainRequest(1, np.arange(5)), **how)
        assert reply.has_error() is simulated
        assert simulated or reports_of(reply).shape == (5, DIMENSION)


def test_nothing_but_reports_leaves_a_node() -> None:
    third = {"partition-id": 1, "num-partitions": 3}
    reply = ask(client, TrainRequest(1, np.arange(8, 11)), node_config=third)
    assert list(reply.content) == ["report"] and list(reply.content["report"]) == ["reports"]
    assert reports_of(reply).shape == (3, DIMENSION)
    with pytest.raises(InvalidValueError, match="this node holds clients 8 to 15"):
        ask(client, TrainRequest(1, np.arange(7, 10)), node_config=third)


def test_no_other_message_reaches_the_app() -> None:
    own = ShuffleClientApp()

    def tell(message: Message, context: Context) -> Message:
        return Message(RecordDict({"all": MetricRecord({"loss": 1.0})}), reply_to=message)

    own.evaluate()(tell)
    own.query("all")(tell)
    with nodes(own, tables=settings()) as grid:
        content = RecordDict({"config": ConfigRecord({"clients": CLIENTS})})
        kinds = ("evaluate", "query.all", "query.none")
        asked = [grid.create_message(content, kind, 2, "1") for kind in kinds]
        evaluated, told, unknown = grid.send_and_receive(asked)
    assert evaluated.has_error() and not evaluated.error.reason
    assert unknown.has_error()
    assert list(told.content) == ["holding"]


def reports_of_rounds(
    app: App, tables: dict[str, Any], weight: float, rounds: int, **how: Any
) -> tuple[np.ndarray, RandomizerPlan]:
    """What clients 4 and 5 send [rounds, 2, d], their model at `weight`; and the run's plan."""
    start = Layout.of(ArrayRecord(model().state_dict())).record(np.full(DIMENSION, weight, "f4"))
    with nodes(app, tables=tables, **how) as grid:
        requests = (TrainRequest(number, np.arange(4, 6)) for number in range(1, rounds + 1))
        messages = [request.message(start, 2) for request in requests]
        replies = [reports_of(reply) for reply in grid.send_and_receive(messages)]
    return np.array(replies), RunParts.made_of(parse_config(tables)).randomizers


@pytest.mark.parametrize(
    "fails", [ConfigError("no"), Silent(), SystemExit(3), "error", "empty", "records"]
)
def test_a_client_that_fails_sends_zero_and_noise(
    fails: BaseException | str, caplog: pytest.LogCaptureFixture
) -> None:
    """That it fails may hang on one record: who is absent is public, and what it says, too."""
    own = ShuffleClientApp()

    def no_records(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
        raise Silent

    def fail(message: Message, context: Context) -> Message:
        if isinstance(fails, BaseException):
            raise fails
        if fails == "error":
            return Message(Error(code=77, reason="a secret"), reply_to=message)
        return Message(RecordDict({"more": MetricRecord({"loss": 1.0})}), reply_to=message)

    if fails == "records":
        own = ShuffleClientApp(records=no_records, model=model)
    else:
        own.train()(fail)
    values, plan = reports_of_rounds(own, settings(entropy="system"), 0.0, 50, node_config={})
    noise = values / plan.scale[4:6, None]
    # 600 standard normals: mean within 5 / sqrt(600), spread within 5 / sqrt(1200).
    assert abs(noise.mean()) < 0.21 and abs(noise.std() - 1.0) < 0.15
    assert sum("counts as zero" in record.getMessage() for record in caplog.records) == 100


@pytest.mark.parametrize("client_clip", [None, 0.05])
def test_noise_is_each_clients_own(client_clip: float | None) -> None:
    """Reports of many rounds: centred on the clipped update, as wide as the client's plan says."""
    tables = settings()
    if client_clip is not None:
        tables["privacy"]["client_clip"] = client_clip
    values, plan = reports_of_rounds(client, tables, 1000.0, 400)
    update = 0.5 * (1000.0 - GOAL.numpy())
    clipped = (client_clip or 1.0) * update / np.linalg.norm(update)
    # The second clip makes noise that much smaller; a mean that were not clipped would stand out.
    assert plan.radius[4] == plan.sensitivity[4] / 2.0 == (client_clip or 1.0)
    for row, number in enumerate((4, 5)):
        noise = (values[:, row] - clipped) / plan.scale[number]
        # 2,400 standard normals: mean within 5 / sqrt(2400), spread within 5 / sqrt(4800).
        assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1.0) < 0.075
    assert plan.scale[4] != plan.scale[5]


def test_what_own_apps_cannot_have_is_one_line() -> None:
    base = settings()
    del base["app"]
    for section, values, field in (
        ("privacy", {"unit": "record"}, "data.records = 0: with privacy.unit"),
        ("run", {"noise": "pooled"}, "run.noise"),
    ):
        config = parse_config({**base, section: {**base[section], **values}})
        with pytest.raises(InvalidValueError, match=field):
            RunParts.made_of(config)
    with pytest.raises(FlShuffleError, match=r"app\.config = .*is for apps of your own"):
        parse_config({"app": {"config": {"lr": 0.1}}})


def test_what_fedavg_takes_and_this_cannot_is_named() -> None:
    assert set(inspect.signature(FedAvg).parameters) - {"self"} == set(NOT_TAKEN)
    context = Context(1, 1, {}, RecordDict(), {RESOLVED: "{}"})
    for name, told in (
        *((name, rf"of\({name}=\.\.\.\): .*") for name in NOT_TAKEN),
        ("fraction_trained", r"of\(fraction_trained=\.\.\.\).*'fraction_train'"),
    ):
        with pytest.raises(ConfigError, match=told):
            ShuffleStrategy.of(context, **{name: 1})


def test_the_server_refuses_settings_that_flower_would_hide() -> None:
    """Under `flwr run` the apps read Flower's run configuration, whatever the TOML says."""
    tables = settings()
    tables["app"]["config"] = {"lr": 0.1, "deep": {"er": "x"}}
    same = {"lr": 0.1, "deep.er": "x", "more": 1, RESOLVED: json.dumps(tables)}
    ShuffleStrategy.of(Context(1, 1, {}, RecordDict(), same))
    for run_config in ({**same, "lr": 0.5}, {**same, "deep.er": "y"}):
        with pytest.raises(FlShuffleError, match=r"\[tool\.flwr\.app\.config\].*--run-config"):
            ShuffleStrategy.of(Context(1, 1, {}, RecordDict(), run_config))


def test_a_client_app_of_parts_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"Message API.*@app\.train\(\)"):
        ShuffleClientApp(lambda context: None)
    for given in ({"records": list}, {"model": nn.Identity}, {"loss": nn.MSELoss()}):
        with pytest.raises(ConfigError, match=r"records=\.\.\. and model=\.\.\. go together"):
            ShuffleClientApp(**given)


def test_names_shapes_and_types_come_back_as_they_went() -> None:
    arrays = {"half": np.float16(1.5), "wide": np.ones((2, 0, 3)), "": np.eye(2, dtype=np.float32)}
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    layout = Layout.of(record)
    back = layout.record(layout.flatten(record))
    assert list(back) == list(record)
    for name, values in arrays.items():
        found = back[name].numpy()
        assert found.dtype == values.dtype and np.array_equal(found, values)
    for dtype in ("bfloat16", "int64"):
        record = ArrayRecord({"w": Array(dtype, (3,), "numpy.ndarray", b"")})
        with pytest.raises(InvalidValueError, match=f"dtype of w = '{dtype}'.*float16, float32"):
            Layout.of(record)


def test_metrics_must_be_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, why in (([1.0], "mapping"), ({"seconds": 1.0}, "metrics.csv's own columns")):
        monkeypatch.setitem(globals(), "distance", lambda number, arrays, a=answer: a)
        with pytest.raises(FlShuffleError, match=why):
            fs.simulate(settings(), out=tmp_path / "run")
        assert not (tmp_path / "run" / "ledger.sqlite").exists()
