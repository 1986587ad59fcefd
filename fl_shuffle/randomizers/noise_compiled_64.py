"""Reports with 64-bit noise, compiled: one pass from the cipher's words to the public grid.

Double precision decides nearly every coordinate; those where it cannot are marked, to be worked out
as `noise_exact` does. So a report has the bits of ideal arithmetic, hence those of the libraries'
functions, too, though logarithm, sine and cosine are written out here. They are good to some 2^-50,
where 2^-40 would do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.compiled import bits_of_double, double_of, inlined, kernel
from fl_shuffle.randomizers import noise_exact

_real, _word = np.float64, np.int64
ONE, HALF, TWO = _real(1.0), _real(0.5), _real(2.0)
# ln 2 in two parts, so that whole multiples of the first are exact.
LN2 = _real(float(np.float32(math.log(2.0))))
LN2_REST = _real(math.log(2.0) - float(LN2))
UNIT, HALF_UNIT = _real(2.0**-63), _real(2.0**-64)
ANGLE = _real(math.pi * 2.0**-63)
ROOT_HALF, MANTISSA_BITS = _word(0x3FE6A09E667F3BCD), _word(52)
EIGHTH, QUARTER, WITHIN_QUARTER = _word(1 << 61), _word(1 << 62), _word((1 << 62) - 1)
SIGN, NOUGHT = _word(-(1 << 63)), _word(0)
LOW, HIGH = _word(1 << 40), _word((1 << 63) - (1 << 43))
# Adding and taking away this many steps rounds to a multiple of the step.
MAGIC = _real(1.5 * 2.0**52)
SURE, TOLERANCE = _real(0.5 - noise_exact.ROUNDING), _real(noise_exact.TOLERANCE)
# ln m = 2 s (1 + s^2/3 + s^4/5 + ...), s = (m - 1)/(m + 1), |s| < 0.172.
A3, A5, A7, A9, A11, A13, A15, A17, A19, A21 = (_real(2.0 / n) for n in range(3, 22, 2))
# Taylor's series for |t| <= pi/4: of the sine to t^15, of the cosine to t^16.
S3, S5, S7, S9, S11, S13, S15 = (
    _real((-1.0) ** (n // 2) / math.factorial(n)) for n in range(3, 16, 2)
)
C4, C6, C8, C10, C12, C14, C16 = (
    _real((-1.0) ** (n // 2) / math.factorial(n)) for n in range(4, 17, 2)
)


@inlined
def _logarithm(u: Any) -> Any:
    """ln u for 2^-64 <= u <= 1."""
    bits = bits_of_double(u)
    exponent = (bits - ROOT_HALF) >> MANTISSA_BITS
    m = double_of(bits - (exponent << MANTISSA_BITS))
    s = (m - ONE) / (m + ONE)
    z = s * s
    y = z * z
    tail = (A3 + A5 * z) + y * ((A7 + A9 * z) + y * ((A11 + A13 * z) + y * (
        (A15 + A17 * z) + y * (A19 + A21 * z)
    )))  # fmt: skip
    places = _real(exponent)
    return places * LN2 + (TWO * s + (s * z * tail + places * LN2_REST))


@inlined
def _cosine_and_sine(word: Any) -> Any:
    """cos and sin of pi W 2^-63."""
    turned = word + EIGHTH
    t = _real((turned & WITHIN_QUARTER) - EIGHTH) * ANGLE
    z = t * t
    y = z * z
    sine = t + t * z * ((S3 + S5 * z) + y * ((S7 + S9 * z) + y * ((S11 + S13 * z) + y * S15)))
    cosine = (ONE - HALF * z) + y * (
        (C4 + C6 * z) + y * ((C8 + C10 * z) + y * ((C12 + C14 * z) + y * C16))
    )
    swapped = (turned & QUARTER) != NOUGHT
    a = sine if swapped else cosine
    b = cosine if swapped else sine
    return (
        double_of(bits_of_double(a) ^ ((turned + QUARTER) & SIGN)),
        double_of(bits_of_double(b) ^ (turned & SIGN)),
    )


@inlined
def _place(values: Any, noise: Any, sizes: Any, scale: Any, step: Any, unsure: Any) -> Any:
    """values <- the grid points of values + noise; those in doubt stay, are marked, and counted.

    sizes: the words that made the noise's sizes (see `noise_exact.coarse`).
    """
    sure, magic = step * SURE - scale * TOLERANCE, MAGIC * step
    found = 0
    for j in range(values.size):
        total = _real(values[j]) + noise[j]
        rounded = (total + magic) - magic
        word = sizes[j]
        place = ~word if word < NOUGHT else word
        doubt = (place < LOW) | (place >= HIGH) | (abs(total - rounded) >= sure)
        unsure[j] = doubt
        found += 1 if doubt else 0
        values[j] = values[j] if doubt else np.float32(rounded)
    return found


@kernel(noise_exact)
def _add_normal(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, step: Any,
    noise: Any, unsure: Any,
) -> int:  # fmt: skip
    half = words.shape[1] // 2
    single = min(columns, half)
    cosines, sines = noise[:half], noise[half : 2 * half]
    found = 0
    for row in range(words.shape[0]):
        size = scale[row]
        radius, angle = words[row, :half], words[row, half:]
        for j in range(half):
            u = abs(_real(radius[j]) * UNIT + HALF_UNIT)
            root = size * np.sqrt(-TWO * _logarithm(u))
            x, y = _cosine_and_sine(angle[j])
            cosines[j] = root * x
            sines[j] = root * y
        start = first + row * stride
        own = unsure[row]
        left, right = flat[start : start + single], flat[start + single : start + columns]
        found += _place(left, cosines, radius, size, step[row], own[:single])
        found += _place(right, sines, radius, size, step[row], own[single:columns])
    return found


@kernel(noise_exact)
def _add_laplace(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, step: Any,
    noise: Any, unsure: Any,
) -> int:  # fmt: skip
    found = 0
    for row in range(words.shape[0]):
        size, own = scale[row], words[row, :columns]
        for j in range(columns):
            u = _real(own[j]) * UNIT + HALF_UNIT
            amount = -size * _logarithm(abs(u))
            noise[j] = -amount if own[j] < NOUGHT else amount
        start = first + row * stride
        values = flat[start : start + columns]
        found += _place(values, noise, own, size, step[row], unsure[row, :columns])
    return found


_LOOPS = {"normal": _add_normal, "laplace": _add_laplace}


def add(
    law: str,
    words: NDArray[np.int64],
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
    noise: NDArray[np.float64],
    unsure: NDArray[np.bool_],
) -> int:
    """rows [k, n], of unit stride, <- the grid points of rows + scale * noise of words [k, w].

    Coordinates in doubt keep their means, are marked in unsure [k, n], and counted in what is
    returned. noise [w] is working memory; steps are positive.
    """
    count, columns = rows.shape
    stride = rows.strides[0] // rows.itemsize
    length = (count - 1) * stride + columns
    flat = np.lib.stride_tricks.as_strided(rows, (length,), (rows.itemsize,))
    return int(_LOOPS[law](words, flat, 0, stride, columns, scale, step, noise, unsure))
