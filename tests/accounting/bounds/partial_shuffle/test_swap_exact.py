"""The swap argument against exact divergences: every stage bounds the one before, on any data set.

docs/proofs.md, section 11. All sums are enumerations; the tightest cases are pinned too, so that a
bound lowered by a tenth would be caught.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import law_of_profile
from tests.accounting.bounds.partial_shuffle.oracles.exact_families import (
    PartialShuffle,
)
from tests.oracles import shuffle_delta

ROUND_OFF = 1e-11
LARGEST_COUNT = {2: 6, 3: 5, 4: 4}


@dataclass(frozen=True)
class Case:
    p: np.ndarray
    q: np.ndarray
    r: np.ndarray
    omega: np.ndarray
    a: float


def random_case(rng: np.random.Generator) -> Case:
    """Client 1's pair; others all different, at the pair's laws, or all equal; any omega."""
    k = int(rng.integers(2, 5))
    others = int(rng.integers(2, LARGEST_COUNT[k] + 1))
    shape = rng.dirichlet(np.ones(k) * 3.0) + 0.02
    shape *= rng.choice([0.3, 1.0, 5.0, 50.0]) * k / shape.sum()

    def law() -> np.ndarray:
        masses = rng.dirichlet(shape) + 1e-3
        return masses / masses.sum()

    p, q = law(), law()
    style = rng.integers(3)
    if style == 0:
        r = np.array([law() for _ in range(others)])
    elif style == 1:
        r = np.array([(p, q, law())[rng.integers(3)] for _ in range(others)])
    else:
        r = np.array([law()] * others)
    omega = (law(), r.mean(axis=0), (p + q) / 2.0, p)[rng.integers(4)]
    return Case(p, q, r, omega, float(np.exp(rng.choice([0.0, 1e-3, 0.02, 0.1, 0.3, 1.0]))))


def stages(case: Case, rng: np.random.Generator) -> list[float]:
    """The exact divergence, then the bounds of each stage in order."""
    zeta = float((case.omega / case.r).max() * rng.choice([1.0, 1.0, 0.7, 0.4]))
    zeta = max(zeta, 1.001)
    swap = PartialShuffle(case.p, case.q, case.r, case.omega, case.a, zeta)
    m = max(float(len(case.r) * rng.uniform(0.3, 1.1)), 0.01)
    costs = swap.costs(m)
    spread = float(rng.choice([0.1, 0.5, 2.0, 10.0]))
    beta = float(rng.choice([0.0, 0.05, 0.5]))
    one = swap.one_denominator(m) + costs
    assert swap.crude(m) + costs >= one - ROUND_OFF * (1.0 + one)
    return [
        shuffle_delta(case.p, case.q, case.r, case.a),
        swap.swapped(),
        swap.floored(m) + swap.floor_cost(m),
        one,
        swap.young(m, spread, beta) + costs,
    ]


def check_and_measure(cases: list[list[float]]) -> np.ndarray:
    """No stage below the one before; the largest ratios, and that of first to last."""
    table = np.array(cases)
    # Likelihood ratios up to a thousand occur: round-off is relative to the largest stage.
    room = ROUND_OFF * (1.0 + table.max(axis=1, keepdims=True))
    assert np.all(np.diff(table, axis=1) >= -room)
    kept = table[table[:, 0] > 1e-6]
    ratios = kept[:, :-1] / kept[:, 1:]
    return np.append(ratios.max(axis=0), (kept[:, 0] / kept[:, 4]).max())


@pytest.mark.parametrize("seed", range(2))
def test_every_stage_bounds_the_one_before(seed: int) -> None:
    rng = np.random.default_rng([16, seed])
    largest = check_and_measure([stages(random_case(rng), rng) for _ in range(150)])
    # Power: lowered by a tenth, each stage would fall below what it must bound.
    assert largest[0] > 0.99
    assert largest[1] > 0.99
    assert largest[2] > 0.95
    assert largest[3] > 0.9


def test_the_law_from_a_profile_is_above_that_of_every_triple() -> None:
    """E(L - t)_+ <= S(t) for any three laws of a family, whose profile is what is known of it."""
    rng, closest = np.random.default_rng(1603), 0.0
    for _ in range(20):
        laws = rng.dirichlet(np.ones(3) * 4.0, size=4) + 0.03
        laws /= laws.sum(axis=1, keepdims=True)
        a = float(np.exp(rng.choice([0.0, 0.1, 0.4])))

        def family(s: np.ndarray, laws: np.ndarray = laws) -> np.ndarray:
            gains = laws[:, None, None] - np.multiply.outer(s, laws).transpose(1, 0, 2)
            return np.maximum(gains, 0.0).sum(axis=3).max(axis=(0, 1))

        law = law_of_profile(math.log(a), family, 50.0)
        t = np.linspace(1.0 - 3.0 * a, 3.0 - a, 121)
        said = law.stop_loss(t)
        assert np.all(np.diff(said, 2) >= -1e-12), "S is convex"
        for p, q, r in itertools.permutations(laws, 3):
            exact = np.maximum((p - a * q) / r - t[:, None], 0.0) @ r
            assert np.all(exact <= said + 1e-12)
            closest = max(closest, float(np.max(exact[60:] / np.maximum(said[60:], 1e-9))))
    assert closest > 0.9
