"""Reports of a few bits: their distribution, their levels, and what is (not) said of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.threat_model import ROUNDED, ROUNDED_LESS
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.few_bits import FewBits, best_cell, rounding_cost
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.shuffler.levels import Levels, few_digits
from tests.federation.small_tasks import configured, task_of

LAWS = {"gaussian": stats.norm, "laplace": stats.laplace}


def stream(dimension: int, key: int = 1) -> NoiseStream:
    return NoiseStream(bytes([key]) * 16, dimension)


def plan_of(**privacy: Any) -> Calibration:
    return task_of(configured(unit="client", **privacy)).plan


@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("bits", [2, 3, 4, 7])
def test_cost_is_that_of_the_law(noise: str, bits: int) -> None:
    """Against probabilities of the cells, summed as they stand."""
    cell, reach, law = 0.55, 1.3, LAWS[noise]
    levels = (np.arange(2**bits) - 2 ** (bits - 1) + 0.5) * cell
    ends = np.concatenate([[-np.inf], levels[:-1] + 0.5 * cell, [np.inf]])
    variances, biases = [], []
    for mean in np.linspace(0.0, reach, 33):
        share = np.diff(law.cdf(ends - mean))
        found = float(share @ levels)
        variances.append(float(share @ (levels - found) ** 2) / law.var() - 1.0)
        biases.append(abs(found - mean))
    cost = rounding_cost(noise, bits, cell, reach)
    assert cost.added_variance == pytest.approx(max(variances), abs=1e-9)
    assert cost.worst_bias == pytest.approx(max(biases), abs=1e-9)


def test_four_bits_at_half_a_scale_cost_what_is_known() -> None:
    """A cell of c adds c^2/12 of variance; numbers from an integral by hand."""
    cost = rounding_cost("gaussian", 4, 0.5, 0.5)
    assert cost.added_variance == pytest.approx(0.25 / 12.0, rel=0.02)
    assert cost.worst_bias == pytest.approx(1.3e-4, rel=0.1)
    assert rounding_cost("gaussian", 4, 0.5, 1.0).worst_bias == pytest.approx(8e-4, rel=0.1)


@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("reach", [0.05, 0.4, 2.0])
def test_no_other_cell_is_much_better(noise: str, bits: int, reach: float) -> None:
    """Among cells that lie between those tried; few bits because each is summed."""

    def error(cell: float) -> float:
        found = rounding_cost(noise, bits, cell, reach)
        return found.added_variance + 1e4 * found.worst_bias**2 / LAWS[noise].var()

    best = best_cell(noise, bits, reach)
    others = [best * factor for factor in (0.5, 0.7, 0.85, 1.2, 1.5, 2.0)]
    assert error(best) <= min(error(cell) for cell in others) + 0.005


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_reports_are_the_unrounded_ones_rounded(law: str) -> None:
    """Post-processing: with the same noise, and of the nearest level within the range."""
    radius, scale = np.full(3, 0.4), np.full(3, 0.7)
    rounding = FewBits.of(law, 4, scale, radius)
    plain = NOISES[law](scale, scale, radius, scale)
    means = torch.rand(3, 20_000) * 0.01
    clients = np.arange(3)
    expected = plain.reports(means.clone(), clients, stream(20_000)).double().numpy()
    found = rounding.round_(plain.reports(means.clone(), clients, stream(20_000)), clients)
    levels = (2 * np.arange(16) - 15) * rounding.half[0]
    rounded = found.double().numpy()
    assert np.isin(rounded, levels).all()
    # The middle of a report's cell; beyond the range, the last level.
    inside = np.abs(expected) <= levels[-1]
    assert (np.abs(rounded - expected)[inside] <= rounding.half[0]).all()
    assert np.array_equal(rounded[~inside], np.sign(expected[~inside]) * levels[-1])
    assert 0 < (~inside).sum() < 0.01 * expected.size
    assert found.unique().numel() == 16


def test_frequencies_of_levels_are_those_of_the_law() -> None:
    """Chi square over 16 cells; a cell a tenth off would be noticed with 2e5 numbers."""
    plan = plan_of(randomizer="gaussian", report_bits=4)
    assert plan.few_bits is not None
    scale, half, mean = float(plan.scale[0]), float(plan.few_bits.half[0]), 0.3
    means = torch.full((1, 200_000), mean * scale)
    reports = plan.local.reports(means, np.zeros(1, dtype=np.int64), stream(200_000))
    codes = np.rint((reports.double().numpy()[0] / half + 15) / 2).astype(int)
    ends = 2.0 * half * np.arange(-7, 8)
    share = np.diff(np.concatenate([[0.0], stats.norm.cdf(ends / scale - mean), [1.0]]))
    found = np.bincount(codes, minlength=16)
    assert stats.chisquare(found, share * found.sum()).pvalue > 1e-4


@given(
    bits=st.integers(2, 16),
    dimension=st.integers(1, 19),
    half=st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=4),
    data=st.data(),
)
def test_packing_is_undone(bits: int, dimension: int, half: list[float], data: Any) -> None:
    """Whatever the levels; and they are whole numbers of steps that float32 holds."""
    levels = Levels(bits, few_digits(np.array(half)))
    clients = np.arange(len(half))
    number = st.integers(0, 2**bits - 1)
    row = st.lists(number, min_size=dimension, max_size=dimension)
    codes = np.array([data.draw(row) for _ in half], dtype=np.uint16)
    reports = levels.levels(codes, clients)
    assert np.array_equal(levels.codes(reports, clients), codes)
    packed = levels.packed(reports, clients)
    assert packed.nbytes == len(half) * math.ceil(dimension * bits / 8)
    unpacked = levels.unpacked(packed, clients, dimension)
    assert unpacked is not None and np.array_equal(unpacked, reports)
    steps = reports.astype(np.float64) / levels.step[:, None]
    assert (steps == np.rint(steps)).all() and (np.abs(steps) < 2.0**22 + 1).all()
    assert (np.abs(reports) <= levels.largest[:, None]).all()
    # The odd multiples of half a cell, the first one lowest.
    assert np.array_equal(reports, (2.0 * codes - 2**bits + 1) * levels.half[:, None])


def test_bytes_that_are_no_reports_are_none() -> None:
    levels = Levels(3, np.array([1.0]))
    clients = np.zeros(1, dtype=np.int64)
    packed = levels.packed(levels.levels(np.array([[7, 0, 5]], np.uint16), clients), clients)
    assert packed.tolist() == [[0b11100010, 0b10000000]]
    assert levels.unpacked(packed[:, :1], clients, 3) is None
    assert levels.unpacked(packed | 1, clients, 3) is None  # what is left of the last byte
    assert levels.unpacked(np.vstack([packed, packed]), clients, 3) is None


def test_clients_of_one_noise_scale_share_their_levels() -> None:
    """Levels of its own would tell which client a report is from."""
    tables = configured(unit="client", personalization="clipping", report_bits=4).to_dict()
    tables["budgets"] = {"distribution": "listed", "epsilons": [0.5, 4.0, 1.0, 2.0]}
    plan = task_of(parse_config(tables)).plan
    assert plan.few_bits is not None
    assert np.ptp(plan.radius) > 0.0 and np.ptp(plan.few_bits.half) == 0.0
    assert np.array_equal(plan.step, plan.few_bits.step)
    assert np.array_equal(plan.largest, 15 * plan.few_bits.half)


def test_too_few_bits_for_a_long_mean_are_refused_with_those_that_do() -> None:
    scale = np.ones(2)
    with pytest.raises(ConfigError, match=r"report_bits = 2: .* use at least 3") as caught:
        FewBits.of("gaussian", 2, scale, 5.0 * scale)
    assert "\n" not in str(caught.value)
    assert FewBits.of("gaussian", 3, scale, 5.0 * scale).cost.worst_bias <= 0.01


def test_nothing_is_said_of_sums_and_attacks_of_rounded_reports() -> None:
    """What is proven of the shuffled reports stays; the sum's proof is about a fine grid."""
    found = {}
    for bits in (0, 4):
        config = configured(unit="client", report_bits=bits)
        plan = task_of(config).plan
        accountant = Accountant.of(config.to_dict(), list(plan.classes), plan.class_of)
        preview = accountant.preview(1, np.ones(len(plan), dtype=bool))
        accountant.commit(preview)
        found[bits] = preview.spend.columns, accountant.lower_bounds()
    (plain, attacks), (columns, none) = found[0], found[4]
    for name in ("local", "shuffled"):
        assert columns[name].epsilon == plain[name].epsilon
    assert plain["sum"].epsilon and not columns["sum"].epsilon
    assert columns["sum"].note == ROUNDED == none["sum_lower"].note
    assert attacks["shuffled_lower"].epsilon and not none["shuffled_lower"].epsilon
    assert none["shuffled_lower"].note == ROUNDED_LESS


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"report_bits": 1}, "use 2 to 16"),
        ({"report_bits": 17}, "report_bits = 17"),
        ({"report_bits": 4, "release": "sum"}, "needs a fine grid"),
        ({"report_bits": 4, "randomizer": "discrete-laplace"}, "rounds after Gaussian or Laplace"),
    ],
)
def test_what_cannot_be_rounded_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(FlShuffleError, match=said):
        parse_config({"privacy": {"unit": "client", **settings}, "run": {"entropy": "system"}})
