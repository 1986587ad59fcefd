"""The noise of a whole round's reports as one vector: their sum's own distribution, drawn directly.

Where nobody sees a report but only the sum of a round, noise of every client's own is work for
nothing. A sum of Gaussian variates of scales s_j is Gaussian of variance sum s_j^2. A Laplace
variate of scale b is the difference of two exponential ones, so the sum of k of them is the
difference of two Gamma(k) variates, times b. Both are exact, not limits. For simulation: no report
exists that would protect anybody.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import require_choice
from fl_shuffle.randomizers.additive import NOISES


def noise_of_sum(
    noise: str,
    scales: FloatArray,
    counts: NDArray[np.int64],
    dimension: int,
    generator: np.random.Generator,
) -> FloatArray:
    """Return float64 [d]: a draw of the sum of counts[i] independent variates of each scale
    scales[i].

    `scales` are standard deviations (gaussian) or Laplace scales b.
    Raises `InvalidValueError` for another noise.
    """
    require_choice("noise", noise, NOISES)
    if noise == "gaussian":
        deviation = math.sqrt(float(np.sum(counts * np.square(scales))))
        return deviation * generator.standard_normal(dimension)
    total = np.zeros(dimension)
    for scale, count in zip(scales.tolist(), counts.tolist(), strict=True):
        if count:
            total += scale * generator.standard_gamma(count, dimension)
            total -= scale * generator.standard_gamma(count, dimension)
    return total


class AggregateNoise:
    """The noise of the reports of any part of the clients, drawn as one vector.

    `scale` and `step` [clients]: of the reports, weights included (see `Calibration`), of which
    each client has this number.
    """

    def __init__(self, noise: str, scale: FloatArray, step: FloatArray, reports: int = 1) -> None:
        self._reports = reports
        self._noise = require_choice("noise", noise, NOISES)
        self._scales, first, inverse = np.unique(scale, return_index=True, return_inverse=True)
        # Clients with equal noise share a grid.
        self._steps = step[first]
        self._of = inverse.reshape(-1)

    def add_to(
        self, total: FloatArray, present: NDArray[np.bool_], generator: np.random.Generator
    ) -> FloatArray:
        """Return what the sum of the reports of the clients in `present` [clients] would be.

        `total` [d] is the sum of their weighted means, once for each client. The result, float64
        [d], lies on the finest of the grids of their reports, as the sum of these does. Each report
        would be rounded, this
        sum is rounded once: it lacks the variance of their roundings, sum step^2 / 12 at most,
        which is below 2^-30 of the noise's where the noise sets the grid (`additive.grid_step`).
        """
        counts = self._counts(present)
        reports = counts * self._reports
        noise = noise_of_sum(self._noise, self._scales, reports, len(total), generator)
        step = float(self._steps[counts > 0].min())
        return np.asarray(np.rint((total * self._reports + noise) / step) * step)

    def _counts(self, present: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return how many of these clients have each scale."""
        if len(self._scales) == 1:
            return np.array([np.count_nonzero(present)])
        return np.bincount(self._of[present], minlength=len(self._scales))
