"""Clipping, the public grid, exact sums, and the randomizers of vectors."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.compiled.rows import sum_within
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.gradients.row_clips import _clip_on_device, clip_rows
from fl_shuffle.randomizers import Gaussian, Laplace
from fl_shuffle.randomizers.additive import NOISES, grid_step
from fl_shuffle.randomizers.base import LARGEST, SMALLEST, Noise
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.shuffler.exact_sums import exact_sum, exact_sum_within, require_exact, sum_is_exact

KEY = bytes(range(32))
SCALES = st.floats(SMALLEST, LARGEST)


@settings(max_examples=200, deadline=None)
@given(SCALES, st.floats(0, LARGEST))
def test_grid_step_is_the_smallest_power_of_two_that_suffices(scale: float, radius: float) -> None:
    step = grid_step(scale, radius)
    needed = max(scale * 2.0**-16, (radius + 12 * scale) * 2.0**-21)
    assert math.frexp(step)[0] == 0.5
    assert needed <= step < 2 * needed
    assert radius + 22.2 * scale < 2.0**22 * step


@pytest.mark.parametrize(
    ("scale", "radius"),
    [(0.0, 1.0), (math.nan, 1.0), (1.0, -1.0), (1e13, 1.0), (1e-13, 1.0), ("1", 1.0)],
)
def test_grid_step_refuses(scale: object, radius: object) -> None:
    with pytest.raises(InvalidValueError):
        grid_step(scale, radius)  # type: ignore[arg-type]


def of(noise: str, scale: list[float], radius: list[float]) -> Gaussian:
    """The randomizer of clients with these scales and radii."""
    budget = np.ones(len(scale))
    return NOISES[noise](budget, budget, np.array(radius), np.array(scale))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize(("scale", "radius"), [(1.0, 1.0), (0.003, 2.0), (50.0, 1e-3), (1e-6, 1.0)])
def test_reports_lie_on_the_grid_and_below_the_bound(
    noise: str, scale: float, radius: float
) -> None:
    randomizer = of(noise, [scale] * 150, [radius] * 150)
    step = float(randomizer.step[0])
    means = torch.randn(50, 200)
    clip_rows(means, radius, randomizer.norm)
    before = means.clone()
    reports = randomizer.reports(means, np.arange(100, 150), NoiseStream(KEY, 200))
    assert reports is means
    units = reports.double() / step
    assert torch.equal(units, units.round())
    # Words of 64 bits reach further, words of 32 bits less than 2^22 steps.
    assert float(reports.abs().max()) <= randomizer.largest()[0] < 2.0**24 * step
    assert float(reports.abs().max()) < 2.0**22 * step
    spread = (reports - before).double().std() / (scale * (1 if noise == "gaussian" else 2**0.5))
    assert float(spread) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_reports_are_what_is_stated_to_the_nearest_grid_point(
    bits: int, kind: type[Gaussian]
) -> None:
    """`reports`, compiled and in one pass, is `randomize` to half a step and float32's rounding."""
    clients, weight = np.array([1, 4, 5]), np.array([1.0, 0.5, 1.0, 1.0, 2.0, 0.25])
    budget, scale = np.ones(6), np.linspace(0.1, 2.0, 6)
    randomizer = kind(budget, budget, budget, scale, weight=weight)
    means, stream = 0.05 * torch.randn(3, 333), NoiseStream(KEY, 333, bits=bits)
    stated = randomizer.randomize(means.numpy(), clients, Noise(stream, clients))
    reports = randomizer.reports(means.clone(), clients, stream).double().numpy()
    spread = np.abs(reports - stated) / randomizer.step[clients, None]
    assert spread.max() <= 0.5 + 0.1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 120), st.sampled_from([1, 3, 64]), st.data())
