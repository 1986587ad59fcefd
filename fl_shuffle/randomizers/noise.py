"""Counter-based noise: one key per (run, round, purpose), one aligned range of counters per client.

Client i's row of `dimension` variates comes from counter blocks [i*B, (i+1)*B) of a keyed
pseudo-random function, so a run of neighboring clients is one call, any client can be drawn alone,
and the bits are the same whatever the batch, order, thread or process.

On the CPU the bits are AES-128 in counter mode (OpenSSL). Another device draws with its own
generator (`torch.Generator`), seeded for each client from the same key: reproducible on that
device, and the same however clients are batched, but not cryptographic: for simulation only.

The distributions, from signed words W of `bits` bits and U = |W + 1/2| 2^(1 - bits) in (0, 1):

* normal: Box-Muller. R = sqrt(-2 ln U) from one word, V = pi W' 2^(1 - bits) from another, the two
  variates R cos V and R sin V. The largest |variate| is sqrt(64 ln 2) = 6.66 for 32 bits (float32
  arithmetic) and sqrt(128 ln 2) = 9.42 for 64 bits (float64).
* laplace: -ln U with the sign of W; at most 32 ln 2 = 22.2 (64 ln 2 = 44.4).

Reports on a grid with 64-bit noise have further bits where a word says too little: up to 14.3 and
104 (`noise_exact.REACH`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import InvalidValueError, require_choice, require_integer
from fl_shuffle.randomizers import noise_exact
from fl_shuffle.randomizers.samplers import Words

LAWS = ("normal", "laplace")
_COUNTER_LIMIT = 1 << 62
"""Counters stay below this, so that they fit signed 64-bit arithmetic."""
BLOCK_BYTES = 16
"""One block of AES."""
# A block of work is this many words: enough to hide call overhead, few enough for the cache.
WORDS_PER_BLOCK = 3 << 15
WORDS_PER_TILE = 3 << 15
"""Part of the layout: changing it changes the noise of every dimension above it."""


def largest_variate(law: str, bits: int = 32) -> float:
    """Return the largest absolute value of a standard variate of `law` drawn from `bits`-bit
    words."""
    require_choice("law", law, LAWS)
    _require_bits(bits)
    exponent = bits * math.log(2.0)
    return math.sqrt(2.0 * exponent) if law == "normal" else exponent


@dataclass(frozen=True)
class TileLayout:
    """How a client's row of `dimension` variates is cut into tiles of `width` words each.

    A tile of a normal row holds `width`/2 radius words and then `width`/2 angle words; it makes the
    cosine half and then the sine half of `width` variates. Tiles are whole counter blocks. The
    layout depends on the dimension, the distribution and the word size only, never on the batch.
    """

    dimension: int
    width: int
    tiles: int
    word_bytes: int

    @classmethod
    def of(cls, dimension: int, bits: int) -> TileLayout:
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

    def __init__(self, key: bytes, layout: TileLayout) -> None:
        self._algorithm = algorithms.AES(key)
        self.key = key
        self.layout = layout
        self._context: CipherContext | None = None
        self._next = -1

    def fill(self, ids: range | NDArray[np.int64], tile: int, raw: NDArray[np.uint8]) -> None:
        """Write the bytes of `tile` of every client in `ids`, row after row, at the start of `raw`.

        Neighboring counters come from counter mode in one call; scattered ones from encrypting the
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


