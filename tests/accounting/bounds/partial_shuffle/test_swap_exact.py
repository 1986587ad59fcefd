"""The swap argument and the bound from a local profile (docs/proofs.md, sections 11 and 13).

Every stage bounds the one before, on any data set: all sums are enumerations over finite outcome
sets, and the tightest cases are pinned too, so that a bound lowered by a tenth would be caught.
Then attacks, exact small shuffles, and the weights' sums.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle import profile
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import law_of_profile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve, profile_delta
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum, spread_atoms
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from tests.oracles import krr_matrix, shuffle_delta, worst_of

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


# --- The bound from a local profile -------------------------------------------------------------


@pytest.mark.parametrize("epsilon0", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("others", [40, 200])
def test_pure_profile_against_every_binary_data_set(epsilon0: float, others: int) -> None:
    local, (zero, one) = profile.approximate(epsilon0), krr_matrix(epsilon0, 2)
    if math.exp(epsilon0) > 0.2 * others:
        assert math.isinf(profile_delta(local, others, 0.2 * epsilon0))
        return
    held = np.linspace(0, others, 9).astype(int).tolist()
    exact = worst_of([zero, one], ([one] * ones + [zero] * (others - ones) for ones in held))
    closest = 0.0
    for share in (0.02, 0.05, 0.15, 0.3):
        epsilon = share * epsilon0 * math.sqrt(40 / others)
        bound = profile_delta(local, others, epsilon)
        assert exact(epsilon) <= bound
        closest = max(closest, exact(epsilon) / bound)
    assert closest > 0.03


def test_pure_profile_stays_above_many_symbols() -> None:
    """k-ary response, n = 50, eps0 = 4: some data set reaches 3.806 at 1e-6.

    The profile knows nothing of k, so no bound from it may go below.
    """
    local = profile.approximate(4.0)
    assert min(profile_delta(local, 49, 3.806), local.local_delta(3.806)) >= 1e-6


def test_profiles_of_random_families() -> None:
    """A profile read off a finite family bounds every data set of it."""
    rng = np.random.default_rng(1620)
    for _ in range(8):
        laws = rng.dirichlet(np.full(3, 6.0), size=3) + 0.05
        laws /= laws.sum(axis=1, keepdims=True)

        def curve(epsilon: float, laws: np.ndarray = laws) -> float:
            a = math.exp(epsilon)
            return max(float(np.maximum(x - a * y, 0).sum()) for x in laws for y in laws)

        local = profile.points([(e, curve(e)) for e in np.linspace(0.0, 3.0, 400).tolist()])
        for others in (6, 12):
            exact = worst_of(laws.tolist(), [laws[rng.integers(0, 3, others)].tolist()])
            for epsilon in (0.0, 0.05, 0.2):
                bound = min(profile_delta(local, others, epsilon), curve(epsilon))
                assert exact(epsilon) <= bound + 1e-12


def test_a_small_delta0_counts_once_not_once_a_client() -> None:
    pure, impure = (ProfileCurve(profile.approximate(1.0, d), 10**4) for d in (0.0, 1e-9))
    for epsilon in (0.0, 0.01, 0.03, 0.05, 2.0):
        assert pure.delta(epsilon) <= impure.delta(epsilon) <= pure.delta(epsilon) * 1.001 + 4e-9


def test_profiles_bound_what_they_stand_for() -> None:
    local = profile.approximate(1.0, 1e-3)
    gap = (math.exp(1.0) - math.exp(0.4)) / (1.0 + math.exp(1.0))
    assert local.local_delta(0.4) == pytest.approx(1e-3 + (1.0 - 1e-3) * gap, rel=3e-9)
    assert local.local_delta(3.0) == pytest.approx(1e-3, rel=3e-9)
    assert local.local_epsilon(1e-4) == math.inf


def test_no_epsilon_is_a_bad_one() -> None:
    """Bends that were two for round-off once made some deltas a thousand times too large."""
    local = profile.approximate(1.0)
    deltas = [profile_delta(local, 99, epsilon) for epsilon in np.linspace(0.55, 0.65, 30)]
    assert np.all(np.diff(deltas) < 0.0)


@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_floor_of_a_sum_of_two_valued_weights(count: int) -> None:
    low, high = 0.5, 2.0
    chance = (1.0 - low) / (high - low)
    weights, hits = (np.array([low, high]), np.array([1.0 - chance, chance])), np.arange(count + 1)
    for log_goal in (-3.0, -8.0):
        found = floor_of_sum([(*weights, count // 3), (*weights, count - count // 3)], log_goal)
        assert found is not None
        m, bound = found
        sums = count * low + hits * (high - low)
        exact = float(binom.pmf(hits, count, chance) @ np.maximum(1.0 - sums / m, 0.0))
        assert exact <= bound <= 1.01 * math.exp(log_goal)
        assert 0.0 < m <= 1.1 * count


@pytest.mark.parametrize(("reach", "sds"), [(0.02, 12.0), (1.0, 8.0)])
def test_small_weights_keep_the_mass_that_decides(reach: float, sds: float) -> None:
    """log E e^(-rate w) by fine sums of the normal density, where masses far below 2^-53 decide."""
    zeta = math.exp(5.0 * reach)
    inner = np.exp(reach * np.linspace(-37.0, 5.0, 841)[:-1])
    values = np.concatenate([[0.0], inner, [zeta]])
    tail = values[1:] * gaussian_profile(-np.log(values[1:]), reach)
    found, masses = spread_atoms(values, np.append(0.0, tail))
    rate = sds / reach
    g, step = np.linspace(-30.0, 20.0, 200_001, retstep=True)
    weights = np.minimum(np.exp(reach * g - 0.5 * reach**2), zeta)
    exact = logsumexp(-rate * weights - 0.5 * g**2) + math.log(step / math.sqrt(2.0 * math.pi))
    kept = masses > 0.0
    bound = logsumexp(-rate * found[kept], b=masses[kept])
    assert np.all(masses >= 0.0)
    assert exact - 1e-9 * abs(exact) <= bound <= exact + 0.1 * sds
