"""Compositions that are certainly within an epsilon: against each worked out by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_shuffle.accounting.engine.composition import Composition, certainly_within
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.reports import RoundType
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, largest_epsilon

DELTA = 1e-6
MUS = (0.05, 0.07, 0.11)


def pair(mu: float) -> DominatingPair:
    step = 2.0 ** math.floor(math.log2(mu / 10))
    grid = step * np.arange(math.ceil(9 * mu / step))
    return DominatingPair.from_curve(grid, gaussian_profile(grid, mu), grid=step)


PAIRS = [pair(mu) for mu in MUS]


def composed(times: np.ndarray) -> Composition:
    return Composition(list(zip(PAIRS, times.astype(int).tolist(), strict=True)))


@pytest.mark.parametrize("rounds", [1, 30, 3000])
def test_what_is_certain_is_so_and_what_is_clear_is_certain(rounds: int) -> None:
    """At every composition's own epsilon: nobody above it is let through, and all are that are a
    hundred-thousandth below. Towards the closed form nothing is claimed that is not so."""
    rng = np.random.default_rng(rounds)
    times = rng.multinomial(4 * rounds, [0.2, 0.5, 0.3], size=24).astype(float)
    epsilons = np.array([composed(row).epsilon(DELTA) for row in times])
    truth = np.array([gaussian_epsilon(DELTA, math.sqrt(row @ np.square(MUS))) for row in times])
    order = np.argsort(epsilons)
    for place in (order[0], order[11], order[23]):
        similar, at = composed(times[place]), float(epsilons[place])
        sure = certainly_within(PAIRS, times, at, DELTA, similar)
        assert not (sure & (epsilons > at * (1 + 1e-8))).any()
        assert not (sure & (truth > at)).any()
        assert sure[epsilons < at * (1 - 1e-5)].all()
    assert certainly_within(PAIRS, times, float(epsilons.max()) * (1 + 1e-6), DELTA, similar).all()


@given(st.lists(st.integers(0, 60), min_size=3, max_size=3), st.floats(0.3, 3.0),
       st.integers(0, 2), st.integers(1, 400))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_whatever_the_window_nothing_wrong_is_certain(
    row: list[int], share: float, other: int, rounds: int
) -> None:
    """The window may be that of a composition many times as long, of other rounds."""
    if not any(row):
        return
    mu = math.sqrt(np.array(row) @ np.square(MUS))
    at = share * gaussian_epsilon(DELTA, mu)
    similar = Composition([(PAIRS[other], rounds)])
    sure = certainly_within(PAIRS, np.array([row], dtype=float), at, DELTA, similar)
    if sure[0]:
        assert share >= 1.0 - 1e-9


def test_a_composition_that_is_too_short_for_its_delta_is_not_certain() -> None:
    """With a mass that is certain loss above delta nothing holds at any epsilon."""
    lossy = DominatingPair(PAIRS[0].losses, PAIRS[0].masses, 1e-7, PAIRS[0].grid)
    similar = Composition([(PAIRS[0], 20)])
    sure = certainly_within([lossy], np.array([[9.0], [11.0]]), 5.0, DELTA, similar)
    assert sure.tolist() == [True, False]


def test_the_worst_history_is_the_worst_and_few_are_worked_out(
    coarse_pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = [RoundType("gaussian", 8.0, 1.0, 2.0, ((1.0, others),)) for others in (20, 24, 30)]
    rng = np.random.default_rng(5)
    histories = [
        {kind: int(n) for kind, n in zip(kinds, row, strict=True) if n}
        for row in rng.multinomial(60, [0.3, 0.4, 0.3], size=30)
    ]
    library, asked = RoundLibrary(), []
    every = max(library.epsilon(spent, DELTA) for spent in histories)
    epsilon = RoundLibrary.epsilon

    def counted(self: RoundLibrary, spent: dict[RoundType, int], delta: float) -> float:
        asked.append(spent)
        return epsilon(self, spent, delta)

    monkeypatch.setattr(RoundLibrary, "epsilon", counted)
    most = [math.inf] * 30
    assert largest_epsilon(library, histories, DELTA, most) == pytest.approx(every, rel=1e-7)
    assert len(asked) <= 3
    assert largest_epsilon(library, [], DELTA, []) == 0.0
    # Nobody pays more than what its own noise costs, and who met no batch pays that.
    most = rng.uniform(0.8, 1.2, 30) * every
    histories[4] = {}
    found = largest_epsilon(library, histories, DELTA, most.tolist())
    exact = max(
        min(own, epsilon(library, spent, DELTA)) if spent else own
        for own, spent in zip(most.tolist(), histories, strict=True)
    )
    assert found == pytest.approx(exact, rel=1e-7)
