"""Where only sums leave: exact distributions of Gaussian and Laplace reports on grids, worst honest
subsets, the account of rounds, and an attack on real sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve
from scipy.special import ndtri
from scipy.stats import binom, gamma

from fl_shuffle.accounting.add_remove import add_remove_epsilon, add_remove_of
from fl_shuffle.accounting.bounds.sum_release import gaussian, laplace
from fl_shuffle.accounting.bounds.sum_release.gaussian import drawn_variance
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_lower_column
from fl_shuffle.accounting.report_grid import report_grids
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.budgets import make_budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import exact_sum
from tests.oracles import cells

Vector = np.ndarray
Curve = Callable[[float], float]


def divergence(p: Vector, q: Vector, epsilon: float) -> float:
    """The hockey-stick divergence of two distributions on one grid, in the worse order."""
    a = math.exp(epsilon)
    return float(max(np.maximum(x - a * y, 0.0).sum() for x, y in ((p, q), (q, p))))


# --- Gaussian reports ---------------------------------------------------------------------------


def law_of_sum(means: Vector, around: Vector, scales: Vector, grids: Vector) -> Vector:
    """The exact distribution of the sum of independent rounded reports, on the grid of the finest
    grid; each report's own grid reaches ten scales to both sides of `around`."""
    law = np.ones(1)
    for mean, centre, scale, grid in zip(means, around, scales, grids, strict=True):
        ratio = round(grid / grids.min())
        index = np.arange(round((centre - 10 * scale) / grid), round((centre + 10 * scale) / grid))
        spread = np.zeros(len(index) * ratio + 1)
        spread[::ratio] = cells([mean / scale], (index + 0.5) * grid / scale, "gaussian")
        law = np.convolve(law, spread)
    return law


def exact_curve(means: Vector, scales: Vector, grids: Vector, shift: float) -> Curve:
    """The exact divergence of the sum as the first mean moves by `shift`."""
    moved = means + shift * (np.arange(len(means)) == 0)
    laws = [law_of_sum(each, means, scales, grids) for each in (means, moved)]
    return lambda epsilon: divergence(*laws, epsilon)


def cases(number: int, low: float, high: float) -> Iterator[tuple[Vector, Vector, Vector, float]]:
    """(means, scales, grids, the first mean's shift): 2 to 4 reports, scales in their own steps."""
    rng = np.random.default_rng(7)
    for _ in range(number):
        count = int(rng.integers(2, 5))
        grids = np.exp2(rng.integers(0, 2, count).astype(np.float64))
        scales = grids * rng.uniform(low, high, count)
        means = rng.uniform(-2.0, 2.0, count)
        yield means, scales, grids, float(rng.uniform(0.1, 1.0) * scales[0])


@pytest.mark.parametrize(("smoothing", "low", "high"), [(0.25, 0.3, 0.9), (0.4, 0.5, 3.0)])
def test_exact_law_on_coarse_grids(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, low: float, high: float
) -> None:
    """Steps as long as the noise, a small c: the theorem with its surcharge, exactly.

    Steps longer than the noise also show what the theorem is for: without it, the formula fails.
    """
    monkeypatch.setattr(gaussian, "GRID_SMOOTHING", smoothing)
    lost = 2.0 * sum(math.exp(-2.0 * (math.pi * smoothing * k) ** 2) for k in (1, 2, 3))
    counted = naive = 0
    for means, scales, grids, shift in cases(150, low, high):
        alone = np.ones(len(means), int)
        variance = float(gaussian.hiding_variance(scales, grids, alone)[0])
        counted += variance > scales[0] ** 2
        h = -len(means) * math.log1p(-lost)
        exact = exact_curve(means, scales, grids, shift)
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            bound = math.exp(h) * gaussian_delta(epsilon - 2.0 * h, shift / math.sqrt(variance))
            plain = gaussian_delta(epsilon, shift / math.sqrt(float(scales @ scales)))
            assert exact(epsilon) <= bound + 1e-14
            naive += exact(epsilon) > 1.02 * plain + 1e-12
    assert counted > 10
    assert naive > 0 or low > 0.4


