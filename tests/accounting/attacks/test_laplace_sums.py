"""What a test on sums of Laplace reports certainly reaches: exact tails, real sums, the account."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import nbinom, poisson

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.attacks.laplace_sums import LaplaceSum, LaplaceSumTest
from fl_shuffle.accounting.attacks.sum_attack import laplace_sum_test
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.trust import Trust

DELTA = 1e-5
FINE = 2.0**-16


def exact_tail(reports: int, x: float) -> float:
    """P(Y > x), x >= 0, of a sum of standard Laplace variables: a race of two Poisson processes.

    The sum is a difference of two Gamma variables; it exceeds x if in the time x and that of the
    other's n-th arrival fewer than n arrive.
    """
    early = np.arange(reports)
    late = nbinom.cdf(reports - 1 - early, reports, 0.5)
    return float(poisson.pmf(early, x) @ late)


@pytest.mark.parametrize("reports", [2, 3, 17, 400])
def test_tails_enclose_the_exact_ones(reports: int) -> None:
    law = LaplaceSum(np.array([0.5]), np.array([reports]))
    for deviations in (0.0, 0.3, 2.0, 7.0, 13.0):
        x = deviations * law.deviation
        low, high = law.tail(x)
        exact = exact_tail(reports, x / 0.5)
        # SciPy's own functions are good to about 1e-12.
        assert low <= exact * (1 + 1e-11) and exact * (1 - 1e-11) <= high
        assert high - low < 1e-9 * exact
        below = law.tail(-x)
        assert below == (1.0 - high, 1.0 - low) or deviations == 0.0


def test_two_scales_against_an_integral() -> None:
    def density(y: float) -> float:
        return math.exp(-abs(y) / 2.0) / 4.0

    def rest(y: float) -> float:
        return exact_tail(3, y / 0.5) if y >= 0.0 else 1.0 - exact_tail(3, -y / 0.5)

    law = LaplaceSum(np.array([2.0, 0.5]), np.array([1, 3]))
    for x in (0.0, 1.0, 9.0, 40.0):
        pieces = [-200.0, *sorted({0.0, x}), x + 20.0, 200.0]
        exact = sum(
            quad(
                lambda y, x=x: density(y) * rest(x - y), *ends, epsabs=0.0, epsrel=1e-11, limit=200
            )[0]
            for ends in itertools.pairwise(pieces)
        )
        low, high = law.tail(x)
        assert low <= exact * (1 + 1e-8) and exact * (1 - 1e-8) <= high
        assert high - low < 1e-9 * high


def test_one_round_is_what_the_best_test_reaches() -> None:
    """The density of such a sum is log-concave, so that no test beats a threshold."""
    n, shift = 5, 3.0
    test = LaplaceSumTest(np.ones(1), np.full(1, FINE), np.array([n]), shift, 1)
    for epsilon in (0.0, 0.4, 1.1):
        points = np.linspace(-20.0, 20.0, 801)
        tails = [exact_tail(n, x) if x >= 0 else 1.0 - exact_tail(n, -x) for x in points]
        moved = [exact_tail(n, x) if x >= 0 else 1.0 - exact_tail(n, -x) for x in points - shift]
        best = max(np.array(moved) - math.exp(epsilon) * np.array(tails))
        assert 0.998 * best < test.delta(epsilon) < best * (1.0 + 1e-4)
    found = test.epsilon(DELTA)
    assert test.delta(found * (1 - 1e-3)) >= DELTA > test.delta(found * 1.01)
    assert found < laplace_epsilon(DELTA, shift, 1)


def test_coarse_grids_and_still_clients_are_not_attacked() -> None:
    for grid, shift in ((0.5, 1.0), (FINE, 0.0)):
        test = LaplaceSumTest(np.ones(1), np.full(1, grid), np.array([9]), shift, 1)
        assert test.epsilon(DELTA) == 0.0 == test.delta(0.1)


def test_the_test_on_drawn_sums() -> None:
    """Rounded reports, personal scales: hits and false alarms lie where they are said to.

    20,000 sums; each bound is missed by five deviations with probability below 1e-6.
    """
    rng, trials = np.random.default_rng(4), 20_000
    scale, counts, grid = np.array([1.0, 3.0]), np.array([6, 2]), np.array([2.0**-6, 2.0**-4])
    rounds, shift = 2, 2.5
    test = LaplaceSumTest(scale, grid, counts, shift, rounds)
    own = np.repeat(np.arange(2), counts)
    noise = rng.laplace(size=(trials, rounds, len(own))) * scale[own]
    reports = np.rint(noise / grid[own]) * grid[own]
    total = reports.sum(axis=(1, 2))
    for x in (-2.0, 1.0, 8.0):
        hit, false = test._errors_at(x)
        at = float((total > x).mean()), float((total > x + shift * rounds).mean())
        for share, claim, sign in ((at[0], hit, 1.0), (at[1], false, -1.0)):
            slack = 5.0 * math.sqrt(max(claim * (1 - claim), 1e-4) / trials)
            assert sign * (share - claim) > -slack
            assert abs(share - claim) < slack + 0.02


def test_the_adversary_knows_who_is_not_honest() -> None:
    scale, grid = np.array([1.0, 4.0]), np.full(2, FINE)
    counts = np.array([3, 10])
    reached = [
        laplace_sum_test(scale, grid, counts, honest, 1, 2.0, 1).law.deviation
        for honest in (1, 2, 4, 6, 13)
    ]
    hides = [16.0, 17.0, 19.0, 35.0 + 16.0, 3.0 + 160.0]
    np.testing.assert_allclose(reached, np.sqrt(2.0 * np.array(hides)))


@pytest.mark.parametrize("assumed", [None, 0.5])
def test_the_account_of_a_run(assumed: float | None) -> None:
    """Beside the proven number, below it; rounds that some missed count as long as all may be
    honest."""
    own = ClientClass("laplace", 4.0, 1.0, 2.0, 0.5, 0.0, 1)
    account = Accountant(
        [own],
        np.zeros(4000, dtype=np.int64),
        unit="client",
        schedule="aggregate",
        delta=DELTA,
        dimension=10,
        trust=Trust(release="sum", assumed_honest=assumed),
    )
    some = np.arange(4000) < 3900
    everybody = np.ones(4000, dtype=bool)
    found = []
    for number, present in enumerate((everybody, some, everybody), start=1):
        proven = account.preview(number, present).columns["sum"].worst
        account.commit(number, present)
        lower = account.lower_columns()["sum_lower"].worst
        assert lower is not None and proven is not None
        assert 0.4 * proven < lower < proven
        found.append(lower)
    assert found[0] < found[2] and (found[1] > found[0]) is (assumed is None)
