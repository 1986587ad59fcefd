"""Rounds by one secret sample: above every enumerated data set, and near the worst of them."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import fl_shuffle as fs
from fl_shuffle.accounting.bounds.participation import EACH_ROUND, ONCE
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta
from fl_shuffle.accounting.queries.fixed_sample import FixedSampleCurve, fixed_sample_curve
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from tests import oracles

TWO: dict[str, Any] = {"randomizer": "krr", "k": 2, "epsilon0": 1.0}
THREE: dict[str, Any] = {"randomizer": "krr", "k": 3, "epsilon0": 2.0}


def worst(matrix: oracles.Matrix, n: int, rate: float, rounds: int, epsilon: float) -> float:
    """The largest divergence of two neighboring data sets of n clients, by enumeration."""
    inputs, found = range(len(matrix)), 0.0
    for others in itertools.combinations_with_replacement(inputs, n - 1):
        rest = [matrix[x] for x in others]
        laws = [oracles.fixed_sample_law(matrix[x], rest, rate, rounds) for x in inputs]
        pairs = itertools.permutations(laws, 2)
        found = max(found, *(oracles.hockey_stick(p, q, epsilon) for p, q in pairs))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.6])
@pytest.mark.parametrize(
    ("asked", "matrix", "n", "rounds"),
    [
        (TWO, oracles.krr_matrix(1.0, 2), 4, 3),
        (THREE, oracles.krr_matrix(2.0, 3), 3, 2),
        ({"matrix": oracles.OWN}, oracles.OWN, 3, 2),
    ],
)
def test_fixed_sample_bound_lies_above_every_data_set(
    asked: dict[str, Any], matrix: oracles.Matrix, n: int, rounds: int, rate: float
) -> None:
    """Power: 0.7 times the bound would be refuted in every setting at some epsilon."""
    near = 0.0
    question = fs.BoundQuery(
        **asked, clients=n, rounds=rounds, participation=rate, sampling="once", epsilon=0.0,
        method="blanket",
    )  # fmt: skip
    curve = fixed_sample_curve(question, bound)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        truth, found = worst(matrix, n, rate, rounds, epsilon), curve(epsilon).delta
        assert truth <= found * (1.0 + 1e-9)
        near = max(near, truth / found)
    assert near > 0.7


def test_fixed_sample_costs_more_than_coins_in_each_round() -> None:
    """The published trap: 0.00606 where the clients are drawn once, and 0.0437 is reached."""
    asked = {**TWO, "clients": 3, "rounds": 5, "participation": 0.1, "epsilon": 1.0}
    each = fs.bound(**asked, method="blanket")
    once = fs.bound(**asked, method="blanket", sampling="once")
    truth = worst(oracles.krr_matrix(1.0, 2), 3, 0.1, 5, 1.0)
    assert each.delta < 0.0061 and truth == pytest.approx(0.0437, abs=1e-4)
    assert truth < once.delta < 1.05 * truth
    assert EACH_ROUND in each.assumptions and ONCE not in each.assumptions
    assert ONCE in once.assumptions and EACH_ROUND not in once.assumptions
    alone = fs.bound(**{**asked, "rounds": 1}, method="blanket")
    assert not {EACH_ROUND, ONCE} & set(alone.assumptions)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["blanket", "clone"])
def test_fixed_sample_epsilon_and_delta_agree(method: str) -> None:
    asked = {**TWO, "clients": 300, "rounds": 8, "participation": 0.3, "sampling": "once"}
    found = fs.bound(**asked, delta=1e-5, method=method)
    assert fs.bound(**asked, epsilon=found.epsilon, method=method).delta <= 1e-5
    whole = fs.bound(**TWO, clients=300, rounds=8, delta=1e-5, method=method)
    assert found.epsilon < 8.0 and found.epsilon < 2.0 * whole.epsilon
    assert found.details["sampling"] == "once" and found.details["clients"] == 300


@dataclass(frozen=True)
class Hiding:
    """Rounds with given numbers of reports that hide one another as noise does, in closed form."""

    reports: int
    alone: float

    def delta(self, epsilon: float) -> float:
        return gaussian_delta(epsilon, self.alone / math.sqrt(self.reports))


def given_number(share: float, epsilon: float, reports: int) -> float:
    """Section 16, term by term, of this number of reports and no other."""
    a, alpha = math.exp(epsilon), 1.0 + math.expm1(epsilon) / share
    replaced, moved = Hiding(reports, 3.0), Hiding(reports, 5.0)
    at = math.log(alpha)
    mixed = share * a / alpha * replaced.delta(at)
    mixed += (1.0 - share) * (a - 1.0) / alpha * moved.delta(at)
    return min(mixed, share * replaced.delta(epsilon))


@pytest.mark.parametrize(("clients", "rate"), [(60, 0.3), (400, 0.1), (200, 0.9)])
def test_numbers_of_reports_in_a_cell_cost_no_less_than_each(clients: int, rate: float) -> None:
    """Term by term, numbers taken by themselves; near epsilon = 0 a cell costs a third more."""
    numbers = range(1, clients + 1)
    replaced: Any = partial(Hiding, alone=3.0)
    moved: Any = partial(Hiding, alone=5.0)
    curve = FixedSampleCurve(clients, rate, replaced, moved)
    weights = binom.pmf(np.arange(1, clients + 1), clients, rate).tolist()
    for epsilon in (0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0):
        each = [given_number(k / clients, epsilon, k) for k in numbers]
        exact = math.fsum(w * found for w, found in zip(weights, each, strict=True))
        assert exact <= curve(epsilon).delta * (1.0 + 1e-9)
        assert epsilon > 0.01 or curve(epsilon).delta <= 4.0 / 3.0 * exact


def test_fixed_sample_delta_is_at_most_the_rate() -> None:
    asked = {**TWO, "clients": 20, "rounds": 3, "participation": 1e-6, "sampling": "once"}
    assert fs.bound(**asked, epsilon=0.0, method="clone").delta <= 1e-6 * (1.0 + 1e-6)
    assert fs.bound(**asked, delta=1e-5, method="clone").epsilon == 0.0


@pytest.mark.slow
def test_fixed_sample_of_vectors_lies_between_whole_and_local() -> None:
    """Of a record of several the client that takes another's place changes all of them."""
    asked = {"randomizer": "gaussian", "sigma": 2.0, "clients": 60, "rounds": 4, "delta": 1e-5}
    drawn = {**asked, "participation": 0.5, "sampling": "once"}
    client = fs.bound(**drawn, unit="client", method="vector").epsilon
    record = fs.bound(**drawn, unit="record", records=4, method="vector").epsilon
    assert 0.0 < record < client
    local = fs.bound(**{**asked, "clients": 1}, unit="client", method="vector").epsilon
    assert client < local and math.isfinite(local)


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"participation": 1.0}, InvalidValueError, "has no effect with participation = 1"),
        ({"sampling": "twice"}, InvalidValueError, "sampling = 'twice': must be one of"),
        ({"method": "gspa"}, NotApplicableError, "gspa"),
        ({"method": "lower"}, NotApplicableError, "lower"),
        ({"budgets": [[1.0, 0.0, 10]], "epsilon0": None, "clients": None, "method": "blanket"},
         NotApplicableError, "one budget"),
        ({"budgets": [[1.0, 0.0, 5], [2.0, 0.0, 5]], "epsilon0": None, "clients": None,
          "method": "blanket"}, NotApplicableError, "one budget"),
    ],
)  # fmt: skip
def test_fixed_sample_bad_questions_are_one_line(
    changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    asked = {**TWO, "clients": 10, "rounds": 3, "participation": 0.5, "delta": 1e-3}
    given = {k: v for k, v in {**asked, "sampling": "once", **changed}.items() if v is not None}
    with pytest.raises(error, match=words):
        fs.bound(**given)
