"""The public levels of reports of a few bits a coordinate, and how they travel as bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Ids, Vector

MANTISSA = 64
"""Half a cell is at most this many steps of a power of two. So a level is a whole number of steps
that float32 holds, and sums of reports stay exact."""
BLOCK = 1 << 20
"""Coordinates that are packed at once."""


def few_digits(values: Vector) -> Vector:
    """Return positive numbers rounded to whole numbers of at most `MANTISSA` steps of a power of
    two."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(MANTISSA * mantissa) / MANTISSA, exponent), np.float64)


@dataclass(frozen=True)
class Levels:
    """The numbers that a coordinate of a report may be, for each client.

    `half` [clients] is half a cell of each client (`few_digits`). The levels are its odd multiples,
    2^`bits` of them around zero, and number 0 is the lowest.
    """

    bits: int
    half: Vector

    @property
    def step(self) -> Vector:
        """The power of two [clients] of which every level is a multiple."""
        return np.asarray(np.ldexp(1.0 / MANTISSA, np.frexp(self.half)[1]), np.float64)

    @property
    def largest(self) -> Vector:
        """The last level [clients]."""
        return np.asarray((2**self.bits - 1) * self.half, dtype=np.float64)

    def report_bytes(self, dimension: int) -> int:
        """Return the bytes of a packed report."""
        return -(-dimension * self.bits // 8)

    def codes(self, levels: NDArray[np.float32], clients: Ids) -> NDArray[np.uint16]:
        """Return the numbers of levels [k, d] of these clients."""
        half = self.half[clients][:, None]
        codes = (levels / half + (2**self.bits - 1)) / 2.0
        return np.asarray(codes, dtype=np.uint16)

    def levels(self, codes: NDArray[np.uint16], clients: Ids) -> NDArray[np.float32]:
        """Return the levels [k, d] of these numbers, exact in float32."""
        odd = 2 * codes.astype(np.int32) + (1 - 2**self.bits)
        return np.asarray(odd * self.half[clients][:, None], dtype=np.float32)

    def packed(self, levels: NDArray[np.float32], clients: Ids) -> NDArray[np.uint8]:
        """Return reports [k, d] as bytes [k, `report_bytes`]: the bits of their levels' numbers,
        the highest first, one number after the other."""
        size = self.report_bytes(levels.shape[1])
        found = np.empty((len(levels), size), dtype=np.uint8)
        for rows in _blocks(levels.shape):
            codes = self.codes(levels[rows], clients[rows]).astype(">u2")
            bits = np.unpackbits(codes[..., None].view(np.uint8), axis=2)[..., -self.bits :]
            found[rows] = np.packbits(bits.reshape(len(bits), -1), axis=1)
        return found

    def unpacked(
        self, packed: NDArray[np.uint8], clients: Ids, dimension: int
    ) -> NDArray[np.float32] | None:
        """Return the reports [k, dimension] in such bytes; None for bytes that are no reports."""
        count, size = len(clients), self.report_bytes(dimension)
        if packed.shape != (count, size):
            return None
        reports = np.empty((count, dimension), dtype=np.float32)
        weights = (1 << np.arange(self.bits - 1, -1, -1)).astype(np.uint16)
        for rows in _blocks(reports.shape):
            bits = np.unpackbits(packed[rows], axis=1)
            # What is left of the last byte: a report has one form.
            if bits[:, dimension * self.bits :].any():
                return None
            each = bits[:, : dimension * self.bits].reshape(-1, dimension, self.bits)
            reports[rows] = self.levels(each.astype(np.uint16) @ weights, clients[rows])
        return reports


def _blocks(shape: tuple[int, ...]) -> list[slice]:
    """Return slices of rows with some `BLOCK` coordinates each."""
    rows = max(1, BLOCK // max(1, shape[1]))
    return [slice(start, start + rows) for start in range(0, shape[0], rows)]
