"""Discrete Gaussian reports against the proof: up to a factor they are a kernel applied to
continuous Gaussian reports, and noise makes such of them; and

Source: docs/research/proofs, section 14, last part.
the accountant's numbers for them against exact divergences."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting import client_classes, report_grid
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.sum_release.gaussian import hiding_variance
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.client_classes import DISCRETE_GAUSSIAN, ClientClass, ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta
from fl_shuffle.accounting.lower_bounds.certain_loss import certain_losses
from fl_shuffle.accounting.rounds import class_table
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.local_guarantees import local_delta
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView, kind_alone
from fl_shuffle.accounting.rounds.sum_account import SumTable
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.accounting.rounds.words import AS_CONTINUOUS, SMOOTHED
from fl_shuffle.errors import InvalidValueError

GRID = np.arange(-14, 15)
"""Reports in steps: beyond lies less than 1e-14 of any distribution here."""
FINE = np.linspace(-18.0, 18.0, 721)
"""Nodes of the trapezoidal rule, which is exact to 1e-14 for products of these Gaussians."""
WEIGHT = float(FINE[1] - FINE[0])

Vector = np.ndarray


def normal(at: Vector, scale: float) -> Vector:
    return np.exp(-0.5 * (at / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi))


def discrete(mean: int, scale: float) -> Vector:
    """The distribution of mean + discrete Gaussian noise, in steps [GRID]."""
    law = normal(GRID - mean, scale)
    return law / math.fsum(law.tolist())


def unevenness(smoothing: float) -> float:
    """e_c of the proof."""
    return 2.0 * sum(math.exp(-2.0 * (math.pi * smoothing * k) ** 2) for k in range(1, 40))


def after_kernel(mean: int, scale: float, smoothing: float) -> Vector:
    """What the kernel makes of N(mean, scale^2 - c^2), by integration [GRID]."""
    kernel = normal(GRID[:, None] - FINE[None, :], smoothing)
    kernel /= kernel.sum(axis=0)
    rest = float(report_grid.hiding_scale(scale, 1.0))
    law: Vector = kernel @ (normal(FINE - mean, rest) * WEIGHT)
    return law


def divergence(laws: list[list[Vector]], weight: float, epsilon: float) -> float:
    """H of two shuffled batches: lists of the reports' densities, the first report differing."""
    both = []
    for side in laws:
        orders = list(itertools.permutations(side))
        total = 0.0
        for order in orders:
            product = order[0]
            for law in order[1:]:
                product = np.multiply.outer(product, law)
            total = total + product / len(orders)
        both.append(total)
    gain = np.maximum(both[0] - math.exp(epsilon) * both[1], 0.0)
    return float(gain.sum()) * weight ** len(laws[0])


