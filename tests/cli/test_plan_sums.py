"""`bound CONFIG` of runs of which only sums leave, against the accountant that counts such runs."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.rounds.sum_account import AssumedHonest, SumAccount
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import load_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.planner.cost import cost_of
from fl_shuffle.randomizer_plan import make_plan

QUICK = "configs/digits_record.toml"


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
    return account.worst_epsilon(config.privacy.target_delta)


@pytest.mark.parametrize("assumed", [None, 3, 0.4])
def test_drawn_runs_stay_below_the_expected_cost(assumed: AssumedHonest) -> None:
    """Exceeded with probability 1% at most: in 20 runs twice or more has probability 2%."""
    config = config_with(assumed, 0.5)
    worst = max(cost.epsilon for cost in cost_of(config)[0])
    rng = np.random.default_rng(2)
    above = sum(
        spent(config, rng.random((12, config.data.clients)) < 0.5) > worst for _ in range(20)
    )
    assert above <= 1


def test_the_command_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["privacy.release=sum", "data.records=6", "run.rounds=2"]
    assert main(["bound", QUICK, *(f"--set={setting}" for setting in settings)]) == 0
    shown = capsys.readouterr().out
    assert "assumes only sums of at least" in shown and "by itself" in shown
