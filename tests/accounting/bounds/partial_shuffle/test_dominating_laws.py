"""The law that replaces every L_k against random triples of Gaussian reports in the plane."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, variance_bound
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import ToppedLaw, collapse
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import gaussian_law, squared_tail
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.laws.amplification import AtomicLaw

W, WEIGHT = np.polynomial.hermite_e.hermegauss(80)
PLANE = np.stack(np.meshgrid(W, W), axis=-1).reshape(-1, 2)
MASS = np.outer(WEIGHT, WEIGHT).ravel() / (2.0 * math.pi)
SETTINGS = [
    Setting(10**4, 0.2, 0.2, 0.2, 0.1, 0.1),
    Setting(10**3, 0.8, 0.8, 0.8, 0.4, 0.4),
    Setting(10**5, 0.8, 0.8, 0.8, 0.4, 0.4),
    Setting(10**4, 0.1, 0.2, 0.2, 0.1, 0.1),
    Setting(10**4, 0.2, 1.2, 1.2, 0.6, 0.6),
]


def ratio(mean: np.ndarray) -> np.ndarray:
    """N(mean, I) relative to N(0, I) on the plane."""
    return np.exp(PLANE @ mean - 0.5 * mean @ mean)


def triple(rng: np.random.Generator, setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """Means of P and Q seen from R's, all in one ball of the setting's diameter."""
    while True:
        angle = rng.uniform(0.0, 2.0 * math.pi, 3)
        radius = 0.5 * setting.diameter * rng.choice([1.0, 1.0, rng.random()], 3)
        p, q, r = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        if rng.random() < 0.5 and setting.move < setting.spread:
            turn = rng.uniform(0.0, 2.0 * math.pi)
            q = p + setting.move * np.array([math.cos(turn), math.sin(turn)])
        inside = np.linalg.norm(q) <= 0.5 * setting.diameter + 1e-12
        if inside and np.linalg.norm(p - q) <= setting.move + 1e-12:
            return p - r, q - r


def law_of(setting: Setting, epsilon: float) -> AtomicLaw:
    law = gaussian_law(epsilon, setting.move, setting.spread)
    cut = math.exp(setting.spread * (setting.spread + 5.0))
    law = replace(law, upper=cut)
    left = float(law.stop_loss(np.array([cut]))[0])
    top = ToppedLaw(law, squared_tail(law, setting.spread, left), left)
    atoms, _, _ = round_up_convex(top, [(1.0, setting.count - 1)], 1e-3)
    variance = variance_bound(setting, epsilon)
    return collapse(atoms, variance, law.mean, math.expm1(epsilon) / variance)[0]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("multiple", [1.0, 4.5])
def test_no_triple_exceeds_the_law(setting: Setting, multiple: float) -> None:
    epsilon = multiple * setting.predicted_mu
    a = math.exp(epsilon)
    law = law_of(setting, epsilon)
    variance = variance_bound(setting, epsilon)
    rng = np.random.default_rng(int(1e4 * epsilon))
    reach = math.sqrt(variance)
    thresholds = np.concatenate([np.linspace(-6.0, 4.0, 41), [8.0, 15.0]]) * reach
    dominating = np.array(
        [law.probabilities @ np.maximum(law.values - t, 0.0) ** 2 for t in thresholds]
    )
    worst = 0.0
    for _ in range(150):
        p, q = triple(rng, setting)
        loss = ratio(p) - a * ratio(q)
        mean = float(MASS @ loss)
        assert float(MASS @ (loss - mean) ** 2) <= variance * (1.0 + 1e-6)
        squares = np.array([MASS @ np.maximum(loss - t, 0.0) ** 2 for t in thresholds])
        # The quadrature resolves a kink to about 1e-3 of the variance.
        assert np.all(squares <= dominating + 2e-3 * variance)
        worst = max(worst, float(np.max(squares / dominating)))
    assert worst > 0.9


def test_a_law_with_less_variance_is_not_certified() -> None:
    setting = SETTINGS[1]
    epsilon = 3.0 * setting.predicted_mu
    law = law_of(setting, epsilon)
    spread = float(law.probabilities @ (law.values - law.mean) ** 2)
    assert spread >= variance_bound(setting, epsilon)
    narrow = AtomicLaw(0.97 * (law.values - law.mean) + law.mean, law.probabilities)
    assert float(narrow.probabilities @ (narrow.values - narrow.mean) ** 2) < variance_bound(
        setting, epsilon
    )


@pytest.mark.parametrize(("move", "spread"), [(0.02, 0.12), (0.3, 0.3), (0.1, 1.2)])
@pytest.mark.parametrize("left", [1e-6, 1e-20])
def test_the_atom_above_the_cut_lies_near_it(move: float, spread: float, left: float) -> None:
    """It carries E(L - K)_+^2 of any triple, however small a move makes what is left at K."""
    law = gaussian_law(0.1 * move, move, spread)
    places = np.geomspace(1e-3 * move, law.upper, 4000)
    cut = float(places[np.argmax(law.stop_loss(places) < left * move)])
    law = replace(law, upper=cut)
    remains = float(law.stop_loss(np.array([cut]))[0])
    square = squared_tail(law, spread, remains)
    assert square / remains <= cut
    # P at one end of the line, Q `move` nearer to R, which lies at zero.
    z, step = np.linspace(0.0, 40.0, 400_001, retstep=True)
    p, q = spread, spread - move
    loss = np.exp(p * z - p * p / 2) - math.exp(law.epsilon) * np.exp(q * z - q * q / 2)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    exact = step * float(np.maximum(loss - cut, 0.0) ** 2 @ density)
    assert exact <= square
