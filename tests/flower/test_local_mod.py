"""`LocalRandomizerMod`: under Flower's own strategies nothing but reports leaves an app."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.flower import LocalRandomizerMod
from fl_shuffle.flower.messages import ArrayLayout
from fl_shuffle.runs.console_messages import METRICS_STAY
from tests.one_node import nodes

SECRET = "a secret in a record"
TARGET = np.array([[0.5, -0.25], [1.0, 0.0]], dtype=np.float32)
START = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32)), "b": Array(np.zeros(3, np.float32))})


def app_behind(mod: LocalRandomizerMod) -> ClientApp:
    """Half the way to the target; it tells in every way it can where it is asked otherwise."""
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        weight = arrays["w"].numpy() + 0.5 * (TARGET - arrays["w"].numpy())
        trained = ArrayRecord({"w": Array(weight), "b": Array(arrays["b"].numpy())})
        more = MetricRecord({"num-examples": 123, "loss": 0.25})
        return Message(RecordDict({"arrays": trained, "metrics": more}), reply_to=message)

    @app.train("error")
    def error(message: Message, context: Context) -> Message:
        return Message(Error(code=77, reason=SECRET), reply_to=message)

    @app.train("raising")
    @app.query()
    def raising(message: Message, context: Context) -> Message:
        raise RuntimeError(SECRET)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        raise AssertionError("no evaluation reaches the app")

    return app


def replies(mod: LocalRandomizerMod, kind: str, count: int = 1) -> list[Message]:
    with nodes(app_behind(mod), node_config={}) as grid:
        asked = [grid.create_message(RecordDict({"arrays": START}), kind, 2, "1")] * count
        return [reply for one in asked for reply in grid.send_and_receive([one])]


@pytest.mark.parametrize("stock", [FedAvg, FedAdam])
def test_flowers_own_strategies_run_with_it(
    stock: type[FedAvg], caplog: pytest.LogCaptureFixture
) -> None:
    """With their defaults: all clients are asked to evaluate, too."""
    mod = LocalRandomizerMod(randomizer="laplace", epsilon0=1e6)
    with nodes(app_behind(mod), 4, node_config={}) as grid:
        result = stock().start(grid=grid, initial_arrays=START, num_rounds=3)
    # Half the way each round; FedAdam makes steps of its own length.
    share = 0.875 if stock is FedAvg else 0.1
    assert np.all(result.arrays["w"].numpy() * np.sign(TARGET) >= share * np.abs(TARGET) - 1e-3)
    assert [each.getMessage() for each in caplog.records if "fl_shuffle" in each.name] == [
        METRICS_STAY
    ]


@pytest.mark.parametrize("kind", ["train", "train.error", "train.raising", "evaluate", "query"])
def test_nothing_but_the_report_leaves(kind: str) -> None:
    (reply,) = replies(LocalRandomizerMod(randomizer="laplace", epsilon0=1.0), kind)
    if kind == "query":
        assert reply.has_error() and SECRET not in str(reply.error)
        return
    expected = ["metrics"] if kind == "evaluate" else ["metrics", "arrays"]
    assert list(reply.content) == expected
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 1}
    for arrays in reply.content.array_records.values():
        assert ArrayLayout.of(arrays) == ArrayLayout.of(START)


@pytest.mark.parametrize(("kind", "mean"), [("train", 0.25), ("train.raising", 0.0)])
def test_a_report_is_the_clipped_update_and_noise(kind: str, mean: float) -> None:
    """Also of a client that fails: that it fails may hang on one record."""
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clip_norm=0.5)
    found = [reply.content.array_records["arrays"] for reply in replies(mod, kind, 200)]
    # |update| = .5 |TARGET| = .573, clipped to .5.
    expected = {"w": mean * TARGET / 0.25 * 0.5 / np.linalg.norm(TARGET), "b": np.zeros(3)}
    differences = [each[name].numpy() - expected[name] for each in found for name in START]
    noise = np.concatenate([each.ravel() for each in differences]) / mod.scale
    # 1,400 standard normals: mean within 5 / sqrt(1400), spread within 5 / sqrt(2800).
    assert abs(noise.mean()) < 0.14 and abs(noise.std() - 1.0) < 0.1


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_no_two_reports_have_equal_noise(randomizer: str) -> None:
    """Of nodes, of rounds, of nodes that were started again: their difference would hold none."""
    found = []
    for _ in range(2):
        delta0 = 1e-5 if randomizer == "gaussian" else 0.0
        mod = LocalRandomizerMod(randomizer=randomizer, epsilon0=1.0, delta0=delta0)
        found += [reply.content.array_records["arrays"] for reply in replies(mod, "train", 2)]
    noise = [np.concatenate([each[name].numpy().ravel() for name in START]) for each in found]
    for one, other in itertools.combinations(noise, 2):
        assert (np.abs(one - other) > 1e-6).all()


def test_it_calibrates_to_the_whole_clients_sensitivity() -> None:
    mod = LocalRandomizerMod(randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clip_norm=0.5)
    assert gaussian_delta(1.0, 1.0 / mod.scale) <= 1e-5
    assert gaussian_delta(1.0, 1.001 / mod.scale) > 1e-5
    assert LocalRandomizerMod(randomizer="laplace", epsilon0=2.0, clip_norm=3.0).scale == 3
    for bad in ({"randomizer": "gauss"}, {"epsilon0": 0.0}, {"epsilon0": float("nan")},
                {"delta0": 0.0}, {"clip_norm": -1.0}):  # fmt: skip
        options: dict[str, Any] = {"randomizer": "gaussian", "epsilon0": 1.0, "delta0": 1e-5}
        with pytest.raises(InvalidValueError):
            LocalRandomizerMod(**(options | bad))


@pytest.mark.parametrize("delta0", [float("nan"), float("inf"), 1e-5, -1.0, "x", None])
def test_local_mod_laplace_delta0_not_zero_is_refused(delta0: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be 0 for Laplace noise"):
        LocalRandomizerMod(randomizer="laplace", epsilon0=1.0, delta0=delta0)
