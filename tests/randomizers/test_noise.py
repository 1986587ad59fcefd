"""Noise: the same bits however it is drawn, never the same twice, of its distribution; 64-bit
reports are the grid points that ideal noise would give; discrete noise has the exact distribution,
by integers alone.

Seeds are fixed, so the statistics cannot flicker. For a fresh key each check would raise a false
alarm with probability below 1e-6 (five standard errors, or a p-value of 1e-7); each is shown to
reject a generator that is slightly wrong.
"""

from __future__ import annotations

import ast
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.randomizers import noise, noise_exact, samplers
from fl_shuffle.randomizers.additive import grid_step
from fl_shuffle.randomizers.noise import (
    LAWS,
    AesWords,
    NoiseStream,
    TileLayout,
    draw_on_device,
    largest_variate,
)
from fl_shuffle.randomizers.samplers import Words, discrete_gaussian, discrete_laplace
from fl_shuffle.randomizers.seeds import SeedTree

KEY = bytes(range(32))
IDEAL = {"normal": stats.norm, "laplace": stats.laplace}
ALARM = 1e-7
of_every_law = pytest.mark.parametrize("law", LAWS)
of_both_words = pytest.mark.parametrize("bits", [32, 64])


def reports(stream: NoiseStream, law: str, clients: np.ndarray) -> torch.Tensor:
    """Rounded noise of any clients."""
    rows = torch.zeros(len(clients), stream.dimension)
    return stream.add_(law, rows, clients, 1.0, 2.0**-16)


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
    clients = first + np.arange(sum(sizes))
    whole = stream.rows(law, clients)
    parts = np.split(clients, np.cumsum(sizes[:-1]))
    assert np.array_equal(whole, np.concatenate([stream.rows(law, part) for part in parts]))
    order = np.random.default_rng(len(clients)).permutation(len(clients))
    together = reports(stream, law, clients)
    assert torch.equal(reports(stream, law, clients[order]), together[order])
    assert np.isfinite(whole).all()


@of_every_law
@of_both_words
def test_long_rows_are_jumpable_and_nothing_beside_them_is_written(law: str, bits: int) -> None:
    dimension = 71_010
    stream = NoiseStream(KEY, dimension, bits=bits)
    together = reports(stream, law, np.array([4, 5, 6]))
    wide = torch.full((3, dimension + 5), 0.25)
    wide[:, :dimension] = 0.0
    stream.add_(law, wide[:, :dimension], np.array([6, 4, 4]), 1.0, 2.0**-16)
    assert torch.equal(wide[:, :dimension], together[[2, 0, 0]])
    assert bool((wide[:, dimension:] == 0.25).all())


@of_every_law
@of_both_words
def test_every_tile_of_a_row_has_noise_of_its_own(law: str, bits: int) -> None:
    """Of a client that is drawn alone, beside its neighbor, or among others: the same row, whose
    two tiles have nothing in common."""
    dimension = noise.WORDS_PER_TILE + 4_000
    layout, stream = TileLayout.of(dimension, bits), NoiseStream(KEY, dimension, bits=bits)
    assert layout.tiles == 2
    alone = reports(stream, law, np.array([4]))
    assert torch.equal(reports(stream, law, np.array([4, 5]))[0], alone[0])
    assert torch.equal(reports(stream, law, np.array([9, 4]))[1], alone[0])
    drawn = alone[0].double().numpy()
    first, second = (drawn[layout.columns(tile)] for tile in range(2))
    first = first[: len(second)]
    assert fits(drawn, law)
    for one, other in ((first, second), (abs(first), abs(second))):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5.0 / math.sqrt(len(second))
    assert float(np.mean(first == second)) < 1e-3


def test_block_size_and_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clients = NoiseStream(KEY, 610), np.arange(700)
    expected = stream.rows("normal", clients)
    monkeypatch.setattr(noise, "WORDS_PER_BLOCK", 5000)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda part: stream.rows("normal", part), np.split(clients, 10))
        assert np.array_equal(np.concatenate(list(parts)), expected)


