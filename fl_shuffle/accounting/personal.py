"""Personal local budgets as the bounds see them: classes of clients with equal (epsilon0, delta0)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_shuffle.errors import InvalidValueError, require_integer, require_real

MAX_EPSILON0 = 200.0


@dataclass(frozen=True, order=True)
class LocalBudget:
    """`count` clients whose reports each satisfy (epsilon0, delta0) locally (nats)."""

    epsilon0: float
    delta0: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0, exclusive_maximum=True)
        require_integer("count", self.count, minimum=1, maximum=10**12)


def check_budgets(budgets: Iterable[LocalBudget]) -> tuple[LocalBudget, ...]:
    """Classes with equal budgets merged, in increasing order; raises if there is none."""
    merged: dict[tuple[float, float], int] = {}
    for budget in budgets:
        key = (budget.epsilon0, budget.delta0)
        merged[key] = merged.get(key, 0) + budget.count
    if not merged:
        raise InvalidValueError("budgets", (), "needs at least one client")
    return tuple(LocalBudget(e, d, n) for (e, d), n in sorted(merged.items()))


def client_count(budgets: Sequence[LocalBudget]) -> int:
    """How many clients the classes hold."""
    return sum(budget.count for budget in budgets)


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
        bins.setdefault(min(int((math.log(mass) - low) / width), groups - 1), []).append(
            (mass, count)
        )
    result = []
    for members in bins.values():
        total = sum(count for _, count in members)
        mean = math.fsum(count * math.log(mass) for mass, count in members) / total
        result.append((min(1.0, math.exp(mean)) * (1.0 - 1e-12), total))
    return result
