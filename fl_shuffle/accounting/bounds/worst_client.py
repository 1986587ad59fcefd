"""Personal budgets: the curve of the most exposed client among clients that hide each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from fl_shuffle.accounting.bounds.participation import with_absence
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget, check_budgets
from fl_shuffle.accounting.engine.stop_loss import Curve, DeltaBound, amplified_delta
from fl_shuffle.accounting.laws.amplification import LawFamily

EXACT_BUDGET_CLASSES = 16
"""Up to this many distinct budgets each is tried as the differing client's."""
BUDGET_GROUPS = 64
"""The others' budgets are merged into so many groups at most, each at its least favourable end."""


def worst_client_curve(
    budgets: Sequence[LocalBudget],
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    *,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Curve:
    """delta(epsilon) of the worst client, rounded up.

    `law(epsilon0)` is the amplification variable of a client with that budget; `hiding(own, other)`
    the probability that the other's report hides the own one, which must not grow with either
    budget. Up to 16 distinct budgets: the maximum over clients. Above: the largest budget with the
    best hiding client removed from the others, which is at least as exposed as any client.
    `participation` < 1: secret check-in of every client with that probability.
    """
    classes = check_budgets(budgets)
    if len(classes) <= EXACT_BUDGET_CLASSES:
        curves = [
            client_curve(
                classes,
                own,
                law,
                hiding,
                participation=participation,
                relative_error=relative_error,
            )
            for own in classes
        ]
        return lambda epsilon: max(
            (curve(epsilon) for curve in curves), key=lambda bound: bound.delta
        )
    own = max(classes)
    masses = [hiding(own, other) for other in classes]
    best = max(range(len(classes)), key=lambda i: masses[i])
    others = [
        (mass, other.count - (index == best))
        for index, (mass, other) in enumerate(zip(masses, classes, strict=True))
    ]
    return _curve(own.epsilon0, law, others, participation, relative_error)


def client_curve(
    budgets: Sequence[LocalBudget],
    own: LocalBudget,
    law: Callable[[float], LawFamily],
    hiding: Callable[[LocalBudget, LocalBudget], float],
    *,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Curve:
    """delta(epsilon) of one client with the budget `own`, which must be one of the classes."""
    others = [
        (hiding(own, other), other.count - (_key(other) == _key(own)))
        for other in check_budgets(budgets)
    ]
    return _curve(own.epsilon0, law, others, participation, relative_error)


def _key(budget: LocalBudget) -> tuple[float, float]:
    return budget.epsilon0, budget.delta0


def _curve(
    epsilon0: float,
    law: Callable[[float], LawFamily],
    others: Iterable[tuple[float, int]],
    participation: float,
    relative_error: float | None,
) -> Curve:
    family = law(epsilon0)
    classes = safe_groups(others, BUDGET_GROUPS)

    def curve(epsilon: float) -> DeltaBound:
        if epsilon >= epsilon0:
            return DeltaBound(0.0, 0.0)
        variable, masses = with_absence(family(epsilon), classes, participation, epsilon)
        return amplified_delta(variable, masses, relative_error=relative_error, best_effort=True)

    return curve


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
