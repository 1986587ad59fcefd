"""Counter-based noise: the same bits however it is drawn, never the same twice, and of its law.

Seeds are fixed, so the statistics cannot flicker. For a fresh key each check would raise a false
alarm with probability below 1e-6 (five standard errors, or a p-value of 1e-7); each is shown to
reject a generator that is slightly wrong.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.randomizers import noise
from fl_shuffle.randomizers.noise import LAWS, NoiseStream, draw_on_device, largest_variate
from fl_shuffle.seeds import SeedTree

KEY = bytes(range(32))


def draw(stream: NoiseStream, law: str, first: int, count: int) -> torch.Tensor:
    """Variates of a run of clients."""
    return torch.from_numpy(stream.rows(law, np.arange(first, first + count)))


def reports(stream: NoiseStream, law: str, clients: int | np.ndarray, rows: int) -> torch.Tensor:
    """Rounded noise of any clients."""
    ids = clients if isinstance(clients, np.ndarray) else np.arange(clients, clients + rows)
    return stream.add_(law, torch.zeros(rows, stream.dimension), ids, 1.0, 2.0**-16)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 7, 16, 33, 610, 4099]),
    st.integers(0, 10**12),
    st.lists(st.integers(1, 90), min_size=1, max_size=4),
    st.sampled_from(LAWS),
    st.sampled_from([32, 64]),
)
def test_bits_do_not_depend_on_how_clients_are_batched(
    dimension: int, first: int, sizes: list[int], law: str, bits: int
) -> None:
    stream = NoiseStream(KEY, dimension, bits=bits)
    total = sum(sizes)
    whole = draw(stream, law, first, total)
    starts = np.cumsum([0, *sizes[:-1]])
    parts = [draw(stream, law, first + int(s), size) for s, size in zip(starts, sizes, strict=True)]
    assert torch.equal(whole, torch.cat(parts))
    order = np.random.default_rng(total).permutation(total)
    together = reports(stream, law, first, total)
    assert torch.equal(reports(stream, law, first + order, total), together[order])
    assert torch.isfinite(whole).all()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [32, 64])
def test_long_rows_are_jumpable_and_nothing_beside_them_is_written(law: str, bits: int) -> None:
    dimension = 71_010
    stream = NoiseStream(KEY, dimension, bits=bits)
    together = reports(stream, law, 4, 3)
    wide = torch.full((3, dimension + 5), 0.25)
    wide[:, :dimension] = 0.0
    stream.add_(law, wide[:, :dimension], np.array([6, 4, 4]), 1.0, 2.0**-16)
    assert torch.equal(wide[:, :dimension], together[[2, 0, 0]])
    assert bool((wide[:, dimension:] == 0.25).all())


def test_block_size_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = NoiseStream(KEY, 610)
    expected = draw(stream, "normal", 0, 700)
    monkeypatch.setattr(noise, "WORDS_PER_BLOCK", 5000)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: draw(stream, "normal", start, 70), range(0, 700, 70)))
    assert torch.equal(torch.cat(parts), expected)


@pytest.mark.parametrize("law", LAWS)
def test_another_device_s_noise_hangs_on_each_row_s_seed_alone(law: str) -> None:
    """The path of other devices, on the processor: the law, the grid, and rows drawn alone."""
    scales, steps = np.array([0.5, 2.0, 2.0]), np.array([2.0**-18, 2.0**-16, 0.0])
    rows, alone = torch.zeros(3, 100_000), torch.zeros(1, 100_000)
    draw_on_device(law, [4, 9, 11], rows, scales, steps)
    draw_on_device(law, [9], alone, scales[1:2], steps[1:2])
    assert torch.equal(alone[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert not np.mod(rows[:2].double().numpy(), steps[:2, None]).any()
    law_of = stats.norm if law == "normal" else stats.laplace
    for row, scale in zip(rows.double().numpy(), scales, strict=True):
        assert stats.kstest(row / scale, law_of.cdf).pvalue > 1e-6
        assert np.abs(row).max() <= scale * largest_variate(law) + 2.0**-16
    assert stats.kstest(rows[1].double().numpy() / 1.9, law_of.cdf).pvalue < 1e-6


CLIENTS, DIMENSION = 2000, 500
IDEAL = {"normal": stats.norm, "laplace": stats.laplace}
FOURTH, SECOND = {"normal": 3.0, "laplace": 24.0}, {"normal": 1.0, "laplace": 2.0}
ALARM = 1e-7


def sample(law: str, bits: int = 32, round_number: int = 0) -> np.ndarray:
    stream = NoiseStream(SeedTree(20_240).key(round_number, "test"), DIMENSION, bits=bits)
    return stream.rows(law, np.arange(CLIENTS))


def fits(values: np.ndarray, law: str) -> bool:
    return bool(stats.kstest(values.ravel(), IDEAL[law].cdf, method="asymp").pvalue > ALARM)


def variance_z(values: np.ndarray, law: str) -> float:
    """Standard score of the mean square: 2% of variance is 1% of scale."""
    error = math.sqrt((FOURTH[law] - SECOND[law] ** 2) / values.size)
    return float((np.mean(values**2) - SECOND[law]) / error)


def tails_fit(values: np.ndarray, law: str) -> bool:
    """The counts beyond 3.5 sigma or 8 Laplace scales on either side: 233 and 168 expected."""
    level = 3.5 if law == "normal" else 8.0
    chance = float(IDEAL[law].sf(level))
    return all(
        stats.binomtest(int(np.sum(side > level)), values.size, chance).pvalue > ALARM
        for side in (values, -values)
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [32, 64])
def test_distribution(law: str, bits: int) -> None:
    values = sample(law, bits)
    assert fits(values, law) and tails_fit(values, law)
    assert abs(variance_z(values, law)) < 5
    assert abs(np.mean(values)) < 5 * math.sqrt(np.mean(values**2) / values.size)
    # The power: a scale, a shift, a grid, and tails that are slightly wrong.
    assert min(abs(variance_z(c * values, law)) for c in (0.99, 1.01)) > 5
    assert not fits(1.02 * values, law) and not fits(values + 0.01, law)
    assert not fits(np.round(values * 32) / 32, law)
    twice = np.where(np.arange(DIMENSION) % 100 == 0, 2 * values, values)
    assert not tails_fit(twice, law)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("bits", [32, 64])
def test_no_correlation_between_clients_rounds_and_dimensions(law: str, bits: int) -> None:
    first, other = sample(law, bits), sample(law, bits, round_number=1)
    half = DIMENSION // 2

    def score(left: np.ndarray, right: np.ndarray) -> float:
        """In standard errors, of the values, of their sizes, and of one with the other's size."""
        both = ((left, right), (abs(left), abs(right)), (left, abs(right)), (abs(left), right))
        found = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in both]
        return float(np.max(np.abs(found)) * math.sqrt(left.size))

    for left, right in (
        (first[:-1], first[1:]),
        (first[:1000], first[1000:]),
        (first, other),
        (first[:, :-1], first[:, 1:]),
        (first[:, :-4], first[:, 4:]),
        (first[:, :half], first[:, half:]),  # cosines and sines
    ):
        assert score(left, right) < 5
    assert score(first, 0.995 * other + 0.01 * first) > 5
