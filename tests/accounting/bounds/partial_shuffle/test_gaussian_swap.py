"""Theorem 2's steps one by one: pointwise, by quadrature, by simulation."""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    LAMBDA,
    Swap,
    excess,
    node_weights,
)
from tests.accounting.bounds.partial_shuffle.oracles.gram_theorem import GW, G


def test_one_denominator_and_young_hold_pointwise() -> None:
    """sum L_k/max(D_k, m) <= (1/m)(sum phi(L_k) + quadratic part), and not without its parts."""
    rng = np.random.default_rng(481)
    worst = without_lift = without_huber = -9.0
    for _ in range(8000):
        n = int(rng.integers(1, 6))
        zeta = math.exp(rng.uniform(0.05, 2.0))
        w, h = np.minimum(np.exp(rng.normal(0.0, 1.0, (2, n))), zeta)
        x = rng.standard_t(2, n)
        m = max(zeta, rng.uniform(0.1, 2.0 * n))
        alpha = rng.uniform(0.2, 5.0)
        swap = Swap(zeta, m, alpha, 0.0, np.array([0.0, 1.0, zeta]), (), 0.0)
        left = max(float(np.sum(x / np.maximum(h + w.sum() - w, m))), 0.0)
        square = float(np.sum(alpha / (2.0 * m) * (w - LAMBDA) ** 2))
        lifts = np.array([float(swap.lift(np.array(a), b)) for a, b in zip(x, h, strict=True)])
        hubers = swap.huber(x) / m
        plain = np.maximum((LAMBDA - h) * x, 0.0) / m

        def right(total: float, square: float = square, m: float = m) -> float:
            return max(total + square, 0.0) / m

        worst = max(worst, left - right(float(lifts.sum())))
        without_lift = max(without_lift, left - right(float((lifts - plain).sum())))
        without_huber = max(without_huber, left - right(float((lifts - hubers).sum())))
        assert np.all(np.diff(swap.lift(np.sort(x), float(h[0]))) >= -1e-12), "phi is nondecreasing"
    assert worst <= 1e-12
    assert without_lift > 1e-3
    assert without_huber > 1e-3


def test_phi_is_convex_and_rises_by_no_more_than_the_cut_pays() -> None:
    swap = Swap(4.0, 20.0, 2.0, 0.0, np.array([0.0, 1.0, 4.0]), (), 0.0)
    x = np.linspace(-40.0, 60.0, 4001)
    for w in (0.0, 0.4, 1.0, 2.0, 4.0):
        slopes = np.diff(swap.lift(x, w)) / np.diff(x)
        assert np.all(np.diff(slopes) >= -1e-9)
        assert 1.0 - swap.zeta / swap.m - 1e-9 <= slopes[0]
        assert slopes[-1] <= swap.slope + 1e-9
    assert float(np.max(np.diff(swap.lift(x, 0.0)) / np.diff(x))) > 0.999 * swap.slope


def test_weights_of_the_nodes() -> None:
    """E D'(w_k(h)) at any distance up to the radius, by quadrature, for any nondecreasing D'."""
    rng = np.random.default_rng(482)
    closest = weakened = -9.0
    for _ in range(400):
        c = rng.uniform(0.02, 1.2)
        r = c if rng.random() < 0.4 else c * rng.random()
        zeta = math.exp(rng.uniform(0.02, 2.0))
        nodes = np.array([0.0, 1.0, math.sqrt(zeta), zeta])
        d = np.exp(rng.normal(0.0, 0.5, 4))
        d[0] = max(d[:2])
        d[1:] = np.maximum.accumulate(d[1:])
        w = np.minimum(np.exp(r * G + 0.5 * r * r), zeta)
        true = float(GW @ np.interp(w, nodes, d))
        p = node_weights(nodes, c)
        assert true <= float(p @ d) * (1.0 + 1e-6)
        closest = max(closest, true / float(p @ d))
        # With the mean of Z under omega taken for one:
        slope = np.append(-np.diff(excess(nodes[1:], c)) / np.diff(nodes[1:]), 0.0)
        low = float(excess(np.array(1.0), c))
        other = np.concatenate([[low, 1.0 - slope[0] - low], slope[:-1] - slope[1:]])
        weakened = max(weakened, true / float(other @ d))
    assert closest > 0.99
    assert weakened > 1.05
