"""Exact samplers of discrete Gaussian and discrete Laplace variates, in integer arithmetic alone.

Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020; J. Privacy
and Confidentiality 12(1), 2022), algorithms 1 to 3. No floating-point number decides anything, so
the distribution of what is drawn is the distribution that is stated, if the words are uniform. They
are vectorised by drawing for all coordinates that still wait.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask
from fl_shuffle.errors import require_integer

Integers = NDArray[np.int64]

LARGEST_SCALE = 1 << 20
"""Scales stay below this many steps: products of what is drawn then fit 63 bits, but for values
beyond 2^10 scales, which have probability below e^-1000."""
_BATCH = 1 << 16
"""Number of candidates that are drawn at a time: they stay in the cache."""
_WORDS = 1 << 63
"""A word is uniform in 0 .. 2^63 - 1."""


class Words:
    """63-bit words of a 16-byte key; a key is used by one object alone."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def draw(self, count: int) -> Integers:
        """Return the next `count` words, int64 [count] in 0 .. 2^63 - 1."""
        raw = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        return (raw >> np.uint64(1)).astype(np.int64)

    def below(self, bounds: Integers) -> Integers:
        """Return numbers exactly uniform in 0 .. bounds - 1, elementwise; bounds in [1, 2^62].

        Words beyond the largest multiple of a bound are drawn again.
        """
        values = self.draw(len(bounds))
        # (2^63 - 1) - (2^63 mod m) is the last word below the largest multiple of m.
        last = (_WORDS - 1) - ((_WORDS - 1) % bounds + 1) % bounds
        again = np.flatnonzero(values > last)
        while again.size:
            values[again] = self.draw(len(again))
            again = again[values[again] > last[again]]
        return np.asarray(values % bounds, dtype=np.int64)


def bernoulli_exp(words: Words, numerator: Integers, denominator: Integers) -> Mask:
    """Return True with probability exp(-numerator/denominator) exactly, elementwise.

    numerator >= 0, denominator in [1, 2^50]. (Algorithm 1.)
    """
    whole = numerator // denominator
    rest = numerator - whole * denominator
    result = np.ones(len(numerator), dtype=bool)
    waiting = np.flatnonzero(whole > 0)
    while waiting.size:
        # One factor exp(-1) of exp(-whole) at a time; most fail at once.
        passed = _below_one(words, np.ones_like(waiting), np.ones_like(waiting))
        result[waiting[~passed]] = False
        waiting = waiting[passed]
        whole[waiting] -= 1
        waiting = waiting[whole[waiting] > 0]
    left = np.flatnonzero(result)
    result[left] = _below_one(words, rest[left], denominator[left])
    return result


def _below_one(words: Words, numerator: Integers, denominator: Integers) -> Mask:
    """Return the same for numerator <= denominator: the first k for which an event of probability
    numerator/(k denominator) does not happen is odd."""
    odd = np.ones(len(numerator), dtype=bool)
    waiting = np.arange(len(numerator))
    k = 1
    while waiting.size:
        happened = words.below(k * denominator[waiting]) < numerator[waiting]
        waiting = waiting[happened]
        odd[waiting] = ~odd[waiting]
        k += 1
    return odd


def discrete_laplace(words: Words, scale: int, count: int) -> Integers:
    """Return `count` variates with P(x) proportional to exp(-|x|/scale), int64 [count].

    `scale` in [1, 2^20] steps. (Algorithm 2, for a whole scale.)
    """
    require_integer("scale", scale, minimum=1, maximum=LARGEST_SCALE)
    return _accepted(count, lambda size: _laplace_candidates(words, scale, size))


def discrete_gaussian(words: Words, scale: int, count: int) -> Integers:
    """Return `count` variates with P(x) proportional to exp(-x^2/(2 scale^2)), int64 [count].

    `scale` in [1, 2^20] steps. (Algorithm 3, with a Laplace variate of the same scale.)
    """
    require_integer("scale", scale, minimum=1, maximum=LARGEST_SCALE)

    def candidates(size: int) -> Integers:
        drawn = _laplace_candidates(words, scale, size)
        distance = np.abs(drawn) - scale
        twice = np.full(len(drawn), 2 * scale * scale)
        return drawn[bernoulli_exp(words, distance * distance, twice)]

    return _accepted(count, candidates)


def _accepted(count: int, candidates: object) -> Integers:
    """Return the first `count` of the accepted candidates, which come in a random number."""
    assert callable(candidates)
    parts: list[Integers] = []
    missing = count
    while missing > 0:
        found: Integers = candidates(min(_BATCH, 3 * missing + 16))
        parts.append(found[:missing])
        missing -= len(parts[-1])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _laplace_candidates(words: Words, scale: int, size: int) -> Integers:
    """Return some discrete Laplace variates, fewer than `size`."""
    scales = np.full(size, scale)
    place = words.below(scales)
    place = place[bernoulli_exp(words, place, scales)]
    turns = np.zeros(len(place), dtype=np.int64)
    waiting = np.arange(len(place))
    while waiting.size:
        waiting = waiting[_below_one(words, np.ones_like(waiting), np.ones_like(waiting))]
        turns[waiting] += 1
    size_of = place + scale * turns
    negative = (words.draw(len(size_of)) & 1).astype(bool)
    keep = ~(negative & (size_of == 0))
    return np.asarray(np.where(negative, -size_of, size_of)[keep], dtype=np.int64)
