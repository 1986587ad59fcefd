"""The swap argument against exact divergences: every stage bounds the one before, on any data set.

docs/proofs.md, section 11. All sums are enumerations; the tightest cases are pinned too, so that a
bound lowered by a tenth would be caught.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import ndtr

from tests.accounting.bounds.partial_shuffle.oracles.exact_families import (
    PartialShuffle,
    hockey,
    stop_loss_law,
    sum_positive_part,
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


@pytest.mark.parametrize("seed", range(3))
def test_every_stage_bounds_the_one_before(seed: int) -> None:
    rng = np.random.default_rng([16, seed])
    largest = check_and_measure([stages(random_case(rng), rng) for _ in range(150)])
    # Power: lowered by a tenth, each stage would fall below what it must bound.
    assert largest[0] > 0.99
    assert largest[1] > 0.99
    assert largest[2] > 0.95
    assert largest[3] > 0.9


def test_the_swap_formula_is_its_definition() -> None:
    rng = np.random.default_rng(1601)
    for _ in range(20):
        case = random_case(rng)
        zeta = float((case.omega / case.r).max() * rng.uniform(0.3, 1.2))
        swap = PartialShuffle(case.p, case.q, case.r, case.omega, case.a, zeta)
        assert swap.swapped() == pytest.approx(swap.swapped_by_definition(), abs=1e-13)


def binned_normal(means: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Cell probabilities of N(mean, 1): binned families are finite, and binning lowers."""
    inner = ndtr(edges - means[..., None])
    ends = np.ones((*means.shape, 1))
    return np.diff(np.concatenate([0.0 * ends, inner, ends], axis=-1), axis=-1)


def gaussian_case(rng: np.random.Generator, others: int, plane: bool) -> Case:
    """Means in balls of unequal radii; the pair opposite (client unit) or close (record)."""
    cells = {2: 12, 3: 8, 4: 6}[others + 1] if not plane else {2: 4, 3: 3, 4: 3}[others + 1]
    radii = rng.uniform(0.1, 0.8, others + 1)
    edges = np.linspace(-1.6, 1.6, cells - 1)
    dimension = 2 if plane else 1
    directions = rng.normal(size=(others + 1, dimension))
    means = radii[:, None] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    if rng.integers(2):  # others at an end, where the divergence is large
        means[1:] = -means[0] / radii[0] * radii[1:, None]
    other_end = -means[0] if rng.integers(2) else means[0] * (1.0 - rng.uniform(0.2, 1.0))
    points = np.concatenate([means[:1], other_end[None], means[1:], np.zeros((1, dimension))])
    axes = binned_normal(points, edges)
    laws = axes[:, 0] if not plane else np.einsum("pi,pj->pij", axes[:, 0], axes[:, 1])
    laws = laws.reshape(len(points), -1)
    return Case(laws[0], laws[1], laws[2:-1], laws[-1], float(np.exp(rng.choice([0.0, 0.05, 0.3]))))


@pytest.mark.parametrize("plane", [False, True])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_gaussian_lines_and_planes(others: int, plane: bool) -> None:
    rng = np.random.default_rng([1602, others, plane])
    largest = check_and_measure([stages(gaussian_case(rng, others, plane), rng) for _ in range(25)])
    assert largest[0] > 0.8


def family_profile(laws: np.ndarray, s: float) -> float:
    """The largest H_s over ordered pairs of the family."""
    return max(hockey(x, y, s) for x in laws for y in laws)


def test_the_law_from_the_profile_alone() -> None:
    """E(L - t)_+ <= S(t) for every triple, S is a stop-loss transform, the whole bound holds."""
    rng = np.random.default_rng(1603)
    closest = 0.0
    for _ in range(20):
        k, others = int(rng.integers(2, 4)), int(rng.integers(2, 5))
        laws = rng.dirichlet(np.ones(k) * 4.0, size=4) + 0.03
        laws /= laws.sum(axis=1, keepdims=True)
        a = float(np.exp(rng.choice([0.0, 0.1, 0.4])))
        r = laws[rng.integers(0, 4, others)]
        p, q = laws[0], laws[1]
        top = max((x / y).max() for x in laws for y in laws)
        points = np.concatenate(
            [np.linspace(1.0 - a * top, 0.0, 60), np.linspace(0.0, top - a, 61)[1:]]
        )
        if top <= a * 1.01:
            continue
        depth = np.maximum(-points, 0.0)
        above = np.array([family_profile(laws, a + max(t, 0.0)) for t in points])
        below = np.array([a * family_profile(laws, (1.0 + d) / a) for d in depth])
        values = np.where(points >= 0.0, above, 1.0 - a - points + below)
        values[-1] = 0.0
        masses = stop_loss_law(points, values, 1.0 - a)
        assert masses.min() > -1e-9, "S is convex"
        for x in laws:
            loss = (p - a * q) / x
            exact = np.maximum(loss[:, None] - points, 0.0).T @ x
            assert np.all(exact <= values + 1e-12)
        # The whole theorem with omega a member: weights at most `top`, no cap cost.
        omega = laws[int(rng.integers(4))]
        swap = PartialShuffle(p, q, r, omega, a, top)
        m = others * float(rng.uniform(0.5, 1.0))
        coarse, coarse_masses = points[::12], stop_loss_law(points[::12], values[::12], 1.0 - a)
        gain = np.maximum(coarse, 0.0)
        shaped = (1.0 - top / m) * coarse + 2.0 * top / m * gain
        if top >= m:
            continue
        bound = sum_positive_part(shaped, coarse_masses, others) / m + swap.floor_cost(m)
        exact = shuffle_delta(p, q, r, a)
        assert exact <= bound + ROUND_OFF
        closest = max(closest, exact / bound)
    assert closest > 0.15
