"""The lower bound of a randomizer: the largest among its data sets, each by enumeration; and how
often they are evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.optimize import brentq

import fl_shuffle as fs
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer, KRandomizedResponse
from fl_shuffle.accounting.distributions.frequency_oracles import RapporDistribution
from fl_shuffle.accounting.lower_bounds import chosen_datasets
from fl_shuffle.errors import NotApplicableError
from tests.oracles import krr_matrix, worst_of


@pytest.mark.parametrize(
    "randomizer",
    [KRandomizedResponse(0.1, 10), KRandomizedResponse(2.0, 2), RapporDistribution(1.0, 8)],
    ids=lambda each: each.name,
)
def test_data_sets_that_are_no_worse_are_asked_once(
    randomizer: AccountedRandomizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    evaluate = chosen_datasets.hidden_delta

    def counted(*of: Any) -> Any:
        asked.append(of[3])
        return evaluate(*of)

    monkeypatch.setattr(chosen_datasets, "hidden_delta", counted)
    found = chosen_datasets.lower_bound_epsilon(randomizer, 2000, 1e-6)
    # A search takes about ten evaluations, and each other data set one.
    assert len(asked) <= 15 + len(randomizer.witness_cases())
    # The largest of all, but for the tolerance of a search.
    monkeypatch.setattr(chosen_datasets, "hidden_delta", evaluate)
    above = found.epsilon * (1.0 + 1e-3)
    assert chosen_datasets.lower_bound_delta(randomizer, 2000, found.epsilon).delta >= 1e-6
    assert chosen_datasets.lower_bound_delta(randomizer, 2000, above).delta < 1e-6


class _Unwitnessed(KRandomizedResponse):
    """A randomizer of which no data set is known whose divergence is exact."""

    def witnesses(self) -> tuple[()]:
        return ()


def test_without_a_data_set_there_is_no_lower_bound() -> None:
    """Zero would be an answer: that nothing is reached, which is not known."""
    for asked in (chosen_datasets.lower_bound_epsilon, chosen_datasets.lower_bound_delta):
        with pytest.raises(NotApplicableError, match="5-RR has no lower bound"):
            asked(_Unwitnessed(1.0, 5), 1000, 1e-6)


@pytest.mark.parametrize("epsilon0", [0.1, 1.0, 4.0])
def test_lower_epsilon_is_the_largest_of_its_data_sets(epsilon0: float) -> None:
    """Others who hold one value, or one of two values at random: the strongest of these counts."""
    rows, delta, others = krr_matrix(epsilon0, 3), 1e-3 * epsilon0, 7
    mixed = [
        [(1.0 - share) * a + share * b for a, b in zip(rows[x], rows[y], strict=True)]
        for share in (0.25, 0.5, 0.75)
        for x, y in ((0, 1), (1, 2), (0, 2))
    ]
    reached = []
    for law in [*rows, *mixed]:
        exact = worst_of(rows[:2], [[law] * others])
        if exact(0.0) > delta:
            reached.append(brentq(lambda eps, of=exact: of(eps) - delta, 0.0, epsilon0, rtol=1e-9))
    found = fs.bound(
        randomizer="krr", k=3, epsilon0=epsilon0, clients=others + 1, delta=delta, method="lower"
    )
    assert max(reached) * (1.0 - 1e-3) <= found.epsilon <= max(reached) * (1.0 + 1e-9)
