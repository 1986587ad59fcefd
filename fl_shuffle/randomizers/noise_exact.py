"""Reports on the grid as the ideal, continuous noise would have them.

A word W stands for an interval of a continuous uniform; further bits of the same stream say where
in it. Double precision decides nearly every coordinate: it errs by less than `TOLERANCE` noise
widths, so that only where the sum lies that close to the middle between two grid points may the
ideal report be another. There (and for the few words that double precision treats coarsely) the sum
is computed again to 400 bits with 256 more random bits. Reports then have the distribution of
rounded continuous noise but for an event of probability 2^-150 a coordinate (docs/research/proofs,
section 9)."""

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

TOLERANCE = 2.0**-36
"""Noise standard deviations. Double precision is off by less than 2^-40 for words that are not
`coarse`."""
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
    """Return numbers of 400 bits; few runs need one, and loading them takes a while."""
    import mpmath

    numbers = mpmath.mp.clone()
    numbers.prec = 400
    return numbers


def coarse(words: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return words whose uniform is below 2^-23 or above 1 - 2^-20: a double sees too little of
    them."""
    places = np.where(words < 0, ~words, words)
    return np.asarray((places < _LOW) | (places >= _HIGH))


def doubtful(
    sums: NDArray[np.float64],
    rounded: NDArray[np.float64],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Return where double precision cannot tell the grid point; sums [k, d], scale and step [k]."""
    sure = step * (0.5 - ROUNDING) - scale * TOLERANCE
    return np.asarray(np.abs(sums - rounded) >= sure[:, None])


def more_bits(key: bytes, client: int, tile: int, place: int) -> tuple[int, int]:
    """Return 256 further bits of each of two uniforms, from the stream's key and the pair's
    place."""
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
    """Return the grid point nearest to mean + scale * ideal variate.

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
    """Words [k, w] of a tile of k clients, and the key that further bits come from."""

    key: bytes
    clients: NDArray[np.int64]
    tile: int
    words: NDArray[np.int64]

    def exactly(
        self, law: str, mean: float, scale: float, step: float, row: int, place: int
    ) -> float:
        """Return the report of one coordinate of a row, `exact_report` of its words and further
        bits."""
        if law == "laplace":
            pair, is_sine = place, False
        else:
            half = self.words.shape[1] // 2
            pair, is_sine = place % half, place >= half
        more, rest = more_bits(self.key, int(self.clients[row]), self.tile, pair)
        angle = None if law == "laplace" else (int(self.words[row, half + pair]), rest, is_sine)
        return exact_report(mean, scale, step, int(self.words[row, pair]), more, angle)


def variates(law: str, words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return standard variates [k, w] in double precision: of normal ones the cosines, then the
    sines."""
    uniform = torch.from_numpy(words.astype(np.float64)).mul_(2.0**-63).add_(2.0**-64)
    if law == "laplace":
        found = uniform.abs().log_().neg_().copysign_(uniform)
    else:
        size, turn = uniform.chunk(2, dim=1)
        radius, angle = size.square().log_().neg_().sqrt_(), turn * math.pi
        found = torch.cat([angle.cos().mul_(radius), angle.sin_().mul_(radius)], dim=1)
    return np.asarray(found.numpy())


def add(
    law: str,
    source: Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """Set rows [k, n] to the grid points of rows + scale [k] times noise, as the ideal noise has
    them; without a step (zeros) noise is only added."""
    columns = rows.shape[1]
    sums = rows + scale[:, None] * variates(law, source.words)[:, :columns]
    if not step[0] > 0.0:
        rows[:] = sums
        return
    rounded = np.rint(sums / step[:, None]) * step[:, None]
    coarse_words = coarse(source.words)
    if law == "normal":
        # A pair's radius is of the one word, whose halves' variates it makes.
        coarse_words = np.tile(coarse_words[:, : source.words.shape[1] // 2], 2)
    unsure = doubtful(sums, rounded, scale, step) | coarse_words[:, :columns]
    for row, place in np.argwhere(unsure).tolist():
        mean = float(rows[row, place])
        rounded[row, place] = source.exactly(
            law, mean, float(scale[row]), float(step[row]), row, place
        )
    rows[:] = rounded
