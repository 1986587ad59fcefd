"""Bounds of the literature by name: their status, their numbers, and what their conditions are."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.published import echo_epsilon, echo_sum, feldman2022_epsilon
from fl_shuffle.accounting.bounds.renyi import CloneRenyi, rdp_epsilon
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.errors import FlShuffleError, InvalidValueError, NotApplicableError
from tests.oracles import clone_pair, hockey_stick

ONE: dict[str, Any] = {"epsilon0": 0.4, "clients": 10_000, "delta": 1e-6}
PUBLISHED = (
    "gspa", "gspa-finite", "gdp", "rdp-asymptotic", "girgis-upper", "liu2023", "erlingsson2019",
    "feldman2022", "hoeffding", "bennett",
)  # fmt: skip


@pytest.mark.parametrize("method", PUBLISHED)
def test_published_bounds_are_named_as_what_they_are(method: str) -> None:
    """Both questions are answered, and the two answers belong together."""
    answer = fs.bound(**ONE, method=method)
    assert answer.status is Status.AS_PUBLISHED and answer.source and not answer.is_guarantee
    back = fs.bound(**{**ONE, "delta": None, "epsilon": answer.epsilon}, method=method)
    assert back.delta == pytest.approx(1e-6, rel=2e-2)


def test_published_formulas_say_what_is_printed() -> None:
    epsilon0, n, delta = ONE["epsilon0"], ONE["clients"], ONE["delta"]
    found = {name: fs.bound(**ONE, method=name).epsilon for name in PUBLISHED}
    assert found["erlingsson2019"] == pytest.approx(12 * epsilon0 * math.sqrt(math.log(1e6) / n))
    mu = 2 * math.exp(epsilon0 / 2) / math.sqrt(n - 1)
    assert found["gdp"] == pytest.approx(gaussian_epsilon(delta, mu))
    assert found["feldman2022"] == feldman2022_epsilon(epsilon0, n, delta)
    asked = fs.bound(**ONE, method="rdp-asymptotic", order=8, rounds=3)
    assert asked.details["rdp"] == pytest.approx(3 * 2 * math.exp(epsilon0) * 8 / (n - 1))
    rounds = fs.bound(**ONE, method="gdp", rounds=9).details["mu"]
    assert rounds == pytest.approx(3 * mu)


@pytest.mark.parametrize("counts", [(1, 1), (3, 1, 2), (1, 4, 2)])
def test_the_sum_over_neighbors_is_the_printed_one_client_by_client(
    counts: tuple[int, ...],
) -> None:
    """One client of the largest budget is left out of the sum, and counts in the average."""
    classes = [LocalBudget(0.3 * (1 + place), 0.0, many) for place, many in enumerate(counts)]
    clients = [each.epsilon0 for each in classes for _ in range(each.count)]
    expected = sum(
        (one / other) * math.expm1(-other) / math.expm1(-one) * math.exp(-max(one, other))
        for one in clients[:-1]
        for other in clients
    )
    assert echo_sum(classes) == pytest.approx(expected / len(clients), rel=1e-12)


def test_echo_needs_enough_neighbors() -> None:
    """Where the sum is below 16 ln(4/delta) the largest local budget is all that is printed."""
    delta, top = 1e-6, 0.5
    need = math.log(4.0 / delta)
    enough = math.ceil(16.0 * need / math.exp(-top)) + 1
    for clients in (2, enough // 2, enough - 1, enough, 100 * enough):
        budgets = [LocalBudget(top, 0.0, clients)]
        total = (clients - 1) * math.exp(-top)
        assert echo_sum(budgets) == pytest.approx(total)
        factor = 8.0 * math.sqrt(need / total) + 8.0 / total
        printed = math.log1p(math.expm1(top) / (math.exp(top) + 1.0) * factor)
        credited = top if clients < enough else printed
        assert echo_epsilon(budgets, delta) == pytest.approx(credited)


@pytest.mark.parametrize(("epsilon0", "rounds"), [(0.5, 30), (2.0, 1)])
def test_rdp_lies_above_the_same_pair_without_conversion(epsilon0: float, rounds: int) -> None:
    """`clone` composes the pair itself: smaller, and by less than a third."""
    asked: dict[str, Any] = {"epsilon0": epsilon0, "clients": 2000, "rounds": rounds}
    exact = fs.bound(**asked, delta=1e-6, method="clone")
    answer = fs.bound(**asked, delta=1e-6, method="rdp")
    assert answer.status is Status.PROVEN
    assert exact.epsilon < answer.epsilon < 1.35 * exact.epsilon
    back = fs.bound(**asked, epsilon=answer.epsilon, method="rdp")
    assert back.delta == pytest.approx(1e-6, rel=0.01)
    assert fs.bound(**asked, epsilon=answer.epsilon, method="clone").delta < back.delta


def test_rdp_at_an_order_is_the_sum_over_rounds_converted() -> None:
    answer = fs.bound(**ONE, method="rdp", order=16, rounds=7)
    total = 7 * CloneRenyi(0.4, 10_000).divergence(16)
    assert answer.details["order"] == 16 and answer.details["rdp"] == pytest.approx(total)
    assert answer.epsilon == pytest.approx(rdp_epsilon(16, total, 1e-6), rel=1e-8)
    assert answer.details["conversion"] in answer.source
    best = fs.bound(**ONE, method="rdp", rounds=7)
    tried = [fs.bound(**ONE, method="rdp", rounds=7, order=2.0**i).epsilon for i in range(1, 11)]
    assert best.epsilon <= min(tried) * 1.001
    # No rounds cost more than what their reports cost without a shuffle.
    assert fs.bound(epsilon0=1.0, clients=2, delta=1e-6, rounds=3, method="rdp").epsilon <= 3.0
    assert fs.bound(epsilon0=1.0, clients=2, epsilon=3.0, rounds=3, method="rdp").delta == 0.0


def test_personal_budgets_are_taken_where_the_paper_has_them() -> None:
    budgets = [(0.1, 0.0, 3000), (0.5, 0.0, 1000)]
    answers = fs.compare(budgets=budgets, delta=1e-6)
    given = {name for name, each in answers.items() if isinstance(each, Guarantee)}
    assert given == {"gspa", "gspa-finite", "liu2023"}
    assert "shared by all clients" in str(answers["rdp"])
    exact = fs.bound(budgets=budgets, delta=1e-6, randomizer="krr", k=2, method="blanket")
    assert fs.bound(budgets=budgets, delta=1e-6, method="gspa-finite").epsilon == pytest.approx(
        exact.epsilon, rel=1e-3
    )


@pytest.mark.parametrize(("method", "randomizer"), [("gspa-finite", None), ("blanket", "laplace")])
def test_personal_budgets_that_hide_fully_are_answered(method: str, randomizer: str | None) -> None:
    """A mass that round-off moves above one ended in a traceback."""
    budgets = [(1e-300, 0.0, 10), (200.0, 0.0, 10)]
    answer = fs.bound(budgets=budgets, delta=1e-6, method=method, randomizer=randomizer)
    assert 0.0 < answer.epsilon <= 200.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clients", [10**8, 10**12])
def test_rdp_of_very_many_clients_is_near_clone(clients: int) -> None:
    asked: dict[str, Any] = {"epsilon0": 1.0, "clients": clients, "delta": 1e-9}
    exact, answer = (fs.bound(**asked, method=name).epsilon for name in ("clone", "rdp"))
    assert exact < answer < 1.3 * exact


def test_girgis_lower_is_below_what_binary_response_loses() -> None:
    asked: dict[str, Any] = {"epsilon0": 1.0, "clients": 10_000, "delta": 1e-6}
    lower = fs.bound(**asked, method="girgis-lower")
    exact = fs.bound(**asked, method="lower", randomizer="krr", k=2)
    assert lower.status is Status.LOWER_BOUND and 0.0 < lower.epsilon < exact.epsilon


def test_general_clone_is_the_blanket() -> None:
    asked: dict[str, Any] = {**ONE, "randomizer": "krr", "k": 10}
    answer, blanket = (fs.bound(**asked, method=name) for name in ("general-clone", "blanket"))
    assert answer.epsilon == blanket.epsilon and answer.status is Status.PROVEN
    assert answer.method == "general-clone" and fs.bound(**asked).method == "blanket"


@pytest.mark.parametrize(("epsilon0", "epsilon"), [(1.0, 0.2), (2.0, 1.0), (3.0, 0.0)])
def test_feldman2022_numeric_is_the_papers_pair(epsilon0: float, epsilon: float) -> None:
    """By enumeration of the pair's definition, and the same number as `clone`, proven."""
    asked: dict[str, Any] = {"epsilon0": epsilon0, "clients": 60, "epsilon": epsilon}
    answer = fs.bound(**asked, method="feldman2022-numeric")
    exact = hockey_stick(*clone_pair(epsilon0, 60), epsilon)
    assert exact * (1.0 - 1e-12) <= answer.delta <= exact * (1.0 + 1e-3)
    assert answer.delta == fs.bound(**asked, method="clone").delta
    assert answer.status is Status.PROVEN and answer.source.startswith("Feldman")
    assert fs.bound(**asked).method != "feldman2022-numeric"
    with pytest.raises(NotApplicableError, match="shared by all clients"):
        fs.bound(budgets=[(0.1, 0.0, 30), (0.5, 0.0, 10)], delta=1e-6, method=answer.method)


