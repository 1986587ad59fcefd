"""Every argument of a question over its documented range: answered, or refused in one line."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle import settings_schema
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair
from fl_shuffle.accounting.queries.methods import METHODS
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.errors import FlShuffleError

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.usefixtures("coarse_pairs")]

FORMS: dict[str, list[Any]] = {
    "profile": ["0:0", "0:1", "60:0", "60:1", "1e-300:0", "0.5:1e-3,1:1e-8", "gdp:5e-324", "gdp:5"],
    "matrix": [
        [[0.5, 0.5], [0.5, 0.5]], [[1.0], [1.0]], [[0.5, 0.5]], [[1e-80, 1.0], [1.0, 1e-80]],
        [[1e-300, 1.0], [1.0, 1e-300]], [[0.2, 0.3, 0.5], [0.3, 0.2, 0.5]],
    ],
    "budgets": [
        [[1.0, 0.0, 10**12]], [[1e-300, 0.0, 10], [200.0, 0.0, 10]], [[0.0, 0.0, 5], [1.0, 0.0, 5]],
        [[1.0, 1e-5, 10], [60.0, 1e-300, 10]],
    ],
    "assumed_honest": [1, 2, 1e-300, 1.0],
}  # fmt: skip
"""Arguments that have a form of their own."""


def corners(name: str, each: settings_schema.Setting) -> list[Any]:
    """Both ends of an argument's range, and all its words; of an open end the nearest number."""
    if name in FORMS:
        return FORMS[name]
    if each.choices:
        return list(each.choices)
    low = each.low if each.above is None else math.nextafter(each.above, math.inf)
    high = each.high if each.below is None else math.nextafter(each.below, -math.inf)
    assert low is not None, name
    kind = int if each.kind.startswith("int") else float
    return [kind(low), kind(sys.float_info.max if high is None else high)]


ENDS = [
    {name: value}
    for name, each in settings_schema.settings_of(BoundQuery).items()
    if name not in ("method", "randomizer")
    for value in corners(name, each)
]
INSIDE = [
    *({"epsilon0": value} for value in (1e-300, 1e-12, 37.0, 56.0, 60.0, 100.0)),
    *({"clients": value} for value in (2, 6, 10**8)), {"rounds": 2}, {"participation": 1e-9},
    *({"sigma": value} for value in (1e-12, 1e8, 1e60, 1e61)), {"delta": 1e-100},
]  # fmt: skip
"""Values at which something has failed, or another way is taken."""


def question(randomizer: str | None, method: str | None, *changes: dict[str, Any]) -> Any:
    """A usual question with these changes; what they rule out is left out."""
    base: dict[str, Any] = {
        "randomizer": randomizer, "epsilon0": 1.0, "clients": 1000, "delta": 1e-6,
        "method": method, "k": 4 if randomizer == "krr" else None, "unit": "client",
        "delta0": 1e-5 if randomizer == "gaussian" else 0.0,
    }  # fmt: skip
    if method in ("sum", "sum-attack"):
        base["release"] = "sum"
    for change in changes:
        base |= change
        for given, other in (
            ("sigma", "epsilon0"), ("profile", "epsilon0"), ("matrix", "epsilon0"),
            ("matrix", "randomizer"), ("budgets", "epsilon0"), ("budgets", "clients"),
            ("epsilon", "delta"),
        ):  # fmt: skip
            if given in change:
                base[other] = None
    return {name: value for name, value in base.items() if value is not None}


def require_sense(asked: dict[str, Any]) -> None:
    """An answer in its range, or a refusal of one line."""
    try:
        answer = fs.bound(**asked)
    except FlShuffleError as refusal:
        assert str(refusal) and "\n" not in str(refusal), asked
        return
    assert answer.epsilon >= 0.0 and 0.0 <= answer.delta <= 1.0, asked
    least, rounds = asked.get("epsilon0", math.inf), asked.get("rounds", 1)
    pure = asked.get("delta0") == 0.0 and answer.status is Status.PROVEN
    if pure and "delta" in asked and asked.get("unit") == "client" and rounds == 1:
        assert answer.epsilon <= least * (1.0 + 1e-9), asked
    if answer.status is Status.PROVEN and asked.get("randomizer") == "gaussian":
        assert answer.delta > 0.0, asked


# What has ended in a traceback, or in a number out of nowhere.
BROKEN: list[dict[str, Any]] = [
    *({"epsilon0": epsilon0} for epsilon0 in (56.0, 57.0, 58.0, 59.0, 60.0)),
    {"epsilon0": 56.0, "clients": 6, "epsilon": 1e-6},
    {"epsilon0": 1e-12, "clients": 10**12, "epsilon": 0.0, "method": "profile"},
    {"epsilon0": 1e-300, "delta": 1e-12}, {"profile": "0:1"}, {"profile": "gdp:5e-324"},
    {"epsilon0": 200.0, "participation": 1e-9, "delta": 0.5, "randomizer": "oue"},
    {"profile": "0:5e-324,60:0", "clients": 10**12, "delta": 1e-12},
    {"epsilon0": 100.0, "clients": 1, "rounds": 30, "participation": 1e-100, "epsilon": 1e-6},
    {"epsilon0": 1e-6, "delta0": 0.5, "clients": 10**8, "epsilon": 400.0, "method": "profile"},
]  # fmt: skip
BROKEN_VECTORS: list[dict[str, Any]] = [
    {"sigma": 1e8, "clients": 10**8, "records": 10**8}, {"sigma": 1e8, "clients": 10**8},
    {"sigma": 1.79e308, "clients": 5, "release": "sum", "method": "sum"}, {"sigma": 1e300},
    {"sigma": 1e60, "release": "sum", "method": "sum"}, {"sigma": 1e300, "method": "attack"},
    {"epsilon0": 1e-300, "release": "sum", "method": "sum"},
    {"sigma": 1e60, "release": "sum", "method": "sum-attack"}, {"epsilon0": 60.0, "epsilon": 1.0},
    {"epsilon0": 1.0, "delta0": 5e-324, "calibration": "classical"},
]  # fmt: skip


