"""What a configuration is expected to cost: real runs stay below it, or cost just that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest
from fl_shuffle.accounting.reports import ReportClass
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import load_config, resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.planner.cost import cost_of, drawn_batch, rounds_taken
from fl_shuffle.randomizer_plan import make_plan

CLIENTS, ROUNDS, SHARE = 300, 4, 0.3
QUICK = "configs/digits_record.toml"

pytestmark = pytest.mark.usefixtures("coarse_pairs")


def planned(settings: dict[str, object]) -> Config:
    tables = {
        "run": {"rounds": ROUNDS},
        "data": {"clients": CLIENTS, "records": 6},
        "privacy": {"unit": "client", "target_delta": 1e-5, "randomizer": "laplace"},
        "budgets": {"distribution": "uniform", "low": 0.5, "high": 1.0, "levels": 3},
    }
    return resolve_config(tables, settings)


def test_runs_stay_below_the_expected_cost() -> None:
    config = planned({"training.participation": SHARE, "budgets.levels": 1})
    expected = cost_of(config).epsilon
    plan = make_plan(config, make_budgets(config.budgets, CLIENTS), np.full(CLIENTS, 6))
    library = RoundLibrary()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        accountant = Accountant(plan.classes, plan.class_of, unit="client", schedule="aggregate",
                                delta=1e-5, library=library)  # fmt: skip
        for number in range(1, ROUNDS + 1):
            accountant.commit(number, rng.random(CLIENTS) < SHARE)
        assert accountant.client_totals()[1].max() <= expected


@pytest.mark.parametrize(
    ("personalization", "randomizer"), [("noise", "gaussian"), ("clipping", "laplace")]
)
def test_a_plan_and_a_run_print_one_number(personalization: str, randomizer: str) -> None:
    settings = {"privacy.personalization": personalization, "privacy.randomizer": randomizer}
    config = planned(settings)
    cost = cost_of(config)
    plan = make_plan(config, make_budgets(config.budgets, CLIENTS), np.full(CLIENTS, 6))
    accountant = Accountant(plan.classes, plan.class_of, unit="client", schedule="aggregate",
                            delta=1e-5)  # fmt: skip
    everybody = np.ones(CLIENTS, dtype=bool)
    for number in range(1, ROUNDS):
        accountant.commit(number, everybody)
    spend = accountant.preview(ROUNDS, everybody)
    assert {each.index: each.epsilon for each in cost.classes} == spend.columns["proven"].epsilon
    accountant.commit(ROUNDS, everybody)
    spend = replace(spend, columns={**spend.columns, **accountant.lower_columns()})
    assert max(each.lower for each in cost.classes) == spend.columns["lower"].worst
    assert cost.proven_over_lower == spend.proven_over_lower
    assert any(each.credit for each in cost.classes)


def test_batches_and_attendance_are_rarely_worse() -> None:
    sizes = [3, 40, 2, 500]
    classes = [ReportClass("laplace", 1.0, 0.1 * (i + 1), 0.1, n) for i, n in enumerate(sizes)]
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


def config_with(assumed: AssumedHonest, participation: float = 1.0) -> Config:
    settings = ["privacy.release=sum", "data.records=6", "run.rounds=12"]
    if assumed is not None:
        settings.append(f"privacy.assumed_honest={assumed}")
    return load_config(QUICK, [*settings, f"training.participation={participation}"])


def spent(config: Config, present: np.ndarray) -> float:
    """What the run's accountant says of rounds with these clients [rounds, clients]."""
    budgets = make_budgets(config.budgets, config.data.clients)
    plan = make_plan(config, budgets, np.full(config.data.clients, 6))
    account = SumAccount.start(
        plan.classes,
        plan.class_of,
        schedule="aggregate",
        assumed_honest=config.privacy.assumed_honest,
    )
    for mask in present:
        account = account.after(mask)
    return float(account.worst_epsilons(config.privacy.target_delta).max())


@pytest.mark.parametrize("assumed", [None, 3, 0.4])
def test_drawn_runs_stay_below_the_expected_cost(assumed: AssumedHonest) -> None:
    """Exceeded with probability 1% at most: in 20 runs twice or more has probability 2%."""
    config = config_with(assumed, 0.5)
    worst = cost_of(config).epsilon
    rng = np.random.default_rng(2)
    above = sum(
        spent(config, rng.random((12, config.data.clients)) < 0.5) > worst for _ in range(20)
    )
    assert above <= 1


def test_the_command_says_what_it_assumes_and_whether_it_is_proven(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for share, status in (("1.0", "proven"), ("0.5", "expected")):
        settings = ["privacy.release=sum", "data.records=6", "run.rounds=2"]
        settings.append(f"training.participation={share}")
        assert main(["bound", QUICK, *(f"--set={setting}" for setting in settings)]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"{status} cost") and ("probability" in shown) == (share != "1.0")
        assert "assumes only sums of at least" in shown and "by itself" in shown
