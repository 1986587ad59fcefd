"""A user's own app on a node: its updates or records, clipped, with each client's own noise; and
the memory that its run holds."""

from __future__ import annotations

import gc
import inspect
import json
import logging
import math
import re
import shlex
import tomllib
import traceback
import weakref
from io import StringIO
from pathlib import Path
from typing import Any, cast

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
from flwr.common.config import parse_config_args
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from benchmarks.chaos.hostile import Silent
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError, PrivacyBudgetError
from fl_shuffle.federation import Federation, RunParts
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy, answers
from fl_shuffle.flower.answers import Request
from fl_shuffle.flower.configured import NOT_TAKEN
from fl_shuffle.flower.messages import ArrayLayout, TrainRequest
from fl_shuffle.flower.mods import as_client
from fl_shuffle.flower.private_api import adopt_task_identity
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.runs.events import unobserved
from tests.one_node import App, OneNode, nodes, replies, reports_of
from tests.oracles import gaussian_epsilon
from tests.processes import wait_until
from tests.small_federation import SMALL, model_bytes

CLIENTS, DIMENSION, CLIP = 24, 6, 0.5
GOAL = np.linspace(-1.0, 1.0, DIMENSION, dtype=np.float32)

server, client = ServerApp(), ShuffleClientApp()


def model(weight: float = 0.0) -> ArrayRecord:
    return ArrayRecord({"weight": Array(np.full((1, DIMENSION), weight, np.float32))})


@server.main()
def serve(grid: Grid, context: Context) -> None:
    ShuffleStrategy.of(context).start(grid=grid, initial_arrays=model())


@client.train()
def train(message: Message, context: Context) -> Message:
    """Half the way to the goal."""
    weight = message.content.array_records["arrays"]["weight"].numpy()
    trained = Array(weight + 0.5 * (GOAL - weight))
    # As under Flower's own strategies, which read metrics; here they stay on the node.
    metrics = MetricRecord({"num-examples": 7, "loss": float(np.sum(weight))})
    content = RecordDict({"arrays": ArrayRecord({"weight": trained}), "metrics": metrics})
    return Message(content, reply_to=message)


def settings(entropy: str = "seeded", **privacy: Any) -> dict[str, Any]:
    return {
        "run": {"rounds": 4, "seed": 3, "entropy": entropy},
        "data": {"clients": CLIENTS},
        "privacy": {"unit": "client", "clip_norm": 1.0, **privacy},
        "budgets": {"distribution": "uniform", "low": 40.0, "high": 90.0},
        "app": {"server": "a:b", "client": "a:b"},
    }


def ask(app: App, first: int, count: int, **how: Any) -> Message:
    """What one node answers for these clients."""
    request = TrainRequest(1, np.arange(first, first + count))
    return replies(app, model(), request, **{"tables": settings(), **how})[0]


@pytest.mark.parametrize("batches", [1, 2])
def test_reports_of_few_bits_are_the_same_whether_they_travel_packed_or_not(
    batches: int, tmp_path: Path
) -> None:
    """A node of this process hands its reports over, one elsewhere packs them."""
    tables = settings(report_bits=4, reports_per_round=batches)
    models, packed = [], []

    def noted(message: Message, context: Context) -> Message:
        reply = client(message, context)
        packed.append("packed" in reply.content.get("report", {}))
        return reply

    for name, said in (("here", None), ("elsewhere", {})):
        run_config = {RESOLVED: json.dumps(tables), "run-directory": str(tmp_path / name)}
        packed.clear()
        with nodes(noted, node_config=said, **run_config) as grid:
            server(grid, Context(1, 1, {}, RecordDict(), run_config))
        assert any(packed) == (name == "elsewhere")
        models.append(model_bytes(tmp_path / name))
    assert models[0] == models[1]