BROKEN_ROUNDS: list[dict[str, Any]] = [
    {"epsilon0": 100.0, "clients": 3, "rounds": 2},
    {"epsilon0": 200.0, "clients": 2, "rounds": 10**6, "delta": 0.5},
    {"epsilon0": 200.0, "clients": 1000, "rounds": 10},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", BROKEN_ROUNDS, ids=str)
def test_clones_of_many_rounds_are_answered(change: dict[str, Any]) -> None:
    require_sense(question(None, "clone", change))


@pytest.mark.parametrize("rounds", [2, 10**6])
def test_losses_that_are_all_but_certain_are_composed(rounds: int) -> None:
    """The spread is 1e-18 of the loss: no grid can have a step that fine."""
    pair = DominatingPair.from_curve([0.0, 92.1], [1.0, 0.0])
    composed = Composition([(pair, rounds)])
    assert composed.delta(0.0) == pytest.approx(1.0) and composed.delta(0.0) >= 1.0 - 1e-15
    assert composed.epsilon(0.5) == pytest.approx(92.1 * rounds, rel=1e-6)


def test_nodes_that_are_one_in_doubles_keep_the_first_value() -> None:
    pair = DominatingPair.from_curve([0.0, 1e-300, 1.0], [0.5, 0.1, 0.1])
    assert pair.delta(0.0) == 0.5 and pair.delta(1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_questions_that_failed_are_answered(change: dict[str, Any]) -> None:
    require_sense(question(None, None, change))


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
@pytest.mark.parametrize("change", BROKEN_VECTORS, ids=str)
def test_vector_questions_that_failed_are_answered(change: dict[str, Any], randomizer: str) -> None:
    require_sense(question(randomizer, None, {"unit": "record", "delta0": 0.0}, change))
    require_sense(question(randomizer, None, change))


def test_local_budget_of_four_categories_at_its_end_is_answered() -> None:
    answer = fs.bound(randomizer="krr", k=4, epsilon0=60.0, clients=1000, delta=1e-6)
    assert 0.0 < answer.epsilon <= 60.0


@pytest.mark.parametrize("method", ["blanket", "general-clone"])
def test_a_local_budget_beyond_the_search_is_what_it_is(method: str) -> None:
    """Blankets are searched up to 100 nats: what lies beyond is the local budget, not infinite."""
    answer = fs.bound(randomizer="krr", k=4, epsilon0=200.0, clients=9, delta=1e-6, method=method)
    assert answer.epsilon == 200.0


def test_deltas_that_underflow_are_never_zero() -> None:
    """e^-80000 is 0 in doubles, and no delta of Gaussian noise is 0."""
    answer = fs.bound(randomizer="gaussian", sigma=1.0, unit="client", clients=5, epsilon=400.0)
    assert 0.0 < answer.delta < 1e-280
    pure = fs.bound(randomizer="krr", k=4, epsilon0=2.0, clients=5, epsilon=2.0)
    assert pure.delta == 0.0


def test_tiny_local_budgets_cost_no_more_than_they_are() -> None:
    for rounds in (1, 3):
        answer = fs.bound(
            epsilon0=1e-12, clients=1000, delta=1e-250, rounds=rounds, method="profile"
        )
        assert answer.epsilon <= rounds * 1e-12 * (1.0 + 1e-6)


WALKED = [
    *((None, method) for method in (None, *METHODS)),
    *(
        ("krr", method)
        for method in (
            None,
            "vector",
            "blanket",
            "general-clone",
            "sum",
            "clone",
            "profile",
            "gspa",
        )
    ),
    *(
        (randomizer, method)
        for randomizer in ("gaussian", "laplace")
        for method in ("sum", "attack", "sum-attack")
    ),
    ("laplace", "vector"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("randomizer", "method"), WALKED)
def test_every_corner_is_answered_or_refused(randomizer: str | None, method: str | None) -> None:
    """One argument at an end of its range, then two: of the pairs each method has its share."""
    for change in (*ENDS, *INSIDE):
        require_sense(question(randomizer, method, change))
    pairs = list(itertools.combinations([*ENDS, *INSIDE], 2))
    place = [None, *METHODS].index(method)
    for one, other in pairs[place :: len(METHODS) + 1]:
        if one.keys() != other.keys():
            require_sense(question(randomizer, method, one, other))
