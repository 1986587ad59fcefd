"""Theorem 2's steps one by one: pointwise, by quadrature, by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from mpmath import mp, mpf

from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    LAMBDA,
    Swap,
    below_m,
    choose_swap,
    drift_of_weights,
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


def test_costs_against_simulation() -> None:
    """(A) and (C) of two groups; counts exchanged, or one constant left out, they would differ."""
    rng = np.random.default_rng(483)
    uneven = [(0.2, 300), (0.7, 60)]
    zeta, draws = 5.0, 4000
    w = np.concatenate(
        [
            np.minimum(np.exp(c * rng.normal(size=(draws, n)) - 0.5 * c * c), zeta)
            for c, n in uneven
        ],
        axis=1,
    )
    found = below_m(uneven, zeta, math.log(1e-3))
    assert found is not None
    m, bound = found
    fall = np.maximum(1.0 - w.sum(axis=1) / m, 0.0)
    assert float(fall.mean()) - 4.0 * float(fall.std()) / math.sqrt(draws) <= bound
    assert bound <= 1.01e-3
    turned = below_m([(0.2, 60), (0.7, 300)], zeta, math.log(1e-3))
    assert turned is not None
    assert turned[0] < 0.97 * m
    kappa = 0.01
    beta, rest = drift_of_weights(uneven, zeta, kappa, math.log(1e-2))
    rise = kappa * ((w - LAMBDA) ** 2).sum(axis=1)
    over = np.maximum(rise - beta, 0.0)
    assert float(over.mean()) - 4.0 * float(over.std()) / math.sqrt(draws) <= rest
    assert rest <= 1.01e-2
    # A beta that is not far above the mean: lowered by half it would not do.
    assert float(np.maximum(rise - 0.5 * beta, 0.0).mean()) > rest


def expected(c: float, zeta: float, f: Callable[[mpf], mpf], beyond: Callable[[mpf], mpf]) -> mpf:
    """E f(Z) below zeta and E beyond(Z) above it, in 30 digits; Z is lognormal of mean one."""
    c, at = mpf(c), (mp.log(mpf(zeta)) + mpf(c) ** 2 / 2) / mpf(c)

    def piece(g: Callable[[mpf], mpf], low: mpf, high: mpf) -> mpf:
        edges = [low + (high - low) * i / 8 for i in range(9)]
        return mp.quad(lambda y: mp.npdf(y) * g(mp.exp(c * y - c * c / 2)), edges, maxdegree=5)

    return piece(f, mpf(-13), at) + piece(beyond, at, at + 13)


def best_rate(log: Callable[[float], float], scale: float) -> mpf:
    """Where a convex function of the rate is least, near enough for its value."""
    rates = scale * np.geomspace(1e-3, 1e3, 800)
    return mpf(float(min(rates.tolist(), key=log)))


@pytest.mark.parametrize("groups", [[(0.36, 359), (0.51, 358)], [(0.05, 9999)], [(0.9, 5000)]])
def test_costs_in_thirty_digits(groups: list[tuple[float, int]]) -> None:
    """(A), (B), (C) as the theorem has them, each at its best rate; with m 1% larger, or beta 2%
    smaller, they would be more than is told."""
    H, a = 0.3, 1.1
    swap = choose_swap(groups, H, a, 2.0, 1e-4)
    assert swap is not None
    zeta, m = swap.zeta, swap.m
    kappa = swap.alpha / (2.0 * m)
    draws = {c: np.exp(c * G[::20] - 0.5 * c * c) for c, _ in groups}
    weights = GW[::20] / GW[::20].sum()

    def log_low(tau: float) -> float:
        log = tau * m - math.log(tau)
        for c, n in groups:
            log += n * math.log(float(weights @ np.exp(-tau * np.minimum(draws[c], zeta))))
        return log

    def log_high(tau: float) -> float:
        log, rate, reach = -tau * swap.beta - math.log(tau), tau * kappa, zeta - 1.0
        if rate * reach**2 > 300.0:
            return math.inf
        for c, n in groups:
            with np.errstate(over="ignore"):
                near = np.exp(rate * (np.minimum(draws[c], zeta) - 1.0) ** 2)
            hbar = near * (1.0 + 2.0 * rate * reach * np.maximum(draws[c] - zeta, 0.0))
            log += n * math.log(float(weights @ hbar))
        return log

    with mp.workdps(30):

        def low(tau: mpf, m: mpf) -> mpf:
            log, flat = tau * m - 1 - mp.log(tau * m), mp.exp(-tau * mpf(zeta))
            for c, n in groups:
                log += n * mp.log(expected(c, zeta, lambda z: mp.exp(-tau * z), lambda _: flat))
            return mp.exp(log)

        def high(tau: mpf, beta: mpf) -> mpf:
            log, rate, reach = -1 - tau * beta - mp.log(tau), tau * mpf(kappa), mpf(zeta) - 1

            def hbar(z: mpf) -> mpf:
                return mp.exp(rate * (z - 1) ** 2)

            def tangent(z: mpf) -> mpf:
                return mp.exp(rate * reach**2) * (1 + 2 * rate * reach * (z - mpf(zeta)))

            for c, n in groups:
                log += n * mp.log(expected(c, zeta, hbar, tangent))
            return mp.exp(log)

        first = best_rate(log_low, 1.0 / math.sqrt(sum(n * math.expm1(c * c) for c, n in groups)))
        second = best_rate(log_high, 1.0 / (kappa * (zeta - 1.0) ** 2))
        over = sum(
            n * expected(c, zeta, lambda _: mpf(0), lambda z: z - mpf(zeta)) for c, n in groups
        )
        below, above = H * low(first, mpf(m)), high(second, mpf(swap.beta)) / m
        total = below + (mpf(H) + mpf(a) - 1) * over / m + above
        assert total <= swap.cost <= 1.2 * total
        assert total - below + H * low(first, mpf(1.01 * m)) > swap.cost
        assert total - above + high(second, mpf(0.98 * swap.beta)) / m > swap.cost
