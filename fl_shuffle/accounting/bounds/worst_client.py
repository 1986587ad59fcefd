"""Personal budgets: the curve of the most exposed client (docs/research/proofs, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fl_shuffle.accounting.bounds.participation import hidden_delta
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.accounting.distributions.amplification import LawFamily
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound, DeltaCurve
from fl_shuffle.accounting.round_off import ROUND_DOWN

EXACT_BUDGET_CLASSES = 16
"""Up to this many distinct budgets each is tried as the differing client's."""
BUDGET_GROUPS = 64
"""Largest number of groups of others' budgets; each counts at its least favorable end."""


def hidden_curve(
    epsilon0: float,
    law: LawFamily,
    hiding: Iterable[tuple[float, int]],
    *,
    participation: float = 1.0,
) -> DeltaCurve:
    """Return delta(epsilon) of an `epsilon0`-client among others; 0 from epsilon0 on.

    Parameters
    ----------
    epsilon0 : float
        Local budget of the client, in nats.
    law : callable
        Its distribution of L at every epsilon.
    hiding : iterable of (float, int)
        (probability to come from the blanket, count) of the other clients.
    participation : float, default 1.0
        Below 1, each client sends its report with that probability only, and who did stays secret.

    Returns
    -------
    DeltaCurve
        delta at every epsilon >= 0 (nats).

    Notes
    -----
    Source: docs/research/proofs, section 2. Neighbors: replace-one. Direction of error: all errors
    are added to delta.
    """
    classes = tuple(hiding)

    def curve(epsilon: float) -> DeltaBound:
        # A pure budget: no ratio of two reports exceeds e^epsilon0, and a shuffle adds none.
        if epsilon >= epsilon0:
            return DeltaBound(0.0, 0.0)
        return hidden_delta(law(epsilon), classes, participation, epsilon)

    return curve


def worst_client_curve(
    budgets: Sequence[LocalBudget],
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    **setting: Any,
) -> DeltaCurve:
    """Return delta(epsilon) of the most exposed client, rounded up.

    Parameters
    ----------
    budgets : sequence of LocalBudget
        Local budgets of all clients.
    law : callable
        ``law(epsilon0)`` is the amplification variable of a client with that budget.
    hiding : callable
        ``hiding(own, other)`` is the probability that the other's report hides the own one, which
        must not grow with either budget.
    **setting
        As for `hidden_curve`.

    Returns
    -------
    DeltaCurve
        delta at every epsilon >= 0 (nats), at least that of every client.

    Notes
    -----
    Up to 16 distinct budgets: the maximum over clients. Above: the largest budget with the best
    hiding client removed from the others, which is at least as exposed as any client.
    """
    classes = check_budgets(budgets)
    if len(classes) <= EXACT_BUDGET_CLASSES:
        # Every class is tried as the exposed one; one of its clients is that client, and not one
        # of the others.
        curves = [client_curve(classes, own, own, law, hiding, **setting) for own in classes]
    else:
        # L of the largest budget is the largest in convex order: a smaller budget's pair is the
        # larger one's mixed with the blanket (Laplace noise: section 4), so its L is a
        # conditional mean. It is also hidden least. One client has to be left out of the others:
        # without the one that hides best, they hide no better than those of any client. So this
        # curve is above every client's.
        own = max(classes)
        best = max(classes, key=lambda other: hiding(own, other))
        curves = [client_curve(classes, own, best, law, hiding, **setting)]
    return lambda epsilon: max((curve(epsilon) for curve in curves), key=lambda bound: bound.delta)


def client_curve(
    classes: Sequence[LocalBudget],
    own: LocalBudget,
    without: LocalBudget,
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    **setting: Any,
) -> DeltaCurve:
    """Return delta(epsilon) of a client of the class `own` among all others.

    One of the class `without` is left out of these. `setting`: see `hidden_curve`.
    """
    others = [(hiding(own, other), other.count - (other is without)) for other in classes]
    return hidden_curve(
        own.epsilon0, law(own.epsilon0), safe_groups(others, BUDGET_GROUPS), **setting
    )


def safe_groups(masses: Sequence[tuple[float, int]], groups: int) -> list[tuple[float, int]]:
    """Return at most `groups` classes that hide no more than the given ones.

    Classes are (probability, count). Neighboring probabilities are replaced by their geometric
    mean: a sum of independent Bernoulli variables is stochastically at least a binomial with the
    geometric mean of their probabilities (Pledger and Proschan 1971), and fewer hiding reports
    never lower delta. The arithmetic mean would be unsafe. Probabilities of zero hide nothing and
    are dropped.
    """
    hiding = [(mass, count) for mass, count in masses if mass > 0.0 and count > 0]
    if len(hiding) <= groups:
        return hiding
    probabilities, counts = np.array(hiding).T
    logs = np.log(probabilities)
    # Intervals of equal length in the logarithm: within one, the geometric mean is within a fixed
    # factor of each mass.
    place = np.searchsorted(np.linspace(logs.min(), logs.max(), groups + 1)[1:-1], logs)
    total = np.bincount(place, counts)
    kept = total > 0.0
    # Rounded down: a smaller mass is safe.
    means = np.exp(np.bincount(place, counts * logs)[kept] / total[kept]) * ROUND_DOWN
    return list(zip(np.minimum(means, 1.0).tolist(), total[kept].astype(int).tolist(), strict=True))
