"""Noise on the CPU: AES-128 in counter mode, turned into variates in cache-sized blocks.

32-bit words go through `noise_laws`, 64-bit words through NumPy and torch in float64, and to the
grid as ideal noise would be (`noise_exact`); both through compiled loops once there is much to do.
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

from fl_shuffle.plugins import installed, loaded
from fl_shuffle.randomizers import noise_exact, noise_laws
from fl_shuffle.randomizers.noise_laws import AddTo

BLOCK_BYTES = 16
"""One block of AES."""
# A block of work is this many words: enough to hide call overhead, few enough for the cache.
WORDS_PER_BLOCK = 3 << 15
WORDS_PER_TILE = 3 << 15
"""Part of the layout: changing it changes the noise of every dimension above it."""
# Loading compiled loops takes as long as drawing this many variates without them ...
COMPILED_FROM = 1 << 24
# ... and one 32nd of that where something else has loaded numba.
LOADED = 5


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


class _Scratch(threading.local):
    """Reusable buffers of one block of work, one set per thread."""

    def __init__(self) -> None:
        size = max(WORDS_PER_BLOCK, WORDS_PER_TILE)
        # The cipher asks for room for one more incomplete block than it writes.
        self.raw = np.empty(8 * size + BLOCK_BYTES, np.uint8)
        self.floats = [torch.empty(size, dtype=torch.float64) for _ in range(3)]
        self.marks = np.empty(size, np.bool_)


_scratch = _Scratch()


class CompiledLoops:
    """NumPy's loops until they have cost what loading compiled ones does, then these.

    Without numba NumPy's are all there is: the same bits, more slowly.
    """

    def __init__(self) -> None:
        self._numbers = 0
        self._installed = installed("numba")

    def pay(self, size: int) -> bool:
        """Whether so many more numbers go through compiled loops."""
        limit = COMPILED_FROM >> LOADED if loaded("fl_shuffle.compiled") else COMPILED_FROM
        if self._installed and self._numbers >= limit:
            return True
        self._numbers += size
        return False


_loops = CompiledLoops()


def _adding(law: str, target: NDArray[np.float32]) -> AddTo:
    if not _loops.pay(target.size):
        return _blockwise(noise_laws.LAWS[law], target)
    from fl_shuffle.randomizers import noise_compiled

    return noise_compiled.on(law, target)


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
    wide = layout.word_bytes == 8
    real, dtype = (np.float64, np.int64) if wide else (np.float32, np.int32)
    if step is None:
        target[:] = 0.0
    scales = np.broadcast_to(np.asarray(scale), len(ids)).astype(np.float64)
    sizes = scales.astype(real)
    steps = np.broadcast_to(0.0 if step is None else np.asarray(step), len(ids)).astype(np.float64)
    magic = (_MAGIC * steps).astype(real)
    rows_per_block = max(1, WORDS_PER_BLOCK // layout.width)
    scratch = _scratch.raw[: rows_per_block * layout.width * layout.word_bytes]
    drawn = scratch.view(dtype).reshape(rows_per_block, layout.width)
    add = None if wide else _adding(law, target)
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        for tile in range(layout.tiles):
            words.fill(ids[rows], tile, _scratch.raw)
            block = drawn[: rows.stop - start]
            columns = layout.columns(tile)
            if add is not None:
                add(block, rows, columns, sizes[rows], magic[rows])
                continue
            clients = np.asarray(ids[rows], np.int64)
            source = _Source(words.key, clients, tile, block.view(np.int64))
            part = target[rows, columns]
            if step is not None and _loops.pay(part.size):
                _add_compiled_64(law, source, part, scales[rows], steps[rows])
            else:
                _ADD_64[law](source, part, scales[rows], steps[rows])


_MAGIC = 1.5 * 2.0**23
"""Adding and taking away this many steps rounds to a multiple of the step in float32."""


@dataclass(frozen=True)
class _Source:
    """64-bit words [k, w] of one tile, and where their further bits come from."""

    key: bytes
    clients: NDArray[np.int64]
    tile: int
    words: NDArray[np.int64]


def _floats(rows: int, columns: int) -> tuple[tuple[torch.Tensor, NDArray[np.float64]], ...]:
    """A thread's three arrays: as torch vectors, whose log, sin and cos are fast, and [k, n]."""
    vectors = [buffer[: rows * columns] for buffer in _scratch.floats]
    return tuple((vector, vector.numpy().reshape(rows, columns)) for vector in vectors)


