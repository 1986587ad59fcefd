"""The blanket theorems for vectors, and the curve of a batch: exact divergences of small shuffles,
50 digits, what never hurts; and secret check-in of such reports by enumeration."""

from __future__ import annotations

import math
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import fl_shuffle as fs
from fl_shuffle.accounting.bounds import vector, vector_blanket
from fl_shuffle.accounting.bounds.check_in import CheckInCurve, _Cell, _of_cell
from fl_shuffle.accounting.bounds.one_round import Theorem
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import NEGLIGIBLE
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.bounds.vector_blanket import VectorBlanket
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions.gaussian import GaussianLaw
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta, gaussian_profile
from tests.oracles import HALF_HIDDEN, OWN, absent_too, cells, krr_matrix, worst_curve, worst_of


@pytest.mark.parametrize(("dimension", "count"), [(1, 8), (2, 3)])
@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("noise", [pytest.param("gaussian", marks=pytest.mark.slow), "laplace"])
def test_no_data_set_of_three_exceeds_the_bound(
    noise: str, dimension: int, count: int, unit: str
) -> None:
    """Random radii, 20 data sets each, 4 epsilons, both directions; corners are frequent."""
    rng = np.random.default_rng([7, dimension, len(unit)])
    tightest, norm = 0.0, 2 if noise == "gaussian" else 1
    for _ in range(3):
        own = 10 ** rng.uniform(-1.0, -0.3)
        radii = own * np.concatenate([[1.0], 10 ** rng.uniform(-1.5, 0.3, 2)])
        move = 2 * own if unit == "client" else 2 * own * 10 ** rng.uniform(-1, 0)
        others = tuple((radius, 1) for radius in sorted(radii[1:].tolist()))
        batch = ShuffledRound(noise, 1.0, float(radii[0]), move, others)
        curve: VectorCurve | VectorBlanket = VectorCurve(batch)
        if noise == "gaussian":  # of whom partial shuffles say nothing in so small a batch
            curve = vector_blanket.vector_blanket(batch) or curve
        inner = np.linspace(-1.0, 1.0, count)
        reach = 2.5 if noise == "gaussian" else 1.5
        edges = np.sign(inner) * np.abs(inner) ** 1.3 * (reach + radii.max())
        for _ in range(20 // dimension):
            points = rng.normal(size=(4, dimension))
            if rng.random() < 0.7:
                points = np.eye(dimension)[rng.integers(0, dimension, 4)]
                points *= rng.choice([-1.0, 1.0], (4, 1))
            lengths = np.linalg.norm(points, ord=norm, axis=1, keepdims=True)
            points *= radii[[0, 0, 1, 2], None] / lengths
            way = points[1] - points[0]
            points[1] = points[0] + way * min(1.0, move / max(np.linalg.norm(way, ord=norm), 1e-12))
            first, last, *rest = (cells(point, edges, noise) for point in points)
            true = worst_of([first, last], [rest])
            for epsilon in (0.0, 0.1 * move, 0.3 * move, 0.7 * move):
                bound = curve.delta(epsilon)
                assert true(epsilon) <= bound * (1 + 1e-9) + 1e-13
                tightest = max(tightest, true(epsilon) / bound if bound > 1e-9 else 0.0)
    # The data sets are hard enough to come near the bound, so a wrong bound would be noticed.
    assert tightest > (0.7 if unit == "client" else 0.4)


def test_the_mixed_reference_is_refuted_and_not_used() -> None:
    """Radii about the origin with the distance from the midpoint would be a false theorem.

    Laplace b = C = 1, sensitivity 0.1, n = 3, e^eps = 1.1, pair (1, 0.9), the others at -1: the
    shuffle loses 2.00e-3, the mixed formula says 1.53e-3.
    """
    edges = np.concatenate([np.linspace(-1.5, 0.85, 20), np.linspace(0.9, 1.0, 21), [1.2]])
    first, last, other = (cells([x], edges, "laplace") for x in (1.0, 0.9, -1.0))
    true = worst_of([first, last], [[other, other]])(math.log(1.1))
    mixed, honest = (
        VectorCurve(ShuffledRound("laplace", 1.0, own, 0.1, ((1.0, 2),))).delta(math.log(1.1))
        for own in (0.05, 1.0)
    )
    assert true == pytest.approx(2.0e-3, rel=0.01)
    assert mixed == pytest.approx(1.53e-3, rel=0.01)
    assert mixed < true <= honest


def exact_stop_loss(c: float, epsilon: float, t: float) -> mpmath.mpf:
    """E(L - t)_+ of Gaussian reports from its three normal probabilities."""
    with mpmath.workdps(50):
        c_, e, t_ = mpmath.mpf(c), mpmath.mpf(epsilon), mpmath.mpf(t)
        x = (t_ + mpmath.sqrt(t_ * t_ + 4 * mpmath.exp(e - c_ * c_))) / 2
        w = mpmath.log(x) / c_ + c_ / 2
        return mpmath.ncdf(c_ - w) - mpmath.exp(e) * mpmath.ncdf(-w - c_) - t_ * mpmath.ncdf(-w)


@settings(max_examples=200, deadline=None)
@given(st.floats(-3, 0.5), st.floats(0, 3), st.floats(-8, 8))
def test_the_gaussian_law_is_accurate_and_does_not_cancel(
    log_c: float, epsilon: float, w: float
) -> None:
    c = 10.0**log_c
    law = GaussianLaw(c, epsilon)
    t = law._value(w)
    truth = exact_stop_loss(c, epsilon, t)
    # t itself is rounded, and at small c a whole deviation of L is only c wide.
    slack = 1e-9 * abs(truth) + 4e-16 * (abs(t) + math.exp(epsilon))
    assert abs(float(law.stop_loss(np.array([t]))[0]) - truth) <= slack
    # What is cut off above is less than what was asked.
    short = GaussianLaw(c, epsilon, 1e-12)
    assert 0.0 <= float(short.stop_loss(np.array([short.upper]))[0]) <= 1e-12


def test_what_blankets_miss_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a depth where they miss much: far more than the blankets' own term, at most one."""
    depth, radius, epsilon, count = 0.3, 2.0, 3.0, 30
    monkeypatch.setattr(vector_blanket, "DEPTHS", np.array([depth]))
    batch = ShuffledRound("gaussian", 1.0, radius, 2 * radius, ((radius, count),))
    bound = VectorBlanket(batch, radius, np.array([radius])).delta(epsilon)
    exponent = depth * radius + 0.5 * radius**2
    missed = count * math.exp(-exponent) * gaussian_delta(exponent, radius)
    penalty = (math.expm1(epsilon) + 2 * gaussian_delta(epsilon, 2 * radius)) * missed
    assert penalty > 2 and penalty <= bound <= penalty + 1


# --- What never hurts, and what costs nothing ---------------------------------------------------


def test_the_widest_others_are_left_out_where_that_pays() -> None:
    alone, few, many = (
        VectorCurve(ShuffledRound("gaussian", 1.0, 0.2, 0.4, ((0.2, 1999), *more))).epsilon(1e-6)
        for more in ((), ((1.2, 300),), ((0.25, 2000),))
    )
    assert few <= alone * 1.003
    assert many < 0.85 * alone


@pytest.mark.parametrize("move", [0.0, 1e-12, 1e-7])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_a_move_of_almost_nothing_costs_no_more_than_alone(noise: str, move: float) -> None:
    curve = VectorCurve(ShuffledRound(noise, 1.0, 1.0, move, ((1.0, 10**6),)))
    for epsilon in (0.0, move, 1.0):
        assert 0.0 <= curve.delta(epsilon) <= curve.local_delta(epsilon)
    assert move > 0.0 or curve.epsilon(1e-6) == 0.0


def test_what_is_said_nearer_by_holds_far_out_too() -> None:
    """Thirty clients of two radii: a theorem that says nothing beyond 3.8 and meets the target
    at 2.3 must not charge the single round all of its own 4.6."""
    kind = ShuffledRound("gaussian", 0.095154, 0.05, 0.1, ((0.0344, 15), (0.05, 14)))

    class Nearby(VectorCurve):
        def _shuffled(self, epsilon: float, local: float) -> float:
            return super()._shuffled(epsilon, local) if epsilon < 3.8 else local

    curve, own = Nearby(kind), VectorCurve(kind).local_epsilon(1e-5)
    assert Nearby(kind).certified(0.9 * own) > 1e-5 > Nearby(kind).certified(0.5 * own)
    assert curve.epsilon(1e-5) < 0.5 * own and Nearby(kind).delta(0.9 * own) < 1e-5


@pytest.mark.parametrize("radius", [0.12, 0.9])
def test_a_delta_below_all_that_theorems_say_is_not_searched_for(
    radius: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta of 1e-100 took seconds, all of them for what the local curve says."""
    kind = ShuffledRound("gaussian", 1.0, radius, 2.0 * radius, ((radius, 9_999),))
    curve = VectorCurve(kind)
    assert curve.epsilon(1e-9) < 0.5 * curve.local_epsilon(1e-9)
    # Nothing is lost: what the theorems say is never that small where the local curve is not.
    theorem = curve._theorems[0]
    for multiple in (6.0, 20.0, 60.0):
        assert theorem.delta(multiple * curve.predicted_mu) > NEGLIGIBLE
    monkeypatch.setattr(curve, "certified", lambda epsilon: pytest.fail("a theorem was asked"))
    assert curve.epsilon(1e-100) == curve.local_epsilon(1e-100)


class FarOut:
    """A wide batch of predicted mu 0.01, whose blanket says `share` of what it must beat.

    It does so from `start` on, and nothing before that.
    """

    def __init__(self, patch: pytest.MonkeyPatch, share: float, start: float = 0.0) -> None:
        self.asked: list[float] = []
        """Epsilons at which the blanket was asked ..."""
        self.theorem: list[float] = []
        """... and those at which the theorem was."""
        self.blanket = SimpleNamespace(reports=100.0, delta=self._delta)
        self._share, self._start = share, start
        found = Theorem(self._of_theorem, 0.01, self.exact)
        patch.setattr(vector, "vector_blanket", lambda _: self.blanket)
        patch.setattr(vector, "gaussian_shuffle", lambda *_: found)

    def curve(self) -> VectorCurve:
        return VectorCurve(ShuffledRound("gaussian", 1.0, 0.8, 1.6, ((0.8, 9_999),)))

    @staticmethod
    def exact(epsilon: float) -> float:
        return 0.1 * math.exp(-epsilon)

    def _of_theorem(self, epsilon: float) -> float:
        self.theorem.append(epsilon)
        return self.exact(epsilon)

    def _delta(self, epsilon: float, below: float) -> float:
        self.asked.append(epsilon)
        return self._share * below if epsilon > self._start else below


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_far_out_blanket_is_asked_where_it_wins(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """It is tried at fixed points of the batch, and never asked again if it loses there."""
    batch = FarOut(monkeypatch, share)
    curve = batch.curve()
    assert curve.certified(0.15) == batch.exact(0.15) and not batch.asked
    assert curve.certified(0.2) == pytest.approx(share * batch.exact(0.2))
    tried = len(batch.asked)
    assert curve.certified(0.3) == pytest.approx(share * batch.exact(0.3))
    assert (len(batch.asked) > tried) == (share < 1.0)
    # Where it says far less than is predicted, the dear theorem is not asked.
    assert (0.3 in batch.theorem) == (share > 0.25)
    known = len(batch.asked)
    batch.blanket.reports = 1.0
    few = batch.curve()
    assert few.certified(0.3) == batch.exact(0.3) and len(batch.asked) == known


def test_far_out_blanket_is_not_asked_below_a_point_where_it_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 24 predicted deviations it loses, at 48 it wins: whatever was asked first."""
    for order in ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2]):
        batch = FarOut(monkeypatch, 0.1, start=0.4)
        curve = batch.curve()
        found = {epsilon: curve.certified(epsilon) for epsilon in order}
        assert 0.2 not in batch.asked and 0.3 in batch.asked
        assert [found[0.2], found[0.3]] == [batch.exact(0.2), batch.exact(0.3)]
        assert found[0.5] == pytest.approx(0.1 * batch.exact(0.5))


