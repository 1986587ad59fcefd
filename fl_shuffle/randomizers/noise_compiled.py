"""The loops of `noise_laws`, compiled: the same operations in the same order, the same bits.

One pass over a row instead of fifty, and no interpreter in between, so that threads do not wait for
each other. Rows are given as one vector with a stride, which compiles to plain vector loads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.compiled import bits_of, float_of, inlined, kernel
from fl_shuffle.randomizers import noise_laws
from fl_shuffle.randomizers.noise_laws import (
    A0,
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    ANGLE,
    B0,
    B1,
    B2,
    C0,
    C1,
    C2,
    EIGHTH,
    HALF,
    HALF_UNIT,
    LN2,
    MAGNITUDE,
    MANTISSA_BITS,
    MINUS_TWO,
    ONE,
    QUARTER,
    ROOT_HALF,
    SIGN,
    UNIT,
    WITHIN_QUARTER,
    AddTo,
)

# Sums of int32 are int64 in numba unless they are cast back.
real, word = np.float32, np.int32


@inlined
def _logarithm(u: Any) -> Any:
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
    return real(value) * UNIT + HALF_UNIT


@inlined
def _magnitude(value: Any) -> Any:
    return float_of(word(bits_of(value) & MAGNITUDE))


@inlined
def _cosine_and_sine(value: Any) -> Any:
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


@kernel(noise_laws)
def _add_normal(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, magic: Any
) -> None:
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
            root = np.sqrt(MINUS_TWO * _logarithm(_magnitude(_uniform(radius[j]))))
            radius[j] = bits_of(root * size)
        for j in range(both):
            x, y = _cosine_and_sine(angle[j])
            left[j] = ((left[j] + float_of(radius[j]) * x) + grid) - grid
            right[j] = ((right[j] + float_of(radius[j]) * y) + grid) - grid
        for j in range(both, single):
            x, y = _cosine_and_sine(angle[j])
            left[j] = ((left[j] + float_of(radius[j]) * x) + grid) - grid


@kernel(noise_laws)
def _add_laplace(
    words: Any, flat: Any, first: int, stride: int, columns: int, scale: Any, magic: Any
) -> None:
    for row in range(words.shape[0]):
        size, grid = scale[row], magic[row]
        start = first + row * stride
        values = flat[start : start + columns]
        own = words[row, :columns]
        for j in range(columns):
            uniform = _uniform(own[j])
            amount = _logarithm(_magnitude(uniform)) * size
            sign = word(bits_of(uniform) & SIGN)
            noise = float_of(word(word(bits_of(amount) & MAGNITUDE) | sign))
            values[j] = ((values[j] + noise) + grid) - grid


_LOOPS = {"normal": _add_normal, "laplace": _add_laplace}


def on(law: str, target: NDArray[np.float32]) -> AddTo:
    """`noise_laws.LAWS[law]` on blocks of the target [n, d], whose rows have unit stride."""
    loop = _LOOPS[law]
    count, dimension = target.shape
    stride = target.strides[0] // target.itemsize
    length = (count - 1) * stride + dimension
    flat = np.lib.stride_tricks.as_strided(target, (length,), (target.itemsize,))

    def add(
        words: NDArray[np.int32],
        rows: slice,
        columns: slice,
        scale: NDArray[np.float32],
        magic: NDArray[np.float32],
    ) -> None:
        start = rows.start * stride + columns.start
        loop(words, flat, start, stride, columns.stop - columns.start, scale, magic)

    return add