def _add_normal_64(
    source: _Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """As `noise_laws.add_normal`, in float64, rounded as the ideal sum is."""
    words = source.words
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
    for is_sine, factor in enumerate((cosine, angle)):
        part = rows[:, is_sine * half : (is_sine + 1) * half]
        noise = factor[:, : part.shape[1]]
        np.multiply(radius[:, : part.shape[1]], noise, out=noise)
        _place_64(source, part, noise, scale, step, bool(is_sine))


def _add_laplace_64(
    source: _Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """As `noise_laws.add_laplace`, in float64, rounded as the ideal sum is."""
    words = source.words
    (_, uniform), (flat_size, size), _ = _floats(len(rows), words.shape[1])
    np.copyto(uniform, words, casting="unsafe")
    np.multiply(uniform, 2.0**-63, out=uniform)
    np.add(uniform, 2.0**-64, out=uniform)
    np.absolute(uniform, out=size)
    torch.log(flat_size, out=flat_size)
    np.multiply(size, scale[:, None], out=size)
    noise = size[:, : rows.shape[1]]
    np.copysign(noise, uniform[:, : rows.shape[1]], out=noise)
    _place_64(source, rows, noise, scale, step, None)


def _place_64(
    source: _Source,
    part: NDArray[np.float32],
    noise: NDArray[np.float64],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
    is_sine: bool | None,
) -> None:
    """part <- the grid points of part + noise, as the ideal noise has them; or part + noise.

    `is_sine` says which half of the normal pairs this is; None for Laplace variates.
    """
    np.add(part, noise, out=noise)
    if not step[0] > 0.0:
        np.copyto(part, noise, casting="same_kind")
        return
    rounded = np.rint(noise / step[:, None]) * step[:, None]
    unsure = noise_exact.doubtful(noise, rounded, scale, step)
    unsure |= noise_exact.coarse(source.words[:, : part.shape[1]])
    for row, place in np.argwhere(unsure).tolist():
        rounded[row, place] = _exactly(source, part, scale, step, row, place, is_sine)
    np.copyto(part, rounded, casting="same_kind")


def _exactly(
    source: _Source,
    part: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
    row: int,
    place: int,
    is_sine: bool | None,
) -> float:
    """The report of one coordinate of a half's `part`, whose mean is still there."""
    more, rest = noise_exact.more_bits(source.key, int(source.clients[row]), source.tile, place)
    angle = None
    if is_sine is not None:
        half = source.words.shape[1] // 2
        angle = int(source.words[row, half + place]), rest, is_sine
    return noise_exact.exact_report(
        float(part[row, place]), float(scale[row]), float(step[row]),
        int(source.words[row, place]), more, angle,
    )  # fmt: skip


def _add_compiled_64(
    law: str,
    source: _Source,
    rows: NDArray[np.float32],
    scale: NDArray[np.float64],
    step: NDArray[np.float64],
) -> None:
    """As `_ADD_64`, with a grid: the same reports."""
    from fl_shuffle.randomizers import noise_compiled_64

    noise = _scratch.floats[0].numpy()
    unsure = _scratch.marks[: rows.size].reshape(rows.shape)
    if not noise_compiled_64.add(law, source.words, rows, scale, step, noise, unsure):
        return
    half = source.words.shape[1] // 2
    for row, column in np.argwhere(unsure).tolist():
        sine, place = divmod(column, half) if law == "normal" else (0, column)
        part = rows[:, half:] if sine else rows
        is_sine = bool(sine) if law == "normal" else None
        part[row, place] = _exactly(source, part, scale, step, row, place, is_sine)


_ADD_64 = {"normal": _add_normal_64, "laplace": _add_laplace_64}
