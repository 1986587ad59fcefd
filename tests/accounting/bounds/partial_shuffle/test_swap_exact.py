"""The swap argument against exact divergences: every stage bounds the one before, on any data set.

docs/proofs.md, section 11. All sums are enumerations over finite outcome sets; the tightest cases
are pinned too, so that a bound lowered by a tenth would be caught.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import law_of_profile
from tests.oracles import shuffle_delta

ROUND_OFF = 1e-11
LARGEST_COUNT = {2: 6, 3: 5, 4: 4}


def random_case(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(p, q, r, omega): client 1's pair; the others all different, at the pair's laws, or all
    equal; any omega."""
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
    return p, q, r, (law(), r.mean(axis=0), (p + q) / 2.0, p)[rng.integers(4)]


def stages(rng: np.random.Generator) -> list[float]:
    """Of one random case: the exact divergence, then the bounds of each stage in order."""
    p, q, r, omega = random_case(rng)
    a = float(np.exp(rng.choice([0.0, 1e-3, 0.02, 0.1, 0.3, 1.0])))
    zeta = max(float((omega / r).max() * rng.choice([1.0, 1.0, 0.7, 0.4])), 1.001)
    m = max(float(len(r) * rng.uniform(0.3, 1.1)), 0.01)
    alpha, beta = float(rng.choice([0.1, 0.5, 2.0, 10.0])), float(rng.choice([0.0, 0.05, 0.5]))
    g = np.minimum(omega / r, zeta)
    keep = g * r / omega
    # All tuples t of the others' reports, their chances, and L_k and w_k there.
    t = np.indices((r.shape[1],) * len(r)).reshape(len(r), -1).T
    rows = np.arange(len(r))
    chance, loss, w = r[rows, t].prod(axis=1), ((p - a * q) / r)[rows, t], g[rows, t]
    total = w.sum(axis=1)

    def mean(terms: np.ndarray) -> float:
        return float(chance @ np.maximum(terms, 0.0))

    local = float(np.maximum(p - a * q, 0.0).sum())
    floor_cost = local * mean(1.0 - total / m)
    cap_cost = (local + a - 1.0) * float(((1.0 - keep) * omega).sum()) / m
    s = np.clip(loss / alpha, -1.0, zeta - 1.0)
    huber = (s * loss - 0.5 * alpha * s * s) / m
    swapped = floored = one = 0.0
    young = mean(alpha / (2.0 * m) * ((w - 1.0) ** 2).sum(axis=1) - beta)
    for h, own in enumerate(omega.tolist()):
        denominator, kept = total[:, None] - w + g[:, h], keep[:, h] * loss
        swapped += own * mean((kept / denominator).sum(axis=1))
        floored += own * mean((kept / np.maximum(denominator, m)).sum(axis=1))
        one += own * mean((loss + np.maximum((w - g[:, h]) * loss, 0.0) / m).sum(axis=1))
        lift = np.maximum((1.0 - g[:, h]) * loss, 0.0) / m
        young += own * mean((loss + lift + huber).sum(axis=1) + beta)
    # Coarser: both weights only known to lie between 0 and the cap.
    crude = mean((loss + zeta / m * np.abs(loss)).sum(axis=1))
    assert crude >= one - ROUND_OFF * (1.0 + one)
    costs = floor_cost + cap_cost
    exact = shuffle_delta(p, q, r, a)
    return [exact, swapped, floored + floor_cost, one / m + costs, young / m + costs]


@pytest.mark.parametrize("seed", range(2))
def test_every_stage_bounds_the_one_before(seed: int) -> None:
    rng = np.random.default_rng([16, seed])
    table = np.array([stages(rng) for _ in range(150)])
    # Likelihood ratios up to a thousand occur: round-off is relative to the largest stage.
    room = ROUND_OFF * (1.0 + table.max(axis=1, keepdims=True))
    assert np.all(np.diff(table, axis=1) >= -room)
    kept = table[table[:, 0] > 1e-6]
    # Power: lowered by a tenth, each stage would fall below what it must bound.
    assert np.all((kept[:, :-1] / kept[:, 1:]).max(axis=0) > [0.99, 0.99, 0.95, 0.9])


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

        t = np.linspace(1.0 - 3.0 * a, 3.0 - a, 121)
        said = law_of_profile(math.log(a), family, 50.0).stop_loss(t)
        assert np.all(np.diff(said, 2) >= -1e-12), "S is convex"
        for p, q, r in itertools.permutations(laws, 3):
            exact = np.maximum((p - a * q) / r - t[:, None], 0.0) @ r
            assert np.all(exact <= said + 1e-12)
            closest = max(closest, float(np.max(exact[60:] / np.maximum(said[60:], 1e-9))))
    assert closest > 0.9
