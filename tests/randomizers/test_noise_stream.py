"""Counter-based noise: the same bits however it is drawn, and a reference written the long way."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers import noise
from fl_shuffle.randomizers.additive import grid_step
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
@pytest.mark.parametrize("dimension", [71_010, 300_001])
def test_long_rows_are_jumpable_too(law: str, bits: int, dimension: int) -> None:
    stream = NoiseStream(KEY, dimension, bits=bits)
    whole = draw(stream, law, 4, 3)
    assert torch.equal(whole[2], draw(stream, law, 6, 1)[0])
    together = reports(stream, law, 4, 3)
    apart = reports(stream, law, np.array([6, 4, 4]), 3)
    assert torch.equal(apart, together[[2, 0, 0]])


def test_block_size_threads_and_torch_threads_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = NoiseStream(KEY, 610)
    expected = draw(stream, "normal", 0, 700)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: draw(stream, "normal", start, 7), range(0, 700, 7)))
    assert torch.equal(torch.cat(parts), expected)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(draw(stream, "normal", 0, 700), expected)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(noise, "WORDS_PER_BLOCK", 5000)
    assert torch.equal(draw(stream, "normal", 0, 700), expected)


def aes_words(stream: NoiseStream, law: str, client: int) -> np.ndarray:
    """The words of one client's row, from the definition: encrypt its counter blocks."""
    layout = stream._layout
    first = client * layout.blocks_per_client
    counters = b"".join((first + j).to_bytes(16, "big") for j in range(layout.blocks_per_client))
    encryptor = Cipher(algorithms.AES(stream._derive(law)), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(counters), f"<i{layout.word_bytes}")


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dimension", [1, 5, 611, 200_003])
def test_variates_follow_the_written_formulas(bits: int, dimension: int) -> None:
    stream = NoiseStream(KEY, dimension, bits=bits)
    layout = stream._layout
    tolerance = 3e-6 if bits == 32 else 2e-7
    words = aes_words(stream, "laplace", 12).reshape(layout.tiles, layout.width)
    uniform = (words.astype(np.longdouble) + 0.5) / 2.0 ** (bits - 1)
    expected = (-np.sign(uniform) * np.log(np.abs(uniform))).reshape(-1)[:dimension]
    got = draw(stream, "laplace", 12, 1)[0].double().numpy()
    # copysign puts the word's sign on |ln U|, where the formula above has -ln|U| >= 0.
    np.testing.assert_allclose(got, expected.astype(float), rtol=tolerance, atol=tolerance)

    words = aes_words(stream, "normal", 12).reshape(layout.tiles, 2, layout.width // 2)
    uniform = (words[:, 0].astype(np.longdouble) + 0.5) / 2.0 ** (bits - 1)
    radius = np.sqrt(-2.0 * np.log(np.abs(uniform)))
    angle = words[:, 1].astype(np.longdouble) * (math.pi / 2.0 ** (bits - 1))
    pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    got = draw(stream, "normal", 12, 1)[0].double().numpy()
    tiles = [
        pairs[t, : min(layout.width, dimension - t * layout.width)] for t in range(layout.tiles)
    ]
    expected = np.concatenate(tiles).astype(float)
    # The normal is scaled through R^2 = -1 * ln U^2; float32 loses most where U is near 1.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4 if bits == 32 else 1e-6)
    assert np.mean(np.abs(got - expected) > 4e-6) < 0.01


def test_streams_differ_by_key_law_dimension_bits_and_client() -> None:
    streams = [
        draw(NoiseStream(KEY, 64), "normal", 0, 1)[0, :32],
        draw(NoiseStream(KEY[::-1], 64), "normal", 0, 1)[0, :32],
        draw(NoiseStream(KEY, 65), "normal", 0, 1)[0, :32],
        draw(NoiseStream(KEY, 64, bits=64), "normal", 0, 1)[0, :32],
        draw(NoiseStream(KEY, 64), "normal", 1, 1)[0, :32],
        draw(NoiseStream(KEY, 64), "laplace", 0, 1)[0, :32],
    ]
    table = torch.stack(streams)
    for i in range(len(streams)):
        assert int((table == table[i]).sum()) == 32


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("law", LAWS)
def test_add_rounds_the_sum_to_each_row_s_grid(bits: int, law: str) -> None:
    stream = NoiseStream(KEY, 301, bits=bits)
    scale = np.array([0.5, 1.0, 3.0, 0.01])
    step = np.array([grid_step(float(s), 1.0) for s in scale])
    values = torch.linspace(-1, 1, 4 * 301).reshape(4, 301)
    plain = draw(stream, law, 9, 4).double()
    exact = values.double() + torch.tensor(scale)[:, None] * plain
    result = stream.add_(law, values.clone(), np.arange(9, 9 + len(values)), scale, step)
    units = result.double() / torch.tensor(step)[:, None]
    assert torch.equal(units, units.round())
    error = (result.double() - exact).abs() / torch.tensor(step)[:, None]
    # Half a step of rounding, an eighth for the float32 sum (below 2^22 steps), and the float32
    # error of the noise itself, at most a few units of 2^-24 of about 2^18 steps.
    assert float(error.max()) <= 0.5 + 0.125 + 0.125
    for row in range(4):
        alone = values[row : row + 1].clone()
        stream.add_(law, alone, [9 + row], float(scale[row]), float(step[row]))
        assert torch.equal(alone[0], result[row])
    shuffled = values[[2, 0]].clone()
    stream.add_(law, shuffled, [11, 9], scale[[2, 0]], step[[2, 0]])
    assert torch.equal(shuffled, result[[2, 0]])


def test_no_client_is_an_empty_answer() -> None:
    stream = NoiseStream(KEY, 5)
    assert draw(stream, "normal", 0, 0).shape == (0, 5)
    assert stream.add_("laplace", torch.zeros(0, 5), [], 1.0, 1.0).shape == (0, 5)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"key": b"short"}, "key"),
        ({"key": "x" * 32}, "key"),
        ({"dimension": 0}, "dimension"),
        ({"dimension": 2.5}, "dimension"),
        ({"bits": 16}, "bits"),
    ],
)
def test_bad_streams(change: dict, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        NoiseStream(**{"key": KEY, "dimension": 3, **change})


def test_the_key_is_never_shown() -> None:
    with pytest.raises(InvalidValueError) as raised:
        NoiseStream(b"secret", 3)
    assert "secret" not in str(raised.value)


def test_bad_requests() -> None:
    stream = NoiseStream(KEY, 3)
    for call in (
        lambda: stream.add_("normal", torch.zeros(2, 3), [-1, 0], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(1, 3), [2**62], 1.0, 1.0),
        lambda: stream.rows("cauchy", [0]),
        lambda: stream.add_("normal", torch.zeros(2, 3), [0, -1], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(1, 3), [0.5], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(1, 3), [2**63 - 1], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(2, 4), [0, 1], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(2, 3, dtype=torch.float64), [0, 1], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(3, 3).T, [0, 1, 2], 1.0, 1.0),
        lambda: stream.add_("cauchy", torch.zeros(1, 3), [0], 1.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(1, 3), [0], math.nan, 1.0),
        lambda: stream.add_("normal", torch.zeros(1, 3), [0], 0.0, 1.0),
        lambda: stream.add_("normal", torch.zeros(2, 3), [0, 1], np.array([1.0, np.inf]), 1.0),
        lambda: stream.add_("normal", torch.zeros(2, 3), [0, 1, 2], 1.0, 1.0),
    ):
        with pytest.raises(InvalidValueError):
            call()


@pytest.mark.parametrize("law", LAWS)
def test_another_device_s_noise_hangs_on_each_row_s_seed_alone(law: str) -> None:
    """The path of other devices, on the processor: the law, the grid, and rows drawn alone."""
    scales, steps = np.array([0.5, 2.0, 2.0]), np.array([2.0**-18, 2.0**-16, 0.0])
    rows = draw_of(law, [4, 9, 11], scales, steps)
    assert torch.equal(draw_of(law, [9], scales[1:2], steps[1:2])[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    assert not np.mod(rows[:2].double().numpy(), steps[:2, None]).any()
    law_of = stats.norm if law == "normal" else stats.laplace
    for row, scale in zip(rows.double().numpy(), scales, strict=True):
        assert stats.kstest(row / scale, law_of.cdf).pvalue > 1e-6
        assert np.abs(row).max() <= scale * largest_variate(law) + 2.0**-16
    assert stats.kstest(rows[1].double().numpy() / 1.9, law_of.cdf).pvalue < 1e-6


def draw_of(law: str, seeds: list[int], scales: np.ndarray, steps: np.ndarray) -> torch.Tensor:
    rows = torch.zeros(len(seeds), 100_000)
    draw_on_device(law, seeds, rows, scales, steps)
    return rows
