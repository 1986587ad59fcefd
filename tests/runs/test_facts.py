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
from fl_shuffle.ledger.tables import EPSILONS, OLD_CSV
from fl_shuffle.runs.console_messages import hiding_advice
from fl_shuffle.runs.facts import DataFacts, RunFacts
from fl_shuffle.runs.views import metrics_line, metrics_of, quantiles_of, summary_with


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


def test_a_line_of_metrics_has_each_number_in_its_place_and_the_old_ones_after() -> None:
    """Ten digits, microseconds, and nothing where a round has nothing."""
    row = {"round": 3, "num_reports": 41, "shuffled_epsilon": 1 / 3, "seconds": 1 / 3, "loss": None}
    row |= {"sum_epsilon": 2.0, "local_epsilon": math.inf}
    wanted = {"n_reports": "41", "shuffled_epsilon": "0.3333333333", "sum_epsilon": "2"}
    wanted |= {"local_epsilon": "inf"}
    old = [wanted.get(name, wanted.get(new, "")) for name, new in OLD_CSV.items()]
    line = metrics_line(row, ["round", "num_reports", "shuffled_epsilon", "seconds", "loss", "x"])
    assert line == ",".join(["3", "41", "0.3333333333", "0.333333", "", "", *old]) + "\n"
    view: Any = SimpleNamespace(columns=("round", "loss"), lines=[{"round": k} for k in (1, 2, 3)])
    head = ",".join(["round", "loss", *OLD_CSV]) + "\n"
    empty = "," * (len(OLD_CSV) + 1) + "\n"
    for before, kept in ((1, ""), (3, "12"), (math.inf, "123")):
        assert metrics_of(view, before) == head + "".join(place + empty for place in kept)


def ended(**changed: Any) -> Any:
    """A finished run of two rounds, as its ledger has it."""
    spent = dict.fromkeys(EPSILONS)
    spent |= {"shuffled": 1.0, "shuffled_lower": 0.5, "local": 4.0, "sum": 3.0}
    of: dict[str, Any] = {
        "config": resolve_config({"data": {"clients": 9}}, {}).to_dict(),
        "rows": [{"num_reports": 7}, {"num_reports": 5}, {"num_reports": 6, "gspa_mu": 0.25}],
        "metrics": {1: {"accuracy": 0.1}, 3: {"accuracy": 0.5, "loss": 2.0, "own": 8.0}},
        "last_round": 3, "headline": "shuffled", "spent": spent.__getitem__, "seeded": True,
        "directory": "runs/a", "delta": 1e-5, "sum_add_remove": 1.5, "hash": "abc",
        "notes": [
            (0, "warning", "w2"), (0, "assumption", "a"), (1, "warning", "w1"), (2, "warning", "w2")
        ],
        "meta": {
            "test_data": "public", "data": {"test_records": 11}, "relation": "replace-one",
            "records_not_covered": 2,
        },
    }  # fmt: skip
    return SimpleNamespace(**{**of, **changed})


OUTCOME: dict[str, Any] = {
    "stopped_early": True, "failed": False, "epsilon_quantiles": {"local": None},
    "columns": {"sum": {"status": "proven"}}, "accounting_seconds": 0.25, "seconds": 9.0,
}  # fmt: skip


def test_a_summary_has_each_number_from_its_own_place() -> None:
    found = dict(summary_with(ended(), OUTCOME))
    words = found.pop("description")
    assert isinstance(words, str) and words
    assert found == {
        "run_directory": "runs/a", "rounds": 3, "stopped_early": True, "failed": False,
        "accuracy": 0.5, "loss": 2.0, "metrics": {"own": 8.0}, "test_data": "public",
        "test_records": 11, "clients": 9, "seeded": True, "delta": 1e-5,
        "unit": ended().config["privacy"]["unit"], "relation": "replace-one",
        "release": "reports", "shuffler": ended().config["privacy"]["shuffler"],
        "headline": "shuffled", "epsilon": 1.0, "shuffled_epsilon": 1.0, "sum_epsilon": 3.0,
        "sum_epsilon_add_remove": 1.5, "epsilon_quantiles": {"local": None},
        "columns": {"sum": {"epsilon": 3.0, "status": "proven"}}, "min_reports_per_round": 5,
        "advice": None, "tightness": 2.0, "left_out": found["left_out"], "gspa_mu": 0.25,
        "records_not_covered": 2, "ledger_hash": "abc", "warnings": ["w2", "w1"],
        "assumptions": ["a"], "accounting_seconds": 0.25, "seconds": 9.0,
    }  # fmt: skip


def test_a_summary_keeps_the_number_of_private_test_records() -> None:
    """And one of a run without rounds, or whose shuffle hides nobody, says so."""
    private = ended(meta={**ended().meta, "test_data": "held out of the private records"})
    assert summary_with(private, OUTCOME)["test_records"] is None
    none = dict.fromkeys(EPSILONS)
    bare = summary_with(ended(rows=[], last_round=0, spent=none.__getitem__), OUTCOME)
    for name in ("headline", "description", "min_reports_per_round", "accuracy", "gspa_mu"):
        assert bare[name] is None, name
    hidden = {**none, "shuffled": 4.0, "local": 4.0}
    advised = summary_with(ended(spent=hidden.__getitem__), OUTCOME)["advice"]
    assert advised == hiding_advice(ended().config)