@pytest.mark.parametrize("smoothing", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("scale", [0.9, 1.4])
def test_discrete_report_is_a_kernel_of_a_gaussian(
    monkeypatch: pytest.MonkeyPatch, scale: float, smoothing: float
) -> None:
    """Point by point within (1 - e_c)^2, and not within a twentieth of that where it is felt."""
    monkeypatch.setattr(report_grid, "GRID_SMOOTHING", smoothing)
    factor = -2.0 * math.log1p(-unevenness(smoothing))
    for mean in (0, 3):
        ratio = np.log(discrete(mean, scale) / after_kernel(mean, scale, smoothing))
        inside = np.abs(GRID - mean) <= 5
        assert np.max(np.abs(ratio[inside])) <= factor + 1e-10
    if smoothing == 0.35:
        assert np.max(np.abs(ratio[inside])) > 0.05 * factor


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("others", [(-1,), (0,), (3,), (-1, -1), (2, 0)])
def test_shuffled_discrete_reports_are_below_the_bound(
    others: tuple[int, ...], epsilon: float
) -> None:
    """Exact divergences of two and three reports, both orders, with a kernel that is felt."""
    scale, smoothing, ends = 1.0, 0.5, (2, -1)
    hiding = math.sqrt(scale**2 - smoothing**2)
    grid = FINE[::6]
    h = -2.0 * (len(others) + 1) * math.log1p(-unevenness(smoothing))
    for first, second in (ends, ends[::-1]):
        exact = divergence(
            [[discrete(each, scale) for each in (end, *others)] for end in (first, second)],
            1.0, epsilon,
        )  # fmt: skip
        smooth = divergence(
            [[normal(grid - each, hiding) for each in (end, *others)] for end in (first, second)],
            6.0 * WEIGHT, epsilon - 2.0 * h,
        )  # fmt: skip
        assert 0.0 < exact <= math.exp(h) * smooth


def test_without_the_correction_the_bound_would_be_exceeded() -> None:
    """Of coarse noise: a continuous Gaussian of the same scale is not what it is worth."""
    scale, grid = 0.4, np.linspace(-14.0, 15.0, 5801)
    worse = [
        divergence([[discrete(1, scale)], [discrete(0, scale)]], 1.0, epsilon)
        > divergence([[normal(grid - 1, scale)], [normal(grid, scale)]], 0.005, epsilon) * 1.01
        for epsilon in (0.0, 1.0, 2.0, 3.0, 4.0)
    ]
    assert any(worse)


@pytest.mark.parametrize("smoothing", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("scale", [0.9, 1.4])
def test_added_noise_makes_a_continuous_report(
    monkeypatch: pytest.MonkeyPatch, scale: float, smoothing: float
) -> None:
    """What attacks are accounted with: within (1 - e_c)^2 of a Gaussian density, everywhere."""
    monkeypatch.setattr(report_grid, "GRID_SMOOTHING", smoothing)
    revealed = float(report_grid.revealing_scale(scale, 1.0))
    added = math.sqrt(revealed**2 - scale**2)
    factor = -2.0 * math.log1p(-unevenness(smoothing))
    at = np.linspace(-5.0, 5.0, 401)
    density = normal(at[:, None] - GRID[None, :], added) @ discrete(0, scale)
    ratio = np.log(density / normal(at, revealed))
    assert np.max(np.abs(ratio)) <= factor + 1e-10
    assert smoothing > 0.35 or np.max(np.abs(ratio)) > 0.05 * factor


# --- The accountant's numbers -------------------------------------------------------------------


def coarse(scale: float, radius: float, sensitivity: float, count: int = 1) -> ClientClass:
    return ClientClass(DISCRETE_GAUSSIAN, scale, radius, sensitivity, count=count)


@pytest.fixture
def whole_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every grid has step one: coarse grids, which the product never takes, can be enumerated."""
    for module in (client_classes, class_table):
        monkeypatch.setattr(module, "grid_steps", lambda scale, radius: np.ones_like(scale))


def law(mean: float, scale: float, grid: Vector) -> Vector:
    exact = normal(grid - mean, scale)
    return exact / math.fsum(exact.tolist())


@pytest.mark.slow
@pytest.mark.usefixtures("whole_steps")
def test_random_small_shuffles_stay_below_the_account() -> None:
    """Two to four reports with any means in their balls, all orders, both directions, exactly."""
    rng = np.random.default_rng(5)
    closest = 0.0
    for count in (2,) * 8 + (3,) * 4 + (4,):
        scale, radius = float(rng.integers(8, 11)), float(rng.integers(1, 13))
        scale, radius = (8.0, 4.0) if count == 4 else (scale, radius)
        kind = ShuffledRound.of([coarse(scale, radius, 2.0 * radius, count)])
        assert (kind.noise, kind.anonymity) == ("gaussian", count)
        # Four reports are enumerated on a smaller grid: what is cut off lowers the divergence.
        reach = math.ceil(radius + (5.0 if count < 4 else 2.0) * scale)
        grid = np.arange(-reach, reach + 1).astype(float)
        ends = np.array([radius, -radius if rng.integers(2) else 0.0])
        others = rng.integers(-radius, radius + 1, count - 1).tolist()
        for epsilon in (0.0, 0.5, 1.5) if count < 4 else (0.2,):
            bound = min(VectorCurve(kind).delta(epsilon), float(local_delta(kind.law, 1, epsilon)))
            for pair in (ends, ends[::-1]):
                sides = [[law(each, scale, grid) for each in (end, *others)] for end in pair]
                exact = divergence(sides, 1.0, epsilon)
                assert exact <= bound
                closest = max(closest, exact / bound)
    assert closest > 0.2


def equal_others(p: Vector, q: Vector, other: Vector, count: int, epsilon: float) -> float:
    """The divergence of `count` reports, all others of one distribution, rounded up by about 1e-5.

    (1/n) E(sum of n copies of (P - a Q)/R)^+ under R (docs/research/proofs, section 8). Each atom
    is spread over two points of a grid, its mean kept: that raises the expectation."""
    there = other > 1e-30
    gain, mass = ((p - math.exp(epsilon) * q)[there] / other[there], other[there])
    width, size = 0.01, 1 << 17
    place = np.floor(gain / width).astype(int)
    up = gain / width - place
    single = np.zeros(size)
    np.add.at(single, place % size, (1.0 - up) * mass)
    np.add.at(single, (place + 1) % size, up * mass)
    total = np.fft.irfft(np.fft.rfft(single) ** count, size)
    value = width * np.fft.fftfreq(size, 1.0 / size)
    return float(total @ np.maximum(value, 0.0)) / count


@pytest.mark.usefixtures("whole_steps")
@pytest.mark.slow
@pytest.mark.parametrize("count", [20, 200])
@pytest.mark.parametrize(("scale", "radius"), [(8.0, 8.0), (12.0, 6.0)])
def test_many_reports_cost_no_more_than_the_bound_and_no_less_than_the_attack(
    scale: float, radius: float, count: int
) -> None:
    """The worst data set that is known, exactly: all others at the far end of their balls."""
    own, grid = coarse(scale, radius, 2.0 * radius, count), np.arange(-120.0, 121.0)
    one, zero = law(radius, scale, grid), law(-radius, scale, grid)
    curve = VectorCurve(ShuffledRound.of([own]))
    for epsilon in (0.0, 0.2, 0.5):
        exact = max(
            equal_others(*pair, zero, count, epsilon) for pair in ((one, zero), (zero, one))
        )
        assert exact <= curve.delta(epsilon)
    table = ClassTable.of([own])
    (found,) = certain_losses(table, np.array([count]), {0: 1}, {0: 9.0}, 0.01, 1).values()
    reached = max(equal_others(*pair, zero, count, found) for pair in ((one, zero), (zero, one)))
    assert found > 0.01 and reached >= 0.01


@pytest.mark.usefixtures("whole_steps")
def test_a_round_and_a_report_count_the_noise_that_hides() -> None:
    """Scale 10 on a grid of step one hides as continuous noise of variance 100 - 16 does."""
    own, hiding = coarse(10.0, 3.0, 6.0, 7), math.sqrt(84.0)
    assert ShuffledRound.of([own]).scale == pytest.approx(hiding, rel=1e-14)
    assert kind_alone(own).exposure == pytest.approx(6.0 / hiding, rel=1e-14)
    assert own.exposure == own.law.exposure == pytest.approx(6.0 / hiding, rel=1e-14)
    assert ClassTable.of([own]).exposure.tolist() == [own.exposure]


@pytest.mark.usefixtures("whole_steps")
def test_an_attack_starts_from_points_of_the_grid() -> None:
    """Means are cut to the grid: a radius of 7.9 steps reaches, and moves, as far as one of 7."""
    cut = ClassTable.of([coarse(20.0, 7.9, 15.8)]).attacked
    assert (cut.radius[0], cut.move[0]) == (7.0, 14.0)
    assert cut.scale[0] == pytest.approx(400.0 / math.sqrt(384.0)) and cut.scale[0] > 20.0
    plain = ClassTable.of([ClientClass("gaussian", 20.0, 7.9, 15.8)])
    assert plain.attacked is plain


def test_noise_on_another_grid_hides_nobody() -> None:
    """One scale, two grids: reports on the coarser one are known by their last bits."""
    fine, wide = coarse(64.0, 1.0, 2.0), coarse(64.0, 1e5, 2e5)
    assert fine.step < wide.step
    crowd = [replace(fine, count=1), replace(wide, count=500)]
    assert ShuffledRound.of(crowd, 0).anonymity == 1
    assert ShuffledRound.of([replace(fine, count=500), wide], 0).anonymity == 500
    # The exact distribution: a report on a grid of step four beside one of step one, modulo four.
    grid = np.arange(-60.0, 61.0)
    multiple = np.where(grid % 4 == 0, law(0.0, 8.0, grid), 0.0)
    multiple /= multiple.sum()
    sides = [[law(end, 8.0, grid), multiple] for end in (9.0, 0.0)]
    mixed, alone = (divergence([each[:n] for each in sides], 1.0, 0.5) for n in (2, 1))
    assert mixed > 0.6 * alone
    class_of, everybody = np.repeat([0, 1], [1, 500]), np.ones(501, dtype=bool)
    # Nobody shares the first one's noise, so it is in no group.
    view = ShuffledView([fine, wide], class_of, schedule="aggregate", unit="client")
    assert view.account_of[0] == -1 and (view.account_of[1:] == 0).all()
    account = Accountant(
        [fine, wide], class_of, unit="client", schedule="aggregate", delta=1e-6,
        threat_model=ThreatModel(discrete=True),
    )  # fmt: skip
    columns = account.preview(1, everybody).spend.columns
    assert columns["shuffled"].epsilon[0] == columns["local"].epsilon[0]


def test_steps_of_fewer_than_an_eighth_of_the_noise_are_asked_for() -> None:
    with pytest.raises(InvalidValueError, match="at least 8 grid steps"):
        coarse(1.0, 1e7, 2e7)
    with pytest.raises(InvalidValueError, match="at least 8 grid steps"):
        kinds = np.array([client_classes.NOISE_KINDS.index(DISCRETE_GAUSSIAN)], dtype=np.int8)
        lengths = [np.array([each]) for each in (1.0, 1e7, 2e7, 0.0, 0.0)]
        ClassTable.of_columns(kinds, lengths, np.array([1]))


@pytest.mark.slow
def test_discrete_noise_costs_hardly_more_than_continuous_noise_of_its_scale() -> None:
    """In every column, with the theorem named; and the attack reaches hardly less."""
    found = []
    for noise in ("gaussian", DISCRETE_GAUSSIAN):
        own = ClientClass(noise, 3.0, 1.0, 2.0, epsilon0=4.0, delta0=1e-6)
        account = Accountant(
            [own], np.zeros(1000, int), unit="client", schedule="aggregate", delta=1e-6,
            threat_model=ThreatModel(discrete=noise == DISCRETE_GAUSSIAN),
        )  # fmt: skip
        spend = account.count([(number, np.ones(1000, dtype=bool)) for number in (1, 2)])
        assert spend is not None
        found.append(spend.columns | account.lower_bounds())
    plain, discrete_noise = found
    for name in ("shuffled", "local", "sum"):
        assert discrete_noise[name].worst == pytest.approx(plain[name].worst, rel=1e-5)
        assert discrete_noise[name].source.endswith(AS_CONTINUOUS)
        assert AS_CONTINUOUS not in plain[name].source
    assert discrete_noise["local"].worst > plain["local"].worst
    for name in ("shuffled_lower", "sum_lower"):
        assert plain[name].worst * (1 - 1e-4) < discrete_noise[name].worst < plain[name].worst
        assert SMOOTHED in discrete_noise[name].source
    assert discrete_noise["shuffled"].worst <= 1.1 * discrete_noise["shuffled_lower"].worst


# --- Sums ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("smoothing", "low", "high"), [(0.25, 0.55, 1.0), (0.4, 0.9, 3.0)])
def test_exact_sums_of_discrete_reports(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, low: float, high: float
) -> None:
    """Two to four reports on coarse grids: below the theorem with twice its surcharge, exactly."""
    monkeypatch.setattr(report_grid, "GRID_SMOOTHING", smoothing)
    monkeypatch.setattr(
        "fl_shuffle.accounting.bounds.sum_release.gaussian.GRID_SMOOTHING", smoothing
    )
    rng = np.random.default_rng(11)
    counted = 0
    for _ in range(60):
        count = int(rng.integers(2, 5))
        grids = np.exp2(rng.integers(0, 2, count).astype(float))
        scales = grids * rng.uniform(low, high, count)
        means = grids * rng.integers(-2, 3, count)
        shift = float(grids[0] * rng.integers(1, 3))
        hiding = np.array([
            float(report_grid.hiding_scale(*each)) for each in zip(scales, grids, strict=True)
        ])  # fmt: skip
        alone = np.ones(count, dtype=int)
        variance = float(hiding_variance(hiding, grids, alone)[0])
        counted += variance > hiding[0] ** 2
        h = -2.0 * count * math.log1p(-unevenness(smoothing))
        moved = means + shift * (np.arange(count) == 0)
        laws = [sum_law(each, scales, grids) for each in (means, moved)]
        for epsilon in (0.0, 0.5, 1.5, 3.0):
            exact = max(
                np.maximum(p - math.exp(epsilon) * q, 0.0).sum() for p, q in (laws, laws[::-1])
            )
            bound = math.exp(h) * gaussian_delta(epsilon - 2.0 * h, shift / math.sqrt(variance))
            assert exact <= bound + 1e-13
    assert counted > 10


def sum_law(means: Vector, scales: Vector, grids: Vector) -> Vector:
    """The exact distribution of the sum, on whole numbers."""
    total, half = np.ones(1), 100
    grid = np.arange(-half, half + 1).astype(float)
    for mean, scale, step in zip(means, scales, grids, strict=True):
        report = np.where(grid % step == 0, normal(grid - mean, scale), 0.0)
        total = np.convolve(total, report / report.sum())
    return total


def test_a_sum_counts_the_noise_that_hides_and_is_attacked_with_what_is_revealed() -> None:
    own = coarse(3.0, 1.0, 2.0)
    table = SumTable.of([replace(own, count=10)], 5)
    smooth = (4.0 * own.step) ** 2
    assert table.grid.tolist() == [own.step]
    assert table.scale[0] ** 2 == pytest.approx(9.0 - smooth, rel=1e-14)
    (cost,), (attacked,) = table.cost(np.array([10]), 10)
    # A sum's grid costs four times the square of four steps, beside what a single report's does.
    assert cost * 10.0 * (9.0 - 5.0 * smooth) / 4.0 == pytest.approx(1.0, abs=3e-9)
    assert attacked * 10.0 * 81.0 / (9.0 - smooth) / 4.0 == pytest.approx(1.0, abs=1e-12)
