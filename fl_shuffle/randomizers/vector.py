"""What a client does to a vector: clip it, add noise, round the report to a public grid.

The grid makes sums exact. Every report is a multiple of a public power of two and is small enough
for float32 to hold it, so float64 sums of reports have no rounding error and do not depend on
arrival order, packing or threads. Rounding happens after the noise: it is post-processing and costs
no privacy. (It also hides the low-order bits of floating-point noise, see docs/noise.md.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.accounting.laws.report_grid import grid_steps
from fl_shuffle.errors import InvalidValueError, NotApplicableError, require_choice, require_real
from fl_shuffle.randomizers.noise import NoiseStream, largest_variate
from fl_shuffle.randomizers.noise_cpu import CompiledLoops

if TYPE_CHECKING:
    from fl_shuffle.compiled.row_clipping import RowClips

FloatArray = NDArray[np.float64]
Clients = int | Sequence[int] | NDArray[np.int64]
"""Whose the rows of a matrix are: the first id of a run, or an id for each row."""

NOISES = {"gaussian": "normal", "laplace": "laplace"}
"""Each noise and the law of its standard variate."""
NORMS = {"gaussian": 2, "laplace": 1}
"""The norm in which each noise measures sensitivity."""

SMALLEST, LARGEST = 1e-12, 1e12
"""Limits of radii and noise scales, so that float32 arithmetic neither overflows nor vanishes."""

_SEGMENT = 256
"""Terms added up in float32 before float64 takes over."""
# Relative error of a float32 sum of 256 non-negative terms in any order is below 256 * 2^-24; the
# square root halves it. Norms are inflated by more than that, so a clipped row is never too long.
_NORM_INFLATION = 1.0 + 2.0**-15
# A factor near float32's smallest would lose its digits: those rows are scaled in float64.
_LEAST_FACTOR = 1e-30
_CLIP_BLOCK = 1 << 16
"""Numbers clipped at a time: they stay in the cache."""


_clipping, _summing = CompiledLoops(), CompiledLoops()


class LocalRandomizer(Protocol):
    """The seam: what turns clipped means into reports, one row per client.

    `randomize_` overwrites `means` (float32 [K, d]) with the reports of `clients` (first id of a
    run, or K ids) and returns it. Row k may depend on row k, the client's id and the stream only.
    """

    @property
    def step(self) -> float:
        """Public grid step: every report is a multiple of it."""

    def randomize_(
        self, means: torch.Tensor, clients: int | Sequence[int], stream: NoiseStream
    ) -> torch.Tensor:
        """Randomize in place and return the reports."""


def owners_of(means: torch.Tensor, clients: Clients) -> NDArray[np.int64]:
    """The client's id of each row of `means`; `InvalidValueError` if their numbers differ."""
    rows = means.shape[0]
    ids = range(clients, clients + rows) if isinstance(clients, int) else clients
    if len(ids) != rows:
        raise InvalidValueError("clients", len(ids), f"must name the {rows} rows of means")
    return np.asarray(ids, np.int64)


def grid_step(scale: float, radius: float) -> float:
    """The public grid of reports with noise `scale` and means of norm at most `radius`.

    A power of two: the smallest that is at least scale * 2^-16 and at least
    (radius + 12 scale) * 2^-21. Rounding then adds a variance of at most scale^2 2^-32 / 3
    per coordinate where the first term rules, and every |report| is below 2^22 steps:
    |mean| <= radius, and no 32-bit variate exceeds 22.2 in absolute value (2^23 steps with 64-bit
    words, whose variates end at 44.4; float32 holds them).
    """
    scale = require_real("scale", scale, minimum=SMALLEST, maximum=LARGEST)
    radius = require_real("radius", radius, minimum=0.0, maximum=LARGEST)
    return float(grid_steps(scale, radius))


def largest_reports(noise: str, scale: FloatArray, radius: FloatArray, bits: int) -> FloatArray:
    """What no coordinate of a report can exceed in absolute value, arrays [n].

    Raises what `grid_step` raises.
    """
    good = (scale >= SMALLEST) & (scale <= LARGEST) & (radius >= 0.0) & (radius <= LARGEST)
    for index in np.flatnonzero(~good)[:1]:
        grid_step(float(scale[index]), float(radius[index]))
    reach = scale * largest_variate(NOISES[noise], bits)
    return radius + reach + grid_steps(scale, radius)


