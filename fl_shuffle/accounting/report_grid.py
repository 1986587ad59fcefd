"""The public grid that noisy reports lie on: a function of noise scales and radii alone; and which
continuous noise discrete Gaussian noise on a grid is as good as.

Discrete Gaussian noise of scale s on a grid of step g is computed from continuous noise of variance
s^2 - c^2 g^2, and noise of variance s^4 / (s^2 - c^2 g^2) from it, c = `GRID_SMOOTHING`, both up to
a factor too small to change any number (docs/research/proofs, section 14).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.round_off import UNIT

GRID_SMOOTHING = 4.0
"""Grid steps of smooth noise between reports, or their sum, and their grid. What the grid still
reveals is below e^(-2 pi^2 4^2), 10^-137 per report and coordinate. It may be raised, never
lowered."""
LEAST_STEPS = 8.0
"""Discrete noise of fewer steps of its grid is not compared with continuous noise."""


def grid_steps(scale: ArrayLike, radius: ArrayLike) -> Vector:
    """Return the step of reports with noise `scale` and means of norm at most `radius`,
    elementwise.

    The smallest power of two that is at least scale 2^-16 and at least
    (radius + 12 scale) 2^-21.
    """
    # A step of at least (radius + 12 scale) 2^-21: a report that far out is a whole number of at
    # most 2^21 steps, and float32 holds those up to 2^24 exactly.
    scales, radii = np.asarray(scale, np.float64), np.asarray(radius, np.float64)
    finest = np.maximum(scales * 2.0**-16, (radii + 12.0 * scales) * 2.0**-21)
    # `frexp` gives finest = mantissa 2^exponent with a mantissa in [1/2, 1): one half is a power
    # of two already, and everything else is rounded up to 2^exponent.
    mantissa, exponent = np.frexp(finest)
    steps: Vector = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return steps


def coarsest_step(radius: float) -> float:
    """Return an upper bound of `grid_steps`, in noise scales, for means of norm at most `radius`.

    `radius` is in noise scales too. The bound holds for every noise scale, because rounding up to
    a power of two adds less than a factor of two.
    """
    return 2.0 * max(2.0**-16, (radius + 12.0) * 2.0**-21)


def report_grids(scale: Vector, radius: Vector) -> Vector:
    """Return the step of each class of clients [classes]: one for all that share a noise scale.

    It is that of the largest of their radii: a grid of its own would tell a report's class.
    """
    scales, inverse = np.unique(scale, return_inverse=True)
    inverse = inverse.reshape(-1)
    reach = np.zeros(len(scales))
    np.maximum.at(reach, inverse, radius)
    steps: Vector = grid_steps(scales, reach)[inverse]
    return steps


def hiding_scale(scale: ArrayLike, step: ArrayLike) -> Vector:
    """Return the continuous noise from which discrete noise of `scale` is computed; rounded down.

    Elementwise; every scale above `GRID_SMOOTHING` steps.
    """
    # (s - cg)(s + cg) = s^2 - c^2 g^2 without cancellation; its round-off is below eight units.
    own, smooth = np.asarray(scale, np.float64), GRID_SMOOTHING * np.asarray(step, np.float64)
    rounded: Vector = np.sqrt((own - smooth) * (own + smooth)) * (1.0 - 8.0 * UNIT)
    return rounded


def revealing_scale(scale: ArrayLike, step: ArrayLike) -> Vector:
    """Return the continuous noise that is computed from discrete noise of `scale`; rounded up."""
    # sqrt(W) = s^2/sqrt(V), from a V that is rounded down: rounded up.
    own = np.asarray(scale, np.float64)
    rounded: Vector = own * own / hiding_scale(own, step) * (1.0 + 8.0 * UNIT)
    return rounded
