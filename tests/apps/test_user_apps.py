"""A user's own Flower app: any ClientApp behind the mod, any arrays under the strategy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
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
from fl_shuffle.flower import LocalRandomizerMod, ShuffleMod
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.messages import Layout
from fl_shuffle.run_words import METRICS_STAY
from tests.flower.small_rounds import OpenLedger, small_strategy
from tests.one_node import answer, nodes

SECRET = "a secret in a record"
TARGET = np.array([[0.5, -0.25], [1.0, 0.0]], dtype=np.float32)
METRICS = {"metrics": MetricRecord({"num-examples": 123, "loss": 0.25})}


def laplace(epsilon0: float = 1.0) -> LocalRandomizerMod:
    return LocalRandomizerMod(randomizer="laplace", epsilon0=epsilon0)


def user_app(mod: Mod, fails: BaseException | None = None) -> ClientApp:
    """As written for Flower's own strategies, arrays in, arrays and metrics out, and telling in
    every way it can where it is asked for something else."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if fails:
            raise fails
        arrays = message.content["arrays"]
        weight = arrays["w"].numpy() + 0.5 * (TARGET - arrays["w"].numpy())
        trained = ArrayRecord({"w": Array(weight), "b": Array(arrays["b"].numpy())})
        return Message(RecordDict({"arrays": trained, **METRICS}), reply_to=message)

    @app.train("error")
    def error(message: Message, context: Context) -> Message:
        return Message(Error(code=77, reason=SECRET), reply_to=message)

    @app.train("empty")
    def empty(message: Message, context: Context) -> Message:
        return Message(RecordDict(METRICS), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        raise AssertionError("no evaluation reaches the app")

    @app.query()
    def query(message: Message, context: Context) -> Message:
        holding = ConfigRecord({"first": 2, "count": 3, "why": SECRET})
        return Message(RecordDict({"holding": holding, "more": holding}), reply_to=message)

    @app.query("raising")
    def raising(message: Message, context: Context) -> Message:
        raise RuntimeError(SECRET)

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


@pytest.mark.parametrize("mod", [laplace(), ShuffleMod()])
def test_an_evaluation_request_does_not_reach_the_app(
    mod: Mod, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no error either, whoever asks, and is told once."""
    with nodes(user_app(mod)) as grid:
        for _ in range(2):
            reply = answer(grid, initial(), "evaluate")
            assert list(reply.content) == ["metrics"]
            assert dict(reply.content["metrics"]) == {"num-examples": 1}
    assert [record.getMessage() for record in caplog.records] == [METRICS_STAY]


@pytest.mark.parametrize("stock", [FedAvg, FedAdam])
def test_flowers_own_strategies_run_with_the_mod(
    stock: type[FedAvg], caplog: pytest.LogCaptureFixture
) -> None:
    """With their defaults: all clients are asked to evaluate, too."""
    app, replies = user_app(laplace(1e6)), []

    def play(message: Message, context: Context) -> Message:
        replies.append(app(message, context))
        return replies[-1]

    with nodes(play, 4) as grid:
        result = stock().start(grid=grid, initial_arrays=initial(), num_rounds=3)
    assert len(replies) == 24 and not any(reply.has_error() for reply in replies)
    # Half the way each round; FedAdam makes steps of its own length.
    share = 0.875 if stock is FedAvg else 0.1
    assert np.all(result.arrays["w"].numpy() * np.sign(TARGET) >= share * np.abs(TARGET) - 1e-3)
    assert [record.getMessage() for record in caplog.records if "fl_shuffle" in record.name] == [
        METRICS_STAY
    ]


def test_an_app_for_stock_flower_works_behind_the_mod() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=50.0, delta0=1e-5, clip_norm=2.0)
    ledger = OpenLedger()
    with nodes(user_app(mod), 40) as grid:
        result = small_strategy(40, 7, ledger).start(grid, initial(), num_rounds=6)
    assert ledger.reports == [40] * 6
    learnt = result.arrays["w"].numpy()
    # Noise of one report is about 0.3 a coordinate, of the mean of 40 about 0.05 a round.
    assert np.abs(learnt - TARGET).max() < 0.4
    assert result.arrays["b"].numpy().shape == (3,)


@pytest.mark.parametrize("kind", ["train", "train.error", "train.empty"])
def test_nothing_but_the_report_leaves(kind: str) -> None:
    with nodes(user_app(laplace())) as grid:
        first, second = (report_in(answer(grid, initial(), kind)) for _ in range(2))
    assert first.shape == (7,) and not np.array_equal(first, second)


@pytest.mark.parametrize("kind", ["query.raising", "query.none"])
def test_the_mod_lets_no_error_and_no_other_record_through(kind: str) -> None:
    with nodes(user_app(laplace())) as grid:
        reply = answer(grid, initial(), kind)
        holding = answer(grid, initial(), "query")
    assert reply.has_error()
    assert reply.error.code == CLIENT_APP_RAISED and not reply.error.reason
    assert list(holding.content) == ["holding"]
    assert dict(holding.content["holding"]) == {"first": 2, "count": 3}


class Silent(RuntimeError):
    """An exception whose own text fails."""

    def __str__(self) -> str:
        raise ValueError(SECRET)


@pytest.mark.parametrize("raised", [ConfigError(SECRET), Silent(), SystemExit(3)], ids=type)
def test_a_client_that_fails_sends_zero_and_noise(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """That it fails may hang on one record: who is absent is public, and what it says, too."""
    mod = laplace()
    with nodes(user_app(mod, raised)) as grid:
        reports = [report_in(answer(grid, initial())) for _ in range(100)]
    noise = np.array(reports).reshape(-1) / mod.scale
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


def test_no_round_is_played_without_its_ledger() -> None:
    """The ledger refuses every round; whoever drives the strategy, the model stays as it is."""
    ours = small_strategy(4, 7, RefusingLedger())
    with nodes(user_app(laplace()), 4) as grid:
        for drive in (
            lambda: Strategy.start(ours, grid, initial(), num_rounds=3),
            lambda: ours.aggregate_train(1, []),
        ):
            with pytest.raises(RunError, match=r"plays its rounds itself.*call its start"):
                drive()
        result = ours.start(grid, initial(), num_rounds=6)
    assert ours.stopped is not None
    assert not any(array.numpy().any() for array in result.arrays.values())


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
