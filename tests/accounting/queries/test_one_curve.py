"""Epsilon at a delta, delta at an epsilon, and what is solved for: all are read from one curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.client_classes import DeclaredRound, ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries import solve as solving
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.solve import COSTS
from fl_shuffle.accounting.rounds.round_library import AnyRound, curve_of
from fl_shuffle.errors import NotApplicableError

SAME = 1.0 + 1e-9
"""Round-off of the inverse."""


class Jagged(OneRoundCurve):
    """A Gaussian curve of parameter `MU`, with a bound above it that jumps up and down."""

    MU, LOCAL = 0.2, 1.0

    def __init__(self, seed: int, jumps: float) -> None:
        super().__init__()
        self._heights = np.random.default_rng(seed).uniform(0.0, jumps, 997).tolist()

    @property
    def credit(self) -> bool:
        return True

    @property
    def predicted_mu(self) -> float:
        return 0.7 * self.MU

    def local_delta(self, epsilon: float) -> float:
        return float(gaussian_profile(epsilon, self.LOCAL))

    def local_epsilon(self, delta: float) -> float:
        return gaussian_epsilon(delta, self.LOCAL)

    def _shuffled(self, epsilon: float, local: float) -> float:
        height = self._heights[int(epsilon * 1e5) % len(self._heights)]
        return float(gaussian_profile(epsilon, self.MU)) * math.exp(height)


DELTAS = np.geomspace(1e-12, 0.07, 60).tolist()


@pytest.mark.parametrize("jumps", [0.0, 0.05, 3.0])
def test_curve_that_jumps_is_asked_consistently(jumps: float) -> None:
    curve = Jagged(1, jumps)
    found = [curve.epsilon(delta) for delta in DELTAS]
    assert all(later <= one for one, later in itertools.pairwise(found))
    for delta, epsilon in zip(DELTAS, found, strict=True):
        # Neither below the truth, nor above the local curve.
        least, most = (gaussian_epsilon(delta, mu) for mu in (curve.MU, curve.LOCAL))
        assert least <= epsilon <= most * SAME
        assert gaussian_profile(epsilon, curve.MU) <= curve.delta(epsilon) <= delta * SAME
        assert curve.epsilon(min(curve.delta(epsilon) * SAME, 0.5)) <= epsilon * SAME
        # A fresh curve that was asked nothing else answers the same.
        assert Jagged(1, jumps).epsilon(delta) == epsilon
        if not jumps:
            assert epsilon == pytest.approx(least, rel=2e-5)
    points = np.linspace(0.0, 2.0, 100).tolist()
    read = [curve.delta(epsilon) for epsilon in points]
    assert all(later <= one for one, later in itertools.pairwise(read))
    assert all(gaussian_profile(e, curve.MU) <= d for e, d in zip(points, read, strict=True))


@pytest.mark.parametrize("mu", [1e-60, 1e-3, 0.2, 50.0])
def test_poor_prediction_costs_few_evaluations(mu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jagged, "predicted_mu", mu)
    curve = Jagged(1, 0.0)
    epsilon = curve.epsilon(1e-6)
    assert epsilon == pytest.approx(gaussian_epsilon(1e-6, Jagged.MU), rel=2e-5)
    assert curve.delta(epsilon) <= 1e-6 * SAME
    assert len(curve._seen) <= 80


SLOW = pytest.mark.slow
KINDS: dict[str, AnyRound] = {
    "five": ShuffledRound("gaussian", 44.949148417060506, 1.0, 2.0, ((1.0, 4),)),
    "wide": ShuffledRound("gaussian", 1.0, 0.5, 1.0, ((0.5, 199),)),
    "laplace": ShuffledRound("laplace", 1.0, 0.3, 0.6, ((0.3, 999),)),
    "declared": DeclaredRound(1.0, 1e-9, 999),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param("five", marks=SLOW), pytest.param("wide", marks=SLOW), "laplace", "declared"],
)
def test_epsilon_at_larger_deltas_does_not_rise(name: str) -> None:
    curve = curve_of(KINDS[name])
    deltas = np.geomspace(1e-8, 1e-2, 25 if name != "five" else 6).tolist()
    found = [curve.epsilon(delta) for delta in deltas]
    assert all(later <= one for one, later in itertools.pairwise(found))
    for delta, epsilon in zip(deltas, found, strict=True):
        if epsilon < math.inf:
            assert curve.delta(epsilon) <= delta * SAME


ASKED: dict[str, Callable[[int], dict[str, Any]]] = {
    "sigma": lambda n: {"randomizer": "gaussian", "clients": n, "sigma": 1.0},
    "clients": lambda n: {"randomizer": "gaussian", "sigma": 4.0, "clients": n},
    "records": lambda n: {"randomizer": "gaussian", "sigma": 0.3, "clients": n, "unit": "record"},
    "epsilon0": lambda n: {"clients": n, "epsilon0": 1.0},
    "delta0": lambda n: {"clients": n, "epsilon0": 0.01, "method": "profile"},
    "rounds": lambda n: {"randomizer": "gaussian", "sigma": 30.0, "clients": n},
    "participation": lambda n: {"randomizer": "krr", "k": 4, "epsilon0": 1.0, "clients": n},
    "assumed_honest": lambda n: {
        "randomizer": "gaussian", "sigma": 2.0, "clients": n, "release": "sum",
    },
}  # fmt: skip
"""A query for each number that can be solved for."""
EPSILONS, TARGETS = (1e-3, 0.1, 1.0, 8.0), (1e-12, 1e-6, 1e-2)
ALL = [(name, n, e, d) for name in COSTS for n in (5, 200, 1000) for e in EPSILONS for d in TARGETS]
AT_ONCE = ("assumed_honest", "records")
"""All of their points together take a second."""
DEAR = ("sigma", "clients", "delta0", "rounds")
"""A point can take seconds."""
PLAYED = [
    each for each in ALL
    if each[0] in AT_ONCE
    or each[1:] in ((200, 0.1, 1e-6), (200, 1.0, 1e-6))
    or each in (("sigma", 5, 0.1, 1e-6), ("participation", 200, 0.1, 1e-2))
]  # fmt: skip
"""Of all these points; the rest take half an hour."""


@pytest.mark.parametrize(
    "point",
    [pytest.param(each, marks=SLOW if each[0] in DEAR else ()) for each in PLAYED],
    ids=lambda point: "-".join(map(str, point)),
)
def test_solve_asked_again_keeps_its_target(point: tuple[str, int, float, float]) -> None:
    name, clients, epsilon, delta = point
    fields = {"unit": "client", **ASKED[name](clients), "epsilon": epsilon}
    if name == "assumed_honest":
        fields["assumed_honest"] = 1
    query = BoundQuery(**fields)
    try:
        solved = fs.solve(name, query, delta=delta)
    except NotApplicableError:
        return
    value: dict[str, Any] = {name: solved.value, "method": solved.answer.method}
    assert solved.answer.status is Status.PROVEN and solved.answer.delta <= delta
    asked = replace(query, **value)
    assert bound(asked).delta <= delta
    assert bound(replace(asked, epsilon=None, delta=delta)).epsilon <= epsilon


def test_solve_method_that_errs_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method whose epsilon at a delta lies 2% above the inverse of its delta at an epsilon."""

    def answer(query: BoundQuery) -> Guarantee:
        mu = 1.0 / (query.sigma or 1.0)
        found = query.epsilon, float(gaussian_profile(query.epsilon or 0.0, mu))
        if query.delta is not None:
            found = 1.02 * gaussian_epsilon(query.delta, mu), query.delta
        return Guarantee(*found, method="vector", status=Status.PROVEN, source="made up")

    monkeypatch.setattr(solving, "bound", answer)
    query = BoundQuery(randomizer="gaussian", unit="client", clients=9, sigma=1.0, epsilon=0.5)
    value, found = solving.solve(query, "sigma", 1e-6)
    assert found.delta <= 1e-6
    assert (
        0.98 * 0.5 <= answer(replace(query, sigma=value, epsilon=None, delta=1e-6)).epsilon <= 0.5
    )