def test_sums_have_the_same_bits_in_any_order_and_partition(
    seed: int, rows: int, dimension: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-3, 1, rows)
    steps = np.array([grid_step(float(s), 1.0) for s in scales])
    stream = NoiseStream(KEY, dimension)
    reports = stream.add_(
        "normal", torch.zeros(rows, dimension), np.arange(seed, seed + rows), scales, steps
    )
    assert sum_is_exact(rows, 10 * 7.0 + 1, float(steps.min()))
    expected = [
        float(sum((Fraction(float(v)) for v in reports[:, j]), Fraction(0)))
        for j in range(dimension)
    ]
    order = torch.from_numpy(rng.permutation(rows))
    cuts = data.draw(st.lists(st.integers(0, rows), max_size=4).map(sorted))
    total = torch.zeros(dimension, dtype=torch.float64)
    for start, stop in zip([0, *cuts], [*cuts, rows], strict=True):
        exact_sum(reports[order[start:stop]], total)
    assert total.tolist() == expected


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 33), (97, 4099), (0, 3)])
@pytest.mark.parametrize("group", [1, 16, 400])
def test_sums_are_those_of_numpy_and_limits_hold(rows: int, columns: int, group: int) -> None:
    rng = np.random.default_rng(rows)
    reports = torch.from_numpy(rng.integers(-4000, 4000, (rows, columns)).astype(np.float32))
    compiled = torch.full((columns,), 0.5, dtype=torch.float64)
    plain = 0.5 + reports.sum(dim=0, dtype=torch.float64)
    # Each row is just within its limit.
    limits = reports.abs().amax(dim=1).numpy() if rows else np.zeros(0, np.float32)
    assert sum_within(reports.numpy(), limits, group, compiled.numpy())
    assert torch.equal(plain, compiled)
    for row in range(rows):
        tight = limits.copy()
        tight[row] = np.nextafter(limits[row], np.float32(-1.0))
        assert not sum_within(reports.numpy(), tight, group, compiled.numpy())
    if rows > 1:
        reports[1, -1], reports[0, 0] = math.nan, -math.inf
        assert not sum_within(reports.numpy(), limits, group, compiled.numpy())
        assert not math.isfinite(float(compiled.sum()))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("limits", "honest"),
    [
        ([5.0, 4.0], True),
        ([5.0, 4.0 + 1e-10], True),
        # Nearer to 4 than float32 tells.
        ([5.0, 4.0 - 1e-10], False),
        ([1.0, 5.0], False),
        ([5.0, math.nan], False),
        (None, True),
    ],
)
def test_limits_are_kept_to_the_last_bit(
    turned: bool, limits: list[float] | None, honest: bool
) -> None:
    rows, total = torch.tensor([[1.0, -2.0], [3.0, -4.0]]), torch.zeros(2, dtype=torch.float64)
    if turned:
        rows = rows.T.contiguous().T
    assert exact_sum_within(rows, total, None if limits is None else np.array(limits)) is honest
    assert total.tolist() == [4.0, -6.0]
    rows[0, 0] = math.nan
    assert not exact_sum_within(rows, total)
    with pytest.raises(ValueError, match="broadcast"):
        exact_sum_within(rows, total, np.ones(3))


def test_exactness_is_refused_where_it_does_not_hold() -> None:
    assert sum_is_exact(10**6, 2.0**22 * 2.0**-16, 2.0**-16)
    require_exact(10**6, 100.0, 2.0**-16)
    with pytest.raises(NotApplicableError, match="not exact"):
        require_exact(10**6, 1e6, 2.0**-30)
    # The refused case really is inexact.
    values = [1e6, 2.0**-34, -1e6]
    assert sum(values) != math.fsum(values)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.tuples(st.sampled_from([1, 2, 255, 256, 257, 3000]), st.sampled_from([1, 2])),
    st.floats(-12, 12),
    st.floats(-30, 30),
)
def test_clipped_rows_never_exceed_the_radius(
    seed: int, rows: int, shape: tuple[int, int], log_radius: float, log_size: float
) -> None:
    dimension, norm = shape
    rng = np.random.default_rng(seed)
    radius = min(max(10.0**log_radius, SMALLEST), LARGEST)
    values = (rng.standard_normal((rows, dimension)) * 10.0**log_size).astype(np.float32)
    original = values.copy()
    tensor = torch.from_numpy(values)
    assert clip_rows(tensor, radius, norm).all()
    wide = values.astype(np.longdouble)
    lengths = np.abs(wide).sum(1) if norm == 1 else np.sqrt((wide**2).sum(1))
    assert (lengths <= radius).all()
    before = original.astype(np.longdouble)
    old = np.abs(before).sum(1) if norm == 1 else np.sqrt((before**2).sum(1))
    untouched = old <= radius * (1 - 2.0**-14)
    assert np.array_equal(values[untouched], original[untouched])
    clipped = old > radius
    # Clipping costs no more than the inflation of the norm (float32 may underflow if tiny).
    if log_radius > -10 and log_size < 25:
        assert (lengths[clipped] >= radius * (1 - 2.0**-13)).all()
    alone = original.copy()
    for row in range(rows):
        clip_rows(torch.from_numpy(alone[row : row + 1]), radius, norm)
    assert np.array_equal(alone, values)


