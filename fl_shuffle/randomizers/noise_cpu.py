"""Noise on the CPU: AES-128 in counter mode, turned into variates in cache-sized blocks.

32-bit words go through `noise_laws`, or its compiled form once there is enough to do; 64-bit words
through NumPy and torch in float64.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from fl_shuffle.randomizers import noise_laws
from fl_shuffle.randomizers.noise_laws import AddTo

BLOCK_BYTES = 16
# A block of work is this many words: enough to hide call overhead, few enough for the cache.
WORDS_PER_BLOCK = 3 << 15
WORDS_PER_TILE = 3 << 15
"""Part of the layout: changing it changes the noise of every dimension above it."""
# Loading compiled loops takes as long as drawing this many variates without them.
COMPILED_FROM = 1 << 24


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


class _Scratch(threading.local):
    """Reusable buffers of one block of work, one set per thread."""

    def __init__(self) -> None:
        size = max(WORDS_PER_BLOCK, WORDS_PER_TILE)
        # The cipher asks for room for one more incomplete block than it writes.
        self.raw = np.empty(8 * size + BLOCK_BYTES, np.uint8)
        self.floats = [torch.empty(size, dtype=torch.float64) for _ in range(3)]


_scratch = _Scratch()


class _Choice:
    """NumPy's loops for 32-bit words until they have cost what loading compiled ones does."""

    def __init__(self) -> None:
        self._drawn = 0

    def on(self, law: str, target: NDArray[np.float32]) -> AddTo:
        if self._drawn < COMPILED_FROM:
            self._drawn += target.size
            return _blockwise(noise_laws.LAWS[law], target)
        from fl_shuffle.randomizers import noise_compiled

        return noise_compiled.on(law, target)


_choice = _Choice()


def _blockwise(add: Callable[..., None], target: NDArray[np.float32]) -> AddTo:
    return lambda words, rows, columns, scale, magic: add(
        words, target[rows, columns], scale, magic
    )


def draw_cpu(
    law: str,
    words: AesWords,
    ids: range | NDArray[np.int64],
    target: NDArray[np.float32],
    *,
    scale: float | NDArray[np.float64],
    step: float | NDArray[np.float64] | None,
) -> None:
    """target <- round(target + scale * noise, step), or scale * noise without a step."""
    layout = words.layout
    real, dtype = (np.float32, np.int32) if layout.word_bytes == 4 else (np.float64, np.int64)
    if step is None:
        target[:] = 0.0
    sizes = np.broadcast_to(np.asarray(scale), len(ids)).astype(real)
    steps = 0.0 if step is None else _MAGIC[layout.word_bytes] * np.asarray(step)
    magic = np.broadcast_to(steps, len(ids)).astype(real)
    rows_per_block = max(1, WORDS_PER_BLOCK // layout.width)
    scratch = _scratch.raw[: rows_per_block * layout.width * layout.word_bytes]
    drawn = scratch.view(dtype).reshape(rows_per_block, layout.width)
    wide = dtype is np.int64
    add = _blockwise(_LAWS_64[law], target) if wide else _choice.on(law, target)
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        for tile in range(layout.tiles):
            words.fill(ids[rows], tile, _scratch.raw)
            block = drawn[: rows.stop - start]
            add(block, rows, layout.columns(tile), sizes[rows], magic[rows])


_MAGIC = {4: 1.5 * 2.0**23, 8: 1.5 * 2.0**52}
"""Adding and taking away this many steps rounds to a multiple of the step (float32, float64)."""


def _floats(rows: int, columns: int) -> tuple[tuple[torch.Tensor, NDArray[np.float64]], ...]:
    """A thread's three arrays: as torch vectors, whose log, sin and cos are fast, and [k, n]."""
    vectors = [buffer[: rows * columns] for buffer in _scratch.floats]
    return tuple((vector, vector.numpy().reshape(rows, columns)) for vector in vectors)


def _add_normal_64(
    words: NDArray[np.int64],
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    magic: NDArray[np.float64],
) -> None:
    """As `noise_laws.add_normal`, in float64."""
    half = words.shape[1] // 2
    (flat_radius, radius), (flat_angle, angle), (flat_cosine, cosine) = _floats(len(rows), half)
    np.copyto(radius, words[:, :half], casting="unsafe")
    np.copyto(angle, words[:, half:], casting="unsafe")
    np.multiply(radius, 2.0**-63, out=radius)
    np.add(radius, 2.0**-64, out=radius)
    # ln U^2 instead of 2 ln |U|: one pass less.
    np.multiply(radius, radius, out=radius)
    torch.log(flat_radius, out=flat_radius)
    np.multiply(radius, -np.square(scale)[:, None], out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(angle, math.pi * 2.0**-63, out=angle)
    torch.cos(flat_angle, out=flat_cosine)
    torch.sin(flat_angle, out=flat_angle)
    for start, factor in ((0, cosine), (half, angle)):
        part = rows[:, start : start + half]
        noise = factor[:, : part.shape[1]]
        np.multiply(radius[:, : part.shape[1]], noise, out=noise)
        noise_laws.round_into(part, noise, magic)


def _add_laplace_64(
    words: NDArray[np.int64],
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    magic: NDArray[np.float64],
) -> None:
    """As `noise_laws.add_laplace`, in float64."""
    (_, uniform), (flat_size, size), _ = _floats(len(rows), words.shape[1])
    np.copyto(uniform, words, casting="unsafe")
    np.multiply(uniform, 2.0**-63, out=uniform)
    np.add(uniform, 2.0**-64, out=uniform)
    np.absolute(uniform, out=size)
    torch.log(flat_size, out=flat_size)
    np.multiply(size, scale[:, None], out=size)
    noise = size[:, : rows.shape[1]]
    np.copysign(noise, uniform[:, : rows.shape[1]], out=noise)
    noise_laws.round_into(rows, noise, magic)


_LAWS_64 = {"normal": _add_normal_64, "laplace": _add_laplace_64}
