"""Personal budgets: the curve of the most exposed client among clients that hide each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fl_shuffle.accounting.bounds.participation import with_absence
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.accounting.engine.stop_loss import Curve, DeltaBound, amplified_delta
from fl_shuffle.accounting.laws.amplification import LawFamily

EXACT_BUDGET_CLASSES = 16
"""Up to this many distinct budgets each is tried as the differing client's."""
BUDGET_GROUPS = 64
"""The others' budgets are merged into so many groups at most, each at its least favourable end."""


def hidden_curve(
    epsilon0: float,
    law: LawFamily,
    hiding: Iterable[tuple[float, int]],
    *,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Curve:
    """delta(epsilon) of an `epsilon0`-client of that law of L among others; 0 from epsilon0 on.

    `hiding` lists (probability to come from the blanket, count) of the other clients.
    `participation` < 1: each client sends its report with that probability only, and who did stays
    secret.
    """
    classes = tuple(hiding)

    def curve(epsilon: float) -> DeltaBound:
        if epsilon >= epsilon0:
            return DeltaBound(0.0, 0.0)
        variable, masses = with_absence(law(epsilon), classes, participation, epsilon)
        return amplified_delta(variable, masses, relative_error=relative_error, best_effort=True)

    return curve


def worst_client_curve(
    budgets: Sequence[LocalBudget],
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    **setting: Any,
) -> Curve:
    """delta(epsilon) of the worst client, rounded up.

    `law(epsilon0)` is the amplification variable of a client with that budget; `hiding(own, other)`
    the probability that the other's report hides the own one, which must not grow with either
    budget. Up to 16 distinct budgets: the maximum over clients. Above: the largest budget with the
    best hiding client removed from the others, which is at least as exposed as any client.
    `participation` < 1: secret check-in of every client with that probability.
    """
    classes = check_budgets(budgets)
    if len(classes) > EXACT_BUDGET_CLASSES:
        own = max(classes)
        best = max(classes, key=lambda other: hiding(own, other))
        return client_curve(classes, own, law, hiding, without=best, **setting)
    curves = [client_curve(classes, own, law, hiding, **setting) for own in classes]
    return lambda epsilon: max((curve(epsilon) for curve in curves), key=lambda bound: bound.delta)


def client_curve(
    budgets: Sequence[LocalBudget],
    own: LocalBudget,
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    *,
    without: LocalBudget | None = None,
    **setting: Any,
) -> Curve:
    """delta(epsilon) of one client with the budget `own`; itself, or one client of the class
    `without`, is not among the others. `setting`: see `hidden_curve`."""
    left_out = _key(without or own)
    others = [
        (hiding(own, other), other.count - (_key(other) == left_out))
        for other in check_budgets(budgets)
    ]
    return hidden_curve(
        own.epsilon0, law(own.epsilon0), safe_groups(others, BUDGET_GROUPS), **setting
    )


def _key(budget: LocalBudget) -> tuple[float, float]:
    return budget.epsilon0, budget.delta0


def safe_groups(masses: Iterable[tuple[float, int]], groups: int) -> list[tuple[float, int]]:
    """At most `groups` classes that hide no more than the given (probability, count) classes.

    Neighbouring probabilities are replaced by their geometric mean: a sum of independent Bernoulli
    variables is stochastically at least a binomial with the geometric mean of their probabilities
    (Pledger and Proschan 1971), and fewer hiding reports never lower delta. The arithmetic mean
    would be unsafe. Probabilities of zero hide nothing and are dropped.
    """
    merged: dict[float, int] = {}
    for mass, count in masses:
        if mass > 0.0 and count > 0:
            merged[mass] = merged.get(mass, 0) + count
    classes = sorted(merged.items())
    if len(classes) <= groups:
        return classes
    low, high = math.log(classes[0][0]), math.log(classes[-1][0])
    width = (high - low) / groups
    bins: dict[int, list[tuple[float, int]]] = {}
    for mass, count in classes:
        place = min(int((math.log(mass) - low) / width), groups - 1)
        bins.setdefault(place, []).append((mass, count))
    result = []
    for members in bins.values():
        total = sum(count for _, count in members)
        mean = math.fsum(count * math.log(mass) for mass, count in members) / total
        result.append((min(1.0, math.exp(mean)) * (1.0 - 1e-12), total))
    return result
