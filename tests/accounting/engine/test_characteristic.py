"""The transform of a tilted law: products of turns against 40-digit arithmetic."""

import mpmath
import numpy as np
import pytest

from fl_shuffle.accounting.engine.fourier import TiltedLaw, _cost
from fl_shuffle.accounting.engine.tilted_moments import UNIT
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.tolerances import TOLERANCES


def exact(law: TiltedLaw, k: float) -> complex:
    with mpmath.workdps(40):
        total = mpmath.mpc(0)
        for value, weight in zip(law.values.tolist(), law.weights.tolist(), strict=True):
            turn = mpmath.expj(mpmath.mpf(k) * mpmath.mpf(value)) - 1
            total += mpmath.mpf(weight) * turn
        return complex(total)


def nodes_of(pattern: str) -> np.ndarray:
    if pattern == "run":
        return np.arange(3000)
    if pattern == "blocks":
        return np.sort(np.add.outer(np.arange(5, 4000, 97), np.arange(4)).ravel())
    if pattern == "centres":
        return np.arange(32, 20_000, 64)
    return np.arange(40)


@pytest.mark.parametrize("step", [1e-7, 1e-3, 0.4])
@pytest.mark.parametrize("pattern", ["run", "blocks", "centres", "few"])
def test_within_the_stated_round_off(pattern: str, step: float) -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.normal(0.0, 1.0, 60) * np.exp(rng.normal(0.0, 2.0, 60)))
    law = TiltedLaw.of(AtomicLaw(values, np.full(60, 1.0 / 60.0)), 0.05)
    nodes = nodes_of(pattern)
    found = law.characteristic(nodes, step)
    for position in rng.choice(nodes.size, 12, replace=False):
        k = float(nodes[position]) * step
        allowed = UNIT * law.rounding * k + 1e-300
        # The frequency itself is rounded once more when it is split.
        assert abs(found[position] - exact(law, k)) <= allowed


def test_runs_are_split_and_scattered_nodes_are_not() -> None:
    run = nodes_of("run")
    assert min(TOLERANCES.fourier_strides, key=lambda stride: _cost(run, stride)) > 1
    scattered = np.array([1, 1000, 5_000_003, 70_000_001])
    assert min(TOLERANCES.fourier_strides, key=lambda stride: _cost(scattered, stride)) == 1