@dataclass(frozen=True)
class VectorRandomizer:
    """Adds independent Gaussian or Laplace noise of one `scale` to every coordinate.

    `scale` is the standard deviation (gaussian) or the Laplace scale b; `radius` bounds the norm
    (l2 for gaussian, l1 for laplace) of the means it will be given. The local guarantee follows
    from the scale and the sensitivity of the mean; it is the accountant's business, not stated
    here. Frozen and hashable: clients with equal randomizers form a cohort.
    """

    noise: str
    scale: float
    radius: float

    def __post_init__(self) -> None:
        require_choice("noise", self.noise, NOISES)
        grid_step(self.scale, self.radius)

    @property
    def norm(self) -> int:
        """2 for Gaussian noise, 1 for Laplace noise."""
        return NORMS[self.noise]

    @property
    def step(self) -> float:
        """The grid step of its reports."""
        return grid_step(self.scale, self.radius)

    def largest_report(self, bits: int = 32) -> float:
        """No coordinate of a report can exceed this in absolute value, with `bits`-bit noise."""
        own = np.array([self.scale]), np.array([self.radius])
        return float(largest_reports(self.noise, *own, bits)[0])

    def randomize_(
        self, means: torch.Tensor, clients: Clients, stream: NoiseStream
    ) -> torch.Tensor:
        """In place: means (float32 [K, d], norms at most `radius`) become reports."""
        return stream.add_(NOISES[self.noise], means, clients, self.scale, self.step)


def randomize_rows_(
    noise: str,
    means: torch.Tensor,
    clients: Clients,
    stream: NoiseStream,
    *,
    scale: float | NDArray[np.float64],
    step: float | NDArray[np.float64],
) -> torch.Tensor:
    """`VectorRandomizer.randomize_` with personal scales: `scale` and `step` may be arrays [K].

    Row k gets noise scale[k] and is rounded to a multiple of step[k] = grid_step(scale[k], its
    radius). Bit for bit what K separate randomizers would return.
    """
    require_choice("noise", noise, NOISES)
    return stream.add_(NOISES[noise], means, clients, scale, step)


@dataclass(frozen=True)
class UserRandomizer:
    """A user's own randomizer: `function(mean, epsilon0, delta0, generator) -> report`.

    `function` gets one client's float32 mean [d] (a copy), the client's local budget and a numpy
    Generator of its own, and returns d numbers. It is *declared* to be (epsilon0, delta0) local
    DP under replace-one; nothing here can check that. Amplification is claimed as for any local
    randomizer of that budget: every client gets the same function. Its output is clamped to
    [-bound, bound] and rounded to the grid, both post-processing. Raises `InvalidValueError` if it
    returns NaN, an infinity or another shape.
    """

    function: Callable[[NDArray[np.float32], float, float, np.random.Generator], object]
    epsilon0: float
    delta0: float
    bound: float

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, exclusive_minimum=True)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0, exclusive_maximum=True)
        require_real("bound", self.bound, minimum=SMALLEST, maximum=LARGEST)

    @property
    def step(self) -> float:
        """The smallest power of two that is at least bound * 2^-22."""
        mantissa, exponent = math.frexp(self.bound * 2.0**-22)
        return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)

    def randomize_(
        self, means: torch.Tensor, clients: Clients, stream: NoiseStream
    ) -> torch.Tensor:
        """In place: each row becomes the report of the user's function."""
        ids = owners_of(means, clients)
        for row, client in zip(means, ids.tolist(), strict=True):
            mean = row.to("cpu", copy=True).numpy()
            output = self.function(mean, self.epsilon0, self.delta0, stream.numpy_generator(client))
            report = np.asarray(output, dtype=np.float64)
            if report.shape != tuple(row.shape) or not bool(np.isfinite(report).all()):
                raise InvalidValueError(
                    "report of the user's randomizer",
                    f"shape {report.shape}",
                    f"must be {row.shape[0]} finite numbers",
                )
            clamped = np.clip(report, -self.bound, self.bound)
            row.copy_(torch.from_numpy(np.rint(clamped / self.step) * self.step))
        return means


