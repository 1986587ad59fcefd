"""Counter-based noise: one key per (run, round, purpose), one aligned range of counters per client.

Client i's row of `dimension` variates comes from counter blocks [i*B, (i+1)*B) of a keyed
pseudo-random function, so a run of neighbouring clients is one call, any client can be drawn alone,
and the bits are the same whatever the batch, order, thread or process.

On the CPU the bits are AES-128 in counter mode (OpenSSL). On other devices, or with
`generator="philox"`, they are Philox4x32-10 (Salmon et al. 2011) in integer tensor operations:
reproducible in the same way, statistically strong, but not cryptographic.

The laws, from signed words W of `bits` bits and U = |W + 1/2| 2^(1 - bits) in (0, 1):

* normal: Box-Muller. R = sqrt(-2 ln U) from one word, V = pi W' 2^(1 - bits) from another, the two
  variates R cos V and R sin V. The largest |variate| is sqrt(64 ln 2) = 6.66 for 32 bits (float32
  arithmetic) and sqrt(128 ln 2) = 9.42 for 64 bits (float64).
* laplace: -ln U with the sign of W; at most 32 ln 2 = 22.2 (64 ln 2 = 44.4).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real
from fl_shuffle.randomizers.noise_cpu import BLOCK_BYTES, AesWords, Layout, draw_cpu
from fl_shuffle.randomizers.noise_device import draw_device

FloatArray = NDArray[np.float64]
LAWS = ("normal", "laplace")
GENERATORS = ("aes", "philox")
_COUNTER_LIMIT = 1 << 62
"""Counters stay below this, so that they fit signed 64-bit arithmetic."""


def largest_variate(law: str, bits: int = 32) -> float:
    """The largest absolute value of a standard variate of `law` drawn from `bits`-bit words."""
    require_choice("law", law, LAWS)
    _require_bits(bits)
    exponent = bits * math.log(2.0)
    return math.sqrt(2.0 * exponent) if law == "normal" else exponent


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
        self._layout = Layout.of(self.dimension, self.bits)

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
        layout = Layout.of(require_integer("count", count, minimum=1, maximum=64), 64)
        ids = self._ids(client_ids)
        words = AesWords(self._derive(f"uniform {count}"), layout)
        size = len(ids) * layout.width
        raw = np.empty(8 * size + BLOCK_BYTES, np.uint8)
        if len(ids):
            words.fill(ids, 0, raw)
        table = raw[: 8 * size].view(np.uint64).reshape(len(ids), layout.width)[:, :count]
        return np.asarray(((table >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)

    def numpy_generator(self, client: int) -> np.random.Generator:
        """A generator of this key and client alone, for randomizers that are not plain noise."""
        entropy = self._derive(f"generator {require_integer('client', client, minimum=0)}")
        return np.random.Generator(np.random.PCG64(int.from_bytes(entropy, "big")))

    def words_key(self, client: int) -> bytes:
        """16 bytes of this key and client alone, for exact samplers (`discrete.words.Words`)."""
        return self._derive(f"words {require_integer('client', client, minimum=0)}")

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
        key = self._derive(law)
        if self.generator == "aes":
            words = AesWords(key, layout)
            draw_cpu(law, words, ids, target.numpy(), scale=scale, step=step)
        else:
            draw_device(law, layout, key, ids, target, scale=scale, step=step)


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
