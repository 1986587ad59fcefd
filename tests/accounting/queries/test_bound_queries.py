"""Questions by name: comparison of the answers, edge values, refusals that name the field."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.methods import METHODS, bound, compare
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import FlShuffleError, InvalidValueError


def test_compare_sorts_proven_first_and_explains_the_rest() -> None:
    query = Question(randomizer="krr", k=10, epsilon0=1.0, clients=1000, delta=1e-6)
    answers = compare(query)
    assert set(answers) == set(METHODS)
    names = [name for name, value in answers.items() if isinstance(value, Guarantee)]
    assert names[0] == "blanket"
    statuses = [answers[name].status for name in names]
    order = [Status.PROVEN, Status.AS_PUBLISHED, Status.LOWER_BOUND]
    assert statuses == sorted(statuses, key=order.index)
    for name, value in answers.items():
        if isinstance(value, FlShuffleError):
            assert str(value), name
    lower = answers["lower"].epsilon
    for name in names:
        if answers[name].status is Status.PROVEN:
            assert answers[name].epsilon >= lower, name


GOOD = {"epsilon0": 1.0, "clients": 100, "delta": 1e-6}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"clients": 0}, "clients"),
        ({"epsilon0": math.nan}, "epsilon0"),
        ({"delta0": 1.0}, "delta0"),
        ({"delta": None}, "exactly one"),
        ({"randomizer": "krr"}, "k = None"),
        ({"randomizer": "kr"}, "did you mean 'krr'"),
        ({"budgets": [[2.0, 0.0]]}, "epsilon0"),
        ({"epsilom": 1.0}, "did you mean 'epsilon"),
    ],
)
def test_bad_queries_name_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        bound(Question.from_mapping({"method": "clone", **GOOD, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta0": 0.0}, "delta0"),
        ({"randomizer": "laplace"}, "delta0"),
        ({"epsilon0": 0.0}, "epsilon0"),
        ({"randomizer": "krr", "k": 3}, "vector reports"),
    ],
)
def test_vector_reports_refuse_what_has_no_noise_scale(
    change: dict[str, object], message: str
) -> None:
    good = {"epsilon0": 1.0, "delta0": 1e-5, "clients": 100, "delta": 1e-6}
    query = {"randomizer": "gaussian", "method": "proven", **good, **change}
    with pytest.raises(FlShuffleError, match=message):
        bound(Question.from_mapping(query))
