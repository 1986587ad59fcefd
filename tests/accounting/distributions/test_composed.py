"""Joint and parallel composition: against exact enumeration, and as questions have them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.distributions.composed import JointComposition, ParallelComposition
from fl_shuffle.accounting.distributions.finite import KRandomizedResponse
from fl_shuffle.accounting.distributions.frequency_oracles import BinaryLocalHashingDistribution
from fl_shuffle.errors import InvalidValueError
from tests.oracles import (
    hash_matrix,
    krr_matrix,
    oue_matrix,
    rappor_matrix,
    shuffle_delta,
)


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("kind", ["joint", "parallel"])
def test_composition_enumerated_lies_between_bounds(kind: str, clients: int) -> None:
    """Every pair of inputs, those that agree in a part among them, beside any one common input."""
    first, second = np.array(krr_matrix(1.0, 3)), np.array(krr_matrix(0.5, 3))
    weight = "0.5*" if kind == "parallel" else ""
    text = f"{kind}:{weight}krr(epsilon0=1),{weight}krr(epsilon0=0.5)"
    rows = [np.multiply.outer(a, b).ravel().tolist() for a in first for b in second]
    if kind == "parallel":
        rows = np.hstack([0.5 * first, 0.5 * second]).tolist()
    upper, lower = (
        fs.bound(randomizer=text, k=3, clients=clients, epsilon=0.4, method=method).delta
        for method in ("blanket", "lower")
    )
    exact = max(
        shuffle_delta(rows[0], own, [other] * (clients - 1), math.exp(0.4))
        for own in rows[1:]
        for other in rows
    )
    assert lower <= exact * (1 + 1e-9) and exact <= upper * (1 + 1e-9)
    assert upper <= 3.0 * exact


def test_composition_as_object_or_text_is_the_same() -> None:
    krr, blh = KRandomizedResponse(1.0, 10), BinaryLocalHashingDistribution(0.5)
    asked: dict[str, Any] = {"clients": 1000, "delta": 1e-6, "method": "blanket"}
    joint = fs.bound(randomizer=JointComposition((krr, blh)), **asked)  # type: ignore[arg-type]
    assert joint == fs.bound(randomizer="joint:krr(k=10),blh(epsilon0=.5)", epsilon0=1.0,
                             **asked)  # fmt: skip
    assert joint.details["epsilon0"] == 1.5
    both = ParallelComposition(((0.25, krr), (0.75, blh)))
    text = "parallel:1/4*krr(k=10,epsilon0=1),3/4*blh(epsilon0=.5)"
    found = fs.bound(randomizer=both, **asked)  # type: ignore[arg-type]
    assert found == fs.bound(randomizer=text, **asked)


# --- 10-RR and BLH, as Su, Cheng and Wang 2025 compose them ---------------------------------------

EPSILONS = (0.0, 0.1, 0.5, 1.2)
JOINT_TEXT = "joint:krr(k=10,epsilon0=1),blh(epsilon0=1)"
PARALLEL_TEXT = "parallel:0.3*krr(k=10,epsilon0=1),0.7*blh(epsilon0=1)"
Input = tuple[int, int]


def report_of(kind: str, value: Input) -> np.ndarray:
    """The report's distribution of one input a part, over every report there is: 10 categories, and
    every hash function of three values with its bit."""
    krr, blh = np.array(krr_matrix(1.0, 10))[value[0]], np.array(hash_matrix(1.0, 3))[value[1]]
    if kind == "joint":
        return np.multiply.outer(krr, blh).ravel()
    return np.concatenate([0.3 * krr, 0.7 * blh])


def few_symbols(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The same distributions with reports joined that are equally likely to each other under all of
    them: how often each of those occurred says nothing more."""
    laws = np.array(rows)
    _, symbol = np.unique(np.round(laws / laws.sum(axis=0), 12), axis=1, return_inverse=True)
    return np.array([np.bincount(symbol.ravel(), law) for law in laws])


