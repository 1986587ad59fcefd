"""Reports of a few bits a coordinate: rounded to a coarse public grid and cut off after the noise.

Rounding and cutting follow the noise, so they are post-processing: what is proven of the shuffled
reports stays proven. What they cost is accuracy: a coordinate gets a little more variance, and a
mean near the end of the range a bias. Both are computed here from the distribution of a report.

With cells of width c (in noise scales) and b bits, a report x becomes one of the 2^b levels

    L_j = (j + 1/2) c,    j = -2^(b-1), ..., 2^(b-1) - 1,

the middle of its cell; beyond the range, the last one. For a mean x and a noise with survival
function S, with the cells' ends t_j = j c (those between two levels),

    E L   = L_first + c sum_j S(t_j - x),
    E L^2 = L_first^2 + 2 c sum_j t_j S(t_j - x),

because L_j - L_(j-1) = c and L_j^2 - L_(j-1)^2 = 2 c t_j.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids, Vector
from fl_shuffle.errors import ConfigError
from fl_shuffle.randomizers.base import LocalRandomizer, Noise
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.shuffler.levels import Levels, few_digits

MOST_BITS = 16
REPORTS_COUNTED = 1e4
"""A bias stays where noise averages out: it counts as much as in a mean of this many reports."""
LARGEST_BIAS = 0.01
"""In noise scales. A rounding that moves a mean by more is refused."""
CELLS = 2.0 ** (np.arange(-240, 49) / 16.0)
"""Widths of a cell that are tried, in noise scales, from 2^-15 to 8."""
SEARCHED_BITS = 8
"""With more bits, cells are so narrow that only the range matters: it stays as with these bits."""
MEANS = 33
"""Means, between 0 and the largest, at which the worst rounding is looked for."""


def _normal(x: Vector) -> Vector:
    return np.asarray(ndtr(-x), dtype=np.float64)


def _laplace(x: Vector) -> Vector:
    return np.where(x < 0.0, 1.0 - 0.5 * np.exp(np.minimum(x, 0.0)), 0.5 * np.exp(-np.abs(x)))


SURVIVAL: dict[str, Callable[[Vector], Vector]] = {"gaussian": _normal, "laplace": _laplace}
"""P(noise > x) for noise of scale 1, by the names of `privacy.randomizer`."""
VARIANCE = {"gaussian": 1.0, "laplace": 2.0}


@dataclass(frozen=True)
class RoundingCost:
    """What rounding does to a coordinate of a report.

    `added_variance` is a share of the noise's variance (below 0 where cutting off takes more away),
    `worst_bias` is in noise scales: the largest over all means that clipping allows.
    """

    added_variance: float
    worst_bias: float


def rounding_cost(noise: str, bits: int, cell: float, reach: float) -> RoundingCost:
    """Return what rounding to `bits` bits does to means of size at most `reach`.

    Parameters
    ----------
    noise : {"gaussian", "laplace"}
        Distribution of the noise.
    bits : int
        Bits of a coordinate, 2 to 16.
    cell : float
        Width of a cell, in noise scales.
    reach : float
        Largest size of a mean's coordinate, in noise scales.

    Returns
    -------
    RoundingCost
        The worst over all means of that size; the ends of the range included.
    """
    means = np.linspace(0.0, reach, MEANS)[:, None]
    ends = (np.arange(1, 2**bits) - 2 ** (bits - 1)) * cell
    above = SURVIVAL[noise](ends[None] - means)
    first = -(2 ** (bits - 1) - 0.5) * cell
    mean = first + cell * above.sum(axis=1)
    variance = first * first + 2.0 * cell * (above @ ends) - mean * mean
    own = VARIANCE[noise]
    bias = float(np.abs(mean - means[:, 0]).max())
    return RoundingCost(float(variance.max() / own - 1.0), bias)


@cache
def best_cell(noise: str, bits: int, reach: float) -> float:
    """Return the width of a cell, in noise scales, with the least worst error of a mean report.

    The error counted is the mean square of the average of `REPORTS_COUNTED` reports: its variance
    and its squared bias, both in the worst case over means of size at most `reach`.
    """
    if bits > SEARCHED_BITS:
        return best_cell(noise, SEARCHED_BITS, reach) * 2.0 ** (SEARCHED_BITS - bits)
    # No range below the longest mean, and none far beyond what noise reaches.
    widest, least = reach + 40.0, reach * 2.0 ** (1 - bits)
    tried = CELLS[(least <= CELLS) & (widest * 2.0 ** (1 - bits) >= CELLS)]
    found = [rounding_cost(noise, bits, float(cell), reach) for cell in tried]
    errors = [
        each.added_variance + REPORTS_COUNTED * each.worst_bias**2 / VARIANCE[noise]
        for each in found
    ]
    return float(tried[int(np.argmin(errors))])


@dataclass(frozen=True)
class FewBits(Levels):
    """How the reports of a run's clients are rounded: a public function of their noise alone."""

    cost: RoundingCost
    """Of the clients whose reports it changes most."""

    @classmethod
    def of(cls, noise: str, bits: int, scale: Vector, radius: Vector) -> FewBits:
        """Return the rounding of reports with noise `scale` and means of norm at most `radius`,
        each [clients].

        Clients that share a noise scale share their levels: levels of its own would tell a report's
        client. Raises `ConfigError` where so few bits would bias the longest means.
        """
        scales, inverse = np.unique(scale, return_inverse=True)
        reach = np.zeros(len(scales))
        np.maximum.at(reach, inverse.reshape(-1), radius)
        # Rounded up to an eighth of an octave: as many searches as there are such sizes.
        reaches = 2.0 ** (np.ceil(8.0 * np.log2(reach / scales)) / 8.0)
        cells = np.array([best_cell(noise, bits, float(each)) for each in reaches])
        half = few_digits(0.5 * cells * scales)
        costs = [
            rounding_cost(noise, bits, *each)
            for each in sorted(set(zip((2.0 * half / scales).tolist(), reaches.tolist(),
                                       strict=True)))
        ]  # fmt: skip
        worst = RoundingCost(
            max(each.added_variance for each in costs), max(each.worst_bias for each in costs)
        )
        if worst.worst_bias > LARGEST_BIAS:
            _refuse(noise, bits, float(reaches.max()), worst)
        return cls(bits, half[inverse.reshape(-1)], worst)

    def round_(self, reports: Tensor, clients: Ids) -> Tensor:
        """Round reports [k, d] of these clients, float32, to their levels, in place.

        Every step but the division is exact: half a cell has 6 binary digits, the odd factor of a
        level has 16, and float32 holds 24.
        """
        width = torch.from_numpy((2.0 * self.half[clients]).astype(np.float32))[:, None]
        width, most = width.to(reports.device), float(2 ** (self.bits - 1))
        return reports.div_(width).floor_().clamp_(-most, most - 1.0).add_(0.5).mul_(width)