def test_exact_law_on_the_grids_in_use() -> None:
    """Scales of 64 steps and more: below the formula, which is within a tenth of mu."""
    for means, scales, grids, shift in cases(12, 64.0, 128.0):
        alone = np.ones(len(means), int)
        mu = float(gaussian.sum_mu(scales, np.full(len(means), shift), grids, alone)[0])
        exact = exact_curve(means, scales, grids, shift)
        for epsilon in (0.0, 0.2, 0.5):
            assert exact(epsilon) <= gaussian.sum_profile(epsilon, mu) + 1e-14
            assert exact(epsilon) > gaussian_delta(epsilon, 0.9 * mu) + 1e-14


def test_a_coarse_report_does_not_hide_a_fine_one() -> None:
    """The sum modulo the coarse step is the fine report: only its own noise may count."""
    scales, grids = np.array([1.0, 1024.0]), np.array([2.0**-4, 64.0])
    assert gaussian.hiding_variance(scales, grids, np.ones(2, int))[0] == 1.0
    exact = exact_curve(np.array([0.2, 3.0]), scales, grids, 1.0)
    for epsilon in (0.0, 1.0):
        own = gaussian_delta(epsilon, 1.0)
        assert 0.9 * own < exact(epsilon) <= own + 1e-12
    # Beside a fine report of enough noise the coarse one counts, and the other way round.
    enough = gaussian.hiding_variance(np.array([1024.0, 2048.0]), grids, np.ones(2, int))
    assert np.all(enough > 2048.0**2)


def test_the_worst_honest_subset() -> None:
    """Every subset that may be the honest one, tried."""
    rng = np.random.default_rng(3)
    for _ in range(60):
        scales = rng.choice([0.5, 1.0, 1.5, 2.0, 3.0], 4, replace=False)
        counts = rng.integers(0, 3, 4)
        counts[rng.integers(4)] += 1
        for honest in range(1, int(counts.sum()) + 2):
            found = gaussian.hiding_variance(scales, np.full(4, 1e-9), counts, honest)
            ideal = gaussian.attacked_variance(scales, counts, honest)
            for own in np.flatnonzero(counts):
                others = np.repeat(scales, counts - (np.arange(4) == own)) ** 2
                subsets = itertools.combinations(others, min(honest - 1, len(others)))
                worst = scales[own] ** 2 + min(map(sum, subsets))
                assert worst * (1 - 1e-11) < found[own] <= worst * (1 + 1e-15)
                assert worst * (1 - 1e-15) <= ideal[own] < worst * (1 + 1e-11)


# --- A unit taken out, its noise left (the second relation) -------------------------------------


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3, 0.05])
def test_no_unit_taken_out_is_told_from_its_presence_better(delta: float) -> None:
    """Never less than half the Gaussian parameter; and the exact distributions of three rounded
    reports, with a mean at the ball's edge and without it."""
    for mu in np.geomspace(1e-3, 30.0, 40).tolist():
        half, whole = (gaussian.sum_epsilon(delta, each) for each in (0.5 * mu, mu))
        found = add_remove_epsilon(whole, delta)
        assert found >= half
        assert whole == 0.0 or found == pytest.approx(half, rel=1e-6, abs=1e-12)
    assert add_remove_epsilon(math.inf, delta) is None
    scales, grids = np.array([1.5, 0.8, 2.0]), np.array([0.01, 0.01, 0.02])
    mu = float(gaussian.sum_mu(scales, np.full(3, 2.0), grids, np.ones(3, int))[0])
    removed = add_remove_epsilon(gaussian.sum_epsilon(delta, mu), delta)
    exact = exact_curve(np.array([0.0, 0.3, -0.7]), scales, grids, 1.0)
    assert exact(removed) <= delta < exact(0.97 * removed)


@pytest.mark.parametrize(
    ("privacy", "applies"),
    [
        ({"unit": "client"}, True),
        ({"unit": "record"}, True),
        ({"unit": "record", "clip": "average"}, False),
        ({"unit": "record", "client_clip": 0.1}, False),
        ({"unit": "client", "randomizer": "laplace"}, False),
        ({"unit": "client", "randomizer": "discrete-gaussian"}, False),
    ],
)
def test_where_taking_out_may_move_as_far_nothing_is_said(
    privacy: dict[str, object], applies: bool
) -> None:
    run = {"entropy": "system"} if "discrete" in str(privacy) else {}
    config = parse_config({"privacy": privacy, "run": run}).to_dict()
    found = add_remove_of(config, 1.0, 1e-5)
    assert (found == add_remove_epsilon(1.0, 1e-5)) if applies else found is None
    assert add_remove_of(config, None, 1e-5) is None