def test_an_own_apps_step_is_in_clipping_norms_where_the_configuration_says_so(
    tmp_path: Path,
) -> None:
    """A fourth of the rate in a unit that is a fourth as long: the same bits."""
    models = []
    for name, step in (
        ("absolute", {"learning_rate": 0.5}),
        ("in norms", {"learning_rate": 0.125, "learning_rate_unit": "clipping-norm"}),
    ):
        tables = {**settings(clip_norm=0.25, release="sum"), "server": step}
        run_config = {RESOLVED: json.dumps(tables), "run-directory": str(tmp_path / name)}
        with nodes(client, **run_config) as grid:
            server(grid, Context(1, 1, {}, RecordDict(), run_config))
        models.append(model_bytes(tmp_path / name))
    assert models[0] == models[1]


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

    ask(with_two, 4, 2, tables=settings(entropy))
    assert used == [threads, threads]


@pytest.mark.parametrize("observer", [unobserved, None], ids=["here", "flwr run"])
def test_how_to_go_on_is_said_for_the_engine_that_plays(observer: Any, tmp_path: Path) -> None:
    """`flwr run` gets all that the run was started with, an app's own settings, too."""
    own = {"lr": 0.1, "deep.er": "it's $HOME", "on": True, "a": 3}
    run_config = {RESOLVED: json.dumps(settings()), "run-directory": str(tmp_path), **own}
    # An app whose nodes are nobody's: a query is answered, training is not.
    with nodes(ShuffleClientApp(), **run_config) as grid:
        grid.observer = observer
        with pytest.raises(PrivacyBudgetError) as raised:
            server(grid, Context(1, 1, {}, RecordDict(), {**run_config, "data": "", "k": '"\\'}))
    told = str(raised.value).partition("; continue with: ")[2]
    if observer is unobserved:
        assert told == f"fl-shuffle simulate --resume {tmp_path} --data-unchanged"
        return
    *command, text = shlex.split(told)
    assert command == ["flwr", "run", ".", "--run-config"]
    assert parse_config_args([text]) == {**run_config, "k": '"\\', "resume": "data-unchanged"}


def test_nothing_but_reports_leaves_a_node(caplog: pytest.LogCaptureFixture) -> None:
    third = {"partition-id": 1, "num-partitions": 3}
    reply = ask(client, 8, 3, node_config=third)
    assert list(reply.content) == ["report"] and list(reply.content["report"]) == ["reports"]
    assert reports_of(reply).shape == (3, DIMENSION)
    refused = ask(client, 7, 3, node_config=third)
    assert refused.error.reason == "InvalidValueError"
    assert "this node holds clients 8 to 15" in caplog.text


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


def noise_of_rounds(
    app: App, tables: dict[str, Any], rounds: int, weight: float, expected: Any, **how: Any
) -> np.ndarray:
    """What clients 4 to 7 send beside `expected`, their model at `weight`, in units of the plan's
    noise: [rounds, 4, d]."""
    asked = np.arange(4, 8)
    requests = (TrainRequest(number, asked) for number in range(1, rounds + 1))
    answers = replies(app, model(weight), *requests, tables=tables, **how)
    scale = RunParts.made_of(parse_config(tables)).randomizers.scale[asked]
    assert len(set(scale)) == len(asked)
    return (np.array([reports_of(reply) for reply in answers]) - expected) / scale[:, None]


