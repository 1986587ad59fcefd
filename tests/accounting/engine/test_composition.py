"""Composition of dominating pairs: closed forms, a second implementation, and its known traps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair, trade_off
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.errors import InvalidValueError


def gaussian_pair(mu: float, nodes: int = 300) -> DominatingPair:
    grid = np.linspace(0.0, 9 * mu + mu * mu / 2, nodes)
    return DominatingPair.from_curve(grid, gaussian_profile(grid, mu))


@pytest.mark.parametrize("mu", [0.003, 1.0])
@pytest.mark.parametrize("rounds", [1, 3, 1000])
@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_gaussian_rounds_against_the_closed_form(mu: float, rounds: int, delta: float) -> None:
    """Never below sqrt(T) mu, and within 0.5% of it."""
    truth = gaussian_epsilon(delta, mu * math.sqrt(rounds))
    found = Composition([(gaussian_pair(mu), rounds)]).epsilon(delta)
    assert truth * (1 - 1e-9) <= found <= truth * 1.005 + 1e-6


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(0.0, 0.99), st.integers(2, 6), st.floats(0.01, 0.9))
@example(2.47, 0.8864, 6, 0.2114)  # the thinned points run past the kink
def test_rounds_of_a_finite_randomizer_against_enumeration(
    epsilon0: float, mixed: float, rounds: int, share: float
) -> None:
    """Three outcomes, mirrored, whose losses are points of the lattice: a part in 20,000."""
    high = math.exp(epsilon0) / (1.0 + math.exp(epsilon0)) * (1.0 - mixed)
    p = np.array([high, mixed, 1.0 - mixed - high])

    def curve(epsilon: float) -> DeltaBound:
        return DeltaBound(float(np.maximum(p - math.exp(epsilon) * p[::-1], 0.0).sum()), 0.0)

    whole = compose_equal_rounds(curve, epsilon0, rounds)
    epsilon = share * rounds * epsilon0

    def exact(at: float) -> float:
        total = 0.0
        for up in range(rounds + 1):
            for down in range(rounds + 1 - up):
                ways = math.comb(rounds, up) * math.comb(rounds - up, down)
                mass = ways * p[0] ** up * p[2] ** down * p[1] ** (rounds - up - down)
                total += mass * max(0.0, -math.expm1(at - (up - down) * epsilon0))
        return total

    for at in (epsilon, epsilon0, (rounds - 1) * epsilon0):
        assert exact(at) * (1 - 1e-9) <= whole.delta(at) <= exact(at) * (1 + 5e-5) + 1e-14


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 0.8), st.integers(1, 20)), min_size=1, max_size=4),
    st.floats(0.0, 4.0),
)
def test_different_rounds_add_up(rounds: list[tuple[float, int]], deviations: float) -> None:
    total = math.sqrt(sum(times * mu * mu for mu, times in rounds))
    composition = Composition([(gaussian_pair(mu, 120), times) for mu, times in rounds])
    epsilon = 0.5 * total**2 + deviations * total
    truth = gaussian_delta(epsilon, total)
    assert truth * (1 - 1e-9) <= composition.delta(epsilon) <= truth * 1.1
    doubled = Composition([(gaussian_pair(mu, 120), 1) for mu, t in rounds for _ in range(t)])
    assert doubled.delta(epsilon) == pytest.approx(composition.delta(epsilon), rel=1e-6)


def test_pairs_agree_with_dp_accounting() -> None:
    """Its pessimistic connect-the-dots distribution of the same curve, atom by atom."""
    step, count = 0.02, 60
    grid = step * np.arange(count + 1)
    deltas = gaussian_profile(grid, 0.2)
    pair = DominatingPair.from_curve(grid, deltas)
    negative = -np.expm1(-grid[:0:-1]) + np.exp(-grid[:0:-1]) * deltas[:0:-1]
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        step, -count, count, np.concatenate([negative, deltas])
    )
    for epsilon in (0.0, 0.05, 0.33, 0.7):
        assert pair.delta(epsilon) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), abs=1e-11
        )
    compose_equal_rounds = theirs.self_compose(30)
    found = Composition([(pair, 30)]).epsilon(1e-5)
    assert found == pytest.approx(compose_equal_rounds.get_epsilon_for_delta(1e-5), rel=2e-3)


@given(
    log_ratio=st.floats(-3.0, 0.5),
    rounds=st.integers(2, 8),
    log_delta=st.floats(-12.0, -2.5),
)
@example(log_ratio=math.log10(0.0625), rounds=2, log_delta=-3.0)
@example(log_ratio=math.log10(0.0625), rounds=3, log_delta=-3.0)
@settings(deadline=None, max_examples=60)
def test_laplace_rounds_are_not_below_their_largest_loss(
    log_ratio: float, rounds: int, log_delta: float
) -> None:
    """P puts 2^-rounds on the largest loss: what that atom alone costs is a floor.

    Windows whose tilted masses differ by more than 2^53 from cell to cell came out below it.
    """
    from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon

    ratio, delta = 10.0**log_ratio, 10.0**log_delta
    share = delta * 2.0**rounds
    floor = rounds * ratio + math.log1p(-share) if share < 1.0 else 0.0
    assert laplace_epsilon(delta, ratio, rounds) >= floor * (1.0 - 1e-12)


def test_round_off_never_pushes_delta_below_the_truth() -> None:
    """dp_accounting without tail truncation loses tiny deltas to round-off; this does not."""
    mu, rounds, delta = 0.1, 100, 1e-30
    epsilon = gaussian_epsilon(delta, mu * math.sqrt(rounds))
    ours = Composition([(gaussian_pair(mu, 1500), rounds)]).delta(epsilon)
    assert delta * (1 - 1e-6) <= ours <= 1e-15


def test_mass_at_infinity_is_certain_loss() -> None:
    pair = DominatingPair.from_curve([0.0, 0.5], [0.3, 0.01])
    assert pair.infinite == pytest.approx(0.01)
    composition = Composition([(pair, 10)])
    assert composition.infinite == pytest.approx(1 - 0.99**10)
    assert composition.epsilon(0.05) == math.inf
    assert math.isfinite(composition.epsilon(0.2))
    assert Composition([(pair, 0)]).epsilon(1e-9) == 0.0
    assert Composition([]).delta(0.0) == 0.0


def test_noisy_nodes_are_replaced_by_their_convex_envelope() -> None:
    """Upper bounds that are not convex still give a pair below them and above the truth."""
    grid = np.linspace(0.0, 1.2, 80)
    truth = gaussian_profile(grid, 0.2)
    noisy = truth * (1 + 0.05 * np.random.default_rng(0).random(grid.size))
    pair = DominatingPair.from_curve(grid, noisy)
    assert np.all(pair.masses >= 0.0)
    assert float(pair.masses.sum()) + pair.infinite == pytest.approx(1.0, abs=1e-9)
    for epsilon, below, above in zip(grid, truth, noisy, strict=True):
        assert below * (1 - 1e-9) <= pair.delta(float(epsilon)) <= above * (1 + 1e-9) + 1e-15


def test_trade_off_curve_is_below_the_true_one_and_close() -> None:
    from scipy.stats import norm

    composition = Composition([(gaussian_pair(0.1), 50)])
    errors = np.linspace(0.0, 1.0, 41)
    curve = trade_off(errors, composition.profile, 8.0, 200)
    truth = norm.cdf(norm.ppf(1 - errors) - 0.1 * math.sqrt(50))
    assert np.all(curve <= truth + 1e-9)
    assert np.max(truth - curve) < 5e-3
    assert curve[0] == pytest.approx(1.0, abs=1e-6)
    assert curve[-1] == 0.0


@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [
        ([0.1, 0.2], [0.5, 0.4]),
        ([0.0, 0.0], [0.5, 0.4]),
        ([0.0, 0.1], [0.5]),
        ([0.0, 0.1], [0.5, math.nan]),
        ([0.0, 0.1], [1.5, 0.4]),
        ([0.0, 700.0], [0.5, 0.4]),
        ([], []),
    ],
)
def test_bad_curves_are_refused(epsilons: list[float], deltas: list[float]) -> None:
    with pytest.raises(InvalidValueError):
        DominatingPair.from_curve(epsilons, deltas)


def product_delta(pair: DominatingPair, epsilon: float) -> float:
    """Two rounds of a pair at `epsilon`, from all pairs of atoms."""
    losses = np.add.outer(pair.losses, pair.losses).ravel()
    masses = np.multiply.outer(pair.masses, pair.masses).ravel()
    gain = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
    return math.fsum([*(masses * gain).tolist(), 2.0 * pair.infinite - pair.infinite**2])


@pytest.mark.parametrize("rare", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("loss", [2.0, 5.0, 12.0])
def test_rare_large_losses_hide_nothing(rare: float, spread: float, loss: float) -> None:
    """A curve with a bulk of small losses and few large ones: not below, and not far above."""
    grid = np.concatenate([[0.0], np.geomspace(spread / 30, loss, 80)])
    pair_ = DominatingPair.from_curve(
        grid, (1 - rare) * gaussian_profile(grid, spread) + rare * -np.expm1(grid - loss - 1e-9)
    )
    twice = Composition([(pair_, 2)])
    for epsilon in (0.0, 0.1 * spread, spread, 3 * spread, loss, 1.5 * loss):
        exact = product_delta(pair_, epsilon)
        assert exact * (1 - 1e-7) <= twice.delta(epsilon) <= exact * (1 + 5e-3) + 1e-15


@pytest.mark.slow
def test_one_round_never_costs_more_than_two() -> None:
    library, kind = RoundLibrary(), RoundType.of([ReportClass("gaussian", 2.0, 1.0, 2.0, 1000)])
    grid = [0.0, 0.01, 0.05, 0.2]
    once = library.profile({kind: 1}, grid)
    for times in (2, 3, 100):
        assert np.all(library.profile({kind: times}, grid) >= once)
    at = [library.epsilon({kind: times}, 1e-3) for times in (1, 2, 3, 100)]
    assert at == sorted(at)


def test_a_filter_for_general_pairs_does_not_exist() -> None:
    """The counterexample of docs/proofs.md: the first outcome chooses the second round."""

    def response(epsilon: float, chance: float = 1.0) -> list[tuple[float, float]]:
        likely = 1.0 / (1.0 + math.exp(-epsilon))
        return [
            (epsilon, chance * likely),
            (-epsilon, chance * (1.0 - likely)),
            (0.0, 1.0 - chance),
        ]

    def divergence(law: list[tuple[float, float]], epsilon: float) -> float:
        return sum(mass * max(0.0, -math.expm1(epsilon - loss)) for loss, mass in law)

    first, a, b = response(0.5), response(0.5), response(4.0, 0.16)
    fixed = [
        sum(mass * divergence(second, 0.5 - loss) for loss, mass in first) for second in (a, b)
    ]
    chosen = sum(
        mass * divergence(a if loss > 0.0 else b, 0.5 - loss) for loss, mass in first if mass > 0.0
    )
    assert fixed == pytest.approx([0.15245, 0.15238], abs=6e-6)
    assert chosen == pytest.approx(0.2088, abs=1e-4)


def test_rare_large_losses_do_not_spoil_the_tilt() -> None:
    """Epsilon by its own search and by bisection of delta, whatever window each of them takes."""
    grid = 2.0**-11
    usual, rare = np.linspace(0.0, 0.12, 60), np.linspace(0.12, 3.0, 12)
    epsilons = grid * np.unique(np.round(np.concatenate([usual, rare, [17, 17.5, 18, 19]]) / grid))
    deltas = gaussian_profile(epsilons, 0.01) + 5e-9 * np.exp(-3.0 * epsilons)
    deltas = np.where(epsilons > 3.0, gaussian_profile(epsilons, 2.05), deltas)
    pair = DominatingPair.from_curve(epsilons, np.minimum.accumulate(deltas), grid=grid)
    composed = Composition([(pair, 14)])
    for delta in (1e-8, 3e-9, 1e-9):
        found = composed.epsilon(delta)
        assert composed.delta(found) <= delta * (1.0 + 1e-4)
        # Half a percent lower is too low: the tilt that Markov's inequality likes best lost 3 to 4.
        assert composed.delta(0.995 * found) > delta
