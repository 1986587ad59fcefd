"""64-bit reports: the grid points that ideal, continuous noise would give."""

from __future__ import annotations

import math
from unittest.mock import Mock

import mpmath
import numpy as np
import pytest
import torch

from fl_shuffle.randomizers import noise_exact
from fl_shuffle.randomizers.additive import grid_step
from fl_shuffle.randomizers.noise import AesWords, Layout, NoiseStream

KEY = bytes(range(32))
LAWS = {"gaussian": "normal", "laplace": "laplace"}


def reports(noise: str, d: int = 301, rows: int = 7, scale: float = 0.3) -> torch.Tensor:
    means = torch.linspace(-1.0, 1.0, rows * d).reshape(rows, d) / math.sqrt(d)
    stream = NoiseStream(KEY, d, bits=64)
    return stream.add_(
        LAWS[noise], means, np.arange(5, 5 + len(means)), scale, grid_step(scale, 1.0)
    )


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_exact_way_and_the_fast_way_agree(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every report worked out to 400 bits with other further bits is what doubles gave."""
    fast = reports(noise)
    exact = Mock(wraps=noise_exact.exact_report)
    monkeypatch.setattr(noise_exact, "exact_report", exact)
    monkeypatch.setattr(noise_exact, "TOLERANCE", 1.0)
    assert torch.equal(reports(noise), fast)
    assert exact.call_count == fast.numel()


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_double_precision_is_within_the_tolerance(noise: str) -> None:
    """Noise itself against 60 digits, over the whole range of words that are not coarse."""
    rng = np.random.default_rng(0)
    places = np.concatenate(
        [2 ** rng.integers(40, 63, 400), [1 << 40, (1 << 63) - (1 << 43) - 1, 1 << 62, 3 << 61]]
    ).astype(np.int64) | rng.integers(0, 1 << 40, 404)
    places = places[~noise_exact.coarse(places)]
    words = np.where(rng.random(len(places)) < 0.5, places, ~places)
    angles = rng.integers(-(2**63), 2**63 - 1, len(words))
    both = np.concatenate([words, angles])[None, :] if noise == "gaussian" else words[None, :]
    target = np.zeros((1, both.shape[1]), np.float64)
    source = noise_exact.Source(KEY[:16], np.zeros(1, np.int64), 0, both)
    # Without a step the noise itself is written; a float64 target keeps its digits.
    noise_exact.add(LAWS[noise], source, target, np.ones(1), np.zeros(1))  # type: ignore[arg-type]
    worst = 0.0
    with mpmath.workdps(60):
        for index, word in enumerate(words.tolist()):
            place = word if word >= 0 else ~word
            for inside in (0, 1):  # the ends of the word's interval
                uniform = mpmath.mpf(place + inside) / 2**63
                if noise == "laplace":
                    ideal = [-mpmath.log(uniform) * (1 if word >= 0 else -1)]
                    drawn = [target[0, index]]
                else:
                    radius = mpmath.sqrt(-2 * mpmath.log(uniform))
                    turn = mpmath.pi * mpmath.mpf(int(angles[index]) + inside) / 2**63
                    ideal = [radius * mpmath.cos(turn), radius * mpmath.sin(turn)]
                    drawn = [target[0, index], target[0, len(words) + index]]
                for a, b in zip(ideal, drawn, strict=True):
                    worst = max(worst, abs(float(a - mpmath.mpf(float(b)))))
    assert 2.0**-60 < worst < noise_exact.TOLERANCE / 16.0


def test_sums_near_the_middle_are_worked_out_exactly() -> None:
    """A mean that puts the sum 2^-50 noise widths beside the middle: doubles alone would guess."""
    stream = NoiseStream(KEY, 2, bits=64)
    layout = Layout.of(2, 64)
    words = AesWords(stream._derive("laplace"), layout)
    raw = np.empty(8 * layout.width + 16, np.uint8)
    words.fill(range(3, 4), 0, raw)
    first = int(raw[:8].view(np.int64)[0])
    more, _ = noise_exact.more_bits(words.key, 3, 0, 0)
    with mpmath.workdps(100):
        place = mpmath.mpf(first if first >= 0 else ~first)
        uniform = (place + mpmath.mpf(2 * more + 1) / 2**257) / 2**63
        variate = -mpmath.log(uniform) * (1 if first >= 0 else -1)
        step = 2.0**-16
        middle = (mpmath.floor(variate / step) + mpmath.mpf(1) / 2) * step
        for side in (-1, 1):
            # The scale, a double, moves the sum by far less than a step.
            scale = float(middle / variate * (1 + side * mpmath.mpf(2) ** -48))
            nearest = int(mpmath.nint(mpmath.mpf(scale) * variate / step)) * step
            got = stream.add_("laplace", torch.zeros(1, 2), [3], scale, step)
            assert float(got[0, 0]) == nearest
            assert noise_exact.exact_report(0.0, scale, step, first, more, None) == nearest


def test_the_word_that_cannot_be_seen_in_a_double() -> None:
    """Words next to zero and to the end: the further bits decide, and tails go on."""
    assert noise_exact.coarse(np.array([0, -1, 2**63 - 1, -(2**63), 2**39])).all()
    assert not noise_exact.coarse(np.array([2**40, -(2**40) - 1, 2**62])).any()
    step = 2.0**-10
    for word, more, wanted in ((0, 1 << 229, 63 + 27), (-1, 1 << 255, -64)):
        found = noise_exact.exact_report(0.0, 1.0, step, word, more, None)
        assert found == pytest.approx(wanted * math.log(2.0), abs=step)


def test_variates_end_where_ideal_ones_practically_do() -> None:
    """Beyond the cut lies less than 2^-150 of the ideal laws, and not much less."""
    reach, step = noise_exact.REACH, 2.0**-10
    with mpmath.workdps(40):
        normal = mpmath.erfc(mpmath.mpf(reach["normal"]) / mpmath.sqrt(2))
        for tail in (normal, mpmath.exp(-mpmath.mpf(reach["laplace"]))):
            assert 2.0**-153 < tail < 2.0**-150
    for sign, word, angle in ((1, 0, 0), (-1, -1, -(2**63))):
        assert noise_exact.exact_report(0.25, 1.0, step, word, 0, None) == 0.25 + 104.0 * sign
        nearest = sign * round(14.3 / step) * step
        assert noise_exact.exact_report(0.0, 1.0, step, 0, 0, (angle, 0, False)) == nearest
