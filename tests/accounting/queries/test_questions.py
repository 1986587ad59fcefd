"""Questions: all answers side by side, solving for a number, edge values, refusals by field."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.methods import METHODS, bound, compare
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.queries.solve import COSTS, solve
from fl_shuffle.cli import main
from fl_shuffle.cli.renamed import renamed
from fl_shuffle.errors import FlShuffleError, InvalidValueError, NotApplicableError

KRR: dict[str, Any] = {"randomizer": "krr", "k": 10}
NOISE: dict[str, Any] = {"randomizer": "gaussian"}
ONE: dict[str, Any] = {"epsilon0": 1.0, "delta": 1e-6}


def test_compare_sorts_proven_first_and_explains_the_rest() -> None:
    answers = compare(Question(**KRR, **ONE, clients=1000))
    assert set(answers) == set(METHODS)
    given = [value for value in answers.values() if isinstance(value, Guarantee)]
    statuses = [answer.status for answer in given]
    order = [Status.PROVEN, Status.AS_PUBLISHED, Status.LOWER_BOUND]
    assert given[0] is answers["blanket"] and statuses == sorted(statuses, key=order.index)
    assert all(str(value) for value in answers.values() if isinstance(value, FlShuffleError))
    lower = answers["lower"].epsilon
    assert all(each.epsilon >= lower for each in given if each.status is Status.PROVEN)


@pytest.mark.parametrize(
    "question",
    [
        {**ONE, "clients": 100_000},
        {**KRR, **ONE, "clients": 10_000},
        {**NOISE, "epsilon0": 1.0, "delta0": 1e-5, "clients": 10_000, "epsilon": 0.01},
        {"matrix": [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]], "clients": 9999, "delta": 1e-6, "rounds": 3},
    ],
)
def test_the_smallest_proven_answer_is_given_where_no_method_is_named(
    question: dict[str, Any],
) -> None:
    best = fs.bound(**question)
    given = [each for each in fs.compare(**question).values() if isinstance(each, Guarantee)]
    proven = [(each.epsilon, each.delta) for each in given if each.status is Status.PROVEN]
    assert best.status is Status.PROVEN and (best.epsilon, best.delta) == min(proven)
    with pytest.raises(NotApplicableError, match="no bound for this question is proven.*gspa"):
        fs.bound(budgets=[(1.0, 0.0, 100), (0.5, 0.0, 100)], delta=1e-6)


# One record in a report, or a client of six, moves as much as a client of one.
@pytest.mark.parametrize(("unit", "rounds", "clients"), [("client", 1, 1000), ("record", 5, 300)])
@pytest.mark.parametrize(("randomizer", "delta0"), [("gaussian", 1e-5), ("laplace", 0.0)])
def test_no_proven_bound_on_vector_reports_lies_below_the_attack(
    randomizer: str, delta0: float, unit: str, rounds: int, clients: int
) -> None:
    """Six records in a report: bounds that take epsilon0 for any two reports would (0.13, 0.79)."""
    question = {**ONE, "randomizer": randomizer, "delta0": delta0, "clients": clients}
    question |= {"unit": unit, "records": 6, "rounds": rounds}
    answers = compare(Question(**question))
    given = [each for each in answers.values() if isinstance(each, Guarantee)]
    smallest = min(each.epsilon for each in given if each.status is Status.PROVEN)
    attack = answers["attack"]
    assert attack.status is Status.LOWER_BOUND and smallest >= attack.epsilon > 0.0
    if unit == "client" and randomizer == "gaussian":
        assert smallest <= 1.5 * attack.epsilon


def test_one_record_of_several_is_refused_where_the_bound_is_about_whole_reports() -> None:
    query = Question(**ONE, randomizer="laplace", clients=1000, unit="record", records=6)
    for name in ("blanket", "clone", "lower"):
        with pytest.raises(NotApplicableError, match="one of 6 records"):
            bound(replace(query, method=name))
        bound(replace(query, method=name, unit="client"))
    assert bound(replace(query, method="gspa")).status is Status.AS_PUBLISHED


def test_the_attack_answers_for_delta_too() -> None:
    query = Question(**NOISE, epsilon0=1.0, delta0=1e-5, clients=1000, epsilon=0.01, unit="client")
    lower, upper = (
        bound(replace(query, method=name, rounds=5)).delta for name in ("attack", "proven")
    )
    assert 0.0 < lower <= upper
    with pytest.raises(NotApplicableError, match="reaches epsilon"):
        bound(replace(query, method="attack", epsilon=5.0))
    with pytest.raises(NotApplicableError, match="vector reports"):
        bound(replace(query, method="attack", randomizer=None))


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("clients", {**KRR, "epsilon0": 1.0, "epsilon": 0.1}),
        ("epsilon0", {**KRR, "clients": 10_000, "epsilon": 0.1}),
        ("participation", {**KRR, "epsilon0": 1.0, "clients": 10_000, "epsilon": 0.01}),
        ("sigma", {"randomizer": "laplace", "clients": 2000, "rounds": 5, "epsilon": 0.8}),
        ("sigma", {**NOISE, "clients": 1000, "rounds": 50, "epsilon": 1.0, "release": "sum"}),
        ("rounds", {**NOISE, "sigma": 2.0, "clients": 10_000, "epsilon": 1.0}),
        ("records", {**NOISE, "sigma": 0.1, "clients": 1000, "epsilon": 0.5, "unit": "record"}),
        ("delta0", {**NOISE, "epsilon0": 1.0, "clients": 1000, "epsilon": 0.1}),
        ("assumed_honest", {**NOISE, "sigma": 1.0, "clients": 99, "epsilon": 1, "release": "sum"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["randomizer"],
)
def test_the_target_is_kept_and_hardly_less_would(name: str, question: dict[str, Any]) -> None:
    delta = 1e-6
    query = Question(**{name: 1e-6 if name == "delta0" else 1, **question})
    value, answer = solve(query, name, delta)
    assert answer.delta <= delta and answer.epsilon == query.epsilon
    found: Any = {name: value}
    asked = replace(query, **found, method=answer.method)
    assert bound(asked).delta == answer.delta
    whole = isinstance(value, int)
    worse = value + 1 if whole else 1.003 * value
    better = value - 1 if whole else value / 1.003
    found[name] = worse if COSTS[name] else better
    assert bound(replace(asked, **found)).delta > delta


def test_what_cannot_be_solved_for_is_said() -> None:
    query = Question(**KRR, epsilon0=1.0, clients=1000, epsilon=0.1)
    with pytest.raises(InvalidValueError, match="solve_for = 'k'"):
        solve(query, "k", 1e-6)
    with pytest.raises(InvalidValueError, match="epsilon"):
        solve(replace(query, epsilon=None, delta=1e-6), "clients", 1e-6)
    with pytest.raises(NotApplicableError, match="no rounds in"):
        solve(replace(query, clients=1), "rounds", 1e-6)


def test_a_matrix_is_a_mechanism() -> None:
    """Binary randomized response, by name and as a matrix; and as distributions over words."""
    p = math.exp(1.0) / (math.exp(1.0) + 1.0)
    asked: dict[str, Any] = {"clients": 5000, "delta": 1e-6, "method": "blanket"}
    named = fs.bound(randomizer="krr", k=2, epsilon0=1.0, **asked)
    rows = [[p, 1 - p], [1 - p, p]]
    words = [{"yes": p, "no": 1 - p}, {"no": p, "yes": 1 - p}]
    assert fs.bound(matrix=rows, **asked).epsilon == pytest.approx(named.epsilon, rel=1e-9)
    assert fs.bound(matrix=words, **asked).epsilon == fs.bound(matrix=rows, **asked).epsilon
    for wrong, message in (
        ([[0.5, 0.5], [0.5, 0.4]], "must sum to one"),
        ([[0.5, 0.5], [1.0]], "rows of one length"),
        ([[1.0, 0.0], [0.5, 0.5]], "every report must be possible"),
        ("no.json", "does not exist"),
    ):
        with pytest.raises(fs.FlShuffleError, match=message):
            fs.bound(matrix=wrong, **asked)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="local budget of its own"):
        fs.bound(matrix=rows, epsilon0=2.0, **asked)


def test_the_unit_is_asked_for_where_it_changes_the_answer() -> None:
    asked: dict[str, Any] = {**NOISE, "sigma": 2.0, "clients": 20, "delta": 1e-6}
    with pytest.raises(InvalidValueError, match="unit = None: must be named"):
        fs.bound(**asked, records=5)
    client, record = (fs.bound(**asked, records=5, unit=unit) for unit in ("client", "record"))
    assert client.epsilon > record.epsilon
    assert fs.bound(**asked).epsilon == client.epsilon


VECTORS = {**NOISE, "method": "proven", "delta0": 1e-5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "clients"),
        ({"epsilon0": math.nan}, "epsilon0"),
        ({"delta0": 1.0}, "delta0"),
        ({"delta": None}, "exactly one"),
        ({"randomizer": "krr"}, "k = None"),
        ({"randomizer": "kr"}, "did you mean 'krr'"),
        ({"budgets": [[2.0, 0.0]]}, "epsilon0"),
        ({"epsilom": 1.0}, "did you mean 'epsilon"),
        # Vector reports without a noise scale.
        ({**VECTORS, "delta0": 0.0}, "delta0"),
        ({**VECTORS, "randomizer": "laplace"}, "delta0"),
        ({**VECTORS, "epsilon0": 0.0}, "epsilon0"),
        ({**VECTORS, "randomizer": "krr", "k": 3}, "vector reports"),
        ({**NOISE, "epsilon0": None, "sigma": 1e-13, "method": "sum", "release": "sum"}, "sigma"),
    ],
)
def test_bad_questions_name_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(FlShuffleError, match=message):
        bound(Question.from_mapping({"method": "clone", **ONE, "clients": 100, **change}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--randomizer gaussian --clients 5 --solve-for sigma", "needs the target"),
        ("--randomizer gaussian --epsilon 1 --delta 2 --clients 5 --solve-for sigma", "delta"),
        ("--clients 5 --epsilon0 1 --solve-for sigm", "did you mean 'sigma'?"),
        ("--clients 5 --epsilon 1 --delta .1 --solve-for clients", "leave it out"),
        ("configs/quickstart.toml --epsilon0 1", "belongs to a question"),
        ("--grid budgets.levels=3", "name one"),
        ("configs/quickstart.toml --grid budgets.levels=x", "budgets.levels = 'x'"),
    ],
)
def test_command_line_mistakes_are_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bound", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compare --epsilon0 1", "bound --epsilon0 1 --all"),
        ("export RUN", "ledger RUN --out RUN/export"),
    ],
)
def test_last_releases_names_are_translated_and_said(old: str, new: str) -> None:
    assert renamed(old.split()) == (new.split(), f"note: this is now fl-shuffle {new}")
    assert renamed(new.split()) == (new.split(), "")