def test_clip_has_a_radius_per_row() -> None:
    rows = torch.full((3, 4), 2.0)
    clip_rows(rows, np.array([1.0, 4.5, 2.0]), 2)
    assert rows.norm(dim=1).tolist() == pytest.approx([1.0, 4.0, 2.0], rel=1e-4)


def awkward_rows(dimension: int) -> torch.Tensor:
    """Short and long rows, and all that is hard about lengths."""
    generator = torch.Generator().manual_seed(dimension)
    sizes = torch.logspace(-44, 37, 83)[:, None]
    rows = torch.cat(
        [torch.randn(83, dimension, generator=generator) * sizes, torch.zeros(5, dimension)]
    )
    rows[83, 0], rows[84, -1], rows[85, 0], rows[86, -1] = 3e38, -1e-45, math.nan, -math.inf
    return rows


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dimension", [1, 31, 256, 257, 3000])
@pytest.mark.parametrize("radius", [SMALLEST, 1.0])
def test_clipping_against_float64(dimension: int, norm: int, radius: float) -> None:
    radii = np.geomspace(radius, 1e3 * radius, 88)
    rows = awkward_rows(dimension)
    wide = rows.numpy().astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        lengths = np.abs(wide).sum(1) if norm == 1 else np.sqrt((wide**2).sum(1))
    expected = np.isfinite(lengths)
    whole = np.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
    factor = np.minimum(1.0, radii / np.where(lengths > 0.0, lengths, 1.0))
    scaled = np.where(expected[:, None], whole * factor[:, None], 0.0)
    turned = rows.clone().T.contiguous().T
    assert (clip_rows(rows, radii, norm) == expected).all()
    np.testing.assert_allclose(rows.numpy(), scaled.astype(np.float64), rtol=1e-4, atol=1e-44)
    assert (clip_rows(turned, radii, norm) == expected).all()
    assert torch.equal(rows, turned)
    assert (~expected).sum() == 2


@pytest.mark.parametrize("norm", [1, 2])
def test_clipping_off_the_cpu_agrees(norm: int) -> None:
    """The device path, run on the CPU: the same rows clipped, the same mask, equal to 1e-6."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(40, 300, generator=generator) * torch.logspace(-3, 38, 40)[:, None]
    rows[3, 1], rows[4, 2], rows[5] = math.nan, math.inf, 0.0
    radii = np.linspace(0.5, 2.0, 40)
    host, device = rows.clone(), rows.clone()
    mask = clip_rows(host, radii, norm)
    assert np.array_equal(_clip_on_device(device, radii, norm), mask)
    assert torch.allclose(device, host, rtol=1e-5, atol=0)
    assert (torch.linalg.vector_norm(device.double(), ord=norm, dim=1).numpy() <= radii).all()


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, np.array([1.0, math.nan])])
def test_bad_radius(radius: object) -> None:
    with pytest.raises(InvalidValueError, match="radius"):
        clip_rows(torch.ones(2, 3), radius, 2)  # type: ignore[arg-type]


def test_bad_rows_and_norm() -> None:
    with pytest.raises(InvalidValueError, match="norm"):
        clip_rows(torch.ones(2, 3), 1.0, 3)
    with pytest.raises(InvalidValueError, match="rows"):
        clip_rows(torch.ones(2, 3, dtype=torch.int64), 1.0, 2)
    with pytest.raises(InvalidValueError, match="scale"):
        of("gaussian", [1e13], [1.0]).bound()
