"""Others told apart by their distance from the client: each ring's law, and mixed sums.

docs/proofs.md, section 12.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, third_order_delta
from fl_shuffle.accounting.bounds.partial_shuffle.rings import ring_variance
from fl_shuffle.accounting.bounds.partial_shuffle.sums.second_order import (
    log_excess_by_moduli,
    period_of,
)
from fl_shuffle.accounting.engine.saddle_points import tilt_at_saddle_point
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from tests.accounting.bounds.partial_shuffle.rings.many_triangles import compare
from tests.accounting.bounds.partial_shuffle.triangles import client_triples, variance


@pytest.mark.parametrize("mu", [0.05, 0.3, 0.8, 1.2])
def test_certified_laws_dominate_triangles_in_their_ring(mu: float) -> None:
    """The short form of `many_triangles`, which says how to run a million."""
    rng = np.random.default_rng([1640, int(100 * mu)])
    found = np.stack([compare(rng, mu, 1.0, 1200) for _ in range(3)])
    assert found[:, 0].sum() > 4000
    assert found[:, 1].sum() == 0
    assert found[:, 2].max() > 0.9, "laws lowered by a tenth are caught"


@pytest.mark.parametrize("mu", [0.05, 0.3, 0.8, 1.5, 3.0])
def test_variance_of_a_ring(mu: float) -> None:
    rng = np.random.default_rng([1641, int(100 * mu)])
    for epsilon in (0.0, 0.02, 0.3, 1.5):
        a, closest = math.exp(epsilon), 0.0
        u, w = client_triples(rng, 30_000, mu)
        # The extremes: Q at R, and P at R.
        end = np.array([[mu, 0.0]])
        u, w = np.concatenate([u, end, 0 * end]), np.concatenate([w, 0 * end, end])
        exact, distance = variance(u, w, np.full(len(u), a)), np.linalg.norm(u, axis=1)
        edges = mu * np.sqrt(np.linspace(0.0, 1.0, 6))
        for near, far in pairwise(edges.tolist()):
            kept = (distance >= near) & (distance <= far * (1 + 1e-12))
            share = exact[kept].max() / ring_variance(a, mu, near, far)
            assert share <= 1.0
            closest = max(closest, share)
        assert closest > 0.95
    assert ring_variance(1.2, mu, mu, mu) == pytest.approx(math.expm1(mu * mu), rel=1e-6)
    assert ring_variance(1.2, mu, 0.0, mu) == pytest.approx(1.44 * math.expm1(mu * mu), rel=1e-6)


def mixed_excess(first: AtomicLaw, second: AtomicLaw, many: int, others: int) -> float:
    """E(S)_+ of two-valued terms, `many` of the one and `others` of the other, by enumeration."""
    counts = [
        (
            np.arange(n + 1),
            np.array([math.comb(n, k) for k in range(n + 1)], dtype=float)
            * law.probabilities[1] ** np.arange(n + 1)
            * law.probabilities[0] ** np.arange(n, -1, -1),
        )
        for law, n in ((first, many), (second, others))
    ]
    sums = [
        law.values[1] * k + law.values[0] * (n - k)
        for law, n, (k, _) in ((first, many, counts[0]), (second, others, counts[1]))
    ]
    total = np.maximum(np.add.outer(*sums), 0.0)
    return float(counts[0][1] @ total @ counts[1][1])


def test_moduli_bound_every_mixture() -> None:
    rng = np.random.default_rng(1642)
    closest = 0.0
    for _ in range(60):
        laws = []
        for _ in range(2):
            p = rng.uniform(0.1, 0.6)
            high, mean = rng.uniform(0.3, 1.5), -rng.uniform(0.0, 0.2)
            low = (mean - p * high) / (1 - p)
            laws.append(AtomicLaw(np.array([low, high]), np.array([1 - p, p])))
        n = int(rng.integers(2, 60))
        theta = tilt_at_saddle_point(laws[0], [(1.0, n - 1)]) * float(rng.uniform(0.6, 1.6))
        period = max(period_of(law, n, theta, 1.0 / theta) for law in laws)
        logs = [log_excess_by_moduli(law, n, theta, period) for law in laws]
        for law, log in zip(laws, logs, strict=True):
            # What moments alone show to be below is not summed, and is below.
            for known in (log - 0.1, log + 0.1, log + 5.0):
                again = log_excess_by_moduli(law, n, theta, period, known)
                assert again == log or (again == known and log <= known)
        bound = math.exp(max(logs))
        for many in {0, n // 3, n // 2, n}:
            exact = mixed_excess(laws[0], laws[1], many, n - many)
            assert exact <= bound
            closest = max(closest, exact / bound)
    assert closest > 0.6


def test_rings_gain_where_few_others_hide_much() -> None:
    """With one law for all others the ratio to an attack's 0.1175 is 1.196."""
    mu = 4.0 / math.sqrt(2.0 * math.log(1.25e5))
    setting = Setting(999, mu, mu, mu, mu / 2, mu / 2)
    assert third_order_delta(setting, 0.132) <= 1e-6
    assert third_order_delta(setting, 0.132, in_rings=False) > 1.5e-6


@pytest.mark.parametrize(("local", "clients"), [(4.0, 1000), (4.0, 60), (1.0, 400)])
def test_rings_never_cost_much(local: float, clients: int) -> None:
    """Far out, where one law for all says more than rings do, it is taken."""
    mu = local / math.sqrt(2.0 * math.log(1.25e5))
    setting = Setting(clients - 1, mu, mu, mu, mu / 2, mu / 2)
    for spreads in (2.0, 5.0, 8.0):
        epsilon = spreads * setting.predicted_mu
        alone = third_order_delta(setting, epsilon, in_rings=False)
        assert third_order_delta(setting, epsilon) <= 1.02 * alone