@pytest.mark.parametrize(
    "fails",
    [ConfigError("no"), Silent(), SystemExit(3), "error", "empty", "records", "at the end"],
)
def test_a_client_that_fails_sends_zero_and_noise(
    fails: BaseException | str, caplog: pytest.LogCaptureFixture
) -> None:
    """That it fails may hang on one record: who is absent is public, and what it says, too; also
    where all fail alike, of which a simulation makes an error."""
    own = ShuffleClientApp()

    def no_records(context: Context) -> tuple[Tensor, Tensor]:
        raise Silent

    def fail(message: Message, context: Context) -> Message:
        if isinstance(fails, BaseException):
            raise fails
        if fails == "error":
            return Message(Error(code=77, reason="a secret"), reply_to=message)
        if fails == "at the end":
            # What it replies with can be read, and what it leaves behind cannot.
            context.state = None  # type: ignore[assignment]
            return Message(RecordDict({"arrays": model(1e6)}), reply_to=message)
        return Message(RecordDict({"more": MetricRecord({"loss": 1.0})}), reply_to=message)

    if fails == "records":
        linear = nn.Linear(DIMENSION, 1, bias=False)
        own = ShuffleClientApp(records=no_records, model=lambda: linear)
    else:
        own.train()(fail)
    noise = noise_of_rounds(own, settings("system"), 50, 0.0, 0.0, node_config={})
    # 1,200 standard normals: mean within 5 / sqrt(1200), spread within 5 / sqrt(2400).
    assert abs(noise.mean()) < 0.15 and abs(noise.std() - 1.0) < 0.11
    assert sum("counts as zero" in record.getMessage() for record in caplog.records) == 200


@pytest.mark.parametrize("client_clip", [None, 0.05])
def test_noise_is_each_clients_own(client_clip: float | None) -> None:
    """Reports of many rounds: centered on the clipped update, as wide as the client's plan says."""
    tables = settings(**({} if client_clip is None else {"client_clip_norm": client_clip}))
    update = 0.5 * (1000.0 - GOAL)
    clipped = (client_clip or 1.0) * update / np.linalg.norm(update)
    # The second clip makes noise that much smaller; a mean that were not clipped would stand out.
    plan = RunParts.made_of(parse_config(tables)).randomizers
    assert plan.radius[4] == plan.sensitivity[4] / 2.0 == (client_clip or 1.0)
    noise = noise_of_rounds(client, tables, 400, 1000.0, clipped)
    for own in np.moveaxis(noise, 1, 0):
        # 2,400 standard normals: mean within 5 / sqrt(2400), spread within 5 / sqrt(4800).
        assert abs(own.mean()) < 0.1 and abs(own.std() - 1.0) < 0.075


