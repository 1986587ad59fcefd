"""Dominating pairs and their composition: closed forms, enumeration, dp_accounting, known traps."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.engine.composition import Composition, certainly_within
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair, trade_off
from fl_shuffle.accounting.engine.dp_accounting_export import to_dp_accounting
from fl_shuffle.accounting.engine.monotone_search import crossing
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.reports import RoundType
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds, shuffled_pair
from fl_shuffle.accounting.rounds.round_library import RoundKind, RoundLibrary, largest_epsilon
from fl_shuffle.errors import ConfigError, InvalidValueError
from tests.oracles import composed


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


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 0.8), st.integers(1, 20)), min_size=1, max_size=4),
    st.floats(0.0, 4.0),
)
def test_different_rounds_add_up(rounds: list[tuple[float, int]], deviations: float) -> None:
    total = math.sqrt(sum(times * mu * mu for mu, times in rounds))
    composition = Composition([(gaussian_pair(mu, 120), times) for mu, times in rounds])
    epsilon = 0.5 * total**2 + deviations * total
    truth = gaussian_profile(epsilon, total)
    assert truth * (1 - 1e-9) <= composition.delta(epsilon) <= truth * 1.1


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 3.0), st.floats(1e-3, 0.99), st.integers(2, 6), st.floats(0.01, 0.9))
@example(2.47, 0.8864, 6, 0.2114)  # the thinned points run past the kink
def test_rounds_of_a_finite_randomizer_against_enumeration(
    epsilon0: float, mixed: float, rounds: int, share: float
) -> None:
    """Three outcomes, mirrored, whose losses are points of the lattice: a part in 20,000."""
    high = math.exp(epsilon0) / (1.0 + math.exp(epsilon0)) * (1.0 - mixed)
    law = [epsilon0, 0.0, -epsilon0], [high, mixed, 1.0 - mixed - high]
    whole = compose_equal_rounds(
        lambda epsilon: DeltaBound(composed([law], epsilon), 0.0), epsilon0, rounds
    )
    for at in (share * rounds * epsilon0, epsilon0, (rounds - 1) * epsilon0):
        exact = composed([law] * rounds, at)
        assert exact * (1 - 1e-9) <= whole.delta(at) <= exact * (1 + 5e-5) + 1e-14


@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_a_curve_with_kinks_against_enumeration(seed: int) -> None:
    """Five outcomes, three rounds; a kink at every loss, none of them on the grid."""
    p = np.random.default_rng(seed).dirichlet(np.full(5, 4.0))
    losses = np.log(p / p[::-1])
    curve = SimpleNamespace(predicted_mu=math.sqrt(float(p @ losses**2)))
    curve.delta = curve.local_delta = lambda epsilon: composed([(losses, p)], epsilon)
    whole = Composition([(shuffled_pair(curve), 3)])  # type: ignore[arg-type]
    places = np.unique([sum(each) for each in product(losses, repeat=3)])
    for epsilon in np.concatenate([places, 0.5 * (places[1:] + places[:-1])]).tolist():
        if epsilon >= 0.0:
            truth = composed([(losses, p)] * 3, epsilon)
            assert truth <= whole.delta(epsilon) * (1.0 + 1e-9) + 1e-13


@given(st.floats(-3.0, 0.5), st.integers(2, 8), st.floats(-12.0, -2.5))
@example(math.log10(0.0625), 2, -3.0)
@example(math.log10(0.0625), 3, -3.0)
@settings(deadline=None, max_examples=60)
def test_laplace_rounds_are_not_below_their_largest_loss(
    log_ratio: float, rounds: int, log_delta: float
) -> None:
    """P puts 2^-rounds on the largest loss: what that atom alone costs is a floor.

    Windows whose tilted masses differ by more than 2^53 from cell to cell came out below it.
    """
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
    composition = Composition([(gaussian_pair(0.1), 50)])
    errors = np.linspace(0.0, 1.0, 41)
    curve = trade_off(errors, composition.profile, 8.0, 200)
    truth = norm.cdf(norm.ppf(1 - errors) - 0.1 * math.sqrt(50))
    assert np.all(curve <= truth + 1e-9)
    assert np.max(truth - curve) < 5e-3
    assert curve[0] == pytest.approx(1.0, abs=1e-6)
    assert curve[-1] == 0.0


@pytest.mark.parametrize("epsilons", [[0.1, 0.2], [0.0, 0.0], [0.0, 700.0], [0.0], []])
@pytest.mark.parametrize("deltas", [[0.5, 0.4], [0.5, math.nan], [1.5, 0.4]])
def test_bad_curves_are_refused(epsilons: list[float], deltas: list[float]) -> None:
    with pytest.raises(InvalidValueError):
        DominatingPair.from_curve(epsilons, deltas)


@pytest.mark.parametrize("rare", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("loss", [2.0, 12.0])
def test_rare_large_losses_hide_nothing(rare: float, spread: float, loss: float) -> None:
    """A curve with a bulk of small losses and few large ones, twice: from all pairs of atoms."""
    grid = np.concatenate([[0.0], np.geomspace(spread / 30, loss, 80)])
    pair = DominatingPair.from_curve(
        grid, (1 - rare) * gaussian_profile(grid, spread) + rare * -np.expm1(grid - loss - 1e-9)
    )
    twice, certain = Composition([(pair, 2)]), 2.0 * pair.infinite - pair.infinite**2
    for epsilon in (0.0, 0.1 * spread, spread, 3 * spread, loss, 1.5 * loss):
        exact = composed([(pair.losses, pair.masses)] * 2, epsilon) + certain
        assert exact * (1 - 1e-7) <= twice.delta(epsilon) <= exact * (1 + 5e-3) + 1e-15


# --- Many compositions at once ------------------------------------------------------------------

DELTA, MUS = 1e-6, np.array([0.05, 0.07, 0.11])


def on_lattice(mu: float) -> DominatingPair:
    step = 2.0 ** math.floor(math.log2(mu / 10))
    grid = step * np.arange(math.ceil(9 * mu / step))
    return DominatingPair.from_curve(grid, gaussian_profile(grid, mu), grid=step)


PAIRS = [on_lattice(mu) for mu in MUS.tolist()]


@pytest.mark.parametrize("rounds", [1, 30, 3000])
def test_what_is_certain_is_so_and_what_is_clear_is_certain(rounds: int) -> None:
    """At every composition's own epsilon: nobody above it is let through, and all are that are a
    hundred-thousandth below."""

    def composed(times: np.ndarray) -> Composition:
        return Composition(list(zip(PAIRS, times.astype(int).tolist(), strict=True)))

    rng = np.random.default_rng(rounds)
    times = rng.multinomial(4 * rounds, [0.2, 0.5, 0.3], size=24).astype(float)
    epsilons = np.array([composed(row).epsilon(DELTA) for row in times])
    order = np.argsort(epsilons)
    for place in (order[0], order[11], order[23]):
        similar, at = composed(times[place]), float(epsilons[place])
        sure = certainly_within(PAIRS, times, at, DELTA, similar)
        assert not (sure & (epsilons > at * (1 + 1e-8))).any()
        assert sure[epsilons < at * (1 - 1e-5)].all()
    assert certainly_within(PAIRS, times, float(epsilons.max()) * (1 + 1e-6), DELTA, similar).all()
    # Whatever the window: that of other rounds, a hundredth or many times as long.
    for pair, length, share in product(PAIRS, (1, rounds, 400), (0.3, 0.9, 1.1, 3.0)):
        window = Composition([(pair, length)])
        sure = certainly_within(PAIRS, times, share * epsilons[0], DELTA, window)
        assert not (sure & (epsilons > share * epsilons[0] * (1 + 1e-8))).any()
    # With a mass that is certain loss above delta nothing holds at any epsilon.
    lossy = DominatingPair(PAIRS[0].losses, PAIRS[0].masses, 1e-7, PAIRS[0].grid)
    sure = certainly_within([lossy], np.array([[9.0], [11.0]]), 5.0, DELTA, similar)
    assert not sure[1]


class Counted(RoundLibrary):
    """How many histories were worked out."""

    asked = 0

    def epsilon(self, spent: Mapping[RoundKind, int], delta: float) -> float:
        self.asked += 1
        return super().epsilon(spent, delta)


def test_the_worst_history_is_the_worst_and_few_are_worked_out(coarse_pairs: None) -> None:
    kinds = [RoundType("gaussian", 8.0, 1.0, 2.0, ((1.0, others),)) for others in (20, 24, 30)]
    rng, library = np.random.default_rng(5), Counted()
    histories = [
        {kind: int(n) for kind, n in zip(kinds, row, strict=True) if n}
        for row in rng.multinomial(60, [0.3, 0.4, 0.3], size=30)
    ]
    each = [RoundLibrary.epsilon(library, spent, DELTA) for spent in histories]
    found = largest_epsilon(library, histories, DELTA, [math.inf] * 30)
    assert found == pytest.approx(max(each), rel=1e-7)
    assert 0 < library.asked <= 3
    assert largest_epsilon(library, [], DELTA, []) == 0.0
    # Nobody pays more than what its own noise costs, and who met no batch pays that.
    most = (rng.uniform(0.8, 1.2, 30) * max(each)).tolist()
    histories[4], each[4] = {}, math.inf
    found = largest_epsilon(library, histories, DELTA, most)
    assert found == pytest.approx(max(map(min, most, each)), rel=1e-7)


# --- The search for an epsilon ------------------------------------------------------------------


@pytest.mark.parametrize("target", [1e-6, 0.3, 1e-140])
def test_a_stretch_one_unit_above_the_target_is_above_it(target: float) -> None:
    """Logarithms of neighbouring numbers are often one number: values are compared."""

    def curve(epsilon: float) -> float:
        return math.nextafter(target, 1.0) if epsilon < 0.7 else 0.5 * target

    above, below = crossing(curve, target, 1.0)
    assert above < 0.7 <= below
    assert curve(below) <= target


# --- As dp-accounting's distributions -----------------------------------------------------------


def test_without_dp_accounting_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = "^to_dp_accounting needs dp-accounting, which is not installed; pip install"
    with pytest.raises(ConfigError, match=message):
        fs.to_dp_accounting(epsilon0=1.0, clients=100)


@pytest.mark.parametrize("discretization", [1e-3, 0.02])
@pytest.mark.parametrize("epsilon0", [0.013, 1.0])
def test_exported_randomized_response_stays_an_upper_bound(
    epsilon0: float, discretization: float
) -> None:
    # The losses lie off the lattice: +-epsilon0, and 1% of certain loss.
    half = math.expm1(epsilon0) / (1.0 + math.exp(epsilon0)) * 0.99
    pair = DominatingPair.from_curve([0.0, epsilon0], [half + 0.01, 0.01])
    law, epsilons = to_dp_accounting(pair, discretization=discretization), np.linspace(0.0, 3.0, 61)
    ours = np.array([pair.delta(value) for value in epsilons])
    theirs = np.array(law.get_delta_for_epsilon(epsilons))
    assert np.all(theirs >= ours)
    assert theirs[-1] == pytest.approx(0.01, rel=3e-9)
    # A split atom reaches at most one lattice step further than it lay.
    reach = [max(pair.delta(value - discretization), ours[0]) for value in epsilons]
    assert np.all(theirs <= np.array(reach) * (1.0 + 3e-9))
    assert theirs[0] <= ours[0] + discretization**2


def test_exported_rounds_and_those_that_lose_nothing() -> None:
    law = to_dp_accounting(Composition([(gaussian_pair(0.3, 400), 16)]).profile)
    for delta in (1e-3, 1e-6, 1e-10):
        exact = gaussian_epsilon(delta, 1.2)
        assert exact <= law.get_epsilon_for_delta(delta) <= 1.002 * exact
    nothing = Composition([(DominatingPair.from_curve([0.0], [0.0]), 5)]).profile
    assert to_dp_accounting(nothing).get_delta_for_epsilon(0.0) <= 1e-15
    with pytest.raises(InvalidValueError, match="discretization"):
        to_dp_accounting(nothing, discretization=0.0)


def test_a_filter_for_general_pairs_does_not_exist() -> None:
    """The counterexample of docs/proofs.md: the first outcome chooses the second round."""

    def response(epsilon: float, chance: float = 1.0) -> tuple[list[float], list[float]]:
        likely = chance / (1.0 + math.exp(-epsilon))
        return [epsilon, -epsilon, 0.0], [likely, chance - likely, 1.0 - chance]

    (up, down, _), (likely, other, _) = response(0.5)
    a, b = response(0.5), response(4.0, 0.16)
    found = [
        likely * composed([after], 0.5 - up) + other * composed([otherwise], 0.5 - down)
        for after, otherwise in ((a, a), (b, b), (a, b))
    ]
    assert found == pytest.approx([0.15245, 0.15238, 0.2088], abs=6e-5)
