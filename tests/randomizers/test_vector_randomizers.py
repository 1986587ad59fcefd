"""Clipping, the public grid, exact sums, and the randomizers of vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.errors import NotApplicableError
from fl_shuffle.gradients.row_clips import _clip_on_device, clip_rows
from fl_shuffle.randomizers import Gaussian, Laplace
from fl_shuffle.randomizers.additive import grid_step
from fl_shuffle.randomizers.base import LARGEST, SMALLEST, Noise
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.shuffler.exact_sums import exact_sum, require_exact

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


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("unit", [1.0, 3e-3, 50.0, 1e-6])
def test_reports_are_what_is_stated_to_the_nearest_grid_point(
    bits: int, kind: type[Gaussian], unit: float
) -> None:
    """`reports`, compiled and in one pass, is `randomize` to half a step and float32's rounding; on
    the grid, and below the bound."""
    clients, weight = np.array([1, 4, 5]), np.array([1.0, 0.5, 1.0, 1.0, 2.0, 0.25])
    budget, scale = np.ones(6), unit * np.linspace(0.1, 2.0, 6)
    randomizer = kind(budget, budget, budget, scale, weight=weight)
    means, stream = 0.05 * torch.randn(3, 333), NoiseStream(KEY, 333, bits=bits)
    clip_rows(means, 1.0, kind.norm)
    stated = randomizer.randomize(means.numpy(), clients, Noise(stream, clients))
    rows = means.clone()
    assert randomizer.reports(rows, clients, stream) is rows
    reports, step = rows.double().numpy(), randomizer.step[clients, None]
    assert (np.abs(reports - stated) / step).max() <= 0.5 + 0.1
    assert not np.mod(reports, step).any()
    # Words of 64 bits reach further, words of 32 bits less than 2^22 steps.
    assert (np.abs(reports) <= randomizer.largest()[clients, None]).all()
    assert (np.abs(reports) < 2.0**22 * step).all()
    assert (randomizer.largest() < 2.0**24 * randomizer.step).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 33), (97, 4099), (0, 3)])
def test_sums_are_exact_in_any_order_and_limits_hold_to_the_last_bit(
    rows: int, columns: int, turned: bool
) -> None:
    rng = np.random.default_rng(rows)
    steps = 2.0 ** rng.integers(-26, -8, (rows, 1))
    units = rng.integers(-4000, 4000, (rows, columns))
    reports = torch.from_numpy((units * steps).astype(np.float32))
    reports = reports.T.contiguous().T if turned else reports
    exact = [math.fsum([0.5, *column]) for column in reports.T.tolist()]
    for _ in range(3):
        total = torch.full((columns,), 0.5, dtype=torch.float64)
        order = torch.from_numpy(rng.permutation(rows))
        for part in torch.tensor_split(order, sorted(rng.integers(0, rows + 1, 3).tolist())):
            exact_sum(reports[part], total)
        assert total.tolist() == exact
    # Each row is just within its limit.
    limits = reports.abs().amax(dim=1).double().numpy() if rows else np.zeros(0)
    total = torch.full((columns,), 0.5, dtype=torch.float64)
    assert exact_sum(reports, total, limits) and total.tolist() == exact
    for row in range(rows):
        for bad in (limits[row] * (1.0 - 1e-12), math.nan):  # nearer than float32 tells
            tight = limits.copy()
            tight[row] = bad
            assert not exact_sum(reports, total, tight)
    if rows:
        reports[0, -1] = math.nan
        assert not exact_sum(reports, total)
        with pytest.raises(ValueError, match="broadcast"):
            exact_sum(reports, total, np.ones(rows + 2))
    require_exact(10**6, 2.0**22 * 2.0**-16, 2.0**-16)
    with pytest.raises(NotApplicableError, match="not exact"):
        require_exact(10**6, 1e6, 2.0**-30)


def lengths_of(rows: np.ndarray, norm: int) -> np.ndarray:
    return np.asarray(np.abs(rows).sum(1) if norm == 1 else np.sqrt((rows**2).sum(1)))


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
@pytest.mark.parametrize("radius", [SMALLEST, 1.0, 1e-3 * LARGEST])
def test_clipping_against_long_doubles(dimension: int, norm: int, radius: float) -> None:
    """Never beyond the radius, to the last bit; short rows are left, what is not finite is zero;
    and a row hangs neither on the others nor on how it lies."""
    radii = np.geomspace(radius, 1e3 * radius, 88)
    rows = awkward_rows(dimension)
    turned, alone = rows.clone().T.contiguous().T, rows.clone()
    wide = rows.numpy().astype(np.longdouble)
    with np.errstate(invalid="ignore"):
        lengths = lengths_of(wide, norm)
    expected = np.isfinite(lengths)
    assert (~expected).sum() == 2
    whole = np.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
    factor = np.minimum(1.0, radii / np.where(lengths > 0.0, lengths, 1.0))
    scaled = np.where(expected[:, None], whole * factor[:, None], 0.0)
    assert (clip_rows(rows, radii, norm) == expected).all()
    np.testing.assert_allclose(rows.numpy(), scaled.astype(np.float64), rtol=1e-4, atol=1e-44)
    assert (lengths_of(rows.numpy().astype(np.longdouble), norm) <= radii).all()
    untouched = lengths <= radii * (1 - 2.0**-14)
    assert np.array_equal(rows.numpy()[untouched], alone.numpy()[untouched])
    assert (clip_rows(turned, radii, norm) == expected).all()
    for row in range(len(alone)):
        clip_rows(alone[row : row + 1], radii[row], norm)
    assert torch.equal(rows, turned) and torch.equal(rows, alone)


@pytest.mark.parametrize("norm", [1, 2])
def test_clipping_off_the_cpu_agrees(norm: int) -> None:
    """The device path, run on the CPU."""
    host = awkward_rows(300)[40:]
    device, radii = host.clone(), np.linspace(0.5, 2.0, len(host))
    assert np.array_equal(_clip_on_device(device, radii, norm), clip_rows(host, radii, norm))
    assert torch.allclose(device, host, rtol=1e-5, atol=0)
    assert (torch.linalg.vector_norm(device.double(), ord=norm, dim=1).numpy() <= radii).all()
