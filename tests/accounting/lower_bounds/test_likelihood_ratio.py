"""The attack over all rounds: its error rates are those of a simulation, and never beat a proof."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr, ndtri

import fl_shuffle as fs
from fl_shuffle.accounting.client_classes import ClientClass, ShuffledRound
from fl_shuffle.accounting.distributions.continuous import laplace_cells
from fl_shuffle.accounting.lower_bounds import likelihood_ratio
from fl_shuffle.accounting.lower_bounds.likelihood_ratio import Scores, attack_delta, attack_epsilon
from fl_shuffle.accounting.lower_bounds.vector_data_sets import (
    ATTACK_CELL_ERROR,
    AttackedBatch,
    cell_probabilities,
    data_sets,
    population_batch,
)
from fl_shuffle.accounting.queries.vector_methods import IN_THE_PLANE, ON_ONE_LINE
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.errors import InvalidValueError

LIBRARY = RoundLibrary()


def equal(noise: str, ratio: float, clients: int, step: float = 2.0) -> ShuffledRound:
    """Clients in unit balls whose means move by `step`, `ratio` noise standard deviations."""
    others = ((1.0, clients - 1),) if clients > 1 else ()
    return ShuffledRound(noise, step / ratio, 1.0, step, others)


# Classes of (scale, radius, sensitivity), and how many of each.
MIXED = {(3.0, 1.0, 0.8): 4, (3.3, 0.5, 0.1): 9, (6.0, 0.7, 0.7): 7}


@pytest.mark.parametrize(
    ("noise", "classes", "dimension", "rounds"),
    [
        ("gaussian", {(5.0, 1.0, 2.0): 1}, 1, 1), ("gaussian", {(5.0, 1.0, 2.0): 20}, 1, 3),
        ("laplace", {(2.0, 1.0, 2.0): 20}, 1, 3), ("laplace", MIXED, 6, 3),
        ("gaussian", MIXED, 40, 3), ("gaussian", MIXED, 1, 3),
    ],
)  # fmt: skip
def test_probabilities_are_those_of_a_simulation(
    noise: str, classes: dict[tuple[float, float, float], int], dimension: int, rounds: int
) -> None:
    """100,000 sums of scores: a false alarm once in about 10^5 tests, a shift of 0.8% is seen."""
    table = ClassTable.of(ClientClass(noise, *each) for each in classes)
    batch = population_batch(table, np.array(list(classes.values())), 0, dimension)
    assert batch is not None
    data = data_sets(batch)[-1]
    scores, rng, size = Scores(data), np.random.default_rng(5), 100_000
    means, variances = scores.moments(rounds)
    sd = math.sqrt(max(variances))
    noise_sd = 0.05 * sd
    period = 2.0 * float(means[1] - means[0]) + 30.0 * sd
    shift = 0.5 * float(means[0] + means[1])
    thresholds = sd * np.array([-1.0, 0.0, 0.5, 1.5])
    transforms = scores.transforms(noise_sd, period)
    for index in (0, 1):
        total = rng.normal(0.0, noise_sd, size)
        counts = [*data.counts.astype(int), 1 - index, index]
        for law, count in zip(scores.laws, counts, strict=True):
            below = np.append(np.cumsum(law)[:-1], 1.0)
            for part in np.array_split(np.arange(size), 20):
                drawn = np.searchsorted(below, rng.random((len(part), count * rounds)), "right")
                total[part] += scores.score[drawn].sum(axis=1)
        wrapped = (total[:, None] - shift - thresholds) % period
        seen = np.mean(wrapped < 0.5 * period, axis=0)
        computed, error = transforms.above(thresholds, shift, rounds, index)
        assert error < 1e-9
        tolerance = 4.9 * np.sqrt(computed * (1.0 - computed) / size) + 1e-6
        assert np.all(np.abs(seen - computed) <= tolerance)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@example(noise="gaussian", ratio=3.0, clients=2, rounds=30, step=2.0, delta=1e-6)
@example(noise="laplace", ratio=3.0, clients=5, rounds=30, step=0.05, delta=1e-3)
@example(noise="laplace", ratio=0.5, clients=1, rounds=2, step=0.25, delta=1e-3)
@given(
    noise=st.sampled_from(["gaussian", "laplace"]),
    ratio=st.floats(0.01, 3.0),
    clients=st.sampled_from([1, 2, 5, 100, 10_000]),
    rounds=st.sampled_from([1, 2, 30]),
    step=st.floats(0.05, 2.0),
    delta=st.sampled_from([1e-3, 1e-6]),
)
def test_never_above_the_proven_bound(
    noise: str, ratio: float, clients: int, rounds: int, step: float, delta: float
) -> None:
    kind = equal(noise, ratio * step / 2.0, clients, step)
    proven = LIBRARY.epsilon({kind: rounds}, delta)
    assert 0.0 <= attack_epsilon(kind, rounds, delta, 2) <= proven * (1.0 + 1e-9)


def delta_at_one_end(ratio: float, others: int, epsilon: float) -> float:
    """At least delta of one report `ratio` widths from all `others`, whose means are one: with
    l = P/R it is E(mean of l - e^eps)_+, the mean over all n reports.

    Values of l are raised to a grid and cut at K: what is cut off adds E(l - K)_+.
    """
    n, step, size = others + 1, 1 / 64, 1 << 20
    edges = np.arange(size // 4) * step
    z = np.log(np.maximum(edges, 1e-300)) / ratio + 0.5 * ratio
    below = np.append(ndtr(z), 1.0)
    law = np.zeros(size)
    law[1 : size // 4 + 1] = np.diff(below)
    whole = np.maximum(np.fft.irfft(np.fft.rfft(law) ** n, size), 0.0)
    over = np.maximum(step * np.arange(size) / n - math.exp(epsilon), 0.0)
    # E(l - K)_+ = P(l > K) - K R(l > K).
    return float(whole @ over + ndtr(ratio - z[-1]) - edges[-1] * ndtr(-z[-1]))


@pytest.mark.parametrize(("ratio", "others"), [(1.5, 299), (2.0, 300)])
def test_a_wide_report_tells_as_much_as_is_to_be_told(ratio: float, others: int) -> None:
    """Few large ratios decide: never above the truth of the data set, and near it."""
    for epsilon in (0.7, 1.2, 2.0):
        found = attack_delta(equal("gaussian", ratio, others + 1), 1, epsilon)
        truth = delta_at_one_end(ratio, others, epsilon)
        assert 0.75 * truth <= found <= truth


def delta_off_the_line(clients: int, epsilon: float) -> float:
    """delta of one Laplace report of local epsilon 4 whose mean moves from one axis to another.

    All others' means are opposite to the first one, so delta is (1/n) E(sum of n copies of L)^+
    with L = Q/R - e^epsilon P/R under R. Reports fall into cells, which only lowers it; values of L
    go to a grid, mean kept, which raises it by less than a thousandth.
    """
    along, across = np.linspace(-2.0, 2.0, 121), np.linspace(0.0, 2.0, 61)
    p, q, r = (
        np.outer(laplace_cells(along - first), laplace_cells(across - second)).ravel()
        for first, second in ((2.0, 0.0), (0.0, 2.0), (-2.0, 0.0))
    )
    step, size = 0.25, 1 << (17 if clients <= 10**5 else 20)
    at = (q - math.exp(epsilon) * p) / r / step
    low = np.floor(at)
    law = np.bincount((low % size).astype(int), r * (low + 1.0 - at), minlength=size)
    law += np.bincount(((low + 1.0) % size).astype(int), r * (at - low), minlength=size)
    whole = np.fft.irfft(np.fft.rfft(law) ** clients, size)
    # The sum is negative but for rare cases: the first quarter of the window is its positive part.
    positive = size // 4
    return float(whole[:positive] @ (step * np.arange(positive))) / clients


@pytest.mark.parametrize("clients", [10**5, 10**7])
def test_laplace_attack_is_nearly_exact_off_the_line(clients: int) -> None:
    """Below the exact divergence of its data set, and by less than 0.5% of epsilon."""
    question: dict[str, Any] = {"epsilon0": 4.0, "clients": clients, "delta": 1e-6}
    found = fs.bound(randomizer="laplace", method="attack", unit="client", **question)
    assert delta_off_the_line(clients, found.epsilon) >= 1e-6
    assert delta_off_the_line(clients, 1.005 * found.epsilon) < 1e-6
    assert IN_THE_PLANE in found.assumptions
    gauss = fs.bound(randomizer="gaussian", delta0=1e-5, method="attack", **question)
    assert ON_ONE_LINE in gauss.assumptions


@pytest.mark.parametrize(
    ("clients", "local", "least"),
    [
        (1000, 2.0, 0.263),
        pytest.param(1000, 4.0, 1.03, marks=pytest.mark.slow),
        (1000, 8.0, 6.0),
    ],
)
def test_score_of_a_single_round_reaches_more(clients: int, local: float, least: float) -> None:
    """Where few large ratios decide, the first-order score is a weak one."""
    kind = equal("laplace", local, clients)
    both = attack_epsilon(kind, 1, 1e-6, 2)
    assert least <= both <= LIBRARY.epsilon({kind: 1}, 1e-6)
    assert attack_epsilon(kind, 1, 1e-6) < both


@pytest.mark.parametrize("step", [0.3, 2.0])
def test_planar_data_sets_lie_in_their_balls(step: float) -> None:
    """Cells give means' distances: log of the largest ratio of two distributions."""
    others = ((0.4, 1.0, 5), (1.3, 1.0, 9))
    batch = AttackedBatch("laplace", 1.0, step, others, 2)
    for data in data_sets(batch)[2:]:
        apart = [
            float(np.log(one / two).max())
            for one, two in [(data.first, data.second), *((data.first, r) for r in data.others)]
        ]
        assert apart[0] <= step + 1e-9
        for distance, (radius, _, _) in zip(apart[1:], others, strict=True):
            assert distance <= 1.0 + radius + 1e-9
        # One of the two means is as far from the others as it may be.
        assert max(apart[1], float(np.log(data.second / data.others[0]).max())) >= 1.4 - 1e-9