def multiset_law(rows: Sequence[np.ndarray]) -> dict[int, float]:
    """The chance of every multiset of reports; rows[j] is client j's distribution. A multiset is
    the number whose digits count its symbols."""
    digit = (len(rows) + 1) ** np.arange(len(rows[0]), dtype=np.int64)
    assert (len(rows) + 1) ** len(rows[0]) < 2**63
    sets, chance = np.zeros(1, dtype=np.int64), np.ones(1)
    for row in rows:
        sets, place = np.unique(np.add.outer(sets, digit).ravel(), return_inverse=True)
        chance = np.bincount(place.ravel(), np.multiply.outer(chance, row).ravel())
    return dict(zip(sets.tolist(), chance.tolist(), strict=True))


def enumerated(kind: str, new: Input, others: Input, clients: int, epsilon: float) -> float:
    """Exact delta as one client's inputs change from (0, 0) to `new`, both directions."""
    old, changed, rest = few_symbols([report_of(kind, each) for each in ((0, 0), new, others)])
    p, q = (multiset_law([own, *[rest] * (clients - 1)]) for own in (old, changed))
    found = []
    for one, other in ((p, q), (q, p)):
        terms = (mass - math.exp(epsilon) * other[key] for key, mass in one.items())
        found.append(math.fsum(term for term in terms if term > 0.0))
    return max(found)


@pytest.mark.parametrize(("kind", "text"), [("joint", JOINT_TEXT), ("parallel", PARALLEL_TEXT)])
@pytest.mark.parametrize("clients", [1, 2, 3, 6])
def test_krr_and_blh_enumerated_lie_between_bounds(kind: str, text: str, clients: int) -> None:
    """Data sets whose others agree: none is above, and the largest is above the lower bound."""
    values = [(0, 0), (1, 1), (2, 2), (2, 1), (0, 2)]
    changes = [(1, 1), (1, 0), (0, 1)] if kind == "joint" else [(1, 1)]
    if clients == 6:
        values, changes = [(1, 1), (2, 2)], [(1, 1)]
    for epsilon in EPSILONS:
        upper, lower = (
            fs.bound(randomizer=text, clients=clients, epsilon=epsilon, method=method).delta
            for method in ("blanket", "lower")
        )
        exact = [
            enumerated(kind, new, others, clients, epsilon) for new in changes for others in values
        ]
        assert max(exact) <= upper * (1.0 + 1e-9) + 1e-15
        assert lower <= max(exact) * (1.0 + 1e-9) + 1e-15
        if clients == 1:
            assert upper == pytest.approx(max(exact), rel=1e-6, abs=1e-15)


# The optimal decompositions of 10-RR (example 4 there) and of BLH (table 2 there): shares of the
# common parts under either input of the differing client, and of any other client's input.
def decomposed(epsilon0: float) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    high = math.exp(epsilon0)
    p, half = 1.0 / (high + 9.0), 0.5 / (high + 1.0)
    return {
        "krr": (np.array([high, 1, 8]) * p, np.array([1, high, 8]) * p, np.array([1, 1, 8]) * p),
        "blh": (
            np.array([high, 1, high, 1]) * half,
            np.array([1, high, high, 1]) * half,
            np.array([1, 1, 1, 1]) * half,
        ),
    }