@of_every_law
def test_another_device_s_noise_hangs_on_each_row_s_seed_alone(law: str) -> None:
    """The path of other devices, on the processor: the distribution, the grid, and rows drawn
    alone."""
    scales, steps = np.array([0.5, 2.0, 2.0]), np.array([2.0**-18, 2.0**-16, 0.0])
    rows, alone = torch.zeros(3, 100_000), torch.zeros(1, 100_000)
    draw_on_device(law, [4, 9, 11], rows, scales, steps)
    draw_on_device(law, [9], alone, scales[1:2], steps[1:2])
    assert torch.equal(alone[0], rows[1])
    assert not torch.equal(rows[1], rows[2])
    drawn = rows.double().numpy()
    assert not np.mod(drawn[:2], steps[:2, None]).any()
    assert all(fits(row / scale, law) for row, scale in zip(drawn, scales, strict=True))
    assert not fits(drawn[1] / 1.9, law)
    assert (np.abs(drawn).max(axis=1) <= scales * largest_variate(law) + 2.0**-16).all()


@of_every_law
def test_another_devices_noise_is_cut_where_that_of_words_ends(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the bound on honest reports holds there, too."""
    monkeypatch.setattr(noise, "largest_variate", lambda _: 1.5)
    rows = torch.zeros(1, 10_000)
    draw_on_device(law, [4], rows, np.array([2.0]), np.array([0.0]))
    assert float(rows.abs().max()) == 3.0 and 0.05 < float((rows.abs() == 3.0).float().mean()) < 0.3


@of_every_law
@pytest.mark.parametrize("word", [0, -1])
def test_the_largest_variate_is_that_of_the_extreme_word(
    law: str, word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shuffler takes honest reports up to there, and no others: to the last float32 digit."""

    def extreme(own: AesWords, ids: object, tile: int, raw: np.ndarray) -> None:
        raw[:] = 255 if word else 0

    monkeypatch.setattr(AesWords, "fill", extreme)
    drawn = np.abs(NoiseStream(KEY, 64).rows(law, np.arange(3))).max()
    assert drawn == pytest.approx(largest_variate(law), rel=1e-6)


CLIENTS, DIMENSION = 2000, 500
FOURTH, SECOND = {"normal": 3.0, "laplace": 24.0}, {"normal": 1.0, "laplace": 2.0}


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


@of_every_law
@of_both_words
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


@of_every_law
@of_both_words
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


@of_every_law
def test_the_exact_way_and_the_fast_way_agree(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report computed to 400 bits with other further bits is what doubles gave."""
    means = torch.linspace(-1.0, 1.0, 7 * 301).reshape(7, 301) / math.sqrt(301)
    stream, clients, step = NoiseStream(KEY, 301, bits=64), np.arange(5, 12), grid_step(0.3, 1.0)
    fast = stream.add_(law, means.clone(), clients, 0.3, step)
    exact = Mock(wraps=noise_exact.exact_report)
    monkeypatch.setattr(noise_exact, "exact_report", exact)
    monkeypatch.setattr(noise_exact, "TOLERANCE", 1.0)
    assert torch.equal(stream.add_(law, means, clients, 0.3, step), fast)
    assert exact.call_count == fast.numel()


def ideal_variates(law: str, word: int, angle: int, inside: float | mpmath.mpf) -> list[mpmath.mpf]:
    """Of 64-bit words, at a place `inside` their intervals, 0 to 1."""
    uniform = (mpmath.mpf(word if word >= 0 else ~word) + inside) / 2**63
    if law == "laplace":
        return [-mpmath.log(uniform) * (1 if word >= 0 else -1)]
    radius = mpmath.sqrt(-2 * mpmath.log(uniform))
    turn = mpmath.pi * (mpmath.mpf(angle) + inside) / 2**63
    return [radius * mpmath.cos(turn), radius * mpmath.sin(turn)]


@of_every_law
def test_double_precision_is_within_the_tolerance(law: str) -> None:
    """Noise itself against 60 digits, over the whole range of words that are not coarse."""
    rng = np.random.default_rng(0)
    ends = [1 << 40, (1 << 63) - (1 << 43) - 1, 1 << 62, 3 << 61]
    places = np.concatenate([2 ** rng.integers(40, 63, 400), ends]) | rng.integers(0, 1 << 40, 404)
    places = places[~noise_exact.coarse(places)]
    words = np.where(rng.random(len(places)) < 0.5, places, ~places)
    angles = rng.integers(-(2**63), 2**63 - 1, len(words))
    both = np.concatenate([words, angles] if law == "normal" else [words])[None, :]
    target = np.zeros(both.shape)
    source = noise_exact.Source(KEY[:16], np.zeros(1, np.int64), 0, both)
    # Without a step the noise itself is written; a float64 target keeps its digits.
    noise_exact.add(law, source, target, np.ones(1), np.zeros(1))
    drawn, worst = target.reshape(-1, len(words)).T.tolist(), 0.0
    with mpmath.workdps(60):
        for word, angle, values in zip(words.tolist(), angles.tolist(), drawn, strict=True):
            for inside in (0, 1):  # the ends of the word's interval
                ideal = ideal_variates(law, word, angle, inside)
                off = [abs(float(a - b)) for a, b in zip(ideal, values, strict=True)]
                worst = max(worst, *off)
    assert 2.0**-60 < worst < noise_exact.TOLERANCE / 16.0


def test_sums_near_the_middle_are_worked_out_exactly() -> None:
    """A mean that puts the sum 2^-50 noise standard deviations beside the middle: doubles alone
    would guess."""
    stream, layout, step = NoiseStream(KEY, 2, bits=64), TileLayout.of(2, 64), 2.0**-16
    words = AesWords(stream._derive("laplace"), layout)
    raw = np.empty(8 * layout.width + 16, np.uint8)
    words.fill(range(3, 4), 0, raw)
    first = int(raw[:8].view(np.int64)[0])
    more, _ = noise_exact.more_bits(words.key, 3, 0, 0)
    with mpmath.workdps(100):
        (variate,) = ideal_variates("laplace", first, 0, mpmath.mpf(2 * more + 1) / 2**257)
        middle = (mpmath.floor(variate / step) + mpmath.mpf(1) / 2) * step
        for side in (-1, 1):
            # The scale, a double, moves the sum by far less than a step.
            scale = float(middle / variate * (1 + side * mpmath.mpf(2) ** -48))
            nearest = int(mpmath.nint(mpmath.mpf(scale) * variate / step)) * step
            got = stream.add_("laplace", torch.zeros(1, 2), [3], scale, step)
            assert float(got[0, 0]) == nearest
            assert noise_exact.exact_report(0.0, scale, step, first, more, None) == nearest


@of_every_law
def test_further_bits_are_each_variates_own(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of clients, tiles and places that are asked for exactly, no two share their further bits;
    cosine and sine of one pair do."""
    dimension, clients = noise.WORDS_PER_TILE + 9, np.array([3, 5])
    layout = TileLayout.of(dimension, 64)
    places, calls = (0, 1, layout.width // 2), list[tuple[object, ...]]()

    def doubtful(sums: np.ndarray, *_: object) -> np.ndarray:
        found = np.zeros(sums.shape, dtype=bool)
        found[:, places] = True
        return found

    def noted(*arguments: object) -> tuple[int, int]:
        calls.append(arguments)
        return whole(*arguments)

    whole = noise_exact.more_bits
    monkeypatch.setattr(noise_exact, "doubtful", doubtful)
    monkeypatch.setattr(noise_exact, "coarse", lambda words: np.zeros(words.shape, dtype=bool))
    monkeypatch.setattr(noise_exact, "more_bits", noted)
    for key in (KEY, KEY[::-1]):
        stream = NoiseStream(key, dimension, bits=64)
        reports(stream, law, clients)
    assert layout.tiles == 2 and len(calls) == 2 * 2 * 2 * 3
    # Of a normal pair the last place is the sine of the first one.
    different = 2 * 2 * 2 * (3 if law == "laplace" else 2)
    bits = [bit for arguments in set(calls) for bit in whole(*arguments)]
    assert len(set(calls)) == different and len(set(bits)) == len(bits) == 2 * different


def test_the_word_that_cannot_be_seen_in_a_double() -> None:
    """Words next to zero and to the end: the further bits decide, and tails go on."""
    assert noise_exact.coarse(np.array([0, -1, 2**63 - 1, -(2**63), 2**39])).all()
    assert not noise_exact.coarse(np.array([2**40, -(2**40) - 1, 2**62])).any()
    step = 2.0**-10
    for word, more, wanted in ((0, 1 << 229, 63 + 27), (-1, 1 << 255, -64)):
        found = noise_exact.exact_report(0.0, 1.0, step, word, more, None)
        assert found == pytest.approx(wanted * math.log(2.0), abs=step)


def test_variates_end_where_ideal_ones_practically_do() -> None:
    """Beyond the cut lies less than 2^-150 of the ideal distributions, and not much less."""
    reach, step = noise_exact.REACH, 2.0**-10
    with mpmath.workdps(40):
        normal = mpmath.erfc(mpmath.mpf(reach["normal"]) / mpmath.sqrt(2))
        for tail in (normal, mpmath.exp(-mpmath.mpf(reach["laplace"]))):
            assert 2.0**-153 < tail < 2.0**-150
    for sign, word, angle in ((1, 0, 0), (-1, -1, -(2**63))):
        assert noise_exact.exact_report(0.25, 1.0, step, word, 0, None) == 0.25 + 104.0 * sign
        nearest = sign * round(14.3 / step) * step
        assert noise_exact.exact_report(0.0, 1.0, step, 0, 0, (angle, 0, False)) == nearest


DISCRETE = {"gaussian": discrete_gaussian, "laplace": discrete_laplace}


def fits_exactly(drawn: np.ndarray, law: str, scale: float) -> bool:
    """Chi-square against the exact probabilities; cells with fewer than 20 expected are put
    together at either end. What lies beyond `reach` is below 1e-20.

    With 4e5 variates of scale 10 a scale 2% wrong has noncentrality 160 (Laplace: 80) on about 40
    (70) cells, and a zero counted twice, as by a sign that is never drawn again, 1e4: power above
    0.999 at this false alarm.
    """
    reach = int((10 if law == "gaussian" else 50) * scale)
    x = np.arange(-reach, reach + 1)
    weight = np.exp(-(x**2) / (2 * scale**2) if law == "gaussian" else -np.abs(x) / scale)
    expected = len(drawn) * weight / weight.sum()
    inner = x[expected >= 20]
    low, high = inner[0] - 1, inner[-1] + 1
    wanted = np.bincount(np.clip(x, low, high) - low, weights=expected)
    seen = np.bincount(np.clip(drawn, low, high) - low, minlength=len(wanted))
    return bool(stats.chisquare(seen, wanted).pvalue > ALARM)


@pytest.mark.parametrize("law", DISCRETE)
def test_the_law_of_discrete_noise_is_the_exact_one(law: str) -> None:
    drawn = DISCRETE[law](Words(b"law of the noise"), 10, 400_000)
    assert len(drawn) == 400_000 and fits_exactly(drawn, law, 10)
    # The power that is stated: the same variates against distributions that are slightly others.
    assert not fits_exactly(drawn, law, 10.2)
    assert not fits_exactly(np.concatenate([drawn, drawn[drawn == 0]]), law, 10)
    for small in (1, 3):
        assert fits_exactly(DISCRETE[law](Words(bytes([small]) * 16), small, 50_000), law, small)


def test_uniforms_below_a_bound_are_exact() -> None:
    """One of 2/3 of 2^62: without drawing again, the lower part would come up more often."""
    bound = (1 << 62) // 3 * 2
    drawn = Words(b"another sixteen!").below(np.full(100_000, bound))
    assert drawn.min() >= 0 and drawn.max() < bound
    assert stats.kstest(drawn / bound, "uniform").pvalue > ALARM


def test_words_follow_one_another() -> None:
    """What is drawn at once is what is drawn piece by piece; the words of AES itself."""
    one, other = Words(bytes(16)), Words(bytes(16))
    assert np.array_equal(one.draw(7), np.concatenate([other.draw(3), other.draw(4)]))
    # FIPS 197 and SP 800-38A: AES-128 of the zero block under the zero key is 66e94bd4ef8a2c3b...
    first = int.from_bytes(bytes.fromhex("66e94bd4ef8a2c3b"), "little") >> 1
    assert Words(bytes(16)).draw(1).tolist() == [first]


def test_no_number_of_the_samplers_is_a_floating_one() -> None:
    """No float literal, no true division, no math function, no float dtype in their source."""
    source = Path(str(samplers.__file__)).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id in ("math", "float"))
        assert not (isinstance(node, ast.Attribute) and "float" in node.attr)
    for law in DISCRETE.values():
        assert law(Words(bytes(16)), 5, 3).dtype == np.int64
