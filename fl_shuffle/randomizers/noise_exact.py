"""Reports on the grid as the ideal, continuous noise would have them.

A word W stands for an interval of a continuous uniform; further bits of the same stream say where
in it. Double precision decides nearly every coordinate: it errs by less than `TOLERANCE` noise
widths, so that only where the sum lies that close to the middle between two grid points may the
ideal report be another. There (and for the few words that double precision treats coarsely) the sum
is worked out again to 400 bits with 256 more random bits. Reports then have the law of rounded
continuous noise but for an event of probability 2^-150 a coordinate (docs/proofs.md, section 9).
"""

from __future__ import annotations

import hashlib
import math
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.randomizers.noise_words import Scratch

TOLERANCE = 2.0**-36
"""Noise widths. Double precision is off by less than 2^-40 for words that are not `coarse`."""
ROUNDING = 2.0**-28
"""Grid steps: what the sum of mean and noise, below 2^23 steps, may lose in double precision."""
REACH = {"normal": 14.3, "laplace": 104.0}
"""Variates are cut here: ideal ones go beyond with probability below 2^-150. So there is a bound
that no honest report exceeds, by which others are told; and float32 holds every report, below 2^24
steps of a grid as `additive.grid_step` makes them."""
MORE_BITS = 256
"""Further bits of a uniform number, behind the 63 of its word."""
_LOW, _HIGH = np.int64(1 << 40), np.int64((1 << 63) - (1 << 43))

_lock = threading.Lock()


@cache
def _numbers() -> Any:
    """Numbers of 400 bits; few runs need one, and loading them takes a while."""
    import mpmath

    numbers = mpmath.mp.clone()
    numbers.prec = 400
    return numbers


