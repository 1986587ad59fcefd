"""The 32-bit laws: how near the compiled functions are to the real ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit

from fl_shuffle.randomizers import noise_loops
from fl_shuffle.randomizers.noise import NoiseStream

EDGES = [0, -1, 1, 2**31 - 1, -(2**31), 2**29, 2**29 - 1, -(2**29), 2**30, -(2**30), 3 * 2**29]


@njit
def logarithms(u: np.ndarray) -> np.ndarray:
    found = np.empty_like(u)
    for i in range(u.size):
        found[i] = noise_loops.logarithm(u[i])
    return found


@njit
def cosines_and_sines(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cosines, sines = np.empty(words.size, np.float32), np.empty(words.size, np.float32)
    for i in range(words.size):
        cosines[i], sines[i] = noise_loops.cosine_and_sine(words[i])
    return cosines, sines


@pytest.mark.parametrize("law", ["normal", "laplace"])
@pytest.mark.parametrize("dimension", [7, 610, 200_003])
def test_rows_of_a_wider_array_are_written_and_nothing_else(law: str, dimension: int) -> None:
    stream = NoiseStream(bytes(16), dimension)
    scale, step = np.array([1.0, 0.25, 7.0]), np.array([2.0**-16, 2.0**-18, 2.0**-13])
    wide = torch.linspace(-1, 1, 3 * (dimension + 5)).reshape(3, dimension + 5)
    before, alone = wide.clone(), wide[:, :dimension].contiguous()
    stream.add_(law, wide[:, :dimension], np.arange(11, 11 + len(wide)), scale, step)
    stream.add_(law, alone, np.arange(11, 11 + len(alone)), scale, step)
    assert torch.equal(wide[:, :dimension], alone)
    assert torch.equal(wide[:, dimension:], before[:, dimension:])


def test_the_logarithm_is_within_two_units_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    u = np.concatenate(
        [
            rng.uniform(0.0, 1.0, 1_000_000),
            np.exp2(rng.uniform(-32.0, 0.0, 1_000_000)),
            1.0 - np.arange(1, 200_000) * 2.0**-24,
            np.sqrt(0.5) * (1.0 + np.arange(-1000, 1000) * 2.0**-23),
        ]
    ).astype(np.float32)
    exact = np.log(u.astype(np.float64))
    error = np.abs(logarithms(u) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error[exact != 0.0].max() < 2.0
    assert logarithms(np.ones(1, np.float32))[0] == 0.0


def test_cosine_and_sine_are_within_three_units_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    drawn = np.concatenate(
        [
            rng.integers(-(2**31), 2**31, 2_000_000),
            np.array(EDGES),
            *(np.arange(-500, 500) + edge for edge in (2**29, -(2**29), 2**30, 0)),
        ]
    ).astype(np.int32)
    angle = drawn.astype(np.float64) * (np.pi * 2.0**-31)
    for got, exact in zip(cosines_and_sines(drawn), (np.cos(angle), np.sin(angle)), strict=True):
        size = np.spacing(np.maximum(np.abs(exact), 2.0**-40).astype(np.float32))
        # The reference itself is off by the rounding of its angle.
        assert (np.maximum(np.abs(got - exact) - 5e-16, 0.0) / size).max() < 3.0
    x, y = cosines_and_sines(np.array([0, 2**30, -(2**30), -(2**31)], np.int32))
    np.testing.assert_array_equal(x, [1, 0, 0, -1])
    np.testing.assert_array_equal(y, [0, 1, -1, 0])
