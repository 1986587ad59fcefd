"""Counter-based noise: the same bits however it is drawn, and never the same twice."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers import noise
from fl_shuffle.randomizers.noise import LAWS, NoiseStream, draw_on_device, largest_variate

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
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: draw(stream, "normal", start, 7), range(0, 700, 7)))
    assert torch.equal(torch.cat(parts), expected)
    monkeypatch.setattr(noise, "WORDS_PER_BLOCK", 5000)
    assert torch.equal(draw(stream, "normal", 0, 700), expected)


def test_streams_differ_by_key_law_dimension_bits_and_client() -> None:
    streams = (
        (NoiseStream(KEY, 64), "normal", 0),
        (NoiseStream(KEY[::-1], 64), "normal", 0),
        (NoiseStream(KEY, 65), "normal", 0),
        (NoiseStream(KEY, 64, bits=64), "normal", 0),
        (NoiseStream(KEY, 64), "normal", 1),
        (NoiseStream(KEY, 64), "laplace", 0),
    )
    table = torch.stack([draw(stream, law, client, 1)[0, :32] for stream, law, client in streams])
    assert all(int((table == row).sum()) == 32 for row in table)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key": b"secret"}, "key"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": 2.5}, "dimension"),
        ({"bits": 16}, "bits"),
    ],
)
def test_bad_streams(change: dict, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field) as raised:
        NoiseStream(**{"key": KEY, "dimension": 3, **change})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": [-1, 0]},
        {"clients": [2**63 - 1, 0]},
        {"clients": [0.5, 1]},
        {"clients": [0, 1, 2]},
        {"law": "cauchy"},
        {"values": torch.zeros(2, 4)},
        {"values": torch.zeros(2, 3, dtype=torch.float64)},
        {"values": torch.zeros(3, 2).T},
        {"scale": math.nan},
        {"scale": 0.0},
        {"scale": np.array([1.0, np.inf])},
    ],
)
def test_bad_requests(change: dict) -> None:
    stream = NoiseStream(KEY, 3)
    right = {"law": "normal", "values": torch.zeros(2, 3), "clients": [0, 1], "scale": 1.0}
    with pytest.raises(InvalidValueError):
        stream.add_(*(right | change).values(), 1.0)
    assert stream.add_("laplace", torch.zeros(0, 3), [], 1.0, 1.0).shape == (0, 3)


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
