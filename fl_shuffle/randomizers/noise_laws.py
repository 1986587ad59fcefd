"""Normal and Laplace variates of 32-bit words in float32, in operations with one correct result.

Only float32 sums, products and square roots and integer operations, rounded as IEEE 754 says, in
this order: the bits are then the same in NumPy here and in the compiled loops of `noise_compiled`,
on every processor and in every version of the libraries. (Libraries' own log, sin and cos differ.)

The polynomials are minimax fits. Errors, in units of the last place, measured against float64 in
the tests: below 2 for the logarithm, below 3 for cosine and sine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Words = NDArray[np.int32]

AddTo = Callable[[NDArray[Any], slice, slice, NDArray[Any], NDArray[Any]], None]
"""(words, rows, columns, scale, magic): adds noise to a block of some target, in place."""

_real, _word = np.float32, np.int32

# ln(1 + v) = v - v^2/2 + v^3 (A0 + A1 v + ... + A7 v^7) for sqrt(1/2) <= 1 + v < sqrt(2).
A0, A1, A2, A3, A4, A5, A6, A7 = (
    _real(value)
    for value in (
        0.3333333134651184,
        -0.2500081956386566,
        0.20001226663589478,
        -0.16623356938362122,
        0.14201757311820984,
        -0.13160182535648346,
        0.1276157796382904,
        -0.07634497433900833,
    )
)
# sin t = t + t^3 (B0 + B1 t^2 + B2 t^4) and cos t = 1 - t^2/2 + t^4 (C0 + C1 t^2 + C2 t^4) for
# |t| <= pi/4.
B0, B1, B2 = (
    _real(value) for value in (-0.16666655242443085, 0.00833216030150652, -0.00019515282474458218)
)
C0, C1, C2 = (
    _real(value) for value in (0.04166664555668831, -0.0013887316454201937, 2.44331567955669e-05)
)
LN2, HALF, ONE, MINUS_TWO = _real(np.log(2.0)), _real(0.5), _real(1.0), _real(-2.0)
UNIT, HALF_UNIT, ANGLE = _real(2.0**-31), _real(2.0**-32), _real(np.pi * 2.0**-31)
ROOT_HALF = _word(0x3F3504F3)
MANTISSA_BITS, SIGN, MAGNITUDE = _word(23), _word(-(2**31)), _word(2**31 - 1)
EIGHTH, QUARTER, WITHIN_QUARTER = _word(2**29), _word(2**30), _word(2**30 - 1)


def logarithm(u: Floats) -> Floats:
    """ln u of positive numbers that are not denormal."""
    bits = u.view(_word)
    exponent = (bits - ROOT_HALF) >> MANTISSA_BITS
    v = (bits - (exponent << MANTISSA_BITS)).view(_real) - ONE
    z = v * v
    low = (A0 + A1 * v) + z * (A2 + A3 * v)
    high = (A4 + A5 * v) + z * (A6 + A7 * v)
    tail = (low + (z * z) * high) * v * z - HALF * z
    return np.asarray(exponent.astype(_real) * LN2 + (v + tail))


def cosine_and_sine(words: Words) -> tuple[Floats, Floats]:
    """cos and sin of pi W 2^-31."""
    # Eighths of a turn around 0, 1/4, 1/2, 3/4 of one; sums of words wrap around like angles.
    turned = words + EIGHTH
    t = ((turned & WITHIN_QUARTER) - EIGHTH).astype(_real) * ANGLE
    z = t * t
    sine = t + t * z * (B0 + z * (B1 + z * B2))
    cosine = (ONE - HALF * z) + z * z * (C0 + z * (C1 + z * C2))
    swapped = (turned & QUARTER) != 0
    x, y = np.where(swapped, sine, cosine), np.where(swapped, cosine, sine)
    x.view(_word)[...] ^= (turned + QUARTER) & SIGN
    y.view(_word)[...] ^= turned & SIGN
    return x, y


def _uniform(words: Words) -> Floats:
    """(W + 1/2) 2^-31, in (-1, 1) but for rounding to the ends."""
    return np.asarray(words.astype(_real) * UNIT + HALF_UNIT)


def add_normal(words: Words, rows: Floats, scale: Floats, magic: Floats) -> None:
    """rows [k, d] <- round(rows + scale * normal): Box-Muller of the k rows of words [k, w].

    The first half of a row of words gives radii, the other half angles, and w >= d variates: the
    cosines, then the sines. scale, magic: [k], and adding and taking away `magic` is what rounds.
    """
    half = words.shape[1] // 2
    u = np.abs(_uniform(words[:, :half]))
    radius = np.sqrt(MINUS_TWO * logarithm(u)) * scale[:, None]
    for start, factor in zip((0, half), cosine_and_sine(words[:, half:]), strict=True):
        part = rows[:, start : start + half]
        round_into(part, (radius * factor)[:, : part.shape[1]], magic)


def add_laplace(words: Words, rows: Floats, scale: Floats, magic: Floats) -> None:
    """The same with Laplace variates: |ln U| with the word's sign."""
    uniform = _uniform(words[:, : rows.shape[1]])
    size = logarithm(np.abs(uniform)) * scale[:, None]
    round_into(rows, np.copysign(size, uniform), magic)


def round_into(rows: Floats, noise: NDArray[Any], magic: NDArray[Any]) -> None:
    """rows <- round(rows + noise), in the noise's precision; the noise is overwritten."""
    np.add(rows, noise, out=noise)
    np.add(noise, magic[:, None], out=noise)
    np.subtract(noise, magic[:, None], out=rows, casting="same_kind")


LAWS = {"normal": add_normal, "laplace": add_laplace}
