"""Dead leaves: random pictures from a fixed seed, photographs that contain no data.

Leaves (ellipses and rectangles) fall on one another, as objects hide one another before a camera.
Where their radii r have a density of r^-3, such pictures have the edges, the occlusions and the
spectrum of natural ones at all scales (Lee, Mumford, and Huang, International Journal of Computer
Vision 2001). Here a leaf has a smooth shade, the picture a fine texture, and some are blurred.

Feature maps take means, covariances and filters from these pictures, so that all of these are
public constants of the program.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SEED: Final = 20261130
"""Fixed: the pictures are part of the features, no data and no noise."""
_MOST_LEAVES: Final = 60
_LEAST_LEAVES: Final = 4
LUMINANCE: Final = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in the gray of a picture (ITU-R BT.601)."""

Array = NDArray[np.float32]


def dead_leaves(block: int, count: int, channels: int, side: int) -> Array:
    """Return float32 [count, channels, side, side] in [0, 1], rounded to 256 levels.

    Parameters
    ----------
    block : int
        Which pictures: each block has a generator of its own, so that blocks may be drawn in any
        order and by any thread.
    count : int
        Number of pictures of the block.
    channels : int
        3 for color; 1 for the luminance of the same pictures.
    side : int
        Height and width in pixels. The sizes of leaves grow with it.
    """
    rng = np.random.default_rng([_SEED, block, side])
    axis = np.arange(side, dtype=np.float32) * np.float32(32 / side)
    picture = np.broadcast_to(_colors(rng, count)[:, :, None, None], (count, 3, side, side)).copy()
    leaves = rng.integers(_LEAST_LEAVES, _MOST_LEAVES, count)
    for number in range(_MOST_LEAVES):
        # All pictures draw every leaf, and those that have it already keep it out.
        cover, shade = _leaf(rng, count, axis)
        cover *= (number < leaves)[:, None, None]
        color = _colors(rng, count)[:, :, None, None] + shade[:, None]
        picture += cover[:, None] * (color - picture)
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    seen = _blurred(picture + _texture(rng, count, frequency)[:, None], rng, frequency)
    seen = np.clip(seen, 0.0, 1.0)
    if channels == 1:
        seen = np.tensordot(np.array(LUMINANCE), seen, axes=(0, 1))[:, None]
    levels = np.round(seen * 255.0)
    return np.ascontiguousarray(levels / 255.0, dtype=np.float32)


def _colors(rng: np.random.Generator, count: int) -> Array:
    """Return [count, 3]: a uniform lightness, and a tint whose strength varies."""
    light = rng.uniform(0.0, 1.0, count)
    first, second = rng.normal(size=(2, count)) * rng.exponential(0.12, (2, count))
    tinted = [light + first + second / 2, light - 0.3 * second, light - first + second / 2]
    return np.stack(tinted, axis=1).astype(np.float32)


def _leaf(rng: np.random.Generator, count: int, axis: Array) -> tuple[Array, Array]:
    """Return how much a leaf covers of each pixel, and its shade there; [count, side, side]."""

    def column(values: NDArray[np.floating]) -> Array:
        return values.astype(np.float32)[:, None, None]

    # A radius of density r^-3 from 1.5 to 24 pixels of 32, by inverting its distribution; some
    # leaves have a uniform one, for more middle-sized shapes.
    least, most = 1.5**-2, 24.0**-2
    radius = (least + rng.random(count) * (most - least)) ** -0.5
    radius = np.where(rng.random(count) < 0.7, radius, rng.uniform(2.0, 20.0, count))
    across = column(np.exp(rng.normal(size=count) / 2))
    turn = rng.uniform(0.0, math.pi, count)
    center = rng.uniform(-4.0, 36.0, (2, count))
    dx, dy = axis[None, None] - column(center[0]), axis[None, :, None] - column(center[1])
    cos, sin, size = column(np.cos(turn)), column(np.sin(turn)), column(radius)
    p = (dx * cos + dy * sin) / (size * across)
    q = (dy * cos - dx * sin) * (across / size)
    box = rng.random(count) >= 0.6
    away = np.sqrt(p * p + q * q)
    away[box] = np.maximum(np.abs(p[box]), np.abs(q[box]))
    soft = column(rng.choice([0.5, 1.0, 2.0], count))
    cover = np.clip((1 - away) * size * soft + np.float32(0.5), 0.0, 1.0)
    slope = rng.normal(0.0, 0.12, (2, count)) * rng.uniform(0.0, 1.0, count)
    shade = np.clip(column(slope[0]) * p + column(slope[1]) * q, -2.0, 2.0)
    return cover, shade


def _texture(rng: np.random.Generator, count: int, frequency: NDArray[np.float64]) -> Array:
    """Return noise [count, side, side] whose spectrum falls as a power of the frequency."""
    side = len(frequency)
    white = np.fft.rfft2(rng.normal(size=(count, side, side)))
    nonzero = np.where(frequency > 0, frequency, 1.0)
    noise = np.fft.irfft2(
        white / nonzero[None] ** rng.uniform(0.5, 1.5, count)[:, None, None], s=(side, side)
    )
    noise *= rng.exponential(0.05, count)[:, None, None] / noise.std(axis=(1, 2), keepdims=True)
    found: Array = noise.astype(np.float32)
    return found


def _blurred(
    picture: Array, rng: np.random.Generator, frequency: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the pictures, two in three of them behind a Gaussian blur of up to 0.9 pixels."""
    width = rng.uniform(0.0, 0.9, len(picture))
    width[width < 0.3] = 0.0
    keep = np.exp(-2.0 * (math.pi * width[:, None, None] * frequency[None]) ** 2)
    side = len(frequency)
    return np.fft.irfft2(np.fft.rfft2(picture) * keep[:, None], s=(side, side))
