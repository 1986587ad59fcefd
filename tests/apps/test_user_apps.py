"""A user's own Flower app: any ClientApp behind the mod, any arrays under the strategy."""

from __future__ import annotations

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
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from fl_shuffle.flower import LocalRandomizerMod, ShuffleMod, ShuffleStrategy
from fl_shuffle.flower.grid import CLIENT_APP_RAISED, InProcessGrid
from fl_shuffle.flower.messages import Layout
from fl_shuffle.run_words import METRICS_STAY
from tests.flower.small_rounds import OpenLedger, small_strategy


@pytest.mark.parametrize(
    "mod", [LocalRandomizerMod(randomizer="laplace", epsilon0=1.0), ShuffleMod()]
)
def test_an_evaluation_request_does_not_reach_the_app(
    mod: Mod, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error either, whoever asks, and is told once."""
    app, reached = ClientApp(mods=[mod]), []

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        reached.append(message)
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, {}, nodes=1)
    try:
        for number in ("1", "2"):
            message = grid.create_message(RecordDict({"arrays": initial()}), "evaluate", 2, number)
            (reply,) = grid.send_and_receive([message])
            assert list(reply.content) == ["metrics"]
            assert dict(reply.content["metrics"]) == {"num-examples": 1}
    finally:
        grid.close()
    assert not reached
    assert [record.getMessage() for record in caplog.records] == [METRICS_STAY]


@pytest.mark.parametrize("stock", [FedAvg, FedAdam])
def test_flowers_own_strategies_run_with_the_mod(
    stock: type[FedAvg], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their defaults: all clients are asked to evaluate, too."""
    app = ClientApp(mods=[LocalRandomizerMod(randomizer="laplace", epsilon0=1e6)])
    app.train()(towards_target)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        raise AssertionError

    grid = InProcessGrid(app, {}, nodes=4)
    answered, replies = grid._answered, []
    monkeypatch.setattr(
        grid, "_answered", lambda message: replies.append(answered(message)) or replies[-1]
    )
    try:
        result = stock().start(grid=grid, initial_arrays=initial(), num_rounds=3)
    finally:
        grid.close()
    assert len(replies) == 24 and not any(reply.has_error() for reply in replies)
    # Half the way each round; FedAdam makes steps of its own length.
    share = 0.875 if stock is FedAvg else 0.1
    assert np.all(result.arrays["w"].numpy() * np.sign(TARGET) >= share * np.abs(TARGET) - 1e-3)
    assert [record.getMessage() for record in caplog.records if "fl_shuffle" in record.name] == [
        METRICS_STAY
    ]


def towards_target(message: Message, context: Context) -> Message:
    arrays = message.content["arrays"]
    weight = arrays["w"].numpy() + 0.5 * (TARGET - arrays["w"].numpy())
    trained = {"w": Array(weight), "b": Array(arrays["b"].numpy())}
    metrics = MetricRecord({"num-examples": 123, "loss": 0.25})
    return Message(
        RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics}), reply_to=message
    )


SECRET = "a secret in a record"
TARGET = np.array([[0.5, -0.25], [1.0, 0.0]], dtype=np.float32)


def user_app(
    mod: LocalRandomizerMod, *, fails: BaseException | None = None, nan: bool = False
) -> ClientApp:
    """A ClientApp as written for Flower's own strategies: arrays in, arrays and metrics out."""
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        if fails:
            raise fails
        arrays = message.content.array_records["arrays"]
        weight = arrays["w"].numpy() + 0.5 * (TARGET - arrays["w"].numpy())
        trained = {"w": Array(weight * (np.nan if nan else 1.0)), "b": Array(arrays["b"].numpy())}
        metrics = MetricRecord({"num-examples": 123, "loss": 0.25})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def initial() -> ArrayRecord:
    return ArrayRecord(
        {"w": Array(np.zeros((2, 2), np.float32)), "b": Array(np.zeros(3, np.float32))}
    )


def report_in(reply: Message) -> np.ndarray:
    """The report [7] in an answer to a stock strategy, whose model was zero; nothing else is."""
    assert list(reply.content) == ["arrays", "metrics"]
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 1}
    arrays = reply.content.array_records["arrays"]
    assert Layout.of(arrays) == Layout.of(initial())
    return -Layout.of(arrays).flatten(arrays)


def strategy(clients: int, ledger: OpenLedger) -> ShuffleStrategy:
    return small_strategy(clients, 7, ledger)


def test_an_app_for_stock_flower_works_behind_the_mod() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=50.0, delta0=1e-5, clip_norm=2.0)
    ledger = OpenLedger()
    grid = InProcessGrid(user_app(mod), {}, nodes=40)
    try:
        result = strategy(40, ledger).start(grid, initial(), num_rounds=6)
    finally:
        grid.close()
    assert ledger.reports == [40] * 6
    learnt = result.arrays["w"].numpy()
    # Noise of one report is about 0.3 a coordinate, of the mean of 40 about 0.05 a round.
    assert np.abs(learnt - TARGET).max() < 0.4
    assert result.arrays["b"].numpy().shape == (3,)


def test_nothing_but_the_report_leaves() -> None:
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0, clip_norm=1.0)
    grid = InProcessGrid(user_app(mod), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), "train", 2, "1")
        first, second = (next(iter(grid.send_and_receive([message]))) for _ in range(2))
    finally:
        grid.close()
    reports = [report_in(reply) for reply in (first, second)]
    assert all(report.shape == (7,) for report in reports)
    assert not np.array_equal(reports[0], reports[1])


