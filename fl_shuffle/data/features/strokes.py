"""Drawn strokes: random smooth curves from a fixed seed, handwriting that contains no data.

Feature maps take their reference statistics (mean, covariance) from these images, so the
statistics are public constants of the program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.threads import on_all_cores

_POINTS = 48
"""Of a path: they lie about a pixel apart, or closer."""
_SEED = 20240521
"""Fixed: the drawn strokes are part of the features, no data and no noise."""
_BLOCK = 256
"""Images rendered at a time: they stay in the cache."""


def draw_strokes(count: int, side: int = 28) -> NDArray[np.float32]:
    """Return float32 [count, side, side] in [0, 1]: one pen path per image, some lifted once.

    The pen moves at constant speed; its direction turns at a smoothly varying random rate, which
    gives lines, hooks, waves and loops. The same `count` gives the same images on every machine.
    """
    rng = np.random.default_rng(_SEED)
    time = np.linspace(0.0, 1.0, _POINTS)
    turn = rng.normal(0.0, 4.5, (count, 1))
    sway = rng.normal(0.0, 2.5, (count, 1)) * np.sin(
        2 * np.pi * (time * rng.uniform(0.5, 1.5, (count, 1)) + rng.uniform(0, 1, (count, 1)))
    )
    heading = rng.uniform(0.0, 2 * np.pi, (count, 1)) + turn * time + sway
    # A corner: the pen turns on the spot at a random moment in half of the images.
    corner = rng.uniform(0.2, 0.8, (count, 1))
    heading += (time > corner) * rng.normal(0.0, 1.6, (count, 1)) * (rng.random((count, 1)) < 0.5)
    step = rng.uniform(22.0, 50.0, (count, 1)) / _POINTS
    x = np.cumsum(np.cos(heading) * step, axis=1)
    y = np.cumsum(np.sin(heading) * step, axis=1)
    # A second part: after a lift, the pen continues from another place.
    lift = rng.uniform(0.4, 0.8, (count, 1))
    jumped = (time > lift) & (rng.random((count, 1)) < 0.4)
    x += jumped * rng.normal(0.0, 6.0, (count, 1))
    y += jumped * rng.normal(0.0, 6.0, (count, 1))
    # Fit the drawing into a box of 20 x 20 pixels in the middle, as handwriting forms do.
    extent = np.maximum(np.ptp(x, axis=1), np.ptp(y, axis=1))[:, None] / (side * 20 / 28)
    extent = np.maximum(extent, 1e-3)
    middle = (side - 1) / 2
    x = (x - (x.max(axis=1) + x.min(axis=1))[:, None] / 2) / extent + middle
    y = (y - (y.max(axis=1) + y.min(axis=1))[:, None] / 2) / extent + middle
    pen = rng.uniform(0.9, 1.9, (count, 1, 1))
    ink = np.empty((count, side, side), dtype=np.float32)

    def render(start: int) -> None:
        part = slice(start, min(start + _BLOCK, count))
        ink[part] = _rendered(x[part], y[part], pen[part], side)

    on_all_cores(render, range(0, count, _BLOCK))
    return ink


def _rendered(
    x: NDArray[np.float64], y: NDArray[np.float64], pen: NDArray[np.float64], side: int
) -> NDArray[np.float64]:
    """Return ink in [0, 1] from the distance of every pixel to the nearest of the path's points."""
    # Images run along the last axis: long inner loops.
    axis = np.arange(side)[:, None]
    nearest = np.full((side, side, len(x)), np.inf, dtype=np.float32)
    distance = np.empty_like(nearest)
    for k in range(_POINTS):
        dx = (axis - x[:, k]).astype(np.float32) ** 2
        dy = (axis - y[:, k]).astype(np.float32) ** 2
        np.add(dy[:, None, :], dx[None, :, :], out=distance)
        np.minimum(nearest, distance, out=nearest)
    np.sqrt(nearest, out=nearest)
    ink = (pen[:, 0, 0] + 0.5) - nearest
    return np.clip(ink, 0.0, 1.0, out=ink).transpose(2, 0, 1)
