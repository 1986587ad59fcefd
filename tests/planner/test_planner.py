"""What a configuration will cost in privacy and in time, and what of it keeps a target."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest import MonkeyPatch
from scipy.special import log_ndtr
from scipy.stats import binom

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.attendance import FAILURE_PROBABILITY, rounds_taken
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.lower_bounds import certain_loss
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.planner import cost, run_time
from fl_shuffle.planner.cost import cost_of, drawn_batch, plan_of
from fl_shuffle.planner.target import SOLVABLE, solve_configuration

CLIENTS, ROUNDS, SHARE = 90, 4, 0.3
TABLES = {
    "run": {"rounds": ROUNDS},
    "data": {"clients": CLIENTS, "records_per_client": 6},
    "privacy": {"unit": "client", "target_delta": 1e-5, "release": "sum"},
    "budgets": {"epsilon": 1.0},
}
REPORTS = {"privacy.release": "reports", "privacy.randomizer": "laplace"}
UNEVEN = {"budgets.distribution": "uniform", "budgets.low": 0.5, "budgets.high": 1.0}

pytestmark = pytest.mark.usefixtures("coarse_pairs")


def accountant(config: Config) -> Accountant:
    plan = plan_of(config)[0]
    return Accountant.of(config.to_dict(), plan.classes, plan.class_of)


def spent(config: Config, present: np.ndarray) -> float:
    """What a run costs with these clients in its rounds [rounds, clients]; of sums by their own
    account, which takes far less time."""
    if config.privacy.release == "reports":
        account = accountant(config)
        account.count(list(enumerate(present, start=1)))
        return float(account.client_totals().headline.max())
    plan, assumed = plan_of(config)[0], config.privacy.assumed_honest
    sums = SumAccount.start(
        plan.classes, plan.class_of, schedule="aggregate", assumed_honest=assumed
    )
    for mask in present:
        sums = sums.after(mask)
    return float(sums.worst_epsilons(1e-5).max())


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        pytest.param(REPORTS, 3, marks=pytest.mark.slow),
        ({}, 20),
        ({"privacy.assumed_honest": 3}, 20),
        ({"privacy.assumed_honest": 0.4}, 20),
    ],
)
def test_drawn_runs_stay_below_the_expected_cost(settings: dict[str, object], runs: int) -> None:
    """Exceeded with probability 1% at most: in 20 runs twice or more has probability 2%."""
    drawn_at = UNEVEN | {"budgets.levels": 1, "training.participation": SHARE}
    config, rng = resolve_config(TABLES, settings | drawn_at), np.random.default_rng(2)
    expected, drawn = cost_of(config).epsilon, rng.random((runs, ROUNDS, CLIENTS)) < SHARE
    above = sum(spent(config, present) > expected for present in drawn)
    assert above <= (config.privacy.release == "sum")


@pytest.mark.parametrize(
    ("personalization", "randomizer"), [("noise", "gaussian"), ("clipping", "laplace")]
)
@pytest.mark.parametrize("honest", [None, 0.5, 40])
def test_a_plan_and_a_run_print_one_number(
    personalization: str, randomizer: str, honest: float | None
) -> None:
    kind: dict[str, object] = {
        "privacy.personalization": personalization, "privacy.randomizer": randomizer
    }  # fmt: skip
    if honest is not None:
        kind["privacy.assumed_honest"] = honest
    config = resolve_config(TABLES, REPORTS | kind | UNEVEN | {"budgets.levels": 2})
    cost = cost_of(config)
    account, everybody = accountant(config), np.ones(CLIENTS, dtype=bool)
    spend = account.count([(number, everybody) for number in range(1, ROUNDS + 1)])
    assert {each.index: each.epsilon for each in cost.classes} == spend.columns["shuffled"].epsilon
    spend = replace(spend, columns={**spend.columns, **account.lower_bounds()})
    assert max(each.lower for each in cost.classes) == spend.columns["shuffled_lower"].worst
    assert cost.tightness == spend.tightness
    assert honest is not None or any(each.credit for each in cost.classes)
    # Colluders' reports hide nobody.
    left = {None: CLIENTS, 0.5: CLIENTS // 2, 40: 40}[honest]
    alike = Counter[float]()
    for each in cost.classes:
        alike[each.noise_scale] += each.clients
    assert all(
        each.anonymity == max(1, alike[each.noise_scale] - (CLIENTS - left))
        for each in cost.classes
    )


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_a_plan_of_discrete_noise_is_what_its_run_prints(release: str) -> None:
    kind: dict[str, object] = {
        "privacy.randomizer": "discrete-gaussian", "privacy.unit": "client",
        "privacy.release": release, "run.entropy": "system",
    }  # fmt: skip
    config = resolve_config(TABLES, kind)
    account, everybody = accountant(config), np.ones(CLIENTS, dtype=bool)
    spend = account.count([(number, everybody) for number in range(1, ROUNDS + 1)])
    assert spend is not None
    assert max(each.epsilon for each in cost_of(config).classes) == spend.headline


def test_batches_and_attendance_are_rarely_worse() -> None:
    sizes = [3, 40, 2, 500]
    classes = [
        ClientClass("laplace", 1.0, 0.1 * (i + 1), 0.1, count=n) for i, n in enumerate(sizes)
    ]
    batch, seen_as = drawn_batch(classes, ROUNDS, SHARE)
    assert seen_as == [4, 1, 4, 3] and batch[4].radius == pytest.approx(0.3)
    assert [kind.count for kind in batch[:4]][::2] == [0, 0] and batch[4].count >= 1
    rng = np.random.default_rng(1)
    runs = 4000
    smallest = rng.binomial(500, SHARE, (runs, ROUNDS)).min(axis=1)
    assert np.mean(smallest < batch[3].count) <= 0.01
    most = rng.binomial(60, SHARE, (runs, 100)).max(axis=1)
    assert np.mean(most > rounds_taken(60, SHARE, 100)) <= 0.01
    assert rounds_taken(60, 1.0, 100) == 60
    assert drawn_batch(classes, ROUNDS, 1.0) == (classes, [0, 1, 2, 3])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pooled_classes_are_planned_at_the_worst_of_theirs(order: tuple[int, ...]) -> None:
    """Whichever comes first: the largest ball of one, the largest move of another, and no fact of
    a class that is sure of a report."""
    small = [
        ClientClass("gaussian", 1.0, radius, move, count=2)
        for radius, move in ((0.3, 0.1), (0.2, 0.25), (0.1, 0.05))
    ]
    sure = ClientClass("gaussian", 1.0, 0.9, 0.9, count=5000)
    batch, seen_as = drawn_batch([*(small[place] for place in order), sure], ROUNDS, SHARE)
    assert seen_as == [4, 4, 4, 3]
    assert (batch[4].radius, batch[4].sensitivity) == (0.3, 0.25)


@pytest.mark.parametrize("rounds", [1, 30, 1000])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_half_a_surprise_is_shared_by_all_rounds_and_classes(rounds: int, share: float) -> None:
    """Some class is smaller in some round than what is planned with that probability at most, and
    some client takes part more often; by the binomial distributions themselves."""
    sizes = [1000, 3, 40, 500, 60, 1]
    classes = [
        ClientClass("laplace", 1.0 + (i > 3), 0.1 * (i + 1), 0.1, count=n)
        for i, n in enumerate(sizes)
    ]
    batch, seen_as = drawn_batch(classes, rounds, share)
    planned = [batch[place].count for place in seen_as[: len(sizes)]]
    alone = [i for i, place in enumerate(seen_as) if place == i]
    fewer = sum(float(binom.cdf(planned[i] - 1, sizes[i], share)) for i in alone)
    # Those that are pooled have what is left of all clients of their noise.
    for place in {place for i, place in enumerate(seen_as) if place != i}:
        own = [i for i, kind in enumerate(classes) if kind.scale == batch[place].scale]
        told = sum(batch[i].count for i in own) + batch[place].count
        if batch[place].count > 1:
            fewer += float(binom.cdf(told - 1, sum(sizes[i] for i in own), share))
    assert 0.0 < rounds * fewer <= 0.5 * FAILURE_PROBABILITY
    for clients in (1, 50, 100_000):
        most = rounds_taken(rounds, share, clients)
        assert (
            most == rounds or clients * binom.sf(most, rounds, share) <= 0.5 * FAILURE_PROBABILITY
        )


@pytest.mark.parametrize(("share", "status"), [("1.0", "proven"), ("0.5", "expected")])
def test_the_command_says_what_it_assumes_and_whether_it_is_proven(
    share: str, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        "privacy.release=sum",
        "data.records_per_client=6",
        f"training.participation={share}",
    ]
    assert main(["bound", "digits_record", *(f"--set={setting}" for setting in settings)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{status} cost") and ("probability" in shown) == (share != "1.0")
    assert "assumes only sums of at least" in shown and "by itself" in shown


@pytest.mark.parametrize(("jobs", "noise"), [(1, "per-sum"), (3, "per-report")])
def test_time_is_that_of_the_records_played_in_proportion(
    jobs: int, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of whole clients; by a clock in which every set of requests takes one second."""
    config = resolve_config("digits_record", ["training.participation=0.5", f"run.noise={noise}"])
    ticks = itertools.count()
    monkeypatch.setattr(run_time.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(run_time, "PIECE_RECORDS", 100)
    offsets = load_task(config).offsets.tolist()
    played = 0.5 * offsets[-1] / run_time.run_time_of(config, jobs).round
    assert 0 < played <= jobs * 100
    assert min(abs(played - each) for each in offsets) < 1e-6
    whole = replace(config, training=replace(config.training, participation=1.0))
    assert offsets[-1] / run_time.run_time_of(whole, jobs).round == pytest.approx(played)


@pytest.mark.parametrize("name", SOLVABLE)
def test_the_value_keeps_the_target_and_the_next_one_does_not(name: str) -> None:
    epsilon = 0.8
    value, solved, cost = solve_configuration(resolve_config(TABLES), name, epsilon)
    assert cost.epsilon <= epsilon and cost == cost_of(solved)
    key, costs = SOLVABLE[name]
    whole = isinstance(value, float) and name != "epsilon0"
    step = 1.0 if whole else 2e-3 * value
    beyond = value + step if costs else value - step
    beyond = resolve_config(TABLES, {key: int(beyond) if whole else beyond})
    assert cost_of(beyond).epsilon > epsilon


def test_targets_that_cannot_be_kept_or_are_none() -> None:
    config = resolve_config(TABLES)
    with pytest.raises(NotApplicableError, match="no run.rounds in .* keeps epsilon <= 0.001"):
        solve_configuration(config, "rounds", 1e-3)
    with pytest.raises(InvalidValueError, match="epsilon = 0.0"):
        solve_configuration(config, "rounds", 0.0)
    with pytest.raises(InvalidValueError, match="must be one of rounds, reports_per_round"):
        solve_configuration(config, "sigma", 1.0)
    with pytest.raises(InvalidValueError, match="must be constant to be solved for"):
        solve_configuration(resolve_config(TABLES, UNEVEN), "epsilon0", 1.0)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bound", "quickstart", "--set", "privacy.release=sum", "--epsilon", "1"]
    assert main([*asked, "--solve-for", "reports-per-round"]) == 0
    said = capsys.readouterr().out
    assert "privacy.reports_per_round <= 1 for epsilon <= 1" in said and "proven cost" in said
    assert main([*asked, "--solve-for", "rounds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] > 30 and 0.95 < found["epsilon"] <= 1.0


def steps_of(plan: Callable[[], object], monkeypatch: MonkeyPatch) -> tuple[int, int]:
    """How many lines of the planner a plan runs, and how many others its attack looks at."""
    lines, looked = 0, list[int]()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == cost.__file__ else None

    def counted(values: NDArray[np.float64]) -> NDArray[np.float64]:
        looked.append(values.size)
        return np.asarray(log_ndtr(values))

    monkeypatch.setattr(certain_loss, "log_ndtr", counted)
    before = sys.gettrace()
    sys.settrace(count)
    try:
        plan()
    finally:
        sys.settrace(before)
    return lines, sum(looked)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_cost_of_distinct_budgets_is_linear_in_clients(
    share: float, monkeypatch: MonkeyPatch
) -> None:
    """With twice the clients, each with a budget of its own, twice the steps."""
    monkeypatch.setattr(certain_loss, "MOST_GROUPS", 64)
    many = {
        "privacy.release": "reports", "privacy.unit": "record", "privacy.randomizer": "gaussian",
        "budgets.distribution": "uniform", "training.participation": share, "data.clients": 500,
    }  # fmt: skip
    few = resolve_config(TABLES, many)
    cost_of(few)  # what is computed once in a process, and found in the cache
    small, large = (
        steps_of(
            partial(cost_of, resolve_config(TABLES, many | {"data.clients": clients})), monkeypatch
        )
        for clients in (500, 2000)
    )
    assert small[1] > 0
    for few_steps, many_steps in zip(small, large, strict=True):
        assert many_steps <= 5 * few_steps
