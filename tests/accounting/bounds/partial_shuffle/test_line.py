"""Lemma 4 on random laws, and sums of different laws enumerated against the product of D."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.line import Line, Transform, bulk


def test_no_modulus_between_exceeds_lemma_4() -> None:
    rng = np.random.default_rng(471)
    slack = at_first = bulk_alone = -9.0
    for _ in range(800):
        size = int(rng.integers(2, 40))
        heavy = rng.random() < 0.5
        x = np.sort(rng.standard_t(3, size) if heavy else rng.normal(size=size))
        q = rng.dirichlet(np.ones(size) * rng.uniform(0.2, 3.0))
        sd = math.sqrt(float(q @ (x - q @ x) ** 2))
        k1 = rng.uniform(0.05, 2.5) / sd
        k2 = k1 * rng.uniform(1.0, 4.0)
        line = Line(1.0, 10, 0.1, np.ones(2), 0.0, 0.0, k1, k2, 0.0)
        inside = np.abs(x - q @ x) <= rng.choice([1.5, 2.0, 3.0, 50.0]) * sd
        share = float(q[inside].sum())
        centre = float(q[inside] @ x[inside]) / share
        s2 = float(q[inside] @ (x[inside] - centre) ** 2) / share
        mu4 = float(q[inside] @ (x[inside] - centre) ** 4) / share
        args = np.array(share), np.array(s2), np.array(mu4)
        said = float(line.modulus_between(*args))
        k = np.linspace(k1, k2, 60)
        true = float(np.abs(np.exp(1j * np.outer(k, x)) @ q).max())
        slack = max(slack, true - said)
        narrow = Line(1.0, 10, 0.1, np.ones(2), 0.0, 0.0, k1, k1, 0.0)
        at_first = max(at_first, true - float(narrow.modulus_between(*args)))
        bulk_alone = max(bulk_alone, true - (said - (1.0 - share)))
    assert slack <= 1e-11
    # Asked at k_1 alone, or without what lies outside the bulk, it would be wrong.
    assert at_first > 1e-2
    assert bulk_alone > 1e-2


def log_d(x: np.ndarray, p: np.ndarray, theta: float, count: int, sd: float) -> float:
    """The product's log D of one law, its atoms taken as two grids around 0."""
    q = p * np.exp(theta * x)
    centre, radius, own = bulk(x, q / q.sum())
    line = Line.of(theta, count, sd, max(own, 0.05 * sd))
    low, high = x < 0.0, x >= 0.0
    transform = Transform(line, [x[low]], [x[high]], [(0, 0)], centre, radius)
    masses = np.concatenate([p[low], p[high]])[None]
    return float(transform.log_d(masses, transform.prepared())[0, 0])


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_different_laws_stay_below_the_product(seed: int) -> None:
    rng = np.random.default_rng([472, seed])
    closest = 0.0
    for _ in range(60):
        count = int(rng.integers(2, 6))
        laws = [
            (rng.normal(0.0, 1.0, k), rng.dirichlet(np.ones(k))) for k in rng.integers(2, 4, count)
        ]
        true = sum(
            math.prod(p[i] for (_, p), i in zip(laws, at, strict=True))
            * max(sum(x[i] for (x, _), i in zip(laws, at, strict=True)), 0.0)
            for at in itertools.product(*(range(len(x)) for x, _ in laws))
        )
        sd = math.sqrt(count * max(float(p @ x**2 - (p @ x) ** 2) for x, p in laws))
        for theta in (0.4 / sd, 1.0 / sd, 2.0 / sd):
            said = math.exp(sum(log_d(x, p, theta, count, sd) for x, p in laws) / count)
            assert true <= said * (1.0 + 1e-12)
            closest = max(closest, true / said)
    assert closest > 0.85
