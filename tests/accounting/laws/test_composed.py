"""Joint and parallel composition: against exact enumeration, and as questions have them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.laws.composed import JointComposition, ParallelComposition
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.accounting.laws.frequency_oracles import BinaryLocalHashing
from fl_shuffle.errors import InvalidValueError
from tests.oracles import krr_matrix, shuffle_delta


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
    krr, blh = KRandomizedResponse(1.0, 10), BinaryLocalHashing(0.5)
    asked: dict[str, Any] = {"clients": 1000, "delta": 1e-6, "method": "blanket"}
    joint = fs.bound(randomizer=JointComposition((krr, blh)), **asked)  # type: ignore[arg-type]
    assert joint == fs.bound(randomizer="joint:krr(k=10),blh(epsilon0=.5)", epsilon0=1.0,
                             **asked)  # fmt: skip
    assert joint.details["epsilon0"] == 1.5
    both = ParallelComposition(((0.25, krr), (0.75, blh)))
    text = "parallel:1/4*krr(k=10,epsilon0=1),3/4*blh(epsilon0=.5)"
    found = fs.bound(randomizer=both, **asked)  # type: ignore[arg-type]
    assert found == fs.bound(randomizer=text, **asked)


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
        fs.Question(randomizer=text, epsilon0=1.0, clients=5, delta=1e-6)
    assert told in str(refused.value)