class Silent(RuntimeError):
    """An exception whose own text fails."""

    def __str__(self) -> str:
        raise ValueError(SECRET)


@pytest.mark.parametrize(
    "raised",
    [
        RuntimeError("a secret in an exception text"),
        ConfigError("a secret"),
        Silent(),
        SystemExit(3),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_a_client_that_fails_sends_zero_and_noise(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """That it fails may hang on one record: who is absent is public, and what it says, too."""
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0, clip_norm=1.0)
    grid = InProcessGrid(user_app(mod, fails=raised), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), "train", 2, "1")
        replies = [next(iter(grid.send_and_receive([message]))) for _ in range(100)]
    finally:
        grid.close()
    noise = np.array([report_in(reply) for reply in replies]).reshape(-1) / mod.scale
    # 700 Laplace variates: |x| has mean 1 and deviation 1, x has deviation sqrt(2).
    assert abs(np.abs(noise).mean() - 1.0) < 0.2 and abs(noise.mean()) < 0.27
    assert all("counts as zero" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 100


class RefusingLedger(OpenLedger):
    """A ledger in which there is no budget left."""

    def reserve(self, round_number: int, participants: np.ndarray) -> None:  # type: ignore[override]
        return None

    def commit(self, round_number: int, present: np.ndarray, seconds: float) -> None:  # type: ignore[override]
        raise AssertionError("nothing was reserved")


@pytest.mark.parametrize("way", ["stock loop", "replies"])
def test_no_round_is_played_without_its_ledger(way: str) -> None:
    """The ledger refuses every round; whoever drives the strategy, the model stays as it is."""
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)
    grid = InProcessGrid(user_app(mod), {}, nodes=4)
    ours = strategy(4, RefusingLedger())
    before = ours._optimizer.current().clone()
    try:
        with pytest.raises(RunError, match=r"plays its rounds itself.*call its start"):
            if way == "stock loop":
                Strategy.start(ours, grid, initial(), num_rounds=3)
            else:
                ours.aggregate_train(1, [])
        assert torch.equal(ours._optimizer.current(), before)
        ours.start(grid, initial(), num_rounds=6)
        assert ours.stopped is not None and torch.equal(ours._optimizer.current(), before)
    finally:
        grid.close()


def test_the_mod_calibrates_to_the_whole_clients_sensitivity() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clip_norm=0.5)
    assert gaussian_delta(1.0, 1.0 / mod.scale) <= 1e-5
    assert gaussian_delta(1.0, 1.001 / mod.scale) > 1e-5
    assert LocalRandomizerMod(randomizer="laplace", epsilon0=2.0, clip_norm=3.0).scale == 3
    for bad in ({"randomizer": "gauss"}, {"epsilon0": 0.0}, {"epsilon0": float("nan")},
                {"delta0": 0.0}, {"clip_norm": -1.0}):  # fmt: skip
        options: dict[str, Any] = {"randomizer": "gaussian", "epsilon0": 1.0, "delta0": 1e-5}
        with pytest.raises(InvalidValueError):
            LocalRandomizerMod(**(options | bad))


def test_arrays_that_are_not_floating_are_refused() -> None:
    grid = InProcessGrid(
        user_app(LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)), {}, nodes=1
    )
    record = ArrayRecord({"w": Array(np.zeros(3, np.int64))})
    try:
        with pytest.raises(InvalidValueError, match="int64"):
            strategy(1, OpenLedger()).start(grid, record)
    finally:
        grid.close()


def talking_app(mod: LocalRandomizerMod) -> ClientApp:
    """An app that tells in every way it can."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(Error(code=77, reason=SECRET), reply_to=message)

    @app.train("raising")
    def raising(message: Message, context: Context) -> Message:
        raise InvalidValueError("record", SECRET, SECRET)

    @app.train("empty")
    def empty(message: Message, context: Context) -> Message:
        metrics = {"metrics": MetricRecord({"loss": 0.25})}
        return Message(RecordDict(metrics), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.25})}), reply_to=message)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        holding = ConfigRecord({"first": 2, "count": 3, "why": SECRET})
        content = RecordDict({"holding": holding, "more": ConfigRecord({"text": SECRET})})
        return Message(content, reply_to=message)

    @app.query("raising")
    def query_raising(message: Message, context: Context) -> Message:
        raise RuntimeError(SECRET)

    return app


@pytest.mark.parametrize("kind", ["train", "train.raising", "train.empty"])
def test_whatever_training_tells_the_mod_sends_a_report_alone(kind: str) -> None:
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)
    grid = InProcessGrid(talking_app(mod), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), kind, 2, "1")
        reply = next(iter(grid.send_and_receive([message])))
    finally:
        grid.close()
    assert report_in(reply).shape == (7,)


@pytest.mark.parametrize("kind", ["query.raising", "query.none"])
def test_the_mod_lets_no_error_and_no_other_record_through(kind: str) -> None:
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)
    grid = InProcessGrid(talking_app(mod), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), kind, 2, "1")
        reply = next(iter(grid.send_and_receive([message])))
    finally:
        grid.close()
    assert reply.has_error()
    assert reply.error.code == CLIENT_APP_RAISED and not reply.error.reason