@pytest.mark.slow
def test_far_out_theorem_that_is_not_asked_is_the_larger_one() -> None:
    """A prediction decides whether the theorem is asked; the bound with it is no smaller."""
    kind = ShuffledRound("gaussian", 1.0, 1.0, 2.0, ((1.0, 99_999),))
    curve, skipped = VectorCurve(kind), 0
    for multiple in (36.0, 48.0, 90.0, 150.0):
        epsilon = multiple * curve.predicted_mu
        found = curve.certified(epsilon)
        if found < vector.CLEARLY * curve._predicted(epsilon):
            skipped += 1
            assert found < curve._theorems[0].delta(epsilon)
    assert skipped >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon0", "clients", "most"), [(8.0, 1000, 2.7), (5.0, 50, 2.46), (1.0, 1000, 0.25)]
)
def test_one_round_never_costs_more_than_two_and_the_bound_is_asked_where_it_is_finite(
    epsilon0: float, clients: int, most: float
) -> None:
    """Far out the theorem gives nothing; nearer by, where it does, it says far less than local."""
    question = {
        "randomizer": "gaussian", "unit": "client", "calibration": "classical",
        "epsilon0": epsilon0, "delta0": 1e-5, "clients": clients,
    }  # fmt: skip
    once = fs.bound(**question, delta=1e-6).epsilon
    often = [fs.bound(**question, delta=1e-6, rounds=rounds).epsilon for rounds in (2, 3, 100)]
    assert once <= most and [once, *often] == sorted([once, *often])
    # It is where the curve crosses the target (its parameters jump a little where single large
    # ratios decide), and the curve agrees with itself beyond.
    for at, least, largest in ((0.97, 1e-6, 1.0), (1.0, 0.0, 1e-6), (2.0, 0.0, 1.2e-6)):
        deltas = [fs.bound(**question, epsilon=at * once, rounds=rounds).delta for rounds in (1, 2)]
        assert least < deltas[0] <= largest and deltas == sorted(deltas)


