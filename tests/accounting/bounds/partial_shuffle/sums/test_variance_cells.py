"""Sums of terms of unknown laws: transforms of Gaussian triples, mixed sums enumerated, constants.

docs/proofs.md, section 12, "Moments".
"""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, variance_bound
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import ToppedLaw, collapse, lifted
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    deficit,
    gaussian_law,
    squared_tail,
)
from fl_shuffle.accounting.bounds.partial_shuffle.sums.variance_cells import (
    KAPPA,
    Kind,
    Terms,
    excess_of_sum,
    third_remainder,
    transform_bounds,
)
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES
from tests.accounting.bounds.partial_shuffle.triangles import (
    client_triples,
    grid,
    record_triples,
    tail_moments,
)


def gaussian_terms(
    setting: Setting, epsilon: float, gain: float, loss: float
) -> tuple[Terms, float]:
    """What the theorem says of phi(min(L_k, K)), and K."""
    law = gaussian_law(epsilon, setting.move, setting.spread)
    places = setting.move * np.geomspace(0.5, 300.0, 200)
    cut = float(places[np.argmax(law.stop_loss(places) < 1e-7 * setting.move)])
    law = replace(law, upper=cut)
    left = float(law.stop_loss(np.array([cut]))[0])
    top = ToppedLaw(law, squared_tail(law, setting.spread, left), left)
    atoms, _, extra = round_up_convex(top, [(1.0, setting.count - 1)], 3e-3)
    shaped = lifted(atoms, gain, loss)
    drift, local = math.expm1(epsilon), float(gaussian_profile(epsilon, setting.move))
    variance = variance_bound(setting, epsilon)
    mean = -(1.0 - loss) * drift + (gain + loss) * local
    second = (1.0 + gain) ** 2 * (variance + drift * drift)
    lower, _ = collapse(shaped, second - mean * mean, mean, drift / variance)
    missing = deficit(law, setting.spread)
    kinds = [Kind(shaped, lower, second)]
    return Terms(setting.count, kinds, -drift - left - extra, mean, *missing), cut


@pytest.mark.parametrize(("mu", "share"), [(0.05, 1.0), (0.3, 0.3), (0.8, 1.0)])
def test_transforms_of_triples_stay_below(mu: float, share: float) -> None:
    """|E e^((theta + ik) X)|^2 of every triple against its own cell's bound."""
    rng = np.random.default_rng([1650, int(100 * mu), int(10 * share)])
    nodes, mass = grid(0.12, 7.5)
    closest, compared = 0.0, 0
    for count, epsilon in ((100, 0.1), (1000, 0.3), (10**5, 0.02)):
        setting = Setting(count, share * mu, mu, mu, mu / 2, mu / 2)
        a = math.exp(epsilon * share * mu)
        gain, loss = (0.02, 0.01) if count == 100 else (0.0, 0.0)
        terms, cut = gaussian_terms(setting, math.log(a), gain, loss)
        kind = terms.kinds[0]
        if share < 1.0:
            u, w = record_triples(rng, 10, mu, share * mu)
        else:
            u, w = client_triples(rng, 12, mu)
            u = np.concatenate([u, [[mu, 0.0], [0.0, 0.0], [mu, 0.0]]])
            w = np.concatenate([w, [[0.0, 0.0], [mu, 0.0], [mu / 2, 0.8 * mu / 2]]])
        for theta_sds in (1.3, 4.0):
            theta = theta_sds / math.sqrt(count * kind.second)
            last = TOLERANCES.cells_last_angle / math.sqrt(kind.second)
            k = np.linspace(0.0, last, 7)
            (edges,), log_top, log_decay = transform_bounds(terms, theta, k)
            for one, two in zip(u, w, strict=True):
                x = np.exp(nodes @ one - one @ one / 2) - a * np.exp(nodes @ two - two @ two / 2)
                x = np.minimum(x, cut)
                x = np.where(x > 0.0, (1.0 + gain) * x, (1.0 - loss) * x)
                tilted = float(mass @ (x**2 * np.exp(theta * x)))
                assert tilted <= edges[-1]
                cell = int(np.searchsorted(edges, tilted, side="right")) - 1
                found = np.exp(np.multiply.outer(theta + 1j * k, x)) @ mass
                bound = 2.0 * log_top[cell] + log_decay[cell]
                # Only what a sum of so many terms shows counts.
                gap = 0.5 * count * (2.0 * np.log(np.abs(found)) - bound)
                # The kink of phi costs the quadrature some digits.
                assert np.all(gap <= (1e-3 if gain else 1e-6)), (one, two)
                compared += k.size
                closest = max(closest, float(np.exp(gap[:4]).max()))
    assert compared > 300
    assert closest > 0.9, "a tenth less, for the whole sum, would be caught"


