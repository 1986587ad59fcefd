"""Normal and Laplace variates of 32-bit words, added to rows and rounded in one pass.

Only float32 sums, products and square roots and integer operations, each rounded as IEEE 754 says,
in this order, and no fused multiply-add: the bits are the same on every processor and in every
version of the libraries. (Libraries' own log, sin and cos differ.)

The polynomials are minimax fits. Errors, in units of the last place, measured against float64 in
the tests: below 2 for the logarithm, below 3 for cosine and sine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle._internal.compiled import bits_of, float_of, inlined, kernel

# Sums of int32 are int64 in numba unless they are cast back.
real, word = np.float32, np.int32

# ln(1 + v) = v - v^2/2 + v^3 (A0 + A1 v + ... + A7 v^7) for sqrt(1/2) <= 1 + v < sqrt(2).
A0, A1, A2, A3, A4, A5, A6, A7 = (
    real(value)
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
    real(value) for value in (-0.16666655242443085, 0.00833216030150652, -0.00019515282474458218)
)
C0, C1, C2 = (
    real(value) for value in (0.04166664555668831, -0.0013887316454201937, 2.44331567955669e-05)
)
LN2, HALF, ONE, MINUS_TWO = real(np.log(2.0)), real(0.5), real(1.0), real(-2.0)
UNIT, HALF_UNIT, ANGLE = real(2.0**-31), real(2.0**-32), real(np.pi * 2.0**-31)
ROOT_HALF = word(0x3F3504F3)
MANTISSA_BITS, SIGN, MAGNITUDE = word(23), word(-(2**31)), word(2**31 - 1)
EIGHTH, QUARTER, WITHIN_QUARTER = word(2**29), word(2**30), word(2**30 - 1)


@inlined
def logarithm(u: Any) -> Any:
    """Return ln u of positive numbers that are not denormal."""
    bits = bits_of(u)
    exponent = word(word(bits - ROOT_HALF) >> MANTISSA_BITS)
    v = float_of(word(bits - word(exponent << MANTISSA_BITS))) - ONE
    z = v * v
    low = (A0 + A1 * v) + z * (A2 + A3 * v)
    high = (A4 + A5 * v) + z * (A6 + A7 * v)
    tail = (low + (z * z) * high) * v * z - HALF * z
    return real(exponent) * LN2 + (v + tail)


@inlined
def _uniform(value: Any) -> Any:
    """Return (W + 1/2) 2^-31, in (-1, 1) but for rounding to the ends."""
    return real(value) * UNIT + HALF_UNIT


@inlined
def _magnitude(value: Any) -> Any:
    return float_of(word(bits_of(value) & MAGNITUDE))


@inlined
def cosine_and_sine(value: Any) -> Any:
    """Return cos and sin of pi W 2^-31."""
    # Eighths of a turn around 0, 1/4, 1/2, 3/4 of one; sums of words wrap around like angles.
    turned = word(value + EIGHTH)
    t = real(word(word(turned & WITHIN_QUARTER) - EIGHTH)) * ANGLE
    z = t * t
    sine = t + t * z * (B0 + z * (B1 + z * B2))
    cosine = (ONE - HALF * z) + z * z * (C0 + z * (C1 + z * C2))
    swapped = word(turned & QUARTER) != 0
    x = sine if swapped else cosine
    y = cosine if swapped else sine
    return (
        float_of(word(bits_of(x) ^ word(word(turned + QUARTER) & SIGN))),
        float_of(word(bits_of(y) ^ word(turned & SIGN))),
    )


@kernel()
def _add_normal(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, magic: Any
) -> None:
    """Set rows [k, columns] to round(rows + scale * normal): Box-Muller of the k rows of words [k,
    w].

    The first half of a row of words gives radii, the other half angles, and w >= columns variates:
    the cosines, then the sines. Row k begins at flat[first + k stride]; scale, magic: [k], and
    adding and taking away `magic` is what rounds. The words are overwritten.
    """
    half = words.shape[1] // 2
    both = max(columns - half, 0)
    single = min(columns, half)
    for row in range(words.shape[0]):
        size, grid = scale[row], magic[row]
        start = first + row * stride
        radius, angle = words[row, :half], words[row, half:]
        left = flat[start : start + single]
        right = flat[start + single : start + single + both]
        # Two short loops: more of their steps are under way at a time.
        for j in range(half):
            root = np.sqrt(MINUS_TWO * logarithm(_magnitude(_uniform(radius[j]))))
            radius[j] = bits_of(root * size)
        for j in range(both):
            x, y = cosine_and_sine(angle[j])
            left[j] = ((left[j] + float_of(radius[j]) * x) + grid) - grid
            right[j] = ((right[j] + float_of(radius[j]) * y) + grid) - grid
        for j in range(both, single):
            x, y = cosine_and_sine(angle[j])
            left[j] = ((left[j] + float_of(radius[j]) * x) + grid) - grid


@kernel()
def _add_laplace(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, magic: Any
) -> None:
    """Add as `_add_normal` with Laplace variates: |ln U| with the word's sign."""
    for row in range(words.shape[0]):
        size, grid = scale[row], magic[row]
        start = first + row * stride
        values = flat[start : start + columns]
        own = words[row, :columns]
        for j in range(columns):
            uniform = _uniform(own[j])
            amount = logarithm(_magnitude(uniform)) * size
            sign = word(bits_of(uniform) & SIGN)
            noise = float_of(word(word(bits_of(amount) & MAGNITUDE) | sign))
            values[j] = ((values[j] + noise) + grid) - grid


LOOPS = {"normal": _add_normal, "laplace": _add_laplace}