def _refuse(noise: str, bits: int, reach: float, found: RoundingCost) -> None:
    """Raise the error of a rounding that biases means, and name the bits that would not."""
    enough = next(
        (
            more
            for more in range(bits + 1, MOST_BITS + 1)
            if rounding_cost(noise, more, best_cell(noise, more, reach), reach).worst_bias
            <= LARGEST_BIAS
        ),
        None,
    )
    remedy = f"at least {enough}" if enough else "0 (float32)"
    raise ConfigError(
        f"privacy.report_bits = {bits}: would move a mean as long as the clipping norm by "
        f"{found.worst_bias:.2g} noise scales, above {LARGEST_BIAS:g}, because the clipping norm "
        f"is {reach:.3g} noise scales; use {remedy}"
    )


class RoundedNoise(LocalRandomizer):
    """Gaussian or Laplace noise, and the rounding after it: what is sent are levels."""

    on_device = True

    def __init__(self, noisy: LocalRandomizer, rounding: FewBits) -> None:
        super().__init__(noisy.epsilon, noisy.delta, noisy.radius)
        self._noisy = noisy
        self._rounding = rounding

    def bound(self) -> FloatArray:
        """Return the last level."""
        return self._rounding.largest

    def grid(self) -> FloatArray:
        """Return the power of two of which levels are multiples."""
        return self._rounding.step

    def largest(self) -> FloatArray:
        """Return the bound: it is a level."""
        return self.bound()

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Return the reports before they are rounded."""
        return self._noisy.randomize(means, clients, noise)

    def reports(self, means: Tensor, clients: Ids, stream: NoiseStream) -> Tensor:
        """Add the noise as it is added without rounding, and round the result."""
        return self._rounding.round_(self._noisy.reports(means, clients, stream), clients)
