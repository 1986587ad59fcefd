"""What a configuration is expected to cost: real runs stay below it, or cost just that."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.planner.cost import cost_of, drawn_batch, plan_of, rounds_taken

CLIENTS, ROUNDS, SHARE = 90, 4, 0.3

pytestmark = pytest.mark.usefixtures("coarse_pairs")


def planned(**settings: object) -> Config:
    tables = {
        "run": {"rounds": ROUNDS},
        "data": {"clients": CLIENTS, "records": 6},
        "privacy": {"unit": "client", "target_delta": 1e-5, "randomizer": "laplace"},
        "budgets": {"distribution": "uniform", "low": 0.5, "high": 1.0, "levels": 3},
    }
    return resolve_config(
        tables, {name.replace("__", "."): value for name, value in settings.items()}
    )


def accountant(config: Config) -> Accountant:
    plan = plan_of(config)[0]
    return Accountant(plan.classes, plan.class_of, unit="client", schedule="aggregate", delta=1e-5)


def spent(config: Config, present: np.ndarray) -> float:
    """What a run costs with these clients in its rounds [rounds, clients]."""
    if config.privacy.release == "reports":
        account = accountant(config)
        for number, mask in enumerate(present, start=1):
            account.commit(number, mask)
        return float(account.client_totals().headline.max())
    plan, assumed = plan_of(config)[0], config.privacy.assumed_honest
    sums = SumAccount.start(
        plan.classes, plan.class_of, schedule="aggregate", assumed_honest=assumed
    )
    for mask in present:
        sums = sums.after(mask)
    return float(sums.worst_epsilons(1e-5).max())


@pytest.mark.parametrize(
    ("release", "assumed", "runs"),
    [
        pytest.param("reports", None, 3, marks=pytest.mark.slow),
        ("sum", None, 20),
        ("sum", 3, 20),
        ("sum", 0.4, 20),
    ],
)
def test_drawn_runs_stay_below_the_expected_cost(
    release: str, assumed: float | None, runs: int
) -> None:
    """Exceeded with probability 1% at most: in 20 runs twice or more has probability 2%."""
    sums = {"privacy__randomizer": "gaussian", "privacy__assumed_honest": assumed}
    config = planned(
        training__participation=SHARE, budgets__levels=1, privacy__release=release,
        **(sums if release == "sum" else {}),
    )  # fmt: skip
    expected, rng = cost_of(config).epsilon, np.random.default_rng(2)
    drawn = rng.random((runs, ROUNDS, CLIENTS)) < SHARE
    assert sum(spent(config, present) > expected for present in drawn) <= (release == "sum")


@pytest.mark.parametrize(
    ("personalization", "randomizer"), [("noise", "gaussian"), ("clipping", "laplace")]
)
def test_a_plan_and_a_run_print_one_number(personalization: str, randomizer: str) -> None:
    config = planned(
        privacy__personalization=personalization, privacy__randomizer=randomizer, budgets__levels=2
    )
    cost, account, everybody = cost_of(config), accountant(config), np.ones(CLIENTS, dtype=bool)
    for number in range(1, ROUNDS):
        account.commit(number, everybody)
    spend = account.preview(ROUNDS, everybody)
    assert {each.index: each.epsilon for each in cost.classes} == spend.columns["proven"].epsilon
    account.commit(ROUNDS, everybody)
    spend = replace(spend, columns={**spend.columns, **account.lower_columns()})
    assert max(each.lower for each in cost.classes) == spend.columns["lower"].worst
    assert cost.proven_over_lower == spend.proven_over_lower
    assert any(each.credit for each in cost.classes)


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


@pytest.mark.parametrize(("share", "status"), [("1.0", "proven"), ("0.5", "expected")])
def test_the_command_says_what_it_assumes_and_whether_it_is_proven(
    share: str, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["privacy.release=sum", "data.records=6", f"training.participation={share}"]
    assert main(["bound", "digits_record", *(f"--set={setting}" for setting in settings)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{status} cost") and ("probability" in shown) == (share != "1.0")
    assert "assumes only sums of at least" in shown and "by itself" in shown


@pytest.mark.slow
def test_fewer_levels_hide_better_and_cost_budget(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["configs/digits_record.toml", "--set", "privacy.unit='client'", "--clients", "60"]
    asked += ["--set", "budgets.high=0.6", "--grid", "budgets.levels=0,6,1", "--json"]
    assert main(["bound", *asked]) == 0
    rows = json.loads(capsys.readouterr().out)
    wanted = {"budgets.levels": [0, 6, 1], "cohorts": [60, 6, 1], "least_anonymity": [1, 10, 60]}
    for name, values in wanted.items():
        assert [row[name] for row in rows] == values
    lost, worst = ([row[name] for row in rows] for name in ("budget_lost", "worst_epsilon"))
    assert lost[0] == 0.0 and lost == sorted(lost)
    assert worst == sorted(worst, reverse=True)
