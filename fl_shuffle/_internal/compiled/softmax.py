"""Softmax of the columns of a matrix, a piece of kernels: loops that become vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_shuffle._internal.compiled import bits_of, float_of, piece

TILE = 64
"""Columns of a matrix; loops run over all of them, whatever is there: no tail, faster code."""

_real, _word = np.float32, np.int32
ZERO, ONE = _real(0.0), _real(1.0)
# exp d = 2^n e^r with n whole and |r| <= ln(2) / 2; ln 2 in two parts, so that n ln 2 is exact.
PER_OCTAVE, OCTAVE, OCTAVE_REST = (
    _real(1.0 / np.log(2.0)),
    _real(0.693359375),
    _real(-2.12194440e-4),
)
# Adding and taking this away rounds to a whole number, whose bits come last in the sum's.
ROUNDER = _real(1.5 * 2.0**23)
ROUNDER_BITS = _word(ROUNDER.view(_word))
EXPONENT_BIAS, MANTISSA_BITS = _word(127), _word(23)
# e^r = 1 + r + r^2 (D0 + D1 r + ... + D5 r^5)
D0, D1, D2, D3, D4, D5 = (_real(1.0 / n) for n in (2, 6, 24, 120, 720, 5040))
# exp is zero below this: 1.6e-38, and nearly where float32 loses digits.
LOWEST = _real(-87.0)


@piece
def _exponential(d: Any) -> Any:
    """Return exp d for d <= 0; NaN stays NaN."""
    near = LOWEST if d < LOWEST else d
    shifted = near * PER_OCTAVE + ROUNDER
    n = shifted - ROUNDER
    r = (near - n * OCTAVE) - n * OCTAVE_REST
    z = r * r
    tail = ((D0 + D1 * r) + z * (D2 + D3 * r)) + (z * z) * (D4 + D5 * r)
    octaves = _word(_word(bits_of(shifted) - ROUNDER_BITS) + EXPONENT_BIAS)
    value = (ONE + (r + z * tail)) * float_of(_word(octaves << MANTISSA_BITS))
    return ZERO if d < LOWEST else value


@piece
def softmax_of_columns(logits: Any, best: Any, sums: Any) -> Any:
    """Turn logits [classes, TILE] into probabilities, in place; best, sums [TILE]: scratch."""
    first = logits[0]
    for r in range(TILE):
        best[r] = first[r]
        sums[r] = ZERO
    for c in range(1, logits.shape[0]):
        own = logits[c]
        for r in range(TILE):
            best[r] = own[r] if own[r] > best[r] else best[r]
    for c in range(logits.shape[0]):
        own = logits[c]
        for r in range(TILE):
            value = _exponential(own[r] - best[r])
            own[r] = value
            sums[r] += value
    for r in range(TILE):
        sums[r] = ONE / sums[r]
    for c in range(logits.shape[0]):
        own = logits[c]
        for r in range(TILE):
            own[r] *= sums[r]