@pytest.mark.parametrize(
    ("run_config", "told"),
    [
        ({"resume": "maybe"}, "--run-config resume = 'maybe': must be one of no, yes"),
        ({"resume": "yes"}, "--run-config resume='yes' needs the directory of the run"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_wrong_resume_is_one_line_of_flowers_log(
    own: bool, run_config: dict[str, Any], told: str,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Before the data are read, and as Flower's two runtimes log what a ServerApp raises."""
    context = Context(1, 1, {}, RecordDict(), {RESOLVED: "{}", "config": "no.toml", **run_config})
    flower = logging.getLogger("flwr")
    monkeypatch.setattr(flower, "propagate", True)
    try:
        if own:
            ShuffleStrategy.of(context)
        else:
            Federation.of_server(cast(Any, None), context)
    except FlShuffleError as error:
        flower.log(logging.ERROR, "%s raised an exception", "ServerApp", exc_info=error)
        flower.log(logging.ERROR, traceback.format_exc())
    (said,) = caplog.records
    assert said.getMessage().startswith(f"ServerApp raised an exception: {told}")
    assert said.exc_info is None and "\n" not in caplog.text.strip()
    caplog.clear()
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        # Somebody else's fault keeps its traceback.
        flower.log(logging.ERROR, "raised", exc_info=error)
    assert "Traceback" in caplog.text


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


def test_names_shapes_and_types_come_back_as_they_went() -> None:
    arrays = {"half": np.float16(1.5), "wide": np.ones((2, 0, 3)), "": np.eye(2, dtype=np.float32)}
    record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
    layout = ArrayLayout.of(record)
    back = layout.record(layout.flatten(record))
    assert list(back) == list(record)
    for name, values in arrays.items():
        found = back[name].numpy()
        assert found.dtype == values.dtype and np.array_equal(found, values)
    for dtype in ("bfloat16", "int64"):
        record = ArrayRecord({"w": Array(dtype, (3,), "numpy.ndarray", b"")})
        with pytest.raises(InvalidValueError, match=f"dtype of w = '{dtype}'.*float16, float32"):
            ArrayLayout.of(record)


def test_with_its_records_it_is_a_client_of_the_framework() -> None:
    """The same records: the same reports but for last bits, the same bill of every client."""
    config = resolve_config(
        tomllib.loads(SMALL), {"privacy.unit": "record", "data.records_per_client": 20}
    )
    own_config = {**config.to_dict(), "app": settings()["app"]}
    task = load_task(config)
    weights = task.model(config).state_dict()

    def digits(context: Context) -> tuple[Tensor, np.ndarray]:
        number = int(context.node_config["partition-id"])
        start, end = task.offsets[number : number + 2]
        return task.inputs[start:end], task.labels[start:end].numpy()

    silo = ShuffleClientApp(records=digits, model=lambda: nn.Sequential(nn.Linear(64, 10)))
    request, every = TrainRequest(1, np.arange(12)), [*map(torch.flatten, weights.values())]
    (own,) = replies(silo, ArrayRecord(weights), request, tables=own_config)
    built_in = OneNode(config, task).reports(request, torch.cat(every))
    assert reports_of(own) == pytest.approx(built_in, abs=1e-5)
    plan, planned = RunParts.made_of(parse_config(own_config)).randomizers, task.plan
    assert plan.classes == planned.classes and list(plan.class_of) == list(planned.class_of)


def means(
    *given: tuple[Any, Any], records: int = 4, zero: bool = False, loss: Any = None, **privacy: str
) -> np.ndarray:
    """Clipped means [k, 8] of clients with these (x, y), of three features and two classes, by
    reports whose noise is below 1e-6; `records` = 0: of all a client has, clipped as one."""
    torch.manual_seed(0)
    linear = nn.Linear(3, 2)
    if zero:
        nn.init.zeros_(linear.weight), nn.init.zeros_(linear.bias)
    app = ShuffleClientApp(
        records=lambda context: given[context.node_config["partition-id"]],
        model=lambda: nn.Linear(3, 2),
        loss=loss,
    )
    tables = {
        **settings(unit="record" if records else "client", clip_norm=CLIP, **privacy),
        "data": {"clients": len(given), "records_per_client": records},
        "budgets": {"epsilon": 1e12},
    }
    request = TrainRequest(1, np.arange(len(given)))
    return reports_of(replies(app, ArrayRecord(linear.state_dict()), request, tables=tables)[0])


def made_up(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return 5 * torch.randn(count, 3, generator=draw), torch.arange(count) % 2


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(reduction="none")])
def test_the_mean_is_over_the_public_number(loss: Any) -> None:
    """Of more records the first ones; missing ones are zeros, whatever the loss."""
    x, y = made_up(9)
    more, four, one = means((x, y), (x[:4], y[:4]), (x[:1].numpy(), y[:1].numpy()), loss=loss)
    singles = means(*((x[i : i + 1], y[i : i + 1]) for i in range(4)), records=1)
    assert 0.99 * CLIP < np.linalg.norm(singles, axis=1).max() <= CLIP + 1e-5
    assert more == pytest.approx(singles.mean(axis=0), abs=1e-5)
    assert more == pytest.approx(four, abs=1e-5)
    assert one == pytest.approx(singles[0] / 4, abs=1e-5)


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(reduction="none")])
def test_missing_records_are_told_as_missing(loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And not as gradients that are not finite, which a record of its own may have beside them."""
    x, y = made_up(4)
    broken = x[:3].clone()
    broken[1] = torch.nan
    means((x, y), (x[:1], y[:1]), loss=loss)
    few = "client 1 has 1 records, and data.records_per_client = 4: the missing ones count as zero"
    assert [few in each.getMessage() for each in caplog.records] == [True]
    caplog.clear()
    means((x, y), (broken, y[:3]), loss=loss)
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == 2 and "client 1 has 3 records" in told[0]
    assert "1 of 1 clients" in told[1] and "not finite" in told[1] and "in 1 records" in told[1]


def refusal(
    model: Any = lambda: nn.Linear(3, 2),
    loss: Any = None,
    shape: tuple[int, ...] = (3,),
    numbers: int = 0,
    unit: str = "record",
    **run: Any,
) -> str:
    """Why a node of a deployment answers no request, as its log says; empty if it has sent its
    report. The server reads the class and the names of settings alone."""
    draw = torch.Generator().manual_seed(0)
    x, y = 1e6 * torch.randn(4, *shape, generator=draw), torch.arange(4) % 2
    y = 1e6 * torch.rand(4, numbers, generator=draw) if numbers else y
    app = ShuffleClientApp(records=lambda context: (x, y), model=model, loss=loss)
    tables = {**settings("system", unit="record"), "data": {"clients": 2, "records_per_client": 4}}
    tables["run"] = {**tables["run"], **run}
    tables["privacy"]["unit"] = unit
    arrays = ArrayRecord({"weight": Array(np.zeros((2, 3), np.float32)),
                          "bias": Array(np.zeros(2, np.float32))})  # fmt: skip
    request = TrainRequest(1, np.arange(2))
    said = StringIO()
    own = logging.Logger("node")
    own.addHandler(logging.StreamHandler(said))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "log", own)
        reply = replies(app, arrays, request, tables=tables, node_config={})[0]
    assert reply.has_error() == (not reply.has_content())
    if not reply.has_error():
        return ""
    assert re.fullmatch(r"NodeFault(: run\.device)?", str(reply.error.reason))
    return said.getvalue()


class Centred(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


class Wide(nn.Linear):
    """Takes records of three numbers only, and has no package for them."""

    def forward(self, x: Tensor) -> Tensor:
        raise ImportError("No module named 'kernels'")


class Starved(nn.Linear):
    """Wants more memory than there is: for a record that says so, or for everybody."""

    everybody = True

    def forward(self, x: Tensor) -> Tensor:
        if self.everybody or float(x.detach().abs().max()) > 1e5:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] can't allocate memory: 1 bytes")
        return super().forward(x)


class Asking(Starved):
    everybody = False


class Large(nn.Linear):
    """Has memory for a few records at a time."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise torch.OutOfMemoryError("tried to allocate 1 bytes")
        return super().forward(x)


def greedy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Wants more memory than there is for large numbers to predict."""
    if bool((labels > 1e5).any()):
        raise MemoryError
    return (outputs - labels).square().sum(1)


def lone(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none") / len(labels)


def apart(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels).square().sum(1)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"loss": lone}, r"ShuffleClientApp\(loss=\.\.\.\) = 'lone': mixes records"),
        ({"loss": lambda o, y: (o - y.mean(0)).square().sum(1), "numbers": 2}, "mixes records"),
        ({"model": lambda: Centred(3, 2)}, r"\(model=\.\.\.\): module = 'Centred': mixes"),
        ({"model": lambda: {}["net"]}, "fails on this node with run.device = 'cpu': KeyError"),
        ({"model": lambda: Wide(3, 2)}, "fails on this node: ImportError: No module named 'ker"),
        ({"model": lambda: Starved(3, 2)}, r"RuntimeError: \[enforce fail at alloc_cpu"),
        ({"model": lambda: nn.Linear(4, 2)}, r"its parameters are weight \[2, 4\]"),
    ],
    ids=["loss", "numbers", "mixes", "construction", "package", "memory", "arrays"],
)
def test_fault_without_records_is_an_error_and_no_report(how: Any, told: str) -> None:
    """Of a node that would send zeros and noise in every round, or gradients without a bound."""
    assert re.search(told, refusal(**how))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a node without a GPU")
def test_node_without_the_device_sends_no_report() -> None:
    assert re.search("fails on this node with run.device = 'cuda': ", refusal(device="cuda"))


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"loss": apart, "numbers": 2},
        {"loss": greedy, "numbers": 2},
        {"model": lambda: Asking(3, 2)},
        {"model": lambda: Asking(3, 2), "unit": "client"},
        {"shape": (5,)},
        # The number of a client's records is private here: a lack of memory may be its doing.
        {"model": lambda: Large(3, 2), "unit": "client"},
    ],
)
def test_fault_of_records_is_a_report_like_any_other(how: Any) -> None:
    """Who is asked for memory, or has records that do not fit the model: nobody else is told."""
    assert not refusal(**how)


class Panic(BaseException):
    """As libraries in other languages raise it, about a text that they cannot take."""


def test_panic_of_a_library_on_a_record_is_a_report_like_any_other() -> None:
    def panics(outputs: Tensor, labels: Tensor) -> Tensor:
        if bool((labels > 1e5).any()):
            raise Panic
        return (outputs - labels).square().sum(1)

    assert not refusal(loss=panics, numbers=2)
    assert not refusal(loss=panics, numbers=2, unit="client")


class Tokens(nn.Linear):
    """Adds up columns of its weight, by whole numbers."""

    def forward(self, x: Tensor) -> Tensor:
        columns = nn.functional.embedding(x, self.weight.T)
        return columns.sum(1) + self.bias


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(reduction="none")])
@pytest.mark.parametrize("numbers", [False, True])
def test_whole_numbers_stay_whole_and_missing_ones_are_zero(loss: Any, numbers: bool) -> None:
    """The mean of three records over five."""
    x, y = torch.tensor([[0, 1], [2, 2], [1, 0]]), torch.tensor([0, 1, 1])
    if numbers:
        y, loss = torch.eye(2)[y], apart
    rows = []
    for given, count in ((x, 5), (x, 3)):
        app = ShuffleClientApp(
            records=lambda context, given=given: (given, y),
            model=lambda: Tokens(3, 2), loss=loss,
        )  # fmt: skip
        tables = {
            **settings(unit="record", clip_norm=100.0),
            "data": {"clients": 2, "records_per_client": count},
            "budgets": {"epsilon": 1e12},
        }  # fmt: skip
        state = ArrayRecord(nn.Linear(3, 2).apply(zeroed).state_dict())
        reply = replies(app, state, TrainRequest(1, np.arange(2)), tables=tables)[0]
        rows.append(reports_of(reply)[0])
    assert rows[0] == pytest.approx(rows[1] * 3 / 5, abs=1e-4) and np.abs(rows[1]).max() > 0.1


def zeroed(module: nn.Module) -> None:
    for each in module.parameters():
        nn.init.zeros_(each)


@pytest.mark.parametrize("count", [2, 7])
def test_a_replaced_record_moves_it_by_its_share(count: int) -> None:
    """Also where the client has more or fewer records than are counted: by at most 2 C / B, which
    opposite gradients reach."""
    x, y = made_up(count, seed=1)
    x[0], y[0] = torch.tensor([50.0, 0.0, 0.0]), 0
    moved = y.clone()
    moved[0] = 1
    distance, most = (
        np.linalg.norm(np.subtract(*means((x, y), (x, moved), zero=zero))) for zero in (False, True)
    )
    assert max(distance, most) <= 2 * CLIP / 4 + 1e-5 and most > 0.99 * 2 * CLIP / 4


@pytest.mark.parametrize(("records", "clip"), [(0, "auto"), (4, "average")])
def test_clipped_as_one_all_its_records_count(records: int, clip: str) -> None:
    x, y = made_up(7)
    few, all_of_them = means((0.01 * x, y), (x, y), records=records, clip=clip)
    torch.manual_seed(0)
    linear = nn.Linear(3, 2)
    nn.functional.cross_entropy(linear(0.01 * x), y).backward()
    expected = np.concatenate([each.grad.flatten().numpy() for each in linear.parameters()])  # type: ignore[union-attr]
    expected *= min(1.0, CLIP / float(np.linalg.norm(expected)))
    assert few == pytest.approx(expected, abs=1e-5)
    assert np.linalg.norm(all_of_them) <= CLIP + 1e-5


@pytest.mark.parametrize(
    ("sigma", "clip", "steps", "release"), [(3.0, 0.5, 2, "reports"), (50.0, 2.0, 64, "sum")]
)
def test_declared_training_composes_its_gaussian_steps(
    sigma: float, clip: float, steps: int, release: str
) -> None:
    """mu = 2 clip / sigma a step, for a replaced record; a client that missed a round pays less."""
    declared = {"randomizer": "declared", "declared_sigma": sigma, "declared_steps": steps}
    tables = settings(unit="record", clip_norm=clip, release=release, **declared)
    del tables["budgets"]
    accountant = RunParts.made_of(parse_config(tables)).accountant(7)
    everybody, most = np.ones(CLIENTS, dtype=bool), np.arange(CLIENTS) != 1
    expected = [
        gaussian_epsilon(2.0 * clip / sigma * math.sqrt(steps * rounds), 1e-5)
        for rounds in (1, 2, 3)
    ]
    for number, present in enumerate((everybody, most, everybody), start=1):
        # What a target is compared with.
        after = accountant.preview(1, present).client_epsilons()
        spend = accountant.preview(number, present).spend
        accountant.commit(accountant.preview(number, present))
        wanted = pytest.approx(expected[number - 1], rel=1e-6)
        assert after[0] == wanted and spend.headline == wanted
        assert spend.columns["local"].status is Status.DECLARED
        assert [name for name, column in spend.columns.items() if column.worst] == ["local"]
        assert all(column.note for name, column in spend.columns.items() if name != "local")
    totals, worst = accountant.client_totals(), accountant.worst_client()
    assert totals.headline[:2] == pytest.approx([expected[2], expected[1]])
    assert np.isnan(totals.shuffled).all() and np.isnan(totals.sum).all()
    assert not any(column.worst for column in accountant.lower_bounds().values())
    assert worst is not None and worst.epsilon == pytest.approx(totals.headline[0])


def test_nothing_of_a_request_waits_for_the_collector() -> None:
    """Flower's views of a message's records are cycles: a model would stay for many rounds."""
    app, given = ShuffleClientApp(), []

    @app.train()
    def kept(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy())})
        given.extend(weakref.ref(each["w"]) for each in (message.content["arrays"], arrays))
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    layout = ArrayLayout(("w",), ((5,),), ("float32",))
    gc.collect()
    gc.disable()
    try:
        with nodes(app, tables=settings()) as grid:
            arrays = layout.record(np.zeros(5, np.float32))
            request = TrainRequest(1, np.arange(3)).message(arrays, 2)
            reply = next(iter(grid.send_and_receive([request])))
            given.append(weakref.ref(reply.content["report"]["reports"]))
            assert len(given) == 7 and given[-1]() is not None
            del reply, request, arrays
            # The node's thread lets go of its task a moment after it has answered.
            wait_until(lambda: not any(each() for each in given), 30.0, "something stays")
    finally:
        gc.enable()


def test_a_clients_state_is_its_own_and_what_it_deletes_is_gone() -> None:
    """Of clients whose numbers begin alike, too."""
    model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    adopt_task_identity(1)
    message = TrainRequest(1, np.array([1])).message(model, 2)
    context = Context(1, 2, {}, RecordDict(), {})
    request = Request(message, context, 1, torch.zeros(2), np.array([1]), summed=False)
    for client in (1, 12):
        with as_client(request, 20, client) as (_, own):
            assert not list(own.state)
            own.state["seen"] = ConfigRecord({"client": client})
            own.state["more"] = ConfigRecord({"client": client})
    for client in (12, 1):
        with as_client(request, 20, client) as (_, own):
            assert sorted(own.state) == ["more", "seen"]
            assert own.state["seen"] == ConfigRecord({"client": client})
            del own.state["more"]
    with as_client(request, 20, 1) as (_, own):
        assert list(own.state) == ["seen"]