def clip_rows(
    rows: torch.Tensor, radius: float | NDArray[np.float64], norm: int
) -> NDArray[np.bool_]:
    """Clip each row of `rows` (float32 [K, d]) to norm at most `radius`, in place.

    `norm` is 1 or 2; `radius` a number or an array [K]. Returns the mask [K] of valid rows. A row
    that holds NaN or an infinity is invalid and is set to zero, so nothing non-finite ever passes;
    a zero row stays zero. Rows at most `radius` (1 - 2^-15) long are left untouched; longer ones
    are scaled. The float32 norm is inflated by its worst error, so a clipped row never exceeds
    `radius`. The result of a row does not depend on the other rows. Off the CPU norms are float64
    reductions on the device, and the last bits may differ from the CPU's.
    """
    if norm not in (1, 2):
        raise InvalidValueError("norm", norm, "must be 1 or 2")
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise InvalidValueError(
            "rows", f"{rows.dtype} {list(rows.shape)}", "must be float32 [K, d]"
        )
    count, dimension = rows.shape
    radii = _radii(radius, count)
    if rows.device.type != "cpu":
        return _clip_on_device(rows.detach(), radii, norm)
    values = rows.detach().numpy()
    invalid = np.zeros(count, dtype=np.bool_)
    if rows.is_contiguous() and _clipping.pay(rows.numel()):
        from fl_shuffle.compiled import row_clipping

        own = np.array(radii)
        row_clipping.clip_rows(values, own, norm, _NORM_INFLATION, _LEAST_FACTOR, invalid)
        return ~invalid
    per_block = max(1, _CLIP_BLOCK // max(1, dimension))
    for start in range(0, count, per_block):
        block = slice(start, start + per_block)
        invalid[block] = _clip_block(values[block], radii[block], norm)
    return ~invalid


def row_clips(radii: Sequence[float | NDArray[np.float64]], rows: int, norm: int) -> RowClips:
    """What compiled loops that clip rows as they make them take, for `rows` of them: each call of
    `clip_rows` with one of the radii, in turn. Needs numba."""
    from fl_shuffle.compiled.row_clipping import RowClips

    stages = np.stack([_radii(radius, rows) for radius in radii])
    return RowClips(stages, norm, _NORM_INFLATION, _LEAST_FACTOR)


def _radii(radius: float | NDArray[np.float64], rows: int) -> FloatArray:
    radii = np.broadcast_to(np.asarray(radius, dtype=np.float64), (rows,))
    if not bool(np.all((radii >= SMALLEST) & (radii <= LARGEST))):
        raise InvalidValueError("radius", radius, f"must lie in [{SMALLEST:g}, {LARGEST:g}]")
    return radii


def _clip_block(values: NDArray[np.float32], radii: FloatArray, norm: int) -> NDArray[np.bool_]:
    """`clip_rows` of few rows, with NumPy; marks the invalid ones."""
    lengths = _norms(values, norm) * _NORM_INFLATION
    invalid = np.zeros(len(values), dtype=np.bool_)
    for row in np.flatnonzero(~np.isfinite(lengths)):
        # Either truly not finite, or squares beyond float32: decide in float64.
        lengths[row] = _norms(values[row : row + 1].astype(np.float64), norm)[0]
        if np.isfinite(lengths[row]):
            lengths[row] *= _NORM_INFLATION
        else:
            values[row] = 0.0
            lengths[row] = 0.0
            invalid[row] = True
    long = lengths > radii
    if bool(long.any()):
        factor = np.divide(radii, lengths, out=np.ones_like(lengths), where=long)
        tiny = np.flatnonzero(factor < _LEAST_FACTOR)
        scaled = values[tiny] * factor[tiny, None]
        np.multiply(values, factor.astype(np.float32)[:, None], out=values)
        values[tiny] = scaled
    return invalid


def _clip_on_device(rows: torch.Tensor, radii: FloatArray, norm: int) -> NDArray[np.bool_]:
    lengths = torch.linalg.vector_norm(rows, ord=norm, dim=1, dtype=torch.float64)
    lengths = lengths * _NORM_INFLATION
    valid = torch.isfinite(lengths)
    limits = torch.tensor(radii, device=rows.device)
    factor = torch.where(valid & (lengths > limits), limits / lengths, 1.0)
    rows.copy_(torch.where(valid[:, None], rows.double() * factor[:, None], 0.0))
    return np.asarray(valid.cpu().numpy(), dtype=np.bool_)


def _norms(values: NDArray[np.float32] | NDArray[np.float64], norm: int) -> NDArray[np.float64]:
    """Row norms: 256 terms are added by halving in the input's precision, their sums in float64."""
    count, dimension = values.shape
    segments = max(1, -(-dimension // _SEGMENT))
    terms = np.zeros((count, segments * _SEGMENT), values.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        (np.abs if norm == 1 else np.square)(values, out=terms[:, :dimension])
        sums = terms.reshape(count, segments, _SEGMENT)
        while (half := sums.shape[2] // 2) > 0:
            sums = sums[:, :, :half] + sums[:, :, half:]
        # One after the other, as compiled loops add them.
        total = np.add.accumulate(sums[:, :, 0].astype(np.float64), axis=1)[:, -1]
    return np.asarray(total if norm == 1 else np.sqrt(total), dtype=np.float64)


def exact_sum(reports: torch.Tensor, accumulator: torch.Tensor, group: int = 1) -> None:
    """accumulator (float64 [d]) += the sum of `reports` (float32 [K, d]) over rows.

    Exact, hence independent of order and partition, as long as `require_exact` holds for all the
    reports that ever go into the accumulator. `group` (see `exact_group`) is a number of rows whose
    float32 sums are exact too: two to three times as fast. Either form gives the same bits.
    """
    rows = reports.shape[0]
    if rows == 0:
        return
    if reports.device.type != "cpu":
        accumulator.add_(reports.sum(dim=0, dtype=torch.float64))
        return
    if group == 1:
        total = accumulator.numpy()
        np.add(total, np.add.reduce(reports.numpy(), axis=0, dtype=np.float64), out=total)
        return
    whole = rows // group * group
    if whole:
        stacked = reports[:whole].reshape(rows // group, group, -1)
        accumulator.add_(stacked.sum(dim=1).sum(dim=0, dtype=torch.float64))
    if whole < rows:
        accumulator.add_(reports[whole:].sum(dim=0))


def exact_sum_within(
    reports: torch.Tensor,
    accumulator: torch.Tensor,
    largest: NDArray[np.float64] | None = None,
    group: int = 1,
) -> bool:
    """`exact_sum`, and whether every number is at most its row's of `largest` [K] in size.

    NaN is not.
    """
    limits = np.broadcast_to(math.inf if largest is None else largest, reports.shape[:1])
    in_order = reports.device.type == "cpu" and reports.is_contiguous()
    if in_order and _summing.pay(reports.numel()):
        from fl_shuffle.compiled.exact_sums import sum_within

        rounded = limits.astype(np.float32)
        below = np.where(rounded > limits, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        return bool(sum_within(reports.numpy(), below, group, accumulator.numpy()))
    exact_sum(reports, accumulator, group)
    return bool(rows_within(reports, limits).all())


def rows_within(rows: torch.Tensor, largest: NDArray[np.float64]) -> torch.Tensor:
    """Which rows [K, d] have no number above their own of `largest` [K] in size, and no NaN."""
    if not rows.numel():
        return torch.ones(rows.shape[0], dtype=torch.bool)
    low, high = torch.aminmax(rows, dim=1)
    return torch.maximum(-low, high).cpu().double() <= torch.tensor(largest)


def reach_of(rows: torch.Tensor) -> float:
    """The largest absolute value; infinity where one is NaN."""
    if not rows.numel():
        return 0.0
    low, high = torch.aminmax(rows)
    reach = max(-float(low), float(high))
    return math.inf if math.isnan(reach) else reach


def exact_group(step: float, largest: float) -> int:
    """How many reports on a grid of `step` with |coordinate| <= `largest` float32 adds exactly."""
    return max(1, int(2.0**24 * step / largest))


def sum_is_exact(count: int, largest: float, smallest_step: float) -> bool:
    """Whether float64 adds `count` reports exactly, in any order.

    True if count * largest < 2^53 * smallest_step, where `largest` bounds every coordinate and all
    reports lie on grids whose steps are powers of two >= smallest_step: every partial sum is then
    an integer below 2^53 in units of the smallest step.
    """
    return count * largest < 2.0**53 * smallest_step


def require_exact(count: int, largest: float, smallest_step: float) -> None:
    """Raise `NotApplicableError` unless `sum_is_exact`."""
    if not sum_is_exact(count, largest, smallest_step):
        raise NotApplicableError(
            f"a sum of {count} reports up to {largest:g} on a grid of {smallest_step:g} is not "
            "exact in float64: give the clients noise scales that are closer together"
        )
