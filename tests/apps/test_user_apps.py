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

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_delta
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.errors import InvalidValueError, PrivacyBudgetError
from fl_shuffle.flower import LocalRandomizerMod, Schedule, ShuffleStrategy
from fl_shuffle.flower.grid import CLIENT_APP_RAISED, InProcessGrid
from fl_shuffle.flower.records import reports_of
from fl_shuffle.seeds import SeedTree

TARGET = np.array([[0.5, -0.25], [1.0, 0.0]], dtype=np.float32)


class OpenBook:
    """A book that lets everything pass and remembers what it was told."""

    def __init__(self) -> None:
        self.reports: list[int] = []

    def reserve(self, round_number: int, participants: np.ndarray) -> np.ndarray:
        return participants

    def commit(self, round_number: int, present: np.ndarray, seconds: float) -> Spend:
        self.reports.append(int(present.sum()))
        columns = {"proven": Column("proven", Status.PROVEN, "", {0: 1.0})}
        return Spend(round_number, int(present.sum()), 1e-5, None, None, columns)

    def checkpoint(self, round_number: int, state: dict[str, Any]) -> None:
        pass


def user_app(mod: LocalRandomizerMod, *, fails: bool = False, nan: bool = False) -> ClientApp:
    """A ClientApp as written for Flower's own strategies: arrays in, arrays and metrics out."""
    app = ClientApp()

    @app.train(mods=[mod])
    def train(message: Message, context: Context) -> Message:
        if fails:
            raise RuntimeError("a secret in an exception text")
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


def strategy(clients: int, book: OpenBook, rounds: int = 6) -> ShuffleStrategy:
    return ShuffleStrategy(
        clients=clients,
        schedule=Schedule(rounds=rounds),
        optimizer=ServerOptimizer(ServerSection(learning_rate=1.0), torch.zeros(7)),
        book=book,
        seeds=SeedTree(1),
    )


def test_an_app_for_stock_flower_works_behind_the_mod() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=50.0, delta0=1e-5, clip_norm=2.0)
    book = OpenBook()
    grid = InProcessGrid(user_app(mod), {}, nodes=40)
    try:
        result = strategy(40, book).start(grid, initial())
    finally:
        grid.close()
    assert book.reports == [40] * 6
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
    assert list(first.content) == ["report"]
    reports = [reports_of(reply) for reply in (first, second)]
    assert all(report is not None and report.shape == (1, 7) for report in reports)
    assert not np.array_equal(reports[0], reports[1])  # type: ignore[arg-type]


def test_a_failing_client_sends_no_text() -> None:
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)
    grid = InProcessGrid(user_app(mod, fails=True), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), "train", 2, "1")
        reply = next(iter(grid.send_and_receive([message])))
        assert reply.has_error() and not reply.error.reason and reports_of(reply) is None
        with pytest.raises(PrivacyBudgetError, match="0 usable reports"):
            strategy(2, OpenBook()).start(grid, initial())
    finally:
        grid.close()


def test_a_client_with_nan_sends_a_report_like_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its mean is zero, the noise is there, and only its own log tells."""
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=1.0, delta0=1e-5)
    grid = InProcessGrid(user_app(mod, nan=True), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict({"arrays": initial()}), "train", 2, "1")
        replies = [next(iter(grid.send_and_receive([message]))) for _ in range(40)]
    finally:
        grid.close()
    assert all(list(reply.content) == ["report"] for reply in replies)
    reports = np.array([reports_of(reply) for reply in replies]).reshape(40, 7)
    assert np.isfinite(reports).all()
    noise = reports / mod.randomizer.scale
    assert 0.7 < noise.std() < 1.3 and abs(noise.mean()) < 0.4
    assert [record.name for record in caplog.records].count("fl_shuffle.client") == 40


def test_the_mod_calibrates_to_the_whole_clients_sensitivity() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clip_norm=0.5)
    assert gaussian_delta(1.0, 1.0 / mod.randomizer.scale) <= 1e-5
    assert gaussian_delta(1.0, 1.001 / mod.randomizer.scale) > 1e-5
    assert (
        LocalRandomizerMod(randomizer="laplace", epsilon0=2.0, clip_norm=3.0).randomizer.scale == 3
    )
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
            strategy(1, OpenBook()).start(grid, record)
    finally:
        grid.close()


SECRET = "a secret in a record"


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


@pytest.mark.parametrize(
    "kind", ["train", "train.raising", "train.empty", "evaluate", "query.raising", "query.none"]
)
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


def test_of_a_query_the_mod_passes_the_clients_range_only() -> None:
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1.0)
    grid = InProcessGrid(talking_app(mod), {}, nodes=1)
    try:
        message = grid.create_message(RecordDict(), "query", 2, "holdings")
        reply = next(iter(grid.send_and_receive([message])))
    finally:
        grid.close()
    assert list(reply.content) == ["holding"]
    assert dict(reply.content.config_records["holding"]) == {"first": 2, "count": 3}
