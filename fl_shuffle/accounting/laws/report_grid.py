"""The public grid that noisy reports are rounded to: a function of noise scales and radii alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]


def grid_steps(scale: ArrayLike, radius: ArrayLike) -> Vector:
    """The step of reports with noise `scale` and means of norm at most `radius`, elementwise.

    The smallest power of two that is at least scale 2^-16 and at least
    (radius + 12 scale) 2^-21.
    """
    scales, radii = np.asarray(scale, np.float64), np.asarray(radius, np.float64)
    finest = np.maximum(scales * 2.0**-16, (radii + 12.0 * scales) * 2.0**-21)
    mantissa, exponent = np.frexp(finest)
    steps: Vector = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return steps


def report_grids(scale: Vector, radius: Vector) -> Vector:
    """The step of each class of clients [classes]: one for all that share a noise scale.

    It is that of the largest of their radii: a grid of its own would tell a report's class.
    """
    scales, inverse = np.unique(scale, return_inverse=True)
    inverse = inverse.reshape(-1)
    reach = np.zeros(len(scales))
    np.maximum.at(reach, inverse, radius)
    steps: Vector = grid_steps(scales, reach)[inverse]
    return steps
