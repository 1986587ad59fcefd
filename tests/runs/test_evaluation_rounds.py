"""Runs with evaluation rounds: they train nothing, cost what others cost, and publish estimates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

import fl_shuffle as fs
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower import ShuffleClientApp
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.report.page import estimates_by_round
from fl_shuffle.report.record import read_run
from fl_shuffle.results import Result
from tests.apps import test_own_federation as own_federation
from tests.one_node import nodes
from tests.small_federation import Launch, Play, model_bytes, rows

pytestmark = pytest.mark.usefixtures("coarse_pairs")
METRICS = "privacy.metrics={ loss = [0.0, 3.0], accuracy = [0.0, 1.0] }"
EVERY = "privacy.metrics_every=2"
BUDGETS = "budgets.low=3.0", "budgets.levels=1"


def test_an_evaluation_round_costs_what_another_costs_and_leaves_the_model(play: Play) -> None:
    whole = play("whole", METRICS, EVERY, *BUDGETS, quiet=False)
    plain = play("plain", *BUDGETS)
    shorter = play("shorter", "run.rounds=1", *BUDGETS)
    for with_metrics, without in zip(rows(whole), rows(plain), strict=True):
        for name in ("shuffled_epsilon", "sum_epsilon", "local_epsilon", "gspa_epsilon"):
            assert with_metrics[name] == without[name]
    first, second, third = rows(whole)
    assert first["accuracy"] == second["accuracy"] == rows(shorter)[0]["accuracy"]
    assert second["private_loss"] and not first["private_loss"] and not third["private_loss"]
    assert float(second["private_accuracy_error"]) > 0.0
    assert model_bytes(whole) != model_bytes(plain)
    told = estimates_by_round(read_run(whole))
    assert list(told) == [
        "round", "accuracy", "accuracy, standard error", "loss", "loss, standard error"
    ]  # fmt: skip
    assert told["round"] == [2] and told["loss"] == [pytest.approx(float(second["private_loss"]))]
    assert estimates_by_round(read_run(shorter)) == {}


def test_estimates_are_told(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    run = play("run", METRICS, EVERY, *BUDGETS, quiet=False)
    found = rows(run)[1]
    accuracy, error = float(found["private_accuracy"]), float(found["private_accuracy_error"])
    said = capsys.readouterr()
    line = f"round 2, estimated from private reports (+- standard error): accuracy {accuracy:.3g}"
    assert f"{line} +- {error:.2g}, loss " in said.out + said.err
    metrics = Result(run).metrics
    assert metrics["private_accuracy"][1] == pytest.approx(accuracy)
    assert math.isnan(metrics["private_accuracy"][0])


@pytest.mark.parametrize("settings", [("run.jobs=4",), ("privacy.report_bits=8",)])
def test_jobs_do_not_matter_and_few_bits_do_little(settings: tuple[str, ...], play: Play) -> None:
    base = METRICS, EVERY, *BUDGETS
    one, other = play("one", *base, "run.jobs=1"), play("other", *base, *settings)
    first, second = rows(one)[1], rows(other)[1]
    error = float(first["private_loss_error"])
    if settings == ("run.jobs=4",):
        assert first["private_loss"] == second["private_loss"]
        assert model_bytes(one) == model_bytes(other)
    else:
        assert abs(float(first["private_loss"]) - float(second["private_loss"])) < 0.1 * error


def tables(**privacy: Any) -> dict[str, Any]:
    metrics = {"metrics": {"loss": [-1.0, 1.0], "steps": [0.0, 10.0]}, "metrics_every": 2}
    return own_federation.settings(release="sum", **{**metrics, **privacy})


def test_an_apps_numbers_are_estimated_and_nothing_else_of_its_reply_leaves(tmp_path: Path) -> None:
    """Budgets are wide, so that estimates are near: the client's number in every reply."""
    app, sent = ShuffleClientApp(), list[Message]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        reply = own_federation.train(message, context)
        arrays = next(each for each in reply.content.values() if isinstance(each, ArrayRecord))
        metrics = MetricRecord({"steps": 4, "loss": math.nan, "secret": number})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def noted(message: Message, context: Context) -> Message:
        sent.append(app(message, context))
        return sent[-1]

    run_config = {RESOLVED: json.dumps(tables()), "run-directory": str(tmp_path / "run")}
    with nodes(noted, **run_config) as grid:
        own_federation.server(grid, Context(1, 1, {}, RecordDict(), run_config))
    found = rows(tmp_path / "run")
    assert [bool(each["private_steps"]) for each in found] == [False, True, False, True]
    for name, truth in (("steps", 4.0), ("loss", -1.0)):
        estimate, error = (float(found[1][f"private_{name}{end}"]) for end in ("", "_error"))
        assert abs(estimate - truth) < 4.0 * error
        assert error < 1.0
    assert not any("secret" in str(each.content) for each in sent if each.has_content())
    names = {key for each in sent if each.has_content() for key in each.content}
    assert "metrics" not in names


def test_metrics_that_nobody_computes_are_refused_before_a_round(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run", "privacy.metrics={ f1 = [0.0, 1.0] }", EVERY) == 2
    assert "privacy.metrics = {'f1': [0.0, 1.0]}: are not computed here: f1" in (
        capsys.readouterr().err
    )
    with pytest.raises(ConfigError, match="a regression does not have: use loss"):
        fs.simulate(
            {
                "data": {"source": "gapminder", "features": "none"},
                "model": {"loss": "squared-error"},
                "privacy": {"metrics": {"accuracy": [0.0, 1.0]}, "metrics_every": 2},
                "run": {"rounds": 2},
            }
        )