# --- Secret check-in ------------------------------------------------------------------------------


def cell(curve: Any, weight: float, low: float, high: float) -> _Cell:
    return _Cell(weight, low, high, curve, curve)


@pytest.mark.parametrize(
    "matrix", [krr_matrix(1.0, 2), krr_matrix(2.5, 2), krr_matrix(1.0, 3), OWN, HALF_HIDDEN]
)
def test_the_theorem_against_every_data_set(matrix: list[list[float]]) -> None:
    """Number by number of reports; and three quarters of the bound would be refuted."""
    closest = 0.0
    for n in (2, 3, 4):
        curves = {
            k: SimpleNamespace(certified=worst_curve(matrix, k), local_delta=lambda epsilon: 1.0)
            for k in range(1, n + 1)
        }
        for rate, epsilon in product((0.05, 0.3, 0.7, 0.95), (0.0, 0.02, 0.2, 0.6)):
            truth = worst_curve(absent_too(matrix, rate), n)(epsilon)
            bound = math.fsum(
                _of_cell(cell(curve, binom.pmf(k, n, rate), k / n, k / n), epsilon)
                for k, curve in curves.items()
            )
            assert truth <= bound * (1.0 + 1e-12) + 1e-15
            closest = max(closest, truth / bound if epsilon > 0.0 and bound > 0.0 else 0.0)
            # Dropping reports of a full shuffle gives this distribution.
            assert truth <= curves[n].certified(epsilon) * (1.0 + 1e-12) + 1e-15
    assert closest > 0.75


