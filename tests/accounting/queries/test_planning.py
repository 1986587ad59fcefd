"""Planning: the noise of a plan reaches its target when accounted afresh, and no less would."""

from __future__ import annotations

import json
import math

import pytest

from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.engine.monotone_search import (
    crossing_scale,
    falling_power,
    is_least,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.queries.planned_cost import plan_cost
from fl_shuffle.accounting.queries.planned_noise import plan_noise
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.cli import main
from fl_shuffle.errors import InvalidValueError, NotApplicableError


@pytest.mark.parametrize(
    ("noise", "unit", "records", "rounds"),
    [("gaussian", "client", 1, 20), ("laplace", "client", 1, 20), ("gaussian", "record", 5, 50)],
)
def test_planned_noise_reaches_the_target_and_little_less_would_not(
    noise: str, unit: str, records: int, rounds: int
) -> None:
    target, delta, clients, clip = 0.8, 1e-6, 2000, 0.5
    plan = plan_noise(
        target, delta, clients=clients, rounds=rounds, noise=noise, clip=clip, unit=unit,
        records=records,
    )  # fmt: skip
    sensitivity = 2 * clip / (records if unit == "record" else 1)

    def accounted(scale: float) -> float:
        library = RoundLibrary()
        kind = RoundType.of([ReportClass(noise, scale, clip, sensitivity, clients)], 0)
        return library.epsilon({kind: rounds}, delta)

    assert plan.credit
    assert plan.epsilon <= target
    assert accounted(plan.scale) <= target * 1.01
    assert accounted(0.97 * plan.scale) > target
    assert plan.scale < 0.5 * plan.scale_without_shuffler
    root = 1.0 if noise == "gaussian" else math.sqrt(2.0)
    assert plan.deviation == pytest.approx(root * plan.scale)
    assert plan.average_deviation == pytest.approx(plan.deviation / math.sqrt(clients))


def test_little_noise_is_lost_where_the_cost_jumps() -> None:
    """Rare losses decide here: a percent of noise is worth a factor of two in epsilon."""
    plan = plan_noise(4.22, 4e-7, clients=30_032, rounds=11)

    def accounted(scale: float) -> float:
        kind = RoundType.of([ReportClass("gaussian", scale, 1.0, 2.0, 30_032)], 0)
        return RoundLibrary().epsilon({kind: 11}, 4e-7)

    assert accounted(plan.scale) == plan.epsilon <= 4.22
    assert accounted(plan.scale / 1.025) > 1.5 * 4.22


@pytest.mark.parametrize("power", [1.0, 2.5, 8.0])
@pytest.mark.parametrize("jump", [1.0, 3.0])
def test_a_falling_cost_is_met_with_few_questions(power: float, jump: float) -> None:
    asked: list[float] = []

    def cost(scale: float) -> float:
        asked.append(scale)
        return 7.0 * math.pow(scale, -power) * (jump if scale < 1.3 else 1.0)

    seen: dict[float, float] = {}
    found = crossing_scale(cost, 7.0 * math.pow(1.3, -power), 1.0, 1e-4, 1e4, 2.5, seen)
    assert found == pytest.approx(1.3, rel=0.05)
    assert list(seen) == asked
    assert len(asked) <= TOLERANCES.plan_max_trials


def test_trials_that_are_too_near_say_little_of_the_power() -> None:
    assert falling_power({}, 2.5) == falling_power({1.0: 3.0, 2.0: math.inf}, 2.5) == 2.5
    assert falling_power({1.0: 1.0, 2.0: 2.0**-4}, 2.5) == pytest.approx(4.0, rel=0.01)
    # A fall and a rise of one percent between neighbours are their errors.
    for error in (0.99, 1.01):
        assert falling_power({1.0: 1.0, 1.001: error}, 2.5) == pytest.approx(2.5, rel=0.02)
    assert falling_power({1.0: 1.0, 2.0: 5.0}, 2.5) == 1.0
    assert falling_power({1.0: 1.0, 2.0: 1e-300}, 2.5) == 10.0


def test_a_scale_is_least_where_less_was_seen_to_cost_more() -> None:
    assert is_least({1.0: 1.01}, 1.009, 1.0)
    assert not is_least({1.0: 0.99}, 1.009, 1.0)
    assert is_least({1.0: 2.0}, 1.02, 1.0)
    assert not is_least({1.0: 1.4}, 1.02, 1.0)
    assert not is_least({1.0: 2.0}, 1.03, 1.0)
    assert not is_least({1.03: 2.0}, 1.02, 1.0)


def test_record_level_plans_say_that_nothing_is_gained() -> None:
    plan = plan_noise(1.0, 1e-5, clients=100, rounds=50, unit="record", records=600)
    assert not plan.credit
    assert plan.scale == plan.scale_without_shuffler
    mu = (2 / 600) / plan.scale * math.sqrt(50)
    assert gaussian_epsilon(1e-5, mu) == pytest.approx(1.0, rel=1e-6)
    assert plan.epsilon <= 1.0


def test_personal_clips_are_planned_for_the_largest() -> None:
    shared = plan_noise(0.5, 1e-6, clients=[(1.0, 500), (0.2, 1500)], rounds=10, noise="laplace")
    alike = plan_noise(0.5, 1e-6, clients=2000, rounds=10, noise="laplace")
    # Small neighbours hide better than large ones.
    assert shared.scale < alike.scale
    with pytest.raises(InvalidValueError, match="share"):
        plan_noise(0.5, 1e-6, clients=[(1.5, 5)], rounds=10)
    with pytest.raises(NotApplicableError):
        plan_noise(0.5, 1e-6, clients=[(1.0, 0)], rounds=10)


def test_cost_per_class_agrees_with_the_ledgers_accounting() -> None:
    classes = [ReportClass("gaussian", 8.0, r, 2 * r, 400) for r in (0.3, 1.0)]
    costs = plan_cost(classes, 30, 1e-6)
    library = RoundLibrary()
    for cost in costs:
        kind = RoundType.of(classes, cost.index)
        assert cost.epsilon == pytest.approx(library.epsilon({kind: 30}, 1e-6), rel=0.03)
        assert cost.epsilon <= cost.local
        assert (cost.clients, cost.anonymity, cost.credit) == (400, 800, True)
    assert costs[0].epsilon < costs[1].epsilon
    with pytest.raises(InvalidValueError, match="classes"):
        plan_cost([ReportClass("gaussian", 1.0, 1.0, 2.0, 0)], 3, 1e-6)


def test_command_line_plan(capsys: pytest.CaptureFixture[str]) -> None:
    target = ["plan", "--epsilon", "1", "--delta", "1e-6", "--rounds", "20"]
    assert main([*target, "--clients", "3000", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["epsilon"] <= 1.0
    assert body["credit"] is True
    assert main([*target, "--clients", "100", "--unit", "record", "--records", "600"]) == 0
    assert "shuffling adds nothing here" in capsys.readouterr().out
    assert main([*target, "--classes", "1:100,0.5:200"]) == 0
    assert "without the shuffler" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "5"], "--epsilon, --delta and --rounds"),
        (["--epsilon", "1", "--delta", "1e-6", "--rounds", "2"], "exactly one of"),
        (["--epsilon", "1", "--delta", "2", "--rounds", "2", "--clients", "5"], "delta"),
        (["--epsilon", "nan", "--delta", "1e-6", "--rounds", "2", "--clients", "5"], "epsilon"),
        (["--epsilon", "1", "--delta", "1e-6", "--rounds", "2", "--classes", "1-5"], "SHARE:COUNT"),
        (["configs/quickstart.toml", "--clients", "5"], "belongs to a target"),
        (["--set", "run.rounds=3"], "name one"),
        (["--levels", "3"], "name one"),
        (["configs/quickstart.toml", "--levels", "3,x"], "whole numbers"),
        (["configs/quickstart.toml", "--levels", "0"], "whole numbers"),
    ],
)
def test_command_line_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_fewer_levels_hide_better_and_cost_budget(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--set", "privacy.unit='client'", "--set", "budgets.high=0.6"]
    asked = ["plan", "configs/digits_record.toml", *changes]
    many = ["--set", "data.clients=60", "--levels", "1,6,3", "--json"]
    assert main([*asked, *many]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["levels"] for row in rows] == [0, 6, 3, 1]
    assert [row["cohorts"] for row in rows] == [60, 6, 3, 1]
    assert [row["least_anonymity"] for row in rows] == [1, 10, 20, 60]
    lost = [row["budget_lost"] for row in rows]
    assert lost[0] == 0.0
    assert lost == sorted(lost)
    worst = [row["worst_epsilon"] for row in rows]
    assert worst == sorted(worst, reverse=True)
    assert main([*asked, "--set", "data.clients=6", "--levels", "2"]) == 0
    assert "as given" in capsys.readouterr().out


@pytest.mark.parametrize("epsilon", [1e-9, 1e-6])
def test_a_target_that_delta_alone_pays_for(epsilon: float) -> None:
    plan = plan_noise(epsilon, 1e-6, clients=10, rounds=5)
    assert 0.0 <= plan.epsilon <= epsilon
    assert plan.scale > 0.0
