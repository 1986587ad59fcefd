"""The vector theorem against exact divergences of small shuffles: no violation, ever."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.reports import RoundType
from tests.accounting.vector_oracles import binned, binned_plane, divergences

SHARES = np.array([0.0, 0.1, 0.3, 0.7])
"""Epsilons tested, as shares of the client's largest shift in noise widths."""
BINS = {3: 12, 5: 7}


def _edges(noise: str, count: int, spread: float) -> np.ndarray:
    inner = np.linspace(-1.0, 1.0, count - 1)
    reach = 2.5 if noise == "gaussian" else 1.5
    return np.sign(inner) * np.abs(inner) ** 1.3 * (reach + spread)


def _bounds(noise: str, radii: np.ndarray, sensitivity: float, epsilons: np.ndarray) -> np.ndarray:
    others = tuple((radius, 1) for radius in sorted(radii[1:].tolist()))
    curve = VectorCurve(RoundType(noise, 1.0, float(radii[0]), sensitivity, others))
    return np.array([curve.delta(epsilon) for epsilon in epsilons])


def _on_line(rng: np.random.Generator, radii: np.ndarray, delta: float, cases: int) -> tuple:
    """Users x0, x1 within `delta` in their ball, others anywhere; extremes are frequent."""
    own = radii[0]
    x0 = np.where(rng.random(cases) < 0.6, own, rng.uniform(-own, own, cases))
    step = np.where(rng.random(cases) < 0.8, delta, rng.uniform(0, delta, cases))
    x1 = np.clip(x0 - step, -own, own)
    others = rng.uniform(-1, 1, (cases, len(radii) - 1))
    extreme = rng.random((cases, 1)) < 0.7
    same = np.where(rng.random((cases, 1)) < 0.5, 1.0, -1.0) * np.ones_like(others)
    signs = np.where(rng.random((cases, 1)) < 0.6, same, np.sign(others))
    others = np.where(extreme, signs, others) * radii[1:]
    return x0, x1, others


@pytest.mark.parametrize(
    ("noise", "n"), [("laplace", 3), pytest.param("gaussian", 5, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_no_dataset_on_the_line_exceeds_the_bound(noise: str, n: int, unit: str) -> None:
    """Random heterogeneous radii, 80 datasets each, 4 epsilons, both directions."""
    rng = np.random.default_rng([n, len(noise), len(unit)])
    tightest = 0.0
    for _ in range(4):
        own = 10 ** rng.uniform(-1.5, -0.3)
        radii = own * np.concatenate([[1.0], 10 ** rng.uniform(-1.5, 0.3, n - 1)])
        sensitivity = 2 * own if unit == "client" else 2 * own * 10 ** rng.uniform(-2, 0)
        bounds = _bounds(noise, radii, sensitivity, SHARES * sensitivity)
        x0, x1, others = _on_line(rng, radii, sensitivity, 80)
        edges = _edges(noise, BINS[n], float(radii.max()))
        true = divergences(
            binned(noise, x0, edges), binned(noise, x1, edges), binned(noise, others, edges),
            SHARES * sensitivity,
        )  # fmt: skip
        assert np.all(true <= bounds * (1 + 1e-9) + 1e-13), (radii, sensitivity)
        positive = bounds > 1e-9
        tightest = max(tightest, float(np.max(true[:, positive] / bounds[positive], initial=0.0)))
    # The data sets are hard enough to come near the bound, so a wrong bound would be noticed.
    assert tightest > (0.8 if (noise, unit) == ("laplace", "client") else 0.5)


def test_no_laplace_dataset_in_the_plane_exceeds_the_bound() -> None:
    """Two coordinates: opposite corners, different axes, random points; n = 3."""
    rng = np.random.default_rng(7)
    for _ in range(4):
        own = 10 ** rng.uniform(-1.0, -0.3)
        radii = own * np.concatenate([[1.0], 10 ** rng.uniform(-1.0, 0.2, 2)])
        sensitivity = 2 * own * (1.0 if rng.random() < 0.5 else rng.uniform(0.05, 1.0))
        bounds = _bounds("laplace", radii, sensitivity, SHARES * sensitivity)
        points = rng.normal(size=(30, 4, 2))
        axis = rng.random(30) < 0.5
        points[axis] = np.eye(2)[rng.integers(0, 2, (int(axis.sum()), 4))]
        points[axis] *= rng.choice([-1.0, 1.0], (int(axis.sum()), 4, 1))
        points /= np.abs(points).sum(axis=2, keepdims=True)
        x0 = points[:, 0] * own
        direction = points[:, 1] * own - x0
        length = np.abs(direction).sum(axis=1, keepdims=True)
        x1 = x0 + direction * np.minimum(1.0, sensitivity / np.maximum(length, 1e-12))
        edges = _edges("laplace", 4, float(radii.max()) * 0.5)
        laws = [
            binned_plane("laplace", means, edges)
            for means in (x0, x1, points[:, 2:] * radii[1:, None])
        ]
        true = divergences(*laws, SHARES * sensitivity)
        assert np.all(true <= bounds * (1 + 1e-9) + 1e-13)


def test_the_mixed_reference_is_refuted_and_not_used() -> None:
    """Radii about the origin with the distance from the midpoint would be a false theorem.

    Laplace b = C = 1, sensitivity 0.1, n = 3, e^eps = 1.1, pair (1, 0.9), the others at -1: the
    shuffle loses 2.00e-3, the mixed formula says 1.53e-3.
    """
    edges = np.concatenate([np.linspace(-1.5, 0.85, 20), np.linspace(0.9, 1.0, 21), [1.2]])
    x = np.array([1.0])
    others = np.array([[-1.0, -1.0]])
    laws = [binned("laplace", at, edges) for at in (x, x - 0.1, others)]
    epsilon = math.log(1.1)
    true = float(divergences(*laws, np.array([epsilon]))[0, 0])
    mixed, honest = (
        VectorCurve(RoundType("laplace", 1.0, own, 0.1, ((1.0, 2),))).delta(epsilon)
        for own in (0.05, 1.0)
    )
    assert true == pytest.approx(2.0e-3, rel=0.01)
    assert mixed == pytest.approx(1.53e-3, rel=0.01)
    assert mixed < true <= honest


def test_the_arithmetic_mean_of_blanket_masses_is_refuted() -> None:
    """P = (3/4, 1/4), Q reversed, eps = 0, the others' masses (1, 1, 0): the truth is 1/4.

    A binomial with their mean mass 2/3 gives .2407, too little. The engine takes masses as they
    are, and their geometric mean (here zero: no blanket at all) is safe.
    """
    law = AtomicLaw.of([1.0, -1.0], [0.5, 0.5])
    # By hand: two blanket reports beside the client's own, E(sum of three signs)_+ / 3.
    truth = (3 * 1 / 8 + 1 * 3 / 8) / 3
    assert truth == 0.25
    assert amplified_delta(law, [(1.0, 2), (0.0, 1)]).delta == pytest.approx(truth, rel=1e-3)
    assert amplified_delta(law, [(2 / 3, 3)]).delta == pytest.approx(0.2407, abs=1e-4)
    assert amplified_delta(law, [(0.0, 3)]).delta >= truth