def falling(reports: int, local: float) -> Any:
    """A curve that falls with the number of reports, as every one does."""
    mu = 2.0 / math.sqrt(reports)
    return SimpleNamespace(
        certified=lambda epsilon: float(gaussian_profile(epsilon, mu)),
        local_delta=lambda epsilon: float(gaussian_profile(epsilon, local)),
    )


@pytest.mark.parametrize(("n", "rate", "together"), [(12, 0.6, 2), (200, 0.1, 7)])
@pytest.mark.parametrize("local", [2.0, 1e-3])
def test_cells_say_no_less_than_the_numbers_in_them(
    n: int, rate: float, together: int, local: float
) -> None:
    """Also where a client's own noise, if it is in the batch at all, tells less than the cell."""
    for epsilon in (0.0, 0.01, 0.1, 0.5, 2.0):
        for low in range(1, n + 1, together):
            numbers = range(low, min(low + together, n + 1))
            weights = binom.pmf(numbers, n, rate)
            apart = math.fsum(
                _of_cell(cell(falling(k, local), weight, k / n, k / n), epsilon)
                for k, weight in zip(numbers, weights, strict=True)
            )
            one = cell(falling(low, local), weights.sum(), low / n, numbers[-1] / n)
            assert apart <= _of_cell(one, epsilon) * (1.0 + 1e-9) + 1e-15