class NoiseStream:
    """Standard normal or Laplace rows of length `dimension`, one per client id, from one `key`.

    `key` is at least 16 secret or seed-derived bytes; distinct distributions, dimensions and word
    sizes of one key are independent streams. `bits` is 32 (simulation) or 64 (deployment: twice the
    bits and float64 arithmetic before the result is cast to float32). `device` is where the result
    lives; other devices than the CPU draw float32 variates whatever the bits.

    All methods may be called from several threads at once; results never depend on it. Raises
    `InvalidValueError` for a bad argument, and for a client id whose counters would pass 2^62.
    """

    def __init__(
        self,
        key: bytes,
        dimension: int,
        *,
        bits: int = 32,
        device: str | torch.device = "cpu",
    ) -> None:
        if not isinstance(key, bytes) or len(key) < 16:
            raise InvalidValueError(
                "key", "<hidden>", "must be at least 16 bytes", "use SeedTree.key(round, purpose)"
            )
        self.dimension = require_integer("dimension", dimension, minimum=1)
        self.bits = _require_bits(bits)
        self.device = torch.device(device)
        self._key = key
        self._layout = TileLayout.of(self.dimension, self.bits)

    def rows(self, law: str, client_ids: Sequence[int] | NDArray[np.int64]) -> FloatArray:
        """Return standard variates of any clients, in their order, float64 [len(client_ids), d]."""
        require_choice("law", law, LAWS)
        ids = self._ids(client_ids)
        drawn = torch.zeros((len(ids), self.dimension), device=self.device)
        self._draw(law, ids, drawn, 1.0, None)
        return np.asarray(drawn.cpu().double().numpy())

    def uniform(self, client_ids: Sequence[int] | NDArray[np.int64], count: int) -> FloatArray:
        """Return `count` numbers in (0, 1) for each client, float64 [len(client_ids), count].

        Odd multiples of 2^-54; a stream of its own for each client and count.
        """
        require_integer("count", count, minimum=1)
        keys = [self._derive(f"uniform {count} {client}") for client in self._ids(client_ids)]
        words = np.array([Words(key).draw(count) for key in keys]).reshape(len(keys), count)
        return np.asarray(((words >> 10) + 0.5) * 2.0**-53)

    def add_(
        self,
        law: str,
        values: torch.Tensor,
        clients: Sequence[int] | NDArray[np.int64],
        scale: float | NDArray[np.float64],
        step: float | NDArray[np.float64],
    ) -> torch.Tensor:
        """Set values to round_to_multiple(values + scale * noise, step) in place, rowwise.

        `values` is float32 [K, d], of K `clients`.
        `scale` and `step` are numbers or arrays [K]; each step is a power of two
        (`additive.grid_step`) and `|values + scale*noise|` below 2^22 steps (2^24 with 64-bit
        words), which the caller ensures. Ties go to even multiples.
        """
        require_choice("law", law, LAWS)
        ids = self._ids(clients)
        fits = values.dtype == torch.float32 and tuple(values.shape) == (len(ids), self.dimension)
        if not fits or (values.stride(1) != 1 and self.dimension > 1):
            raise InvalidValueError(
                "values",
                f"{values.dtype} {list(values.shape)}",
                f"must be float32 [{len(ids)}, {self.dimension}], row after row",
            )
        for field, value in (("scale", scale), ("step", step)):
            if not (np.isfinite(value) & (np.asarray(value) > 0)).all():
                raise InvalidValueError(field, value, "must be finite numbers > 0")
        self._draw(law, ids, values, scale, step)
        return values

    def numpy_generator(self, client: int) -> np.random.Generator:
        """Return a generator of this key and client alone, for randomizers that are not plain
        noise."""
        entropy = self._derive(f"generator {require_integer('client', client, minimum=0)}")
        return np.random.Generator(np.random.PCG64(int.from_bytes(entropy, "big")))

    def words_key(self, client: int) -> bytes:
        """Return 16 bytes of this key and client alone, for exact samplers (`samplers.Words`)."""
        return self._derive(f"words {require_integer('client', client, minimum=0)}")

    def _ids(self, client_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.asarray(client_ids)
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or int(ids.min()) < 0:
            raise InvalidValueError("client_ids", client_ids, "must be whole numbers >= 0, a list")
        if (int(ids.max()) + 1) * self._layout.blocks_per_client > _COUNTER_LIMIT:
            raise InvalidValueError("client id", ids.max(), "is too large for this dimension")
        return ids.astype(np.int64)

    def _derive(self, purpose: str) -> bytes:
        generator = "aes" if self.device.type == "cpu" else self.device.type
        domain = f"{purpose} {self.dimension} {self.bits} {generator}".encode()
        return hashlib.blake2b(
            domain, digest_size=16, key=self._key[:64], person=b"fl-shuffle noise"
        ).digest()

    def _draw(
        self,
        law: str,
        ids: range | NDArray[np.int64],
        target: torch.Tensor,
        scale: float | NDArray[np.float64],
        step: float | NDArray[np.float64] | None,
    ) -> None:
        """Add noise to `target`, and round to the step unless it is None."""
        if len(ids) == 0:
            return
        if isinstance(ids, np.ndarray) and bool(np.all(np.diff(ids) == 1)):
            ids = range(int(ids[0]), int(ids[0]) + len(ids))
        scales = np.broadcast_to(np.asarray(scale), len(ids)).astype(np.float64)
        steps = np.broadcast_to(0.0 if step is None else np.asarray(step), len(ids))
        steps = steps.astype(np.float64)
        if self.device.type == "cpu":
            words = AesWords(self._derive(law), self._layout)
            _draw_on_cpu(law, words, ids, target.numpy(), scales, steps)
        else:
            seeds = [int.from_bytes(self._derive(f"{law} {client}")[:8]) >> 1 for client in ids]
            draw_on_device(law, seeds, target, scales, steps)


_MAGIC = 1.5 * 2.0**23
"""Adding and taking away this many steps rounds to a multiple of the step in float32."""


def _draw_on_cpu(
    law: str,
    words: AesWords,
    ids: range | NDArray[np.int64],
    target: NDArray[np.float32],
    scales: FloatArray,
    steps: FloatArray,
) -> None:
    """Set target to round(target + scale * noise, step), not rounded where steps are zero."""
    from fl_shuffle.randomizers.noise_loops import LOOPS

    layout = words.layout
    wide = layout.word_bytes == 8
    sizes, magic = scales.astype(np.float32), (_MAGIC * steps).astype(np.float32)
    rows_per_block = min(len(ids), max(1, WORDS_PER_BLOCK // layout.width))
    size = rows_per_block * layout.width * layout.word_bytes
    # The cipher asks for room for one more incomplete block than it writes.
    raw = np.empty(size + BLOCK_BYTES, np.uint8)
    drawn: NDArray[Any] = (
        raw[:size].view(np.int64 if wide else np.int32).reshape(rows_per_block, layout.width)
    )
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        for tile in range(layout.tiles):
            words.fill(ids[rows], tile, raw)
            block, part = drawn[: rows.stop - start], target[rows, layout.columns(tile)]
            if wide:
                source = noise_exact.Source(words.key, np.asarray(ids[rows], np.int64), tile, block)
                noise_exact.add(law, source, part, scales[rows], steps[rows])
            else:
                # The loops take a piece of rows from its first number on.
                flat, stride, columns = _flat(part)
                LOOPS[law](block, flat, 0, stride, columns, sizes[rows], magic[rows])


def _flat(part: NDArray[np.float32]) -> tuple[NDArray[np.float32], int, int]:
    """Return a piece [k, n] of longer rows, and all between its first and last number: as one
    array, with the distance of two rows in it, and n."""
    (count, columns), stride = part.shape, part.strides[0] // part.itemsize
    length = (count - 1) * stride + columns
    return np.lib.stride_tricks.as_strided(part, (length,), (part.itemsize,)), stride, columns


def draw_on_device(
    law: str, seeds: Sequence[int], target: torch.Tensor, scales: FloatArray, steps: FloatArray
) -> None:
    """Draw as `_draw_on_cpu` with the device's own generator, seeded for each row, cut at what
    32-bit words reach."""
    generator, limit = torch.Generator(target.device), largest_variate(law)
    for row, seed, scale, step in zip(target, seeds, scales.tolist(), steps.tolist(), strict=True):
        generator.manual_seed(seed)
        noise = torch.empty_like(row)
        if law == "normal":
            noise.normal_(generator=generator)
        else:
            noise.exponential_(generator=generator)
            signs = torch.empty_like(row).uniform_(-1.0, 1.0, generator=generator)
            noise.copysign_(signs)
        row.add_(noise.clamp_(-limit, limit), alpha=scale)
        if step > 0.0:
            row.div_(step).round_().mul_(step)


def _require_bits(bits: int) -> int:
    if bits not in (32, 64):
        raise InvalidValueError("bits", bits, "must be 32 (simulation) or 64 (deployment)")
    return bits
