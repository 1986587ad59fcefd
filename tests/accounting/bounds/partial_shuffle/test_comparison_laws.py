"""The laws that replace L = (P - aQ)/R, against Gaussian triples by quadrature and in closed form.

docs/proofs.md, section 12.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, variance_bound
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import ToppedLaw, collapse, lifted
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import gaussian_law, squared_tail
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from tests.accounting.bounds.partial_shuffle.oracles.gaussian_bound import (
    Law,
    convex_order_curve,
    excess,
    squared_excess_any,
    variance_curve,
)
from tests.accounting.bounds.partial_shuffle.triangles import (
    client_triples,
    record_triples,
    shaped_square,
    tail_moments,
    variance,
)

QUADRATURE = 2e-3
"""Relative error allowed to the quadrature of E(L - t)_+^2."""
MUS = np.geomspace(0.02, 1.2, 8)


def levels(rng: np.random.Generator, mu: float, a: float, count: int) -> np.ndarray:
    sd = a * math.sqrt(math.expm1(mu * mu))
    below = rng.uniform(1 - a - 4 * sd, 0, count)
    return np.where(rng.random(count) < 0.7, below, rng.uniform(0, 2.5 * sd, count))


def certified(setting: Setting, epsilon: float, gain: float, loss: float) -> AtomicLaw:
    """The package's law for phi(min(L, K)), phi(x) = x + gain x^+ + loss x^-, by its own steps."""
    law = gaussian_law(epsilon, setting.move, setting.spread)
    levels = np.geomspace(
        0.1 * setting.move, 50.0 * setting.spread * math.exp(6 * setting.spread), 400
    )
    cut = float(levels[np.argmax(law.stop_loss(levels) < 1e-7 * setting.move)])
    law = replace(law, upper=cut)
    left = float(law.stop_loss(np.array([cut]))[0])
    topped = ToppedLaw(law, squared_tail(law, setting.spread, left), left)
    atoms, _, _ = round_up_convex(topped, [(1.0, setting.count - 1)], 1e-3)
    drift, local = math.expm1(epsilon), float(excess(math.exp(epsilon), setting.move))
    variance = variance_bound(setting, epsilon)
    mean = -(1 - loss) * drift + (gain + loss) * local
    second = (1 + gain) ** 2 * (variance + drift * drift)
    rate = max(drift / variance, 1 / math.sqrt(setting.count * variance))
    return collapse(lifted(atoms, gain, loss), second - mean * mean, mean, rate)[0]


@pytest.mark.parametrize("share_of_move", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("mu", MUS)
def test_certified_laws_dominate_triangles(mu: float, share_of_move: float) -> None:
    """E(phi(L) - t)_+^2 <= E(L' - t)_+^2, client unit and record unit (a short move)."""
    rng = np.random.default_rng([1610, int(1e6 * mu), int(100 * share_of_move)])
    largest = 0.0
    move = share_of_move * mu
    for share, gain, loss in (
        (0.01, 0.0, 0.0),
        (0.1, 0.02, 0.1),
        (0.5, 0.0, 0.01),
        (1.0, 0.3, 0.0),
    ):
        epsilon = share * move
        setting = Setting(1000, move, mu, mu, mu / 2, mu / 2)
        law = certified(setting, epsilon, gain, loss)
        a, width = math.exp(epsilon), math.sqrt(variance_bound(setting, epsilon))
        u, w = client_triples(rng, 700, mu)
        step = w - u
        length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)
        w = u + step * np.minimum(1.0, move / length)
        t = np.where(
            rng.random(len(u)) < 0.7,
            rng.uniform(min(law.values[0], 0) - 0.5 * width, 0, len(u)),
            rng.uniform(0, 2.5 * width, len(u)),
        )
        squares = shaped_square(u, w, a, t, gain, loss)
        have = np.maximum(law.values - t[:, None], 0.0) ** 2 @ law.probabilities
        # The coarse grid misjudges thin tails of nearly equal means by up to 2%.
        assert np.all(squares <= have * 1.02 + 1e-4 * width * width)
        largest = max(largest, float((squares / have)[have > 1e-2 * width * width].max()))
    assert largest > 0.9, "a law lowered by a tenth is caught"


@pytest.mark.parametrize("mu", MUS)
def test_both_curves_bound_triangles(mu: float) -> None:
    """The two bounds on E(L - t)_+^2, of which the oracle's own law dominates the lesser."""
    rng = np.random.default_rng([1614, int(1e6 * mu)])
    for share in (0.01, 0.1, 0.5, 1.0):
        a = math.exp(share * mu)
        u, w = client_triples(rng, 600, mu)
        t = levels(rng, mu, a, len(u))
        _, squares = tail_moments(u, w, np.full(len(u), a), t)
        for curve in (convex_order_curve(t, a, mu), variance_curve(t, a, mu)):
            assert np.all(squares <= curve * (1 + QUADRATURE) + 1e-9 * mu * mu)


@pytest.mark.parametrize("mu", MUS)
def test_convex_order_for_triangles(mu: float) -> None:
    """E(L - t)_+ <= S(t); the quadrature of a kink is good to a few thousandths of a width."""
    rng = np.random.default_rng([1611, int(1e6 * mu)])
    a = math.exp(0.2 * mu)
    u, w = client_triples(rng, 2000, mu)
    t = levels(rng, mu, a, len(u))
    first, _ = tail_moments(u, w, np.full(len(u), a), t)
    d = np.maximum(-t, 0.0)
    bound = np.where(
        t >= 0, excess(a + np.maximum(t, 0.0), mu), 1 - a - t + a * excess((1 + d) / a, mu)
    )
    assert np.all(first <= bound + 5e-3 * mu)