@pytest.mark.parametrize(("n", "rate"), [(2, 0.5), (1000, 0.999), (10**6, 0.3)])
def test_cells_cover_every_number_once(n: int, rate: float) -> None:
    batch = ShuffledRound("gaussian", 5.0, 1.0, 2.0, ((1.0, n - 1),), participation=rate)
    cells = sorted(CheckInCurve(batch)._cells, key=lambda each: each.low)
    assert cells[0].low * n == pytest.approx(1.0)
    assert cells[-1].high == 1.0
    for one, two in pairwise(cells):
        assert two.low * n - one.high * n == pytest.approx(1.0)
    present = 1.0 - (1.0 - rate) ** n
    assert math.fsum(each.weight for each in cells) == pytest.approx(present, rel=1e-9)


def test_others_with_other_balls() -> None:
    """Whoever takes the client's place may lie farther off; each counts as one of the widest."""
    batch = ShuffledRound("gaussian", 5.0, 0.5, 0.1, ((0.5, 299), (1.0, 700)), participation=0.5)
    for each in CheckInCurve(batch)._cells:
        assert each.moved.batch.sensitivity == 1.5 and each.moved.batch.radius == 1.0
        assert each.replaced.batch.sensitivity == 0.1
        assert each.replaced.anonymity == round(each.low * 1000)


@pytest.mark.parametrize(("noise", "scale", "rate"), [("gaussian", 1, 0.2), ("laplace", 3, 0.6)])
def test_no_data_set_of_two_clients_exceeds_the_curve(
    noise: str, scale: float, rate: float
) -> None:
    """Means at the ends of a ball on a line and in its middle, reports in cells."""
    curve = CheckInCurve(ShuffledRound(noise, scale, 1.0, 2.0, ((1.0, 1),), participation=rate))
    matrix = [cells([x / scale], np.linspace(-3.0, 3.0, 40), noise) for x in (-1.0, 0.0, 1.0)]
    exact, closest = worst_curve(absent_too(matrix, rate), 2), 0.0
    for epsilon in (0.0, 0.05, 0.3):
        assert exact(epsilon) <= curve.delta(epsilon)
        closest = max(closest, exact(epsilon) / curve.delta(epsilon))
    assert closest > 0.7