def two_valued(scale: float, mean: float) -> AtomicLaw:
    """Values at +-scale."""
    high = 0.5 * (1.0 + mean / scale)
    return AtomicLaw(np.array([-scale, scale]), np.array([1.0 - high, high]))


def mixed_excess(laws: list[AtomicLaw], counts: list[int]) -> float:
    """E(S)_+ over both numbers of high values."""
    masses, values = [], []
    for law, count in zip(laws, counts, strict=True):
        high = np.arange(count + 1)
        masses.append(binom.pmf(high, count, law.probabilities[1]))
        values.append(law.values[1] * high + law.values[0] * (count - high))
    return float(masses[0] @ np.maximum(np.add.outer(*values), 0.0) @ masses[1])


@pytest.mark.parametrize("count", [60, 400, 2000])
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
def test_every_mixture_of_two_valued_terms(count: int, shift: float) -> None:
    mean = -shift / math.sqrt(count)
    widest = two_valued(1.0, mean)
    terms = Terms(
        count,
        [Kind(widest, widest, 1.0)],
        mean,
        mean,
        AtomicLaw(np.array([0.0, 1.0]), widest.probabilities[::-1].copy()),
        0.0,
    )
    bound = math.exp(excess_of_sum(terms).log_bound)
    closest = 0.0
    for scale in (1.0, 0.75, 0.5, 0.25):
        if abs(mean) >= scale:
            continue
        for share in (0.0, 0.3, 1.0):
            others = round(share * count)
            exact = mixed_excess([widest, two_valued(scale, mean)], [count - others, others])
            assert exact <= bound
            closest = max(closest, exact / bound)
    assert closest > {60: 0.5, 400: 0.7, 2000: 0.85}[count]


def skewed(mean: float, deviation: float, chance: float) -> AtomicLaw:
    """Two values; the higher one has this `chance`."""
    values = mean + deviation * np.array(
        [-math.sqrt(chance / (1.0 - chance)), math.sqrt((1.0 - chance) / chance)]
    )
    return AtomicLaw(values, np.array([1.0 - chance, chance]))


def envelope(laws: list[AtomicLaw]) -> AtomicLaw:
    """The least law above all of them in increasing convex order."""
    nodes = np.unique(np.concatenate([law.values for law in laws]))
    excess = [np.maximum(law.values - nodes[:, None], 0.0) @ law.probabilities for law in laws]
    slopes = np.append(np.diff(np.max(excess, axis=0)) / np.diff(nodes), 0.0)
    return AtomicLaw(nodes, np.clip(np.diff(slopes, prepend=-1.0), 0.0, None))


