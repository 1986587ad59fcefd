"""Counter-based noise: one key per (run, round, purpose), one aligned range of counters per client.

Client i's row of `dimension` variates comes from counter blocks [i*B, (i+1)*B) of a keyed
pseudo-random function, so a run of neighbouring clients is one call, any client can be drawn alone,
and the bits are the same whatever the batch, order, thread or process.

On the CPU the bits are AES-128 in counter mode (OpenSSL). On other devices, or with
`generator="philox"`, they are Philox4x32-10 (Salmon et al. 2011) in integer tensor operations:
reproducible in the same way, statistically strong, but not cryptographic.

The laws, with k a `bits`-bit word per uniform:

* normal: Box-Muller on pairs (U, V), R = sqrt(-2 ln U), R cos(V), R sin(V). With 32 bits
  U is a midpoint in multiples of 2^-32, the largest |variate| is sqrt(64 ln 2) = 6.66, and float32
  arithmetic is used; with 64 bits it is sqrt(128 ln 2) = 9.42, in float64.
* laplace: sign * (-ln U), U midpoints of multiples of 2^-32 (or 2^-64); the largest |variate| is
  32 ln 2 = 22.2 (64 ln 2 = 44.4).
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real

FloatArray = NDArray[np.float64]
LAWS = ("normal", "laplace")
GENERATORS = ("aes", "philox")
_BLOCK_BYTES = 16
# A block of work is this many words: enough to hide call overhead, few enough for the cache.
_CPU_WORDS = 1 << 16
_CPU_WORDS_PER_TILE = 3 << 15
_DEVICE_WORDS = 1 << 22
_COUNTER_LIMIT = 1 << 62
"""Counters stay below this, so that they fit signed 64-bit arithmetic."""


def largest_variate(law: str, bits: int = 32) -> float:
    """The largest absolute value of a standard variate of `law` drawn from `bits`-bit words."""
    require_choice("law", law, LAWS)
    _require_bits(bits)
    exponent = bits * math.log(2.0)
    return math.sqrt(2.0 * exponent) if law == "normal" else exponent


@dataclass(frozen=True)
class _Layout:
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
    def of(cls, dimension: int, bits: int) -> _Layout:
        word_bytes = bits // 8
        unit = _BLOCK_BYTES // word_bytes
        tiles = -(-dimension // _CPU_WORDS_PER_TILE)
        width = -(-dimension // (tiles * unit)) * unit
        return cls(dimension, width, -(-dimension // width), word_bytes)

    @property
    def blocks_per_tile(self) -> int:
        return self.width * self.word_bytes // _BLOCK_BYTES

    @property
    def blocks_per_client(self) -> int:
        return self.tiles * self.blocks_per_tile

    def columns(self, tile: int) -> slice:
        return slice(tile * self.width, min((tile + 1) * self.width, self.dimension))


class NoiseStream:
    """Standard normal or Laplace rows of length `dimension`, one per client id, from one `key`.

    `key` is at least 16 secret or seed-derived bytes; distinct laws, dimensions and word sizes of
    one key are independent streams. `bits` is 32 (simulation) or 64 (deployment: twice the bits and
    float64 arithmetic before the result is cast to float32). `device` is where the result lives;
    `generator` defaults to AES on the CPU and Philox elsewhere.

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
        generator: str | None = None,
    ) -> None:
        if not isinstance(key, bytes) or len(key) < 16:
            raise InvalidValueError(
                "key", "<hidden>", "must be at least 16 bytes", "use SeedTree.key(round, purpose)"
            )
        self.dimension = require_integer("dimension", dimension, minimum=1)
        self.bits = _require_bits(bits)
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        self.generator = require_choice(
            "generator", generator or ("aes" if on_cpu else "philox"), GENERATORS
        )
        if self.generator == "aes" and not on_cpu:
            raise InvalidValueError("generator", generator, f"aes runs on the CPU, not {device}")
        self._key = key
        self._layout = _Layout.of(self.dimension, self.bits)
        self._law_keys = {law: self._derive(law) for law in LAWS}

    def normal(
        self, first_client: int, count: int, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Standard normals for clients first_client .. first_client+count-1, float32 [count, d]."""
        return self._fresh("normal", self._range(first_client, count), out)

    def laplace(
        self, first_client: int, count: int, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Standard Laplace (scale 1, variance 2) rows for a run of clients, float32 [count, d]."""
        return self._fresh("laplace", self._range(first_client, count), out)

    def normal_rows(self, client_ids: Sequence[int] | NDArray[np.int64]) -> torch.Tensor:
        """Standard normals for any client ids, in their order, float32 [len(client_ids), d]."""
        return self._fresh("normal", self._ids(client_ids), None)

    def laplace_rows(self, client_ids: Sequence[int] | NDArray[np.int64]) -> torch.Tensor:
        """Standard Laplace rows for any client ids, in order, float32 [len(client_ids), d]."""
        return self._fresh("laplace", self._ids(client_ids), None)

    def add_(
        self,
        law: str,
        values: torch.Tensor,
        clients: int | Sequence[int] | NDArray[np.int64],
        scale: float | NDArray[np.float64],
        step: float | NDArray[np.float64],
    ) -> torch.Tensor:
        """In place: values <- round_to_multiple(values + scale * noise, step), rowwise.

        `values` is float32 [K, d]; `clients` is the first id of a run of K clients, or the K ids.
        `scale` and `step` are numbers or arrays [K]; each step is a power of two (see
        `vector.grid_step`) and `|values + scale*noise| <= 2^22 step`, which the caller ensures.
        Ties go to even multiples.
        """
        require_choice("law", law, LAWS)
        self._check(values, "values")
        rows = values.shape[0]
        ids = self._range(clients, rows) if isinstance(clients, int) else self._ids(clients)
        if len(ids) != rows:
            raise InvalidValueError("clients", len(ids), f"must name the {rows} rows of values")
        self._draw(law, ids, values, _per_row("scale", scale, rows), _per_row("step", step, rows))
        return values

    def uniform_rows(self, client_ids: Sequence[int] | NDArray[np.int64], count: int) -> FloatArray:
        """`count` uniforms in (0, 1) for each client id, float64 [len(client_ids), count].

        Odd multiples of 2^-54, from AES on the CPU whatever the device; a stream of its own.
        """
        layout = _Layout.of(require_integer("count", count, minimum=1, maximum=64), 64)
        ids = self._ids(client_ids)
        words = _AesWords(self._derive(f"uniform {count}"), layout)
        size = len(ids) * layout.width
        raw = np.empty(8 * size + _BLOCK_BYTES, np.uint8)
        if len(ids):
            words.fill(ids, 0, raw)
        table = raw[: 8 * size].view(np.uint64).reshape(len(ids), layout.width)[:, :count]
        return np.asarray(((table >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)

    def numpy_generator(self, client: int) -> np.random.Generator:
        """A generator of this key and client alone, for randomizers that are not plain noise."""
        entropy = self._derive(f"generator {require_integer('client', client, minimum=0)}")
        return np.random.Generator(np.random.PCG64(int.from_bytes(entropy, "big")))

    def _fresh(
        self, law: str, ids: range | NDArray[np.int64], out: torch.Tensor | None
    ) -> torch.Tensor:
        if out is None:
            out = torch.empty((len(ids), self.dimension), device=self.device)
        self._check(out, "out")
        if out.shape[0] != len(ids):
            raise InvalidValueError("out", tuple(out.shape), f"must have {len(ids)} rows")
        self._draw(law, ids, out, 1.0, None)
        return out

    def _check(self, tensor: torch.Tensor, field: str) -> None:
        """Refuse anything but a float32 [*, d] tensor on this device with unit-stride rows."""
        shape = tuple(tensor.shape)
        good = (
            tensor.dtype == torch.float32
            and tensor.device.type == self.device.type
            and len(shape) == 2
            and shape[1] == self.dimension
            and (tensor.stride(1) == 1 or shape[1] == 1)
            and not tensor.requires_grad
        )
        if not good:
            raise InvalidValueError(
                field,
                f"{tensor.dtype} {list(shape)} on {tensor.device}",
                f"must be a plain float32 tensor [*, {self.dimension}] on {self.device.type}",
            )

    def _range(self, first_client: int, count: int) -> range:
        first = require_integer("first_client", first_client, minimum=0)
        rows = require_integer("count", count, minimum=0)
        self._check_counter(first + rows)
        return range(first, first + rows)

    def _ids(self, client_ids: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        ids = np.asarray(client_ids)
        if ids.size == 0:
            return np.empty(0, np.int64)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or int(ids.min()) < 0:
            raise InvalidValueError("client_ids", client_ids, "must be whole numbers >= 0, a list")
        self._check_counter(int(ids.max()) + 1)
        return ids.astype(np.int64)

    def _check_counter(self, end_client: int) -> None:
        if end_client * self._layout.blocks_per_client > _COUNTER_LIMIT:
            raise InvalidValueError("client id", end_client - 1, "is too large for this dimension")

    def _derive(self, purpose: str) -> bytes:
        domain = f"{purpose} {self.dimension} {self.bits} {self.generator}".encode()
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
        """Write noise into `target` (step None), or add it there and round to the step."""
        layout = self._layout
        if len(ids) == 0:
            return
        if isinstance(ids, np.ndarray) and bool(np.all(np.diff(ids) == 1)):
            ids = range(int(ids[0]), int(ids[0]) + len(ids))
        key = self._law_keys[law]
        if self.generator == "aes":
            words = _AesWords(key, layout)
            _draw_cpu(law, words, ids, target.numpy(), scale=scale, step=step)
        else:
            _draw_device(law, layout, key, ids, target, scale=scale, step=step)


def _require_bits(bits: int) -> int:
    if bits not in (32, 64):
        raise InvalidValueError("bits", bits, "must be 32 (simulation) or 64 (deployment)")
    return bits


def _per_row(
    field: str, value: float | NDArray[np.float64], rows: int
) -> float | NDArray[np.float64]:
    if isinstance(value, np.ndarray):
        if value.shape != (rows,) or not bool(np.all(np.isfinite(value) & (value > 0))):
            raise InvalidValueError(field, value, f"must hold {rows} finite numbers > 0")
        return value.astype(np.float64)
    return require_real(field, value, minimum=0.0, exclusive_minimum=True)


def _cut(values: float | NDArray[np.float64], rows: slice) -> float | NDArray[np.float64]:
    """The part of a per-row quantity that belongs to `rows`, as a column."""
    return values[rows, None] if isinstance(values, np.ndarray) else values


# --- CPU: AES counter mode, NumPy and torch kernels on cache-sized blocks -------------------------


class _AesWords:
    """AES-128 of the counters of clients and tiles, as signed words."""

    def __init__(self, key: bytes, layout: _Layout) -> None:
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
        size = len(ids) * layout.blocks_per_tile * _BLOCK_BYTES
        if isinstance(ids, range) and (len(ids) == 1 or layout.tiles == 1):
            start = ids[0] * layout.blocks_per_client + tile * layout.blocks_per_tile
            if start != self._next or self._context is None:
                counter = start.to_bytes(_BLOCK_BYTES, "big")
                self._context = Cipher(self._algorithm, modes.CTR(counter)).encryptor()
            self._context.update_into(memoryview(_ZEROS)[:size], raw[:size].data)
            self._next = start + size // _BLOCK_BYTES
            return
        starts = (
            np.asarray(ids, np.int64) * layout.blocks_per_client + tile * layout.blocks_per_tile
        )
        counters = np.zeros((len(ids), layout.blocks_per_tile, 2), ">u8")
        counters[:, :, 1] = starts[:, None] + np.arange(layout.blocks_per_tile)
        # Electronic codebook is safe here: every input block is a distinct counter.
        encryptor = Cipher(self._algorithm, modes.ECB()).encryptor()
        encryptor.update_into(counters.reshape(-1).view(np.uint8).data, raw.data)


_ZEROS = bytes(8 * _CPU_WORDS_PER_TILE)


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
        size = max(_CPU_WORDS, _CPU_WORDS_PER_TILE)
        # The cipher asks for room for one more incomplete block than it writes.
        self.raw = np.empty(8 * size + _BLOCK_BYTES, np.uint8)
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


def _draw_cpu(
    law: str,
    words: _AesWords,
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
    rows_per_block = max(1, _CPU_WORDS // layout.width)
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
            row_magic = None if magic is None else _cut(magic, rows)
            transform(work, _cut(spread, rows), part, row_magic)


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


# --- Any device: Philox4x32-10 in integer tensor operations --------------------------------------

_MASK = 0xFFFFFFFF
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: Sequence[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """Philox4x32-10 of four int64 tensors that hold unsigned 32-bit words (Salmon et al. 2011).

    64-bit products wrap around as two's complement; masking the shifted product gives the high word
    either way.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first = c0 * _PHILOX_MULTIPLIERS[0]
        second = c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _MASK) ^ c1 ^ k0,
            second & _MASK,
            ((first >> 32) & _MASK) ^ c3 ^ k1,
            first & _MASK,
        )
        k0 = (k0 + _PHILOX_WEYL[0]) & _MASK
        k1 = (k1 + _PHILOX_WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def _draw_device(
    law: str,
    layout: _Layout,
    key: bytes,
    ids: range | NDArray[np.int64],
    target: torch.Tensor,
    *,
    scale: float | NDArray[np.float64],
    step: float | NDArray[np.float64] | None,
) -> None:
    device = target.device
    philox_key = (int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little"))
    salt = int.from_bytes(key[8:16], "little") & ((1 << 63) - 1)
    clients = torch.as_tensor(np.asarray(ids, np.int64), device=device)
    block = torch.arange(layout.blocks_per_tile, device=device)
    rows_per_block = max(1, _DEVICE_WORDS // layout.width)
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        for tile in range(layout.tiles):
            # 128-bit counter: the block's place in the stream, then 64 bits of the key as a salt.
            place = clients[rows, None] * layout.blocks_per_client + (
                tile * layout.blocks_per_tile + block
            )
            zero = torch.zeros_like(place)
            words = philox4x32(
                (place & _MASK, place >> 32, zero + (salt & _MASK), zero + (salt >> 32)),
                philox_key,
            )
            stacked = torch.stack(words, dim=2)
            signed = torch.where(stacked > 0x7FFFFFFF, stacked - (1 << 32), stacked)
            integers = signed.to(torch.int32).view(len(place), -1)
            if layout.word_bytes == 8:
                integers = integers.view(torch.int64)
            part = target[rows, layout.columns(tile)]
            noise = _law_device(law, integers)[:, : part.shape[1]]
            noise.mul_(_column(_cut(scale, rows), noise))
            _place_device(noise, part, None if step is None else _cut(step, rows))


def _column(value: float | NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _law_device(law: str, words: torch.Tensor) -> torch.Tensor:
    wide = words.dtype == torch.int64
    dtype, unit = (torch.float64, 2.0**-63) if wide else (torch.float32, 2.0**-31)
    uniform = words.to(dtype).mul_(unit)
    if law == "laplace":
        uniform.add_(0.5 * unit)
        return torch.copysign(uniform.abs().log_(), uniform)
    half = words.shape[1] // 2
    radius = uniform[:, :half].add(0.5 * unit).square_().log_().neg_().sqrt_()
    angle = uniform[:, half:] * math.pi
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)


def _place_device(
    noise: torch.Tensor, part: torch.Tensor, step: float | NDArray[np.float64] | None
) -> None:
    if step is None:
        part.copy_(noise)
        return
    exponent = 23 if noise.dtype == torch.float32 else 52
    magic = _column(1.5 * 2.0**exponent * np.asarray(step), noise)
    part.copy_(noise.add_(part).add_(magic).sub_(magic))
