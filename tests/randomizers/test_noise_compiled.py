"""The 32-bit laws: compiled loops have the bits of NumPy's, and both are near the real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fl_shuffle.randomizers import noise_compiled, noise_cpu, noise_laws
from fl_shuffle.randomizers.noise import LAWS, NoiseStream

EDGES = [0, -1, 1, 2**31 - 1, -(2**31), 2**29, 2**29 - 1, -(2**29), 2**30, -(2**30), 3 * 2**29]


def words(rows: int, width: int) -> np.ndarray:
    drawn = np.random.default_rng(rows).integers(-(2**31), 2**31, (rows, width), dtype=np.int32)
    flat = drawn.reshape(-1)
    # Every pair of edge cases, as a radius and as an angle.
    pairs = np.array([(a, b) for a in EDGES for b in EDGES], dtype=np.int32)
    if rows == 1 and width >= 2 * len(pairs):
        flat[: len(pairs)], flat[width // 2 : width // 2 + len(pairs)] = pairs[:, 0], pairs[:, 1]
    return drawn


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (3, 2), (5, 3), (1, 4096), (64, 610), (2, 71_010)]
)
def test_compiled_loops_have_the_bits_of_numpy(law: str, rows: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    drawn = words(rows, -(-columns // 4) * 4)
    before = rng.standard_normal((rows, columns + 3)).astype(np.float32)
    scale = rng.uniform(0.1, 3.0, rows).astype(np.float32)
    magic = np.ldexp(np.float32(1.5), 23 + rng.integers(-18, -14, rows)).astype(np.float32)
    for grid in (magic, np.zeros(rows, np.float32)):
        plain, fast = before.copy(), before.copy()
        noise_laws.LAWS[law](drawn.copy(), plain[:, :columns], scale, grid)
        add = noise_compiled.on(law, fast[:, :columns])
        add(drawn.copy(), slice(0, rows), slice(0, columns), scale, grid)
        np.testing.assert_array_equal(fast.view(np.int32), plain.view(np.int32))
        np.testing.assert_array_equal(fast[:, columns:], before[:, columns:])


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dimension", [7, 610, 200_003])
def test_a_stream_has_the_same_bits_before_and_after_it_switches(
    monkeypatch: pytest.MonkeyPatch, law: str, dimension: int
) -> None:
    stream = NoiseStream(bytes(16), dimension)
    scale, step = np.array([1.0, 0.25, 7.0]), np.array([2.0**-16, 2.0**-18, 2.0**-13])
    results = []
    for limit in (0, 1 << 62):
        monkeypatch.setattr(noise_cpu, "COMPILED_FROM", limit)
        wide = torch.linspace(-1, 1, 3 * (dimension + 5)).reshape(3, dimension + 5)
        stream.add_(law, wide[:, :dimension], 11, scale, step)
        results.append(torch.cat([wide, getattr(stream, law)(4, 3)], dim=1))
    assert torch.equal(*results)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dimension", [1, 7, 610, 200_003])
def test_reports_with_64_bits_have_the_same_bits_however_they_are_made(
    monkeypatch: pytest.MonkeyPatch, law: str, dimension: int
) -> None:
    stream = NoiseStream(bytes(16), dimension, bits=64)
    rows = max(3, 600_000 // dimension) if dimension > 1 else 50
    scale = np.random.default_rng(1).uniform(0.1, 9.0, rows)
    step = np.exp2(np.ceil(np.log2(scale)) - np.resize([16, 14, 20], rows))
    exact = noise_cpu.noise_exact.exact_report
    results, worked_out = [], [0, 0]
    for index, limit in enumerate((1 << 62, 0)):
        monkeypatch.setattr(noise_cpu, "COMPILED_FROM", limit)

        def counted(*arguments: Any, index: int = index) -> float:
            worked_out[index] += 1
            return exact(*arguments)

        monkeypatch.setattr(noise_cpu.noise_exact, "exact_report", counted)
        wide = torch.linspace(-1, 1, rows * (dimension + 5)).reshape(rows, dimension + 5)
        stream.add_(law, wide[:, :dimension], 11, scale, step)
        results.append(wide)
    assert torch.equal(*results)
    # The same coordinates are in doubt but for those at the very edge of it.
    assert abs(worked_out[0] - worked_out[1]) <= 2
    assert dimension < 600 or worked_out[1] > 0


def test_every_doubt_is_settled_exactly() -> None:
    """Coarse words everywhere: no coordinate is left to double precision."""
    words = np.random.default_rng(3).integers(-(1 << 39), 1 << 39, (2, 8))
    scale, step = np.array([1.0, 3.0]), np.array([2.0**-16, 2.0**-14])
    for law in LAWS:
        for columns in (3, 8):
            rows = [np.linspace(0, 1, 2 * columns, dtype=np.float32).reshape(2, -1) for _ in "ab"]
            source = noise_cpu._Source(bytes(16), np.array([4, 9]), 2, words)
            noise_cpu._ADD_64[law](source, rows[0], scale, step)
            noise_cpu._add_compiled_64(law, source, rows[1], scale, step)
            np.testing.assert_array_equal(*rows)
            assert not np.mod(rows[0], step[:, None]).any()


def test_the_logarithm_is_within_two_units_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    u = np.concatenate(
        [
            rng.uniform(0.0, 1.0, 1_000_000),
            np.exp2(rng.uniform(-32.0, 0.0, 1_000_000)),
            1.0 - np.arange(1, 200_000) * 2.0**-24,
            np.sqrt(0.5) * (1.0 + np.arange(-1000, 1000) * 2.0**-23),
        ]
    ).astype(np.float32)
    exact = np.log(u.astype(np.float64))
    error = np.abs(noise_laws.logarithm(u) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert error[exact != 0.0].max() < 2.0
    assert noise_laws.logarithm(np.ones(1, np.float32))[0] == 0.0


def test_cosine_and_sine_are_within_three_units_of_the_last_place() -> None:
    rng = np.random.default_rng(0)
    drawn = np.concatenate(
        [
            rng.integers(-(2**31), 2**31, 2_000_000),
            np.array(EDGES),
            *(np.arange(-500, 500) + edge for edge in (2**29, -(2**29), 2**30, 0)),
        ]
    ).astype(np.int32)
    angle = drawn.astype(np.float64) * (np.pi * 2.0**-31)
    for got, exact in zip(
        noise_laws.cosine_and_sine(drawn), (np.cos(angle), np.sin(angle)), strict=True
    ):
        size = np.spacing(np.maximum(np.abs(exact), 2.0**-40).astype(np.float32))
        # The reference itself is off by the rounding of its angle.
        assert (np.maximum(np.abs(got - exact) - 5e-16, 0.0) / size).max() < 3.0
    x, y = noise_laws.cosine_and_sine(np.array([0, 2**30, -(2**30), -(2**31)], np.int32))
    np.testing.assert_array_equal(x, [1, 0, 0, -1])
    np.testing.assert_array_equal(y, [0, 1, -1, 0])
