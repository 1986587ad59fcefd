"""Extreme calls: always an answer, never above the local guarantee, never a warning."""

from __future__ import annotations

import random
import warnings

import pytest

from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question

KINDS: list[dict[str, object]] = [
    {"randomizer": "krr", "k": 1000},
    {"randomizer": "blh"},
    {"randomizer": "rappor", "k": 4},
    {"randomizer": "oue"},
    {"randomizer": "laplace"},
]
REFUSED_ONCE: list[dict[str, object]] = [
    {"randomizer": "laplace", "epsilon0": 12.0, "clients": 100, "delta": 1e-6},
    {"randomizer": "laplace", "epsilon0": 1e-6, "clients": 5, "delta": 1e-12},
    {"randomizer": "blh", "epsilon0": 15.5, "clients": 2, "delta": 0.26, "method": "lower"},
    {"randomizer": "rappor", "k": 4, "epsilon0": 13.3, "clients": 24, "delta": 1e-12},
    {"randomizer": "oue", "epsilon0": 20.0, "clients": 10, "delta": 1e-6},
    {"randomizer": "oue", "epsilon0": 18.9, "clients": 66398, "delta": 1e-13, "method": "clone"},
    {"randomizer": "oue", "epsilon0": 1.5e-6, "clients": 2330, "epsilon": 7.4e-7},
]


def drawn(seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    calls = []
    for kind in KINDS:
        method = rng.choice(("blanket", "clone", "lower"))
        epsilon0 = 10.0 ** rng.uniform(-6.0, 1.3)
        clients = round(10.0 ** rng.uniform(0.0, 8.0))
        delta = 10.0 ** rng.uniform(-30.0, -0.31)
        calls.append(
            {**kind, "method": method, "epsilon0": epsilon0, "clients": clients, "delta": delta}
        )
    return calls


@pytest.mark.parametrize("call", [*REFUSED_ONCE, *drawn(20)], ids=str)
def test_there_is_always_an_answer(call: dict[str, object]) -> None:
    query = Question.from_mapping(call)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = bound(query)
    assert query.epsilon0 is not None
    assert 0.0 <= answer.delta <= 1.0
    if query.delta is not None:
        assert 0.0 <= answer.epsilon <= query.epsilon0 * (1.0 + 1e-9)
