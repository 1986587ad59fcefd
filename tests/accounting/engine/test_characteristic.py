"""The transform of a tilted law: products of turns against 40-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest

from fl_shuffle.accounting.engine.blanket_counts import BinomialCounts
from fl_shuffle.accounting.engine.fourier import TiltedLaw
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.round_off import UNIT


def exact(law: TiltedLaw, k: float) -> complex:
    with mpmath.workdps(40):
        total = mpmath.mpc(0)
        for value, weight in zip(law.values.tolist(), law.weights.tolist(), strict=True):
            turn = mpmath.expj(mpmath.mpf(k) * mpmath.mpf(value)) - 1
            total += mpmath.mpf(weight) * turn
        return complex(total)


@pytest.mark.parametrize("step", [1e-7, 1e-3, 0.4])
def test_within_the_stated_round_off(step: float) -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.normal(0.0, 1.0, 60) * np.exp(rng.normal(0.0, 2.0, 60)))
    law = TiltedLaw.of(AtomicLaw(values, np.full(60, 1.0 / 60.0)), 0.05)
    nodes = np.arange(32, 20_000, 64)
    found = law.characteristic(nodes, step)
    for position in rng.choice(nodes.size, 12, replace=False):
        k = float(nodes[position]) * step
        allowed = UNIT * law.rounding * k + 1e-300
        assert abs(found[position] - exact(law, k)) <= allowed


@pytest.mark.parametrize("others", [1, 40, 900])
def test_decay_moves_by_the_deviation_and_bounds_what_is_skipped(others: int) -> None:
    """A Lipschitz constant lowered by a tenth is caught."""
    rng = np.random.default_rng([12, others])
    fastest = 0.0
    for gamma in (1.0, 0.9, 0.3):
        values = np.sort(rng.normal(0.0, 1.0, 7) * np.exp(rng.normal(0.0, 1.0, 7)))
        law = TiltedLaw.of(AtomicLaw(values, rng.dirichlet(np.ones(7))), 0.3)
        classes = BinomialCounts(gamma, others, law.moment)
        spread = classes.masses * law.second - (classes.masses * law.mean) ** 2
        deviation = math.sqrt(float(classes.counts @ spread))
        nodes = np.arange(4000)
        step = 6.0 / deviation / nodes.size
        y = law.characteristic(nodes, step)
        decay = classes.decay(y)
        speed = np.abs(np.diff(decay)) / (deviation * step)
        assert speed.max() <= 1.0 + 1e-6
        fastest = max(fastest, float(speed.max()))
        assert np.all(np.abs(classes.evaluate(y).values) <= np.exp(-0.5 * decay**2) * (1.0 + 1e-9))
        far = rng.permutation(nodes.size)
        moved = np.abs(decay - decay[far]) - deviation * step * np.abs(nodes - nodes[far])
        assert moved.max() <= 1e-9
    assert fastest > 0.95
