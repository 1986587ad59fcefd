"""What is known of a run before it starts: who is limited by what, and which warnings hold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.runs.facts import DataFacts, RunFacts
from fl_shuffle.runs.views import quantiles_of


def facts(settings: dict[str, Any], **known: Any) -> RunFacts:
    """Of two clients, unless a plan or budgets say otherwise."""
    data = DataFacts("digits", 12, (64,), 10, 7, 5)
    of: dict[str, Any] = {
        "config": resolve_config({"data": {"clients": 2}}, settings), "plan": range(2),
        "budgets": Budgets(np.ones(2), np.zeros(2)), "dimension": 3, "data": data,
    }  # fmt: skip
    return RunFacts(**{**of, **known})


@pytest.mark.parametrize(
    ("common", "own", "found"),
    [
        (None, None, None),
        (2.0, None, [2.0, 2.0]),
        (None, [1.0, math.inf], [1.0, math.inf]),
        (2.0, [1.0, 3.0], [1.0, 2.0]),
        (2.0, [math.inf, 2.5], [2.0, 2.0]),
    ],
)
def test_the_smaller_of_two_lifetime_budgets_binds(
    common: float | None, own: list[float] | None, found: list[float] | None
) -> None:
    """Everybody's, and a client's own."""
    settings = {} if common is None else {"privacy.lifetime_epsilon": common}
    lifetime = None if own is None else np.array(own)
    limits = facts(settings, budgets=Budgets(np.ones(2), np.zeros(2), lifetime)).lifetime
    assert (None if limits is None else limits.tolist()) == found


def test_a_total_binds_beside_everybodys_lifetime_budget() -> None:
    totals = Budgets(np.array([1.5, 4.0]), np.zeros(2), of="run")
    limits = facts({"privacy.lifetime_epsilon": 2.0}, budgets=totals).lifetime
    assert limits is not None and limits.tolist() == [1.5, 2.0]


@pytest.mark.parametrize("reports", [1, 4])
@pytest.mark.parametrize("rounds", [1, 6, 7, 24, 25, 26])
def test_a_run_whose_reports_spend_delta_is_warned_of(rounds: int, reports: int) -> None:
    """Each report of every round may break its promise: 25 of them by the target at most."""
    target, delta0 = 1e-3, 1.0 - (1.0 - 1e-3) ** (1 / 25.5)
    classes = ClassTable.of(
        [ClientClass("user", 0.0, 1.0, 2.0, 1.0, each) for each in (delta0 / 3.0, delta0)]
        # Of known noise the distribution says what happens, and no delta is spent.
        + [ClientClass("gaussian", 1.0, 1.0, 2.0, 1.0, 0.5)]
    )
    settings = {"run.rounds": rounds, "privacy.target_delta": target}
    settings |= {"privacy.reports_per_round": reports}
    plan = SimpleNamespace(classes=classes)
    said = facts(settings, plan=plan)._declared_delta_spent
    assert bool(said) == (1.0 - (1.0 - delta0) ** (rounds * reports) > target)
    if said:
        assert "reports more than 25 times" in said and f"{rounds * reports} reports need" in said
    few = SimpleNamespace(classes=ClassTable.of([classes[2]]))
    assert facts(settings, plan=few)._declared_delta_spent == ""


@pytest.mark.parametrize(("fitted", "count"), [(False, 5), (True, 17)])
def test_records_that_something_exact_tells_of_are_counted(fitted: bool, count: int) -> None:
    """Those held out, and those that features are fitted on."""
    assert facts({}, features_use_data=fitted).records_not_covered == count


def test_quantiles_beside_infinite_epsilons_are_numbers() -> None:
    """Between two infinities there is infinity; a column that says nothing has none."""
    totals: Any = SimpleNamespace(
        shuffled=np.array([1.0, math.inf, math.inf, math.inf]), sum=np.array([1.0, math.nan] * 2),
        local=np.arange(1.0, 12.0),
    )  # fmt: skip
    assert quantiles_of(totals) == {
        "shuffled": {"p10": math.inf, "p50": math.inf, "p90": math.inf},
        "sum": None,
        "local": {"p10": 2.0, "p50": 6.0, "p90": 10.0},
    }
