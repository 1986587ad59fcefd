"""Numbers in one public range with personal Laplace noise: the most exposed user's curve.

User j adds Laplace noise of scale b_j = (high - low)/eps_j to a number in [low, high], and all
reports are shuffled. Nobody sees whose scale a report has. docs/research/proofs, section 3.

Take the distribution of user 1's own noise around the middle of the range as common distribution
omega. For b_j >= b_1, with C half the range and r its middle,

    exp(-|y - x|/b_j)/(2 b_j) >= e^(-C/b_j) exp(-|y - r|/b_j)/(2 b_j) >= gamma_j omega(y),
    gamma_j = (b_1/b_j) e^(-C/b_j) = (eps_j/eps_1) e^(-eps_j/2).

So everybody with at least as much noise hides user 1, and section 2 applies. Users with less noise
are not counted. Replace-one, nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.accounting.bounds.worst_client import BUDGET_GROUPS, hidden_curve, safe_groups
from fl_shuffle.accounting.distributions.continuous import LaplaceLaw
from fl_shuffle.accounting.numerics.stop_loss import DeltaCurve
from fl_shuffle.accounting.round_off import ROUND_DOWN
from fl_shuffle.errors import NotApplicableError

OWN_GROUPS = 16
"""Number of groups of similar budgets in which the most exposed user is looked for."""


def hiding_mass(own: float, other: float) -> float:
    """Return gamma of a user with local epsilon `other` <= `own` for one with `own`, rounded down.

    It is the smallest ratio of the other's density to that of the own noise around the middle.
    """
    # (eps_j/eps_1) e^(-eps_j/2) = (b_1/b_j) e^(-C/b_j), because b_j = 2 C/eps_j.
    return other / own * math.exp(-0.5 * other) * ROUND_DOWN


def personal_laplace_curve(budgets: Sequence[LocalBudget]) -> DeltaCurve:
    """Return delta(epsilon) of the most exposed user, rounded up.

    Parameters
    ----------
    budgets : sequence of LocalBudget
        How many users have which local epsilon (nats, > 0); every delta0 is 0.

    Returns
    -------
    DeltaCurve
        delta(epsilon), at least that of every user.

    Raises
    ------
    NotApplicableError
        If a budget has delta0 > 0 or epsilon0 = 0.

    Notes
    -----
    Up to 16 distinct budgets: the maximum over users. Above, users of similar budgets are one
    group. Its curve is that of a user with the group's largest budget, hidden by nobody whose
    budget exceeds the group's smallest one. That is safe: adding the same independent noise to the
    two distributions and to omega turns those of a larger budget into those of a smaller one, so
    the larger budget's L is larger in convex order, and gamma_j falls with eps_1.
    """
    classes = check_budgets(budgets)
    if classes[0].epsilon0 <= 0.0 or any(each.delta0 > 0.0 for each in classes):
        raise NotApplicableError("personal Laplace noise needs every epsilon0 above 0, delta0 = 0")
    # Groups of neighbors in the order of budgets, of about equally many distinct ones.
    edges = np.unique(np.linspace(0, len(classes), min(len(classes), OWN_GROUPS) + 1).astype(int))
    curves = [_group_curve(classes, int(first), int(end) - 1) for first, end in pairwise(edges)]
    return lambda epsilon: max((curve(epsilon) for curve in curves), key=lambda bound: bound.delta)


def _group_curve(classes: Sequence[LocalBudget], first: int, last: int) -> DeltaCurve:
    """Return the curve of users whose budgets are those of the classes `first` to `last`."""
    # The group's largest budget makes L the largest (the least noise). Only clients with at least
    # the noise of every member of the group hide it: budgets up to the group's smallest one.
    own = classes[last].epsilon0
    # One user of the smallest budget may be the exposed one itself.
    others = [
        (hiding_mass(own, each.epsilon0), each.count - (j == first))
        for j, each in enumerate(classes[: first + 1])
    ]
    # epsilon0 = 2 C/b, so c = C/b is half of it.
    return hidden_curve(
        own, lambda epsilon: LaplaceLaw(0.5 * own, epsilon), safe_groups(others, BUDGET_GROUPS)
    )
