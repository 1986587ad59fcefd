"""Words of noise: AES-128 in counter mode, one aligned range of counters per client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

BLOCK_BYTES = 16
"""One block of AES."""
# A block of work is this many words: enough to hide call overhead, few enough for the cache.
WORDS_PER_BLOCK = 3 << 15
WORDS_PER_TILE = 3 << 15
"""Part of the layout: changing it changes the noise of every dimension above it."""


@dataclass(frozen=True)
class Layout:
    """How a client's row of `dimension` variates is cut into tiles of `width` words each.

    A tile of a normal row holds `width`/2 radius words and then `width`/2 angle words; it makes the
    cosine half and then the sine half of `width` variates. Tiles are whole counter blocks. The
    layout depends on the dimension, the law and the word size only, never on the batch.
    """

    dimension: int
    width: int
    tiles: int
    word_bytes: int

    @classmethod
    def of(cls, dimension: int, bits: int) -> Layout:
        word_bytes = bits // 8
        unit = BLOCK_BYTES // word_bytes
        tiles = -(-dimension // WORDS_PER_TILE)
        width = -(-dimension // (tiles * unit)) * unit
        return cls(dimension, width, -(-dimension // width), word_bytes)

    @property
    def blocks_per_tile(self) -> int:
        return self.width * self.word_bytes // BLOCK_BYTES

    @property
    def blocks_per_client(self) -> int:
        return self.tiles * self.blocks_per_tile

    def columns(self, tile: int) -> slice:
        return slice(tile * self.width, min((tile + 1) * self.width, self.dimension))


class AesWords:
    """AES-128 of the counters of clients and tiles, as signed words."""

    def __init__(self, key: bytes, layout: Layout) -> None:
        self._algorithm = algorithms.AES(key)
        self.key = key
        self.layout = layout
        self._context: CipherContext | None = None
        self._next = -1

    def fill(self, ids: range | NDArray[np.int64], tile: int, raw: NDArray[np.uint8]) -> None:
        """Write the bytes of `tile` of every client in `ids`, row after row, at the start of `raw`.

        Neighbouring counters come from counter mode in one call; scattered ones from encrypting the
        counter blocks themselves, which is what counter mode does.
        """
        layout = self.layout
        size = len(ids) * layout.blocks_per_tile * BLOCK_BYTES
        if isinstance(ids, range) and (len(ids) == 1 or layout.tiles == 1):
            start = ids[0] * layout.blocks_per_client + tile * layout.blocks_per_tile
            if start != self._next or self._context is None:
                counter = start.to_bytes(BLOCK_BYTES, "big")
                self._context = Cipher(self._algorithm, modes.CTR(counter)).encryptor()
            self._context.update_into(memoryview(_ZEROS)[:size], raw[:size].data)
            self._next = start + size // BLOCK_BYTES
            return
        starts = (
            np.asarray(ids, np.int64) * layout.blocks_per_client + tile * layout.blocks_per_tile
        )
        counters = np.zeros((len(ids), layout.blocks_per_tile, 2), ">u8")
        counters[:, :, 1] = starts[:, None] + np.arange(layout.blocks_per_tile)
        # Electronic codebook is safe here: every input block is a distinct counter.
        encryptor = Cipher(self._algorithm, modes.ECB()).encryptor()
        encryptor.update_into(counters.reshape(-1).view(np.uint8).data, raw.data)


_ZEROS = bytes(8 * WORDS_PER_TILE)
