"""Methods `proven` and `attack` side by side, and who may answer for one record of many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.queries.methods import bound, compare
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import FlShuffleError, NotApplicableError


# One record in a report, or a client of six, moves as much as a client of one.
@pytest.mark.parametrize(
    ("unit", "records", "rounds"),
    [("client", 6, 1), ("record", 6, 20)],
)
@pytest.mark.parametrize(("randomizer", "delta0"), [("gaussian", 1e-5), ("laplace", 0.0)])
def test_no_proven_bound_on_vector_reports_lies_below_the_attack(
    randomizer: str, delta0: float, unit: str, records: int, rounds: int
) -> None:
    """Six records in a report: bounds that take epsilon0 for any two reports would (0.13, 0.79)."""
    query = Question(
        randomizer=randomizer,
        epsilon0=1.0,
        delta0=delta0,
        clients=1000,
        delta=1e-6,
        unit=unit,
        records=records,
        rounds=rounds,
    )
    answers = {name: a for name, a in compare(query).items() if not isinstance(a, FlShuffleError)}
    attack = answers["attack"]
    assert attack.status is Status.LOWER_BOUND
    assert attack.epsilon > 0.0
    proven = [answer.epsilon for answer in answers.values() if answer.status is Status.PROVEN]
    assert min(proven) >= attack.epsilon
    if unit == "client" and randomizer == "gaussian":
        assert min(proven) <= 1.5 * attack.epsilon


def test_one_record_of_several_is_refused_where_the_bound_is_about_whole_reports() -> None:
    query = Question(
        randomizer="laplace", epsilon0=1.0, clients=1000, delta=1e-6, unit="record", records=6
    )
    for name in ("blanket", "clone", "lower"):
        with pytest.raises(NotApplicableError, match="one of 6 records"):
            bound(replace(query, method=name))
        bound(replace(query, method=name, unit="client"))
    assert bound(replace(query, method="gspa")).status is Status.AS_PUBLISHED


def test_the_attack_answers_for_delta_too() -> None:
    query = Question(
        randomizer="gaussian", epsilon0=1.0, delta0=1e-5, clients=1000, epsilon=0.01, unit="client"
    )
    lower, upper = (
        bound(replace(query, method=name, rounds=5)).delta for name in ("attack", "proven")
    )
    assert 0.0 < lower <= upper
    with pytest.raises(NotApplicableError, match="reaches epsilon"):
        bound(replace(query, method="attack", epsilon=5.0))
    with pytest.raises(NotApplicableError, match="vector reports"):
        bound(replace(query, method="attack", randomizer=None))
