"""Questions by name: comparison of the answers, edge values, refusals that name the field."""

from __future__ import annotations

import math

import pytest

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.methods import METHODS, applicable_methods, bound, compare
from fl_shuffle.errors import FlShuffleError, InvalidValueError


def test_compare_sorts_proven_first_and_explains_the_rest() -> None:
    query = BoundQuery(randomizer="krr", k=10, epsilon0=1.0, clients=1000, delta=1e-6)
    answers = compare(query)
    assert set(answers) == set(METHODS)
    names = applicable_methods(query)
    assert names[0] == "blanket"
    statuses = [answers[name].status for name in names]
    order = [Status.PROVEN, Status.ASYMPTOTIC, Status.AS_PUBLISHED, Status.LOWER_BOUND]
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
        ({"clients": -5}, "clients"),
        ({"clients": 10.5}, "clients"),
        ({"clients": 10**18}, "clients"),
        ({"clients": True}, "clients"),
        ({"epsilon0": -1.0}, "epsilon0"),
        ({"epsilon0": math.nan}, "epsilon0"),
        ({"epsilon0": math.inf}, "epsilon0"),
        ({"epsilon0": 800.0}, "epsilon0"),
        ({"epsilon0": "1"}, "epsilon0"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": -1e-6}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta0": 1.0}, "delta0"),
        ({"delta": None}, "exactly one"),
        ({"epsilon": 0.1}, "exactly one"),
        ({"k": 1}, "k = 1"),
        ({"rounds": 0}, "rounds"),
        ({"randomizer": "krr"}, "k = None"),
        ({"randomizer": "kr"}, "did you mean 'krr'"),
        ({"method": "clones"}, "did you mean 'clone'"),
        ({"parallel": "blh:0.5,oue"}, "parallel"),
        ({"parallel": "blh:0.5,oue:0.4", "method": "blanket"}, "weight"),
        ({"budgets": [[2.0, 0.0]]}, "epsilon0"),
        ({"epsilom": 1.0}, "did you mean 'epsilon"),
    ],
)
def test_bad_queries_name_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        bound(BoundQuery.from_mapping({"method": "clone", **GOOD, **change}))


def test_edge_values_have_defined_answers() -> None:
    def ask(**given: object) -> float:
        return bound(BoundQuery.from_mapping({**GOOD, "method": "clone", **given})).epsilon

    assert ask(epsilon0=0.0) == 0.0
    assert 0.99 < ask(clients=1) <= 1.0
    assert ask(clients=10**12) < 1e-3
    assert ask(epsilon0=200.0) <= 200.0


def test_vector_reports_by_name() -> None:
    """Gaussian, n = 1e4, local (1, 1e-5), delta 1e-6: at most .0087, published mu says .099."""
    asked = {"epsilon0": 1.0, "delta0": 1e-5, "clients": 10_000, "delta": 1e-6}
    proven = bound(BoundQuery(**asked, randomizer="gaussian", method="proven", unit="client"))
    assert proven.status is Status.PROVEN
    assert 0.0061 <= proven.epsilon <= 0.0087
    assert bound(BoundQuery(**asked, method="gspa")).epsilon == pytest.approx(0.099, abs=1e-3)


def test_record_unit_gets_no_credit_and_the_local_number() -> None:
    """eps0 = .5, 100 clients of 600 records, 50 rounds: local 3.05, published 7.8."""
    asked = {"epsilon0": 0.5, "delta0": 1e-5, "clients": 100, "delta": 1e-5, "rounds": 50}
    proven = bound(BoundQuery(**asked, randomizer="gaussian", method="proven", records=600))
    assert proven.epsilon == pytest.approx(3.05, abs=0.01)
    assert proven.details["shuffling_helps"] is False
    assert bound(BoundQuery(**asked, method="gspa")).epsilon == pytest.approx(7.8, abs=0.1)


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
        bound(BoundQuery.from_mapping(query))
