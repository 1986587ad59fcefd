"""Solving for a number of a question: the target is kept, and hardly less would not keep it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.accounting.queries.solve import COSTS, solve
from fl_shuffle.cli import main
from fl_shuffle.errors import InvalidValueError, NotApplicableError

KRR: dict[str, Any] = {"randomizer": "krr", "k": 10}
NOISE: dict[str, Any] = {"randomizer": "gaussian"}
OWN: dict[str, Any] = {"matrix": [[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]}


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("clients", {**KRR, "epsilon0": 1.0, "epsilon": 0.1}),
        ("epsilon0", {**KRR, "clients": 10_000, "epsilon": 0.1}),
        ("participation", {**KRR, "epsilon0": 1.0, "clients": 10_000, "epsilon": 0.01}),
        ("sigma", {**NOISE, "randomizer": "laplace", "clients": 2000, "rounds": 5, "epsilon": 0.8}),
        ("sigma", {**NOISE, "clients": 1000, "rounds": 50, "epsilon": 1.0, "release": "sum"}),
        ("rounds", {**NOISE, "sigma": 2.0, "clients": 10_000, "epsilon": 1.0}),
        ("records", {**NOISE, "sigma": 0.1, "clients": 1000, "epsilon": 0.5, "unit": "record"}),
        ("delta0", {**NOISE, "epsilon0": 1.0, "clients": 1000, "epsilon": 0.1}),
        (
            "assumed_honest",
            {**NOISE, "sigma": 1.0, "clients": 1000, "epsilon": 1.0, "release": "sum"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.get("randomizer", "matrix"),
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


def test_the_smallest_proven_answer_is_given_where_no_method_is_named() -> None:
    questions: list[dict[str, Any]] = [
        {"epsilon0": 1.0, "clients": 100_000, "delta": 1e-6},
        {**KRR, "epsilon0": 1.0, "clients": 10_000, "delta": 1e-6},
        {**NOISE, "epsilon0": 1.0, "delta0": 1e-5, "clients": 10_000, "epsilon": 0.01},
        {**OWN, "clients": 10_000, "delta": 1e-6, "rounds": 3},
    ]
    for question in questions:
        answers = fs.compare(**question)
        proven = [
            each for each in answers.values()
            if isinstance(each, fs.Guarantee) and str(each.status) == "proven"
        ]  # fmt: skip
        best = fs.bound(**question)
        assert str(best.status) == "proven"
        assert (best.epsilon, best.delta) == min((each.epsilon, each.delta) for each in proven)
    with pytest.raises(NotApplicableError, match="no bound for this question is proven.*gspa"):
        fs.bound(budgets=[(1.0, 0.0, 100), (0.5, 0.0, 100)], delta=1e-6)


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
    asked: dict[str, Any] = {**NOISE, "sigma": 2.0, "clients": 100, "delta": 1e-6}
    with pytest.raises(InvalidValueError, match="unit = None: must be named"):
        fs.bound(**asked, records=5)
    client, record = (fs.bound(**asked, records=5, unit=unit) for unit in ("client", "record"))
    assert client.epsilon > record.epsilon
    assert fs.bound(**asked).epsilon == fs.bound(**asked, unit="client").epsilon


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
    assert error.count("\n") == 1
    assert message in error


def test_fewer_levels_hide_better_and_cost_budget(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ["--set", "privacy.unit='client'", "--set", "budgets.high=0.6"]
    asked = ["bound", "configs/digits_record.toml", *changes]
    many = ["--clients", "60", "--grid", "budgets.levels=0,6,1"]
    assert main([*asked, *many, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["budgets.levels"] for row in rows] == [0, 6, 1]
    assert [row["cohorts"] for row in rows] == [60, 6, 1]
    assert [row["least_anonymity"] for row in rows] == [1, 10, 60]
    lost = [row["budget_lost"] for row in rows]
    assert lost[0] == 0.0
    assert lost == sorted(lost)
    worst = [row["worst_epsilon"] for row in rows]
    assert worst == sorted(worst, reverse=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("compare --epsilon0 1", "bound --epsilon0 1 --all"),
        ("export RUN", "ledger RUN --out RUN/export"),
    ],
)
def test_last_releases_names_are_translated_and_said(old: str, new: str) -> None:
    from fl_shuffle.cli.renamed import renamed

    assert renamed(old.split()) == (new.split(), f"note: this is now fl-shuffle {new}")
    assert renamed(new.split()) == (new.split(), "")