@pytest.mark.parametrize("kind", ["joint", "parallel"])
@pytest.mark.parametrize("clients", [1, 2, 3, 6])
def test_blanket_of_krr_and_blh_is_their_decomposition(kind: str, clients: int) -> None:
    """The reduction pair of section 4.1 enumerated: joint decompositions are products (section 6),
    parallel ones mixtures (section 7). The accountant's bound is that pair's delta."""
    first, second = decomposed(1.0)["krr"], decomposed(0.5)["blh"]
    text = "joint:krr(k=10,epsilon0=1),blh(epsilon0=.5)"
    rows = [np.multiply.outer(a, b).ravel() for a, b in zip(first, second, strict=True)]
    if kind == "parallel":
        text = "parallel:0.3*krr(k=10,epsilon0=1),0.7*blh(epsilon0=.5)"
        rows = [np.concatenate([0.3 * a, 0.7 * b]) for a, b in zip(first, second, strict=True)]
    # What is left of another client's report is a symbol of its own.
    p, q, others = (np.append(row, max(0.0, 1.0 - row.sum())) for row in rows)
    for row in (p, q):
        row[-1] = 0.0
    laws = [multiset_law([own, *[others] * (clients - 1)]) for own in (p, q)]
    for epsilon in (0.0, 0.1, 0.4, 0.8):
        exact = math.fsum(
            max(0.0, mass - math.exp(epsilon) * laws[1][key]) for key, mass in laws[0].items()
        )
        found = fs.bound(randomizer=text, clients=clients, epsilon=epsilon, method="blanket").delta
        assert exact * (1.0 - 1e-12) <= found <= exact * (1.0 + 1e-3)


@pytest.mark.parametrize(
    ("matrix", "name"),
    [
        (krr_matrix(1.3, 2), "2-RR"),
        (krr_matrix(1.3, 4), "4-RR"),
        (hash_matrix(1.0, 3), "BLH"),
        (rappor_matrix(3.0, 2), "RAPPOR"),
        (rappor_matrix(1.0, 3), "RAPPOR"),
        (oue_matrix(1.5, 2), "OUE"),
        (oue_matrix(2.5, 3), "OUE"),
        ("laplace", "Laplace"),
    ],
)
def test_no_inputs_of_a_part_lose_more_than_its_pair(matrix: Any, name: str) -> None:
    """The step that the joint bound rests on, in every context (u, v) of the other parts: for all
    inputs x and y of a part, equal ones among them, uA_x - vB_y is below the pair's own loss in
    convex order. Laplace noise: ratios on a fine grid, inputs inside the interval too."""
    if matrix == "laplace":
        c, at = 1.2, np.linspace(-25.0, 25.0, 4001)
        weight = np.exp(-np.abs(at))
        ratios = [np.exp(np.abs(at) - np.abs(at - x)) for x in (c, -c, 0.0, 0.5, -0.9)]
    else:
        rows = np.array(matrix)
        weight = rows.min(axis=0)
        ratios = list(rows / weight * weight.sum())
    weight = weight / weight.sum()
    places = np.linspace(-30.0, 30.0, 61)

    def stop_loss(u: float, v: float, x: int, y: int) -> np.ndarray:
        loss = u * ratios[x] - v * ratios[y]
        return np.array([weight @ np.maximum(loss - t, 0.0) for t in places])

    for u, v in itertools.product((0.2, 1.0, 1.7, 4.0), repeat=2):
        most = stop_loss(u, v, 0, 1)
        for x, y in itertools.product(range(len(ratios)), repeat=2):
            assert np.all(stop_loss(u, v, x, y) <= most + 1e-5), (name, u, v, x, y)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("joint:", "parts = 0"),
        ("joint:blx", "did you mean 'blh'?"),
        ("joint:krr", "k = None"),
        ("joint:blh(k=x)", "must be a number"),
        ("joint:blh(epsilon0=nan)", "epsilon0 = nan"),
        ("joint:blh(epsilon0=1", "must be joint:PART"),
        ("parallel:blh,oue", "needs a weight"),
        ("parallel:0.5*blh,0.4*oue", "must add up to 1"),
        ("joint:" + ",".join(["blh"] * 9), "at most 8 parts"),
        ("joint:gaussian", "part of randomizer"),
    ],
)
def test_composition_of_bad_text_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        fs.BoundQuery(randomizer=text, epsilon0=1.0, clients=5, delta=1e-6)
    assert told in str(refused.value)
