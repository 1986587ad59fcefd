"""Uniform integers from AES-128 in counter mode: as many as are asked for, in order."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_WORDS = 1 << 63
"""A word is uniform in 0 .. 2^63 - 1."""


class Words:
    """63-bit words of a 16-byte key; a key is used by one object alone."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()

    def draw(self, count: int) -> Integers:
        """The next `count` words, int64 [count] in 0 .. 2^63 - 1."""
        raw = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        return (raw >> np.uint64(1)).astype(np.int64)

    def below(self, bounds: Integers) -> Integers:
        """Exactly uniform in 0 .. bounds - 1, elementwise; bounds in [1, 2^62].

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