# --- Laplace reports ----------------------------------------------------------------------------


def rounded(mean: float, grid: float, half: int) -> Vector:
    """Probabilities of Laplace noise of scale 1 around `mean`, rounded; index -half .. half."""
    return cells([mean], (np.arange(-half, half) + 0.5) * grid, "laplace")


def others(count: int, grid: float, half: int) -> Vector:
    """The exact distribution of `count` such reports with different means near zero, on the same
    indices."""
    size = 1 << math.ceil(math.log2(4 * half))
    means = np.linspace(-0.4, 0.4, 5)
    transform = np.ones(size // 2 + 1, dtype=np.complex128)
    for position, mean in enumerate(means.tolist()):
        law = np.pad(rounded(mean, grid, half), (0, size - 2 * half - 1))
        transform *= np.fft.rfft(np.roll(law, -half)) ** ((count + 4 - position) // 5)
    return np.maximum(np.roll(np.fft.irfft(transform, size), half)[: 2 * half + 1], 0.0)


ONE = np.ones(1)


@pytest.mark.parametrize(("count", "refuted"), [(100, 1.7), (400, 1.3)])
def test_exact_law_in_one_coordinate(count: int, refuted: float) -> None:
    """Below the bound; a claim with mu divided by 1.7 (100 reports) or 1.3 (400) is exceeded."""
    grid, shift = 2.0**-6, 1.0
    rest = others(count - 1, grid, round(12 * math.sqrt(2 * count) / grid))
    found = laplace.laplace_sum_mu(ONE, ONE * shift, ONE * grid, np.array([count]), dimension=1)
    curve = SumCurve(float(found[0]), laplace.SUM_RARE)
    for start in (-0.5, 0.001):
        laws = [
            fftconvolve(rest, rounded(mean, grid, round(45 / grid)), "same")
            for mean in (start, start + shift)
        ]
        for epsilon in (0.0, 0.05, 0.2):
            exact = divergence(*laws, epsilon)
            assert exact <= curve.profile(epsilon) + 1e-11
            less = gaussian_delta(epsilon, curve.mu / refuted)
            assert less < 1e-9 or exact > less + 1e-11


def test_moves_over_two_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However a move is split, with steps of 1/8 of the noise, exactly; c = 1 and its surcharge."""
    monkeypatch.setattr(laplace, "GRID_SMOOTHING", 1.0)
    grid, count, shift = 0.125, 100, 1.5
    rest = others(count - 1, grid, round(9 * math.sqrt(2 * count) / grid))
    found = laplace.laplace_sum_mu(ONE, ONE * shift, ONE * grid, np.array([count]), dimension=2)
    h = 2 * count * 2.0001 * math.exp(-2.0 * math.pi**2)
    before = fftconvolve(rest, rounded(0.03, grid, 400), "same")
    for share in (1.0, 0.9, 0.5):
        ends = [
            fftconvolve(rest, rounded(0.03 + part * shift, grid, 400), "same")
            for part in (share, 1.0 - share)
        ]
        p, q = np.multiply.outer(before, before), np.multiply.outer(*ends)
        for epsilon in (0.0, 0.3):
            bound = math.exp(h) * gaussian_delta(epsilon - 2 * h, float(found[0])) + 1e-12
            assert divergence(p, q, epsilon) <= bound + 1e-11


def test_the_worst_honest_laplace_subset_is_that_of_the_smallest_noise() -> None:
    """On one grid: the bound for h of all is the bound for the h smallest alone."""
    scale = np.array([1.1, 1.3, 1.7])
    grid, shift, counts = np.full(3, 2.0**-15), np.full(3, 0.5), np.array([100, 200, 50])
    for honest in (150, 300, 330):
        fewer = np.minimum(counts, np.maximum(0, honest - np.array([0, 100, 300])))
        found = laplace.laplace_sum_mu(scale, shift, grid, counts, dimension=50, honest=honest)
        alone = laplace.laplace_sum_mu(scale, shift, grid, fewer, dimension=50)
        some = fewer > 0
        np.testing.assert_allclose(found[some], alone[some], rtol=1e-12)


def test_coarse_grids_count_where_fine_ones_bridge_them() -> None:
    scale, shift = np.array([1.0, 50.0]), np.array([0.5, 0.5])

    def mus(coarse: float, *counts: int) -> Vector:
        grid = np.array([2.0**-16, coarse])
        return laplace.laplace_sum_mu(scale, shift, grid, np.array(counts), dimension=600)

    alone = mus(2.0**-10, 1, 1000)
    assert alone[0] == math.inf and alone[1] < 0.01
    assert mus(2.0**-10, 20, 1000)[0] < 0.001
    # Coarser than the fine noise is wide: nothing but its own kind counts.
    assert mus(4.0, 1000, 1000)[0] == mus(4.0, 1000, 0)[0]


@pytest.mark.parametrize(("small", "dimension"), [(1e-8, 600), (1e-3, 5_000), (0.3, 10**9)])
def test_coordinates_with_little_own_noise(small: float, dimension: int) -> None:
    """More of them than the code allows for are as rare as it says: the binomial distribution
    itself."""
    bad = laplace._bad_coordinates(small, dimension)
    assert binom.sf(bad, dimension, small) <= 0.25 * laplace.SUM_RARE
    assert bad <= 10.0 * small * dimension + 40


@pytest.mark.parametrize(
    ("grid", "dimension"),
    [(2.0**-4, 1), (2.0**-16, 10**6), (2.0**-10, 1_000), (2.0**-6, 5_000), (2.0**-12, 10**9)],
)
@pytest.mark.parametrize("part", [0.1, 1.0, 10.0])
def test_what_a_laplace_sum_gives_up_counts(grid: float, dimension: int, part: float) -> None:
    """By the exact distributions of the mixing variables: a step more of the grid in every
    coordinate in which the own noise may be small, and the least variance that all coordinates may
    have.
    """
    count, rare = 10**5, 0.25 * laplace.SUM_RARE
    steps = float(binom.isf(rare, dimension, -math.expm1(-32.0 * grid**2)))
    shift = part * steps * grid
    variance = 2.0 * float(gamma.ppf(rare / dimension, count)) - count * (8.0 * grid) ** 2
    found = laplace.laplace_sum_mu(
        ONE, ONE * shift, ONE * grid, np.array([count]), dimension=dimension
    )
    assert steps >= 1.0 and found[0] >= (shift + steps * grid) / math.sqrt(variance)


# --- The account of a run's rounds --------------------------------------------------------------

DELTA = 1e-5


def classes_of(*rows: tuple[float, float, float]) -> list[ClientClass]:
    """Gaussian classes of (scale, radius, sensitivity)."""
    return [ClientClass("gaussian", *row, 1.0, DELTA) for row in rows]


def start(classes: list[ClientClass], class_of: list[int], **also: Any) -> SumAccount:
    return SumAccount.start(classes, np.array(class_of), **{"schedule": "aggregate", **also})


def test_rounds_add_as_squares_over_who_arrived() -> None:
    """Personal scales, drop-outs: the formula written out, for every client."""
    classes = classes_of((1.0, 1.0, 0.5), (2.0, 1.0, 0.25), (0.5, 0.1, 1.0))
    class_of = np.array([0, 0, 1, 2, 1])
    account = start(classes, class_of.tolist())
    rng = np.random.default_rng(1)
    expected = np.zeros(5)
    shift, scale = np.array([0.5, 0.25, 0.2])[class_of], np.array([1.0, 2.0, 0.5])[class_of]
    for _ in range(7):
        present = rng.random(5) < 0.6
        before = account.mu_squared.copy()
        after = account.after(present)
        assert np.array_equal(account.mu_squared, before)
        account = after
        expected += present * shift**2 / max(1e-300, float(np.sum(scale[present] ** 2)))
    mu = np.sqrt(expected)
    assert np.all(np.sqrt(account.mu_squared) >= mu)
    np.testing.assert_allclose(np.sqrt(account.mu_squared), mu, rtol=2e-7)
    epsilons = account.epsilons(DELTA)
    np.testing.assert_allclose(epsilons, [gaussian_epsilon(DELTA, m) for m in mu], rtol=1e-6)
    worst = int(np.argmax(epsilons))
    of_classes = [epsilons[class_of == index].max() for index in range(3)]
    np.testing.assert_allclose(account.worst_epsilons(DELTA), of_classes, rtol=1e-9)
    curve = account.curve(worst)
    assert curve.epsilon(DELTA) == pytest.approx(epsilons[worst], rel=1e-9)
    assert curve.profile([curve.epsilon(DELTA)])[0] <= DELTA
    np.testing.assert_allclose(curve.trade_off([0.0, 1.0]), [1.0, 0.0])


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_clients_curve_and_its_epsilon_are_one(noise: str) -> None:
    """In sums that hide most of the Laplace reports, and not the one on a much finer grid; also at
    deltas that are less than what is given up in three rounds.
    """
    rows = (50.0, 0.5, 0.5), (40.0, 0.5, 0.1), (1.0, 0.5, 0.4)
    classes = [ClientClass(noise, *row, 1.0, 0.0) for row in rows]
    class_of = [0] * 1000 + [1] * 1000 + [2]
    some, everybody = np.arange(2001) % 2 == 0, np.ones(2001, dtype=bool)
    account = start(classes, class_of, dimension=50)
    for present in (everybody, some, everybody):
        account = account.after(present)
    assert np.isfinite(account.mu_squared).tolist() == [True] * 2000 + [noise == "gaussian"]
    for delta in (1e-5, 3.5e-12, 2.5e-12, 0.5e-12):
        epsilons = account.epsilons(delta)
        for client in (0, 1, 1000, 1001, 2000):
            curve = account.curve(client)
            assert curve.epsilon(delta) == pytest.approx(epsilons[client], rel=1e-9)
            if delta > 3.0 * laplace.SUM_RARE:
                (back,) = curve.profile([curve.epsilon(delta)])
                assert back <= delta * (1.0 + 1e-9)
                assert back == pytest.approx(delta, rel=1e-3) or not math.isfinite(curve.mu)


def test_assumed_honest_counts_the_smallest_noise_first() -> None:
    """(assumed, the variances that hide a client of large noise, and one of small)."""
    classes = classes_of((1.0, 1.0, 0.5), (3.0, 1.0, 0.5))
    everybody, class_of = np.ones(10, dtype=bool), [0] * 4 + [1] * 6
    for assumed, loud, quiet in [
        (None, 58.0, 58.0), (5, 13.0, 13.0), (3, 11.0, 3.0), (0.3, 11.0, 3.0), (1, 9.0, 1.0)
    ]:  # fmt: skip
        account = start(classes, class_of, assumed_honest=assumed).after(everybody)
        np.testing.assert_allclose(0.25 / account.mu_squared[[0, 9]], [quiet, loud], rtol=1e-6)
    # A share is one of those who arrived.
    account = start(classes, class_of, assumed_honest=0.5).after(np.arange(10) < 4)
    assert 0.25 / account.mu_squared[0] == pytest.approx(2.0, rel=1e-6)
    assert honest_reports(0.5, 5) == 2 and honest_reports(7, 5) == 5
    for bad in (0, True, 1.0, math.nan, "half"):
        with pytest.raises(InvalidValueError, match="assumed_honest"):
            start(classes, class_of, assumed_honest=bad)


def test_noise_that_hides_is_there_whoever_is_honest() -> None:
    """On random grids and scales, against every honest set of its size (docs/research/proofs,
    section 14): of its reports those count that the coarser grid of two does not show through.
    Where all lie on one grid the least is found, and not less."""
    draw, alike, mixed = np.random.default_rng(5), 0, 0
    for case in range(300):
        classes = int(draw.integers(1, 5))
        scale = draw.uniform(1.0, 40.0, classes)
        grid = 2.0 ** draw.integers(-4, 3 if case % 2 else -3, classes)
        present = draw.integers(0, 4, classes)
        reports = np.repeat(np.arange(classes), present)
        if not len(reports):
            continue
        honest = int(draw.integers(1, len(reports) + 1))
        found = gaussian.hiding_variance(scale, grid, present, honest)

        def fits(own: int, other: int, scale: Vector = scale, grid: Vector = grid) -> bool:
            if min(scale[own] / grid[own], scale[other] / grid[other]) < 8.0:
                return False
            finer = min((own, other), key=lambda index: grid[index])
            coarser = max(grid[own], grid[other])
            return bool(grid[own] == grid[other] or scale[finer] ** 2 >= 32.0 * coarser**2)

        for own in np.flatnonzero(present):
            others = list(reports)
            others.remove(own)
            counted = [
                scale[other] ** 2 - 64.0 * grid[other] ** 2 if fits(own, other) else 0.0
                for other in others
            ]
            # The least of all sets: the smallest numbers.
            least = scale[own] ** 2 - 64.0 * grid[own] ** 2 + sum(sorted(counted)[: honest - 1])
            least = max(least, scale[own] ** 2)
            assert found[own] <= least * (1.0 + 1e-12)
            together = len(np.unique(grid)) == 1 and all(fits(own, other) for other in others)
            alike += together
            mixed += not together and least > 1.5 * scale[own] ** 2
            assert not together or found[own] >= least * (1.0 - 1e-9)
    assert alike > 50 and mixed > 50


def test_there_is_no_number_where_nothing_is_proven() -> None:
    one = classes_of((1.0, 1.0, 1.0))
    exponential, unknown = ([replace(one[0], noise=noise)] for noise in ("laplace", "user"))
    for classes, schedule, word in (
        (one, "sequential", "local"),
        (unknown, "aggregate", "not known"),
        ([*one, *exponential], "aggregate", "different kinds"),
        (exponential, "aggregate", "Laplace"),
    ):
        account = start(classes, [0], schedule=schedule).after(np.array([True]))
        assert sum_lower_column(account, DELTA, [0]).worst is None
        with pytest.raises(NotApplicableError, match=word):
            account.epsilons(DELTA)


def attacked_mu(plan: Calibration, target: int, trials: int) -> tuple[float, float]:
    """What a threshold test on real sums reaches: (a lower bound on mu at 1e-9, its estimate).

    The target's mean lies at either end of its ball, the others' at zero. Sums are those that runs
    make: means times weights, noise, rounding, exact sum. Every coordinate is a trial of its own.
    """
    rates = []
    for end in (-1.0, 1.0):
        means = torch.zeros(len(plan), trials)
        means[target] = end * float(plan.weight[target] * plan.radius[target])
        stream = NoiseStream(SeedTree(5).key("noise", str(end)), trials)
        scale = plan.weight * plan.scale
        reports = stream.add_("normal", means, np.arange(len(means)), scale, plan.step)
        total = torch.zeros(trials, dtype=torch.float64)
        exact_sum(reports, total)
        rates.append(float((total > 0.0).double().mean()))
    slack = math.sqrt(math.log(2e9) / (2 * trials))
    certain = ndtri(rates[1] - slack) - ndtri(rates[0] + slack)
    return float(certain), float(ndtri(rates[1]) - ndtri(rates[0]))


def test_attack_on_weighted_sums() -> None:
    """The claim stands; a tenth less would be refuted.

    False alarm below 1e-9. Power: the margin is 0.026 of mu = 0.44, nine deviations.
    """
    config = parse_config({
        "privacy": {"unit": "client"}, "server": {"weights": "inverse-variance"},
        "budgets": {"distribution": "uniform", "low": 1.0, "high": 4.0, "delta": 1e-5},
    })  # fmt: skip
    plan = make_plan(config, make_budgets(config.budgets, 6), np.ones(6, np.int64))
    assert plan.step.tolist() == pytest.approx(
        report_grids(plan.weight * plan.scale, plan.weight * plan.radius).tolist(), rel=0.0
    )
    account = start(plan.classes, plan.class_of).after(np.ones(len(plan), dtype=bool))
    target = int(np.argmax(account.mu_squared))
    claimed = account.curve(target).mu
    certain, estimate = attacked_mu(plan, target, 400_000)
    assert 0.9 * claimed < certain <= claimed
    assert estimate == pytest.approx(claimed, abs=0.02)


def test_reports_of_several_grids_share_what_may_surprise() -> None:
    """Noise that bridges no other grid hides its own company alone: of two companies each has half
    of the probability, so that both are as large together."""
    scale, grid = np.array([1.0, 1e-6]), np.array([2.0**-10, 2.0**-30])
    clients, rare = np.array([500, 300]), 1e-3
    together = drawn_variance(scale, grid, clients, 0.3, rare)
    for place in (0, 1):
        alone = slice(place, place + 1)
        apart = drawn_variance(scale[alone], grid[alone], clients[alone], 0.3, 0.5 * rare)
        assert together[place] == pytest.approx(apart[0], rel=1e-12)
        assert together[place] > 50.0 * scale[place] ** 2