@pytest.mark.parametrize("count", [50, 300, 3000])
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("told", [1, 2])
def test_every_mixture_of_skewed_terms(count: int, shift: float, told: int) -> None:
    """Rare gains lift transforms, rare losses slow their decay: both, in one kind or told apart."""
    mean = -shift / math.sqrt(count)
    chances = (0.03, 0.3, 0.5, 0.7, 0.97)
    wide = [skewed(mean, math.sqrt(1.0 - mean * mean), chance) for chance in chances]
    narrow = [skewed(mean, 0.4, chance) for chance in chances]
    families = [wide + narrow] if told == 1 else [wide, narrow]
    kinds = []
    for family in families:
        above = envelope(family)
        second = max(float(law.probabilities @ law.values**2) for law in family)
        kinds.append(Kind(above, above, second * (1.0 + 1e-12)))
    losses = [
        AtomicLaw(np.maximum(-law.values, 0.0)[::-1].copy(), law.probabilities[::-1].copy())
        for law in wide + narrow
    ]
    terms = Terms(count, kinds, mean * (1.0 + 1e-9), mean, envelope(losses), 0.0)
    bound = math.exp(excess_of_sum(terms).log_bound)
    closest = 0.0
    for one in wide:
        for two in wide + narrow:
            for others in {0, count // 3, count}:
                exact = mixed_excess([one, two], [count - others, others])
                assert exact <= bound
                closest = max(closest, exact / bound)
    assert closest > {50: 0.45, 300: 0.7, 3000: 0.9}[count]


def test_constants() -> None:
    x = np.concatenate([np.linspace(1e-3, 20.0, 200_001), np.geomspace(20.0, 1e6, 10_000)])
    over = np.cos(x) - (1.0 - 0.5 * x * x + np.minimum(KAPPA * x**3, x**4 / 24.0))
    assert np.all(over <= 1e-12 * (1.0 + x * x))
    peak = 3.9958965
    assert (math.cos(peak) - 1.0 + peak**2 / 2) / peak**3 > 0.999 * KAPPA
    # A lifted transform falls faster: e^x - 1 - x - x^2/2 <= x^2 (e^x - 1)/6, and
    # x (e^x - 1) <= x^2 (1 + e^x)/2, for both signs.
    with mpmath.workdps(60):
        for size in [1e-6, 1e-3, *np.linspace(0.05, 60.0, 400).tolist()]:
            for v in (mpmath.mpf(size), -mpmath.mpf(size)):
                tilt = mpmath.exp(v)
                assert tilt - 1 - v - v**2 / 2 <= v**2 * (tilt - 1) / 6
                assert 0 <= v * (tilt - 1) <= v**2 * (1 + tilt) / 2
    places = np.array([0.0, 1e-9, 1e-4, 0.01, 0.0499, 0.0501, 0.3, 2.0, 20.0])
    with mpmath.workdps(50):
        exact = [float(mpmath.exp(v) - 1 - v - mpmath.mpf(v) ** 2 / 2) for v in places.tolist()]
    found = third_remainder(places)
    assert np.all(found >= np.array(exact))
    assert np.all(found <= np.array(exact) * (1.0 + 1e-5))


@pytest.mark.parametrize(("mu", "share"), [(0.02, 1.0), (0.3, 1.0), (0.8, 1.0), (0.8, 0.2)])
def test_the_deficit_holds_every_triple(mu: float, share: float) -> None:
    rng = np.random.default_rng([1651, int(100 * mu), int(10 * share)])
    epsilon = 0.2 * share * mu
    a = math.exp(epsilon)
    law, beyond = deficit(gaussian_law(epsilon, share * mu, mu), mu)
    u, w = record_triples(rng, 40, mu, share * mu)
    if share == 1.0:
        u, w = client_triples(rng, 60, mu)
        u, w = np.concatenate([u, [[0.0, 0.0]]]), np.concatenate([w, [[mu, 0.0]]])
    assert beyond < 1e-12
    closest = 0.0
    for t in mu * np.array([0.0, 0.3, 1.0, 3.0]):
        # E(-t - L)_+ = E(L + t)_+ - t - E L; the grid is coarse.
        above, _ = tail_moments(u, w, np.full(len(u), a), np.full(len(u), -t))
        exact = above - t + (a - 1.0)
        bound = float(law.probabilities @ np.maximum(law.values - t, 0.0)) + beyond
        assert np.all(exact <= bound * 1.005 + 2e-3 * mu)
        closest = max(closest, float(exact.max()) / bound)
    assert closest > 0.9
    nodes, mass = grid(0.12, 7.5)
    far = np.maximum(a * np.exp(mu * nodes[:, 0] - mu * mu / 2) - 1.0, 0.0)
    for power in (2, 3, 4):
        # Q at one end, P at R: the largest moments when P and Q may lie so far apart.
        value = float(law.probabilities @ law.values**power) + beyond
        if share == 1.0:
            assert mass @ far**power == pytest.approx(value, rel=0.03)
