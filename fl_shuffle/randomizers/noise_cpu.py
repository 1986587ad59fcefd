"""Noise on the CPU: AES-128 in counter mode, NumPy and torch kernels on cache-sized blocks."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

BLOCK_BYTES = 16
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


def per_row(values: float | NDArray[np.float64], rows: slice) -> float | NDArray[np.float64]:
    """The part of a per-row quantity that belongs to `rows`, as a column."""
    return values[rows, None] if isinstance(values, np.ndarray) else values


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


@dataclass(frozen=True)
class _Workspace:
    """Views of a thread's buffers in one shape: `rows` tiles of words and of floats.

    The float buffers appear twice: `flat` as torch vectors (its log, sin and cos are the fastest at
    hand) and `grid` as NumPy arrays [rows, columns] of the same memory (cheaper calls).
    """

    words: NDArray[Any]
    flat: tuple[torch.Tensor, ...]
    grid: tuple[NDArray[Any], ...]


class _Scratch(threading.local):
    """Reusable buffers of one block of work, one set per thread."""

    def __init__(self) -> None:
        size = max(WORDS_PER_BLOCK, WORDS_PER_TILE)
        # The cipher asks for room for one more incomplete block than it writes.
        self.raw = np.empty(8 * size + BLOCK_BYTES, np.uint8)
        self._floats = [torch.empty(size, dtype=torch.float64) for _ in range(3)]
        self._cache: dict[tuple[int, int, int, int], _Workspace] = {}

    def workspace(self, rows: int, width: int, columns: int, word_bytes: int) -> _Workspace:
        shape = (rows, width, columns, word_bytes)
        found = self._cache.get(shape)
        if found is None:
            narrow = word_bytes == 4
            words = self.raw[: rows * width * word_bytes].view(np.int32 if narrow else np.int64)
            dtype = torch.float32 if narrow else torch.float64
            flat = tuple(buffer.view(dtype)[: rows * columns] for buffer in self._floats)
            found = _Workspace(
                words.reshape(rows, width),
                flat,
                tuple(tensor.numpy().reshape(rows, columns) for tensor in flat),
            )
            if len(self._cache) >= 64:
                self._cache.clear()
            self._cache[shape] = found
        return found


_scratch = _Scratch()


def draw_cpu(
    law: str,
    words: AesWords,
    ids: range | NDArray[np.int64],
    target: NDArray[np.float32],
    *,
    scale: float | NDArray[np.float64],
    step: float | NDArray[np.float64] | None,
) -> None:
    layout = words.layout
    normal = law == "normal"
    transform = _normal_cpu if normal else _laplace_cpu
    real = np.float32 if layout.word_bytes == 4 else np.float64
    spread = _cast(-np.square(scale) if normal else scale, real)
    magic = None if step is None else _cast(_MAGIC[layout.word_bytes] * step, real)
    rows_per_block = max(1, WORDS_PER_BLOCK // layout.width)
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        work = _scratch.workspace(
            rows.stop - rows.start,
            layout.width,
            layout.width // 2 if normal else layout.width,
            layout.word_bytes,
        )
        for tile in range(layout.tiles):
            words.fill(ids[rows], tile, _scratch.raw)
            part = target[rows, layout.columns(tile)]
            row_magic = None if magic is None else per_row(magic, rows)
            transform(work, per_row(spread, rows), part, row_magic)


_MAGIC = {4: 1.5 * 2.0**23, 8: 1.5 * 2.0**52}
"""Adding and taking away this many steps rounds to a multiple of the step (float32, float64)."""


def _cast(value: Any, real: Any) -> Any:
    """A number or an array, in the precision of the arithmetic."""
    return value.astype(real) if isinstance(value, np.ndarray) else real(value)


def _place(
    product: np.ufunc, left: NDArray[Any], right: NDArray[Any], part: NDArray[Any], magic: Any
) -> None:
    """part <- product(left, right), or part <- round(part + product(left, right))."""
    if magic is None:
        product(left, right, out=part, casting="same_kind")
        return
    product(left, right, out=right)
    np.add(right, part, out=right)
    np.add(right, magic, out=right)
    np.subtract(right, magic, out=part, casting="same_kind")


def _normal_cpu(work: _Workspace, spread: Any, part: NDArray[np.float32], magic: Any) -> None:
    """Box-Muller with R = sqrt(spread * ln U^2), spread = -scale^2: the scale costs nothing."""
    radius, angle, cosine = work.grid
    half = radius.shape[1]
    real = radius.dtype.type
    unit = 2.0 ** -(8 * radius.dtype.itemsize - 1)
    np.copyto(radius, work.words[:, :half], casting="unsafe")
    np.copyto(angle, work.words[:, half:], casting="unsafe")
    np.multiply(radius, real(unit), out=radius)
    np.add(radius, real(0.5 * unit), out=radius)
    np.multiply(radius, radius, out=radius)
    torch.log(work.flat[0], out=work.flat[0])
    np.multiply(radius, spread, out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(angle, real(math.pi * unit), out=angle)
    torch.cos(work.flat[1], out=work.flat[2])
    torch.sin(work.flat[1], out=work.flat[1])
    first = min(half, part.shape[1])
    rest = part.shape[1] - first
    _place(np.multiply, radius[:, :first], cosine[:, :first], part[:, :first], magic)
    _place(np.multiply, radius[:, :rest], angle[:, :rest], part[:, first:], magic)


def _laplace_cpu(work: _Workspace, spread: Any, part: NDArray[np.float32], magic: Any) -> None:
    """The sign and scale * ln|U| of one word uniform on (-1, 1); spread is the scale."""
    uniform, size, _ = work.grid
    real = uniform.dtype.type
    unit = 2.0 ** -(8 * uniform.dtype.itemsize - 1)
    np.copyto(uniform, work.words, casting="unsafe")
    np.multiply(uniform, real(unit), out=uniform)
    np.add(uniform, real(0.5 * unit), out=uniform)
    np.absolute(uniform, out=size)
    torch.log(work.flat[1], out=work.flat[1])
    np.multiply(size, spread, out=size)
    columns = part.shape[1]
    _place(np.copysign, size[:, :columns], uniform[:, :columns], part, magic)
