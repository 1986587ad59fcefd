"""Discrete Gaussian and discrete Laplace noise on the public grid, drawn exactly (`samplers`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.randomizers.base import LocalRandomizer, Noise
from fl_shuffle.randomizers.samplers import Integers, Words, discrete_gaussian, discrete_laplace

LARGEST = 1 << 23
"""Reports are cut at this many steps, which is post-processing; float32 holds them exactly."""


class DiscreteGaussian(LocalRandomizer):
    """report = the mean cut to its grid towards zero + discrete Gaussian noise of `scale`.

    Arrays [clients]: `scale`, a whole number of steps (set by `calibration`), and
    `step`, the public grid, powers of two. Cutting towards zero makes no norm larger, so that what
    was in a ball stays there.
    """

    norm = 2

    def __init__(
        self,
        epsilon: FloatArray,
        delta: FloatArray,
        radius: FloatArray,
        scale: FloatArray,
        *,
        step: FloatArray,
    ) -> None:
        super().__init__(epsilon, delta, radius)
        self.scale = scale
        self.step = step

    def bound(self) -> FloatArray:
        """Convert to whole steps."""
        return np.asarray(LARGEST * self.step, dtype=np.float64)

    def grid(self) -> FloatArray:
        """Return `step`."""
        return self.step

    def largest(self) -> FloatArray:
        """Return the bound: it lies on the grid."""
        return self.bound()

    def drawn(self, words: Words, scale: int, count: int) -> Integers:
        """Return noise in steps, int64 [count]."""
        return discrete_gaussian(words, scale, count)

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Add noise in whole steps throughout; every client's noise is a stream of its own."""
        step = self.step[clients]
        scale = (self.scale[clients] / step).astype(np.int64)
        steps = np.trunc(means.astype(np.float64) / step[:, None])
        for row, (key, own) in enumerate(zip(noise.keys(), scale.tolist(), strict=True)):
            steps[row] += self.drawn(Words(key), own, means.shape[1])
        return np.asarray(steps * step[:, None])


class DiscreteLaplace(DiscreteGaussian):
    """The same with discrete Laplace noise, for means that are clipped in l1."""

    norm = 1

    def drawn(self, words: Words, scale: int, count: int) -> Integers:
        """Return noise in steps, int64 [count]."""
        return discrete_laplace(words, scale, count)


DISCRETE = {"discrete-gaussian": DiscreteGaussian, "discrete-laplace": DiscreteLaplace}
"""By the names of `privacy.randomizer`."""
