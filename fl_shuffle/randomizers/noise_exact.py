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
import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 2.0**-36
"""Noise widths. Double precision is off by less than 2^-40 for words that are not `coarse`."""
ROUNDING = 2.0**-28
"""Grid steps: what the sum of mean and noise, below 2^23 steps, may lose in double precision."""
LARGEST = 1 << 23
"""Reports are cut at so many steps, which is post-processing."""
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
        steps = int(ctx.nint((ctx.mpf(mean) + ctx.mpf(scale) * variate) / ctx.mpf(step)))
    return max(-LARGEST, min(LARGEST, steps)) * step


def _fraction(bits: int) -> Any:
    return _numbers().ldexp(_numbers().mpf(2 * bits + 1), -MORE_BITS - 1)
