"""Personal Laplace noise: the hiding mass on a grid, the curve above an exact binned shuffle."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.blanket import blanket_curve
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.personal_laplace import (
    OWN_GROUPS,
    hiding_mass,
    personal_laplace_curve,
)
from fl_shuffle.accounting.bounds.worst_client import hidden_curve
from fl_shuffle.accounting.distributions.continuous import LaplaceLaw, LaplaceRandomizer
from fl_shuffle.errors import NotApplicableError
from tests import oracles


def density(y: np.ndarray, x: float, epsilon0: float) -> np.ndarray:
    """Of a report of `x` in [-1/2, 1/2]: the range has length 1, so the scale is 1/epsilon0."""
    return 0.5 * epsilon0 * np.exp(-epsilon0 * np.abs(y - x))


@pytest.mark.parametrize(("own", "other"), [(1.0, 0.2), (3.0, 2.9), (0.5, 0.5), (8.0, 0.01)])
def test_hiding_mass_is_the_smallest_density_ratio(own: float, other: float) -> None:
    y = np.linspace(-40.0, 40.0, 8001)
    ratios = [density(y, x, other) / density(y, 0.0, own) for x in np.linspace(-0.5, 0.5, 11)]
    assert hiding_mass(own, other) == pytest.approx(np.min(ratios), rel=1e-8)
    assert hiding_mass(own, other) <= np.min(ratios) * (1.0 + 1e-12)


def binned(x: float, epsilon0: float, edges: np.ndarray) -> np.ndarray:
    return oracles.cells([epsilon0 * x], epsilon0 * edges, "laplace")


@pytest.mark.parametrize("budgets", [(1.0, 0.5, 0.5), (2.0, 1.5, 1.9), (3.0, 3.0, 0.4)])
def test_curve_lies_above_the_exact_binned_shuffle(budgets: tuple[float, ...]) -> None:
    """Each user in turn moves from one end of the range to the other. Bins can only lower delta."""
    edges = np.linspace(-1.0, 1.0, 7)
    curve = personal_laplace_curve([LocalBudget(each) for each in budgets])
    for own in range(3):
        p, q = (binned(x, budgets[own], edges) for x in (-0.5, 0.5))
        rest = [budgets[j] for j in range(3) if j != own]
        for place in (-0.5, 0.0, 0.5):
            others = [binned(place, each, edges) for each in rest]
            first, second = (oracles.shuffled_law([law, *others]) for law in (p, q))
            for epsilon in (0.0, 0.2, 0.6, 1.5):
                exact = oracles.hockey_stick(first, second, epsilon)
                assert exact <= curve(epsilon).delta * (1.0 + 1e-9)


def test_equal_budgets_are_the_blanket_of_one_randomizer() -> None:
    personal = personal_laplace_curve([LocalBudget(0.8, 0.0, 2_000)])
    shared = blanket_curve(LaplaceRandomizer(0.8), 2_000)
    for epsilon in (0.0, 0.05, 0.1):
        assert personal(epsilon).delta == pytest.approx(shared(epsilon).delta, rel=1e-6)


def test_groups_of_many_budgets_are_never_below_single_users() -> None:
    """Four times as many budgets as groups: the curve is at least every single user's."""
    levels = np.linspace(0.2, 2.0, 4 * OWN_GROUPS).tolist()
    many = personal_laplace_curve([LocalBudget(level, 0.0, 50) for level in levels])
    for epsilon in (0.05, 0.2):
        single = max(user(j, levels, 50, epsilon) for j in range(3, len(levels), 15))
        assert single <= many(epsilon).delta <= 3.0 * single


def test_groups_of_many_budgets_hide_with_their_smallest() -> None:
    """One user of each budget; all groups but the lowest lie far above it. In the highest group
    nobody is sure to have as much noise as its other users: the lowest group alone hides them."""
    levels = [0.1] * 400 + np.linspace(2.0, 2.5, 4 * OWN_GROUPS).tolist()
    curve = personal_laplace_curve([LocalBudget(level) for level in levels])
    # The user of budget 2.0 is hidden by 400 others, as the distribution of 2.0 says.
    alone = hidden_curve(2.0, lambda at: LaplaceLaw(1.0, at), [(hiding_mass(2.0, 0.1), 400)])
    assert curve(0.5).delta >= alone(0.5).delta > 0.0


def user(j: int, levels: list[float], count: int, epsilon: float) -> float:
    """Return delta of a user of `levels[j]`: those with as much noise hide it."""
    own = levels[j]
    hiding = [
        (each / own * math.exp(-0.5 * each), count - (i == j))
        for i, each in enumerate(levels[: j + 1])
    ]
    return hidden_curve(own, lambda at: LaplaceLaw(0.5 * own, at), hiding)(epsilon).delta


@pytest.mark.parametrize("budget", [LocalBudget(0.0), LocalBudget(1.0, 1e-6)])
def test_no_budget_or_a_local_delta_is_refused(budget: LocalBudget) -> None:
    with pytest.raises(NotApplicableError, match="epsilon0 above 0"):
        personal_laplace_curve([LocalBudget(1.0), budget])