def coarse(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Words whose uniform is below 2^-23 or above 1 - 2^-20: a double sees too little of them."""
    places = np.where(words < 0, ~words, words)
    return np.asarray((places < _LOW) | (places >= _HIGH))


def doubtful(
    sums: NDArray[np.float64],
    rounded: NDArray[np.float64],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Where double precision cannot tell the grid point; sums [k, d], scale and step [k]."""
    sure = step * (0.5 - ROUNDING) - scale * TOLERANCE
    return np.asarray(np.abs(sums - rounded) >= sure[:, None])


def more_bits(key: bytes, client: int, tile: int, place: int) -> tuple[int, int]:
    """256 further bits of each of two uniforms, from the stream's key and the pair's place."""
    purpose = f"more bits {client} {tile} {place}".encode()
    digest = hashlib.blake2b(purpose, key=key, digest_size=64, person=b"fl-shuffle exact").digest()
    return int.from_bytes(digest[:32], "big"), int.from_bytes(digest[32:], "big")


def exact_report(
    mean: float,
    scale: float,
    step: float,
    first: int,
    more: int,
    angle: tuple[int, int, bool] | None,
) -> float:
    """The grid point nearest to mean + scale * ideal variate.

    `first`, `more`: the word of the size and its further bits. `angle` is (word, further bits,
    whether the sine is taken) for a normal variate, None for a Laplace variate.
    """
    with _lock:
        ctx = _numbers()
        place = first if first >= 0 else ~first
        uniform = ctx.ldexp(ctx.mpf(place) + _fraction(more), -63)
        if angle is None:
            variate = -ctx.log(uniform) * (1 if first >= 0 else -1)
        else:
            word, rest, is_sine = angle
            turn = ctx.pi * ctx.ldexp(ctx.mpf(word) + _fraction(rest), -63)
            variate = ctx.sqrt(-2 * ctx.log(uniform)) * (
                ctx.sin(turn) if is_sine else ctx.cos(turn)
            )
        reach = REACH["laplace" if angle is None else "normal"]
        variate = max(-reach, min(reach, variate))
        steps = int(ctx.nint((ctx.mpf(mean) + ctx.mpf(scale) * variate) / ctx.mpf(step)))
    return steps * step


def _fraction(bits: int) -> Any:
    return _numbers().ldexp(_numbers().mpf(2 * bits + 1), -MORE_BITS - 1)


@dataclass(frozen=True)
class Source:
    """64-bit words [k, w] of one tile, and where their further bits come from."""

    key: bytes
    clients: NDArray[np.int64]
    tile: int
    words: NDArray[np.int64]


_scratch = Scratch()


def _floats(rows: int, columns: int) -> tuple[tuple[torch.Tensor, NDArray[np.float64]], ...]:
    """A thread's three arrays: as torch vectors, whose log, sin and cos are fast, and [k, n]."""
    vectors = [buffer[: rows * columns] for buffer in _scratch.floats]
    return tuple((vector, vector.numpy().reshape(rows, columns)) for vector in vectors)


def _add_normal_64(
    source: Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """As the 32-bit form, in float64, rounded as the ideal sum is."""
    words = source.words
    half = words.shape[1] // 2
    (flat_radius, radius), (flat_angle, angle), (flat_cosine, cosine) = _floats(len(rows), half)
    np.copyto(radius, words[:, :half], casting="unsafe")
    np.copyto(angle, words[:, half:], casting="unsafe")
    np.multiply(radius, 2.0**-63, out=radius)
    np.add(radius, 2.0**-64, out=radius)
    # ln U^2 instead of 2 ln |U|: one pass less.
    np.multiply(radius, radius, out=radius)
    torch.log(flat_radius, out=flat_radius)
    np.multiply(radius, -np.square(scale)[:, None], out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(angle, math.pi * 2.0**-63, out=angle)
    torch.cos(flat_angle, out=flat_cosine)
    torch.sin(flat_angle, out=flat_angle)
    for is_sine, factor in enumerate((cosine, angle)):
        part = rows[:, is_sine * half : (is_sine + 1) * half]
        noise = factor[:, : part.shape[1]]
        np.multiply(radius[:, : part.shape[1]], noise, out=noise)
        _place_64(source, part, noise, scale, step, bool(is_sine))


def _add_laplace_64(
    source: Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """As the 32-bit form, in float64, rounded as the ideal sum is."""
    words = source.words
    (_, uniform), (flat_size, size), _ = _floats(len(rows), words.shape[1])
    np.copyto(uniform, words, casting="unsafe")
    np.multiply(uniform, 2.0**-63, out=uniform)
    np.add(uniform, 2.0**-64, out=uniform)
    np.absolute(uniform, out=size)
    torch.log(flat_size, out=flat_size)
    np.multiply(size, scale[:, None], out=size)
    noise = size[:, : rows.shape[1]]
    np.copysign(noise, uniform[:, : rows.shape[1]], out=noise)
    _place_64(source, rows, noise, scale, step, None)


def _place_64(
    source: Source,
    part: NDArray[np.float32],
    noise: NDArray[np.float64],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
    is_sine: bool | None,
) -> None:
    """part <- the grid points of part + noise, as the ideal noise has them; or part + noise.

    `is_sine` says which half of the normal pairs this is; None for Laplace variates.
    """
    np.add(part, noise, out=noise)
    if not step[0] > 0.0:
        np.copyto(part, noise, casting="same_kind")
        return
    rounded = np.rint(noise / step[:, None]) * step[:, None]
    unsure = doubtful(noise, rounded, scale, step)
    unsure |= coarse(source.words[:, : part.shape[1]])
    for row, place in np.argwhere(unsure).tolist():
        rounded[row, place] = _exactly(source, part, scale, step, row, place, is_sine)
    np.copyto(part, rounded, casting="same_kind")


def _exactly(
    source: Source,
    part: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
    row: int,
    place: int,
    is_sine: bool | None,
) -> float:
    """The report of one coordinate of a half's `part`, whose mean is still there."""
    more, rest = more_bits(source.key, int(source.clients[row]), source.tile, place)
    angle = None
    if is_sine is not None:
        half = source.words.shape[1] // 2
        angle = int(source.words[row, half + place]), rest, is_sine
    return exact_report(
        float(part[row, place]), float(scale[row]), float(step[row]),
        int(source.words[row, place]), more, angle,
    )  # fmt: skip


ADD_64 = {"normal": _add_normal_64, "laplace": _add_laplace_64}
"""(source, rows [k, n], scale [k], step [k]): noise of 64-bit words, added and rounded; without a
step (zeros) it is only added."""