def test_stop_loss_transform_of_the_gaussian_profile() -> None:
    """S is convex, decreasing, has the mean 1 - a and an atom at zero of H + (a - 1) |h'(a)|."""
    for mu in (0.05, 0.5, 2.0):
        for share in (0.0, 0.1, 1.0):
            a = math.exp(share * mu)
            sd = math.sqrt(math.expm1(mu * mu)) * a
            t = np.linspace(1 - a - 6 * sd, 8 * sd, 4001)
            d = np.maximum(-t, 0.0)
            s = np.where(
                t >= 0, excess(a + np.maximum(t, 0.0), mu), 1 - a - t + a * excess((1 + d) / a, mu)
            )
            slopes = np.diff(s) / np.diff(t)
            assert np.all(np.diff(slopes) >= -1e-9)
            assert slopes[0] >= -1 - 1e-9
            assert slopes[-1] <= 1e-9
            step = 1e-6 * mu
            right = (excess(a + step, mu) - excess(a, mu)) / step
            left = -1 - (excess((1 + step) / a, mu) - excess(1 / a, mu)) * a / step
            assert right - left == pytest.approx(
                float(excess(a, mu)) + (a - 1) * float(-right), abs=1e-4
            )


def test_variance_of_client_triples() -> None:
    """Var L <= a^2 (e^(mu^2) - 1) for any three means in a ball of diameter mu."""
    rng = np.random.default_rng(1612)
    largest = 0.0
    for mu in (0.02, 0.3, 1.0, 2.5):
        for a in (1.0, 1.01, 1.5, 6.0):
            u, w = client_triples(rng, 9000, mu)
            ratio = variance(u, w, np.full(len(u), a)) / (a * a * math.expm1(mu * mu))
            assert ratio.max() <= 1 + 1e-12
            largest = max(largest, float(ratio.max()))
    assert largest > 0.999


def record_variance(mu: float, move: float, a: float) -> float:
    """The largest of f at the three corners; f(U, W, X) = (e^U-1) - 2a(e^X-1) + a^2(e^W-1)."""
    near = (mu - move) ** 2
    corners = [
        (mu * mu, mu * mu, mu * mu - move * move / 2),
        (near, mu * mu, mu * (mu - move)),
        (mu * mu, near, mu * (mu - move)),
    ]
    return max(math.expm1(u) - 2 * a * math.expm1(x) + a * a * math.expm1(w) for u, w, x in corners)


def test_variance_of_record_triples() -> None:
    rng = np.random.default_rng(1613)
    largest = 0.0
    for mu in (0.1, 0.6, 1.5):
        for share in (0.02, 0.3, 0.9, 1.0):
            for a in (1.0, 1.02, 1.4):
                move = share * mu
                u, w = record_triples(rng, 4000, mu, move)
                bound = record_variance(mu, move, a)
                ratio = variance(u, w, np.full(len(u), a)) / bound
                assert ratio.max() <= 1 + 1e-12
                # The corners themselves are triples.
                angle = math.acos(1 - move * move / (2 * mu * mu))
                ends = np.array([[mu, 0.0], [mu * math.cos(angle), mu * math.sin(angle)]])
                exact = variance(ends[:1], ends[1:], np.array([a]))
                near = variance(np.array([[mu, 0.0]]), np.array([[mu - move, 0.0]]), np.array([a]))
                far = variance(np.array([[mu - move, 0.0]]), np.array([[mu, 0.0]]), np.array([a]))
                assert max(exact[0], near[0], far[0]) == pytest.approx(bound, rel=1e-9)
                largest = max(largest, float(ratio.max()))
    assert largest > 0.95


@pytest.mark.parametrize("mu", [0.02, 0.2, 0.8])
def test_where_the_plain_candidate_fails(mu: float) -> None:
    """1 - a + a(X - 1) misses min(B1, B2), by up to 3%, and only between 1 - 2a and 0."""
    worst = 1.0
    for share in (0.01, 0.1, 0.5):
        a = math.exp(share * mu)
        sd = math.sqrt(math.expm1(mu * mu))
        t = np.concatenate([np.linspace(-8 * sd * a, 0, 8001), np.linspace(0, 5 * sd, 1000)[1:]])
        plain = a * a * squared_excess_any(1 + (t - 1 + a) / a, mu)
        ratio = plain / np.minimum(convex_order_curve(t, a, mu), variance_curve(t, a, mu))
        failing = t[ratio < 1 - 1e-9]
        worst = min(worst, float(ratio.min()))
        assert np.all(failing > 1 - 2 * a)
        assert np.all(failing < 0)
    assert 0.96 < worst < 0.999


def test_cutting_both_laws_is_wrong() -> None:
    """min(L', K) does not dominate min(L, K): why the cut law keeps its mass above K."""
    mu, a = 0.4, 1.1
    law = Law(mu, a, 1.0, 1e-3, np.inf)
    x = np.linspace(-9, 9, 200001)
    mass = np.exp(-x * x / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    # Others at P: L = 1 - a X, which has no upper tail at all, against L' cut at K.
    ratio = np.exp(mu * x - mu * mu / 2)
    loss = 1 - a * ratio
    candidate = 1 - a + a * (ratio - 1)
    cut = 0.3
    t = 1 - a - 1.0

    def squared(values: np.ndarray) -> float:
        return float(mass @ np.maximum(np.minimum(values, cut) - t, 0.0) ** 2)

    assert squared(loss) > squared(candidate)
    kept = Law(mu, a, law.kappa, law.x1, cut)
    values, masses = kept.atoms()
    assert squared(loss) <= masses @ np.maximum(values - t, 0.0) ** 2