def test_headlines_come_from_no_published_bound() -> None:
    """Without a method: never rdp, which the clone bound improves, and never a published one."""
    assert {name for name, each in METHODS.items() if not each.headline}.isdisjoint(
        ("blanket", "clone", "profile", "vector", "sum")
    )
    assert fs.bound(**ONE).method in ("profile", "clone")
    with pytest.raises(NotApplicableError, match="no bound is proven for this query; name one"):
        fs.bound(budgets=[(0.1, 0.0, 3000), (0.5, 0.0, 1000)], delta=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        {"epsilon0": 0.4, "clients": 1000},
        {"epsilon0": 2.0, "clients": 30},
        {"epsilon0": 1.0, "clients": 500, "randomizer": "krr", "k": 2},
        {"epsilon0": 1.0, "clients": 500, "randomizer": "krr", "k": 10},
        {"epsilon0": 1.0, "clients": 50, "randomizer": "parallel:0.5*krr(k=3),0.5*blh"},
    ],
    ids=str,
)
def test_the_smallest_proven_bound_is_the_smallest(asked: dict[str, Any]) -> None:
    """Of those that headlines come from, whatever is left out because binary response of that
    budget already loses more."""
    answers = {
        name: each
        for name, each in fs.compare(**asked, delta=1e-6).items()
        if isinstance(each, Guarantee) and METHODS[name].headline
    }
    proven = [each.epsilon for each in answers.values() if each.status is Status.PROVEN]
    assert fs.bound(**asked, delta=1e-6).epsilon == min(proven)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "rdp", "order": 1.0}, "order"),
    ({"method": "rdp", "order": 0.5}, "order"),
    ({"method": "rdp", "order": -3}, "order"),
    ({"method": "rdp", "order": math.nan}, "order"),
    ({"method": "rdp", "order": math.inf}, "order"),
    ({"method": "rdp", "order": 1e10}, "order"),
    ({"method": "rdp", "order": "many"}, "order"),
    ({"method": "clone", "order": 2}, "has no effect on clone"),
    ({"order": 2}, "has no effect on the smallest proven bound"),
    ({"method": "girgis-upper", "order": 2.5}, "integer orders"),
    ({"method": "girgis-upper", "order": 1.5}, "integer orders"),
    ({"method": "girgis-lower", "order": 5000}, "up to order 4096"),
    *(
        ({"method": name, "clients": 1}, "needs clients >= 2")
        for name in ("rdp", "rdp-asymptotic", "gdp", "girgis-upper", "girgis-lower", "liu2023")
    ),
    ({"method": "rdp", "delta0": 1e-6}, "delta0 must be 0"),
    ({"method": "rdp", "participation": 0.5}, "all take part"),
    ({"method": "rdp", "randomizer": "gaussian", "delta0": 0.0}, "pure local budget"),
    ({"method": "rdp", "unit": "record", "records": 5}, "records"),
    ({"method": "erlingsson2019", "epsilon0": 0.5}, "epsilon0 < 0.5"),
    ({"method": "erlingsson2019", "clients": 999}, "clients >= 1000"),
    ({"method": "erlingsson2019", "delta": 0.01}, "delta < 0.01"),
    ({"method": "feldman2022", "clients": 100}, "epsilon0 <= ln"),
    ({"method": "hoeffding", "rounds": 2}, "one round"),
    ({"method": "bennett", "epsilon0": 150.0}, "epsilon0 <= 100"),
    ({"method": "gdp", "epsilon0": 1e-7}, "epsilon0 >= 1e-06"),
    ({"method": "liu2023", "rounds": 2}, "one round"),
    ({"method": "girgis-lower", "randomizer": "krr", "k": 3}, "binary randomized response"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=str)
def test_a_failed_condition_is_named_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidValueError, NotApplicableError), match=said) as refusal:
        fs.bound(**{**ONE, **change})
    assert "\n" not in str(refusal.value) and isinstance(refusal.value, FlShuffleError)
