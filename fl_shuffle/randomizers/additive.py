"""Gaussian and Laplace noise of each client's own scale, rounded to a public grid.

The grid makes sums exact. Every report is a multiple of a public power of two and is small enough
for float32 to hold it, so float64 sums of reports have no rounding error and do not depend on
arrival order, packing or threads. Rounding happens after the noise: it is post-processing and costs
no privacy. (It also hides the low-order bits of floating-point noise, see docs/concepts/noise.md.)
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.accounting.report_grid import grid_steps
from fl_shuffle.errors import require_real
from fl_shuffle.randomizers.base import LARGEST, SMALLEST, LocalRandomizer, Noise
from fl_shuffle.randomizers.noise import NoiseStream, largest_variate
from fl_shuffle.randomizers.noise_exact import REACH


class Gaussian(LocalRandomizer):
    """report = weight (mean + noise of standard deviation `scale` in every coordinate).

    Arrays [clients]: `scale`, which follows from the budgets (`calibration`);
    `weight` of a report, 1 unless given; `step`, the public grid, powers of two (`grid_steps`
    unless given).
    Raises `InvalidValueError` for scales or radii out of range.
    """

    law: ClassVar[str] = "normal"
    norm = 2
    on_device = True

    def __init__(
        self,
        epsilon: FloatArray,
        delta: FloatArray,
        radius: FloatArray,
        scale: FloatArray,
        *,
        weight: FloatArray | None = None,
        step: FloatArray | None = None,
    ) -> None:
        super().__init__(epsilon, delta, radius)
        weight = np.ones(len(radius)) if weight is None else weight
        self.scale = weight * scale
        self.step = grid_steps(self.scale, weight * radius) if step is None else step
        self._weight = weight

    def bound(self) -> FloatArray:
        """Return a point of the grid: noise ends, see `noise`."""
        return largest_reports(self.law, self.scale, self._weight * self.radius, self.step, 64)

    def largest(self) -> FloatArray:
        """Return the bound: it lies on the grid."""
        return self.bound()

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Return the statement: `reports` are these to the nearest point of the grid."""
        drawn = noise.normal() if self.law == "normal" else noise.laplace()
        weight, scale = self._weight[clients, None], self.scale[clients, None]
        return np.asarray(weight * means + scale * drawn)

    def reports(self, means: Tensor, clients: Ids, stream: NoiseStream) -> Tensor:
        """Add the noise in place, in one pass; with 64-bit words what the ideal sum is rounded
        to."""
        weigh_(means, self._weight[clients])
        return stream.add_(self.law, means, clients, self.scale[clients], self.step[clients])


class Laplace(Gaussian):
    """The same with Laplace noise, for means that are clipped in l1; `scale` is its b."""

    law = "laplace"
    norm = 1


NOISES: dict[str, type[Gaussian]] = {"gaussian": Gaussian, "laplace": Laplace}
"""By the names of `privacy.randomizer`."""


def weigh_(rows: Tensor, weight: FloatArray) -> None:
    """Multiply rows [k, d] in place by their clients' weights [k]."""
    if (weight != 1.0).any():
        rows *= torch.from_numpy(weight.astype(np.float32))[:, None].to(rows.device)


def grid_step(scale: float, radius: float) -> float:
    """Return the public grid of reports with noise `scale` and means of norm at most `radius`.

    A power of two: the smallest that is at least scale * 2^-16 and at least
    (radius + 12 scale) * 2^-21. Rounding then adds a variance of at most scale^2 2^-32 / 3
    per coordinate where the first term rules, and every |report| is below 2^22 steps:
    |mean| <= radius, and no 32-bit variate exceeds 22.2 in absolute value (2^24 steps with 64-bit
    words, whose variates end at 104; float32 holds them).
    """
    scale = require_real("scale", scale, minimum=SMALLEST, maximum=LARGEST)
    radius = require_real("radius", radius, minimum=0.0, maximum=LARGEST)
    return float(grid_steps(scale, radius))


def largest_reports(
    law: str, scale: FloatArray, radius: FloatArray, step: FloatArray, bits: int
) -> FloatArray:
    """Return what no coordinate of a report exceeds in absolute value, arrays [n]: grid points.

    Rounded to the nearest point of its grid, a sum of a mean and `bits`-bit noise stays below the
    first point beyond both their largest values. Raises what `grid_step` raises.
    """
    good = (scale >= SMALLEST) & (scale <= LARGEST) & (radius >= 0.0) & (radius <= LARGEST)
    for index in np.flatnonzero(~good)[:1]:
        grid_step(float(scale[index]), float(radius[index]))
    variate = REACH[law] if bits == 64 else largest_variate(law, bits)
    return np.asarray((np.floor((radius + scale * variate) / step) + 1.0) * step)