@pytest.mark.parametrize("rounds", [1, 50])
def test_alone_it_is_nearly_the_exact_local_guarantee(rounds: int) -> None:
    kind = equal("gaussian", 0.2, 1)
    exact = LIBRARY.local_epsilon({kind: rounds}, 1e-6)
    assert exact * 0.997 <= attack_epsilon(kind, rounds, 1e-6) <= exact


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("rounds", [200, 2000])
def test_attack_of_many_rounds_is_near_a_large_epsilon(noise: str, rounds: int) -> None:
    """Beyond 27, where doubles end; Chernoff's inequality costs about four of epsilon."""
    kind = equal(noise, 0.5, 1)
    exact = LIBRARY.local_epsilon({kind: rounds}, 1e-6)
    found = attack_epsilon(kind, rounds, 1e-6)
    assert exact > 40.0 and exact - 6.0 <= found <= exact
    assert (
        0.0
        < attack_delta(kind, rounds, found - 1.0)
        <= float(LIBRARY.profile({kind: rounds}, [found - 1.0])[0])
    )


def test_attack_hidden_in_few_reports_passes_double_precision() -> None:
    """Among ten reports of thirty rounds, far from what a sum tells: never above the proof."""
    kind = equal("gaussian", 2.0, 10)
    found = attack_epsilon(kind, 30, 1e-6)
    assert 40.0 < found <= LIBRARY.epsilon({kind: 30}, 1e-6)


@pytest.mark.parametrize("rounds", [40, 400])
def test_far_probabilities_are_chernoffs(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of scores of one Gaussian report are normal, but for cells: ln P_0 is -z^2/2, z the
    threshold's distance from the mean, which P_1 tells."""
    monkeypatch.setattr(likelihood_ratio, "ATTACK_SMOOTHING", 0.002)
    scores = Scores(data_sets(AttackedBatch.of(equal("gaussian", 0.5, 1)))[0])
    at_least, log_at_most = scores.far_rates(rounds)
    z = scores.signal(rounds) - ndtri(np.clip(at_least, 1e-9, 1.0 - 1e-9))
    useful = (at_least > 1e-6) & (at_least < 1.0 - 1e-6) & (z > 1.0)
    z, found = z[useful], log_at_most[useful]
    assert z.size > 50 and np.all(found >= -0.5 * z**2 - 0.005)
    assert np.all(found <= -0.5 * z**2 * 0.998 + 0.005)
    # And that is above what any test of this power can have.
    assert np.all(found >= log_ndtr(ndtri(at_least[useful]) - 0.5 * math.sqrt(rounds)))


# Sums of the same reports: one alone; a few; many; of two scales.
SUMMED: list[dict[str, Any]] = [
    {"clients": 1, "sigma": 0.1}, {"clients": 1, "sigma": 1.0, "rounds": 50},
    {"clients": 100, "sigma": 2.0, "rounds": 5000}, {"clients": 2000, "sigma": 3.0},
    {"budgets": [[1.0, 1e-5, 3], [9.0, 1e-5, 1]], "rounds": 40},
]  # fmt: skip


@pytest.mark.parametrize("question", SUMMED)
def test_attack_is_never_less_than_that_on_the_sums(question: dict[str, Any]) -> None:
    """Whoever sees the reports can add them up."""
    ask = partial(fs.bound, randomizer="gaussian", unit="client", **question)
    reports = ask(method="attack", delta=1e-6)
    sums = ask(method="sum-attack", release="sum", delta=1e-6)
    assert reports.epsilon >= sums.epsilon > 0.0
    at = 0.9 * sums.epsilon
    less = ask(method="sum-attack", release="sum", epsilon=at)
    assert ask(method="attack", epsilon=at).delta >= less.delta > 0.0


def test_nothing_is_claimed_where_nothing_is_certain() -> None:
    assert attack_epsilon(equal("gaussian", 1e-9, 1000), 1, 1e-3) == 0.0
    for radius in (0.0, 30.0):  # nothing moves; or so far that no attack is computed
        kind = ShuffledRound("gaussian", 1.0, radius, 2.0 * radius, ((radius, 9),))
        assert attack_epsilon(kind, 5, 1e-6) == 0.0
    for delta in (0.0, 1.0, math.nan, math.inf):
        with pytest.raises(InvalidValueError, match="delta"):
            attack_epsilon(equal("gaussian", 0.3, 10), 1, delta)


def population(radii: np.ndarray, scales: np.ndarray) -> ClassTable:
    ones = np.ones(len(radii))
    kinds = np.zeros(len(radii), dtype=np.int8)
    return ClassTable(kinds, scales, radii, 2.0 * radii, ones, 1e-5 * ones, ones.astype(np.int64))


def test_a_population_is_attacked_as_its_batch() -> None:
    rng = np.random.default_rng(1)
    table, counts = population(rng.uniform(0.1, 0.3, 40), np.full(40, 2.0)), rng.integers(0, 5, 40)
    counts[7] = 2
    batch = [replace(kind, count=int(count)) for kind, count in zip(table, counts, strict=True)]
    assert population_batch(table, counts, 7, 30) == AttackedBatch.of(
        ShuffledRound.of(batch, 7), 30
    )


def test_many_radii_are_put_nearer_and_many_scales_given_up() -> None:
    """Every other lies in its own ball: sorted, none further out than the radius it stands for."""
    radii, ones = np.exp(np.random.default_rng(3).uniform(-9.0, 0.0, 5000)), np.ones(5000, int)
    radii[0] = 1.0
    found = population_batch(population(radii, np.full(5000, 40.0)), ones, 0, 3)
    assert found is not None and len(found.others) < 400
    nearer, _, numbers = np.array(found.others).T
    placed, own = np.sort(np.repeat(nearer, numbers.astype(int))) * 40.0, np.sort(radii[1:])
    assert np.all(placed <= own * (1 + 1e-12)) and np.all(placed >= own * 0.979 - 1e-3)
    scaled = population_batch(population(radii, 40.0 + radii), ones, 0, 3)
    assert scaled is not None and data_sets(scaled) == []


@pytest.mark.parametrize(("reach", "shift"), [(10.5, 0.0), (33.0, 12.0)])
def test_cells_of_gaussian_noise_are_within_their_error(reach: float, shift: float) -> None:
    """Against 50 digits, at edges that are rounded as the attack's are."""
    edges = np.linspace(-reach, reach, 401)[::9]
    found = cell_probabilities("gaussian", (edges + shift) / 0.8)[1:-1]
    with mpmath.workdps(50):
        exact = [(mpmath.mpf(each) + shift) / mpmath.mpf(0.8) for each in edges.tolist()]
        worst = 0.0
        for one, low, high in zip(found.tolist(), exact, exact[1:], strict=False):
            ends = (low, high) if low > 0 else (-high, -low)
            true = (
                mpmath.erfc(ends[0] / mpmath.sqrt(2)) - mpmath.erfc(ends[1] / mpmath.sqrt(2))
            ) / 2
            if true > 1e-300:
                worst = max(worst, abs(float(one / true - 1)))
    assert worst <= ATTACK_CELL_ERROR
