"""Personal local budgets as the bounds see them: classes of clients with equal budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_EPSILON0
from fl_shuffle.errors import InvalidValueError, require_integer, require_real


@dataclass(frozen=True, order=True)
class LocalBudget:
    """Clients whose reports each satisfy (epsilon0, delta0) local differential privacy.

    Parameters
    ----------
    epsilon0 : float
        Local epsilon of one report, in nats, 0 to 200.
    delta0 : float, default 0.0
        Local delta of one report, in [0, 1).
    count : int, default 1
        Number of clients, at least 1.

    Raises
    ------
    InvalidValueError
        For a value out of range.

    Examples
    --------
    >>> from fl_shuffle.accounting import BoundQuery, LocalBudget, bound
    >>> budgets = [LocalBudget(0.5, count=900), LocalBudget(1.0, count=100)]
    >>> bound(BoundQuery(randomizer="krr", k=2, budgets=budgets, delta=1e-6)).status.value
    'proven'
    """

    epsilon0: float
    delta0: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, maximum=MAX_EPSILON0)
        require_real("delta0", self.delta0, minimum=0.0, maximum=1.0, exclusive_maximum=True)
        require_integer("count", self.count, minimum=1, maximum=MAX_CLIENTS)


def check_budgets(budgets: Iterable[LocalBudget]) -> tuple[LocalBudget, ...]:
    """Return classes with equal budgets merged, in increasing order; raises if there is none."""
    # Sorted by epsilon0, then delta0: the bounds take the largest budget by `max`, or as the last
    # one.
    merged: dict[tuple[float, float], int] = {}
    for budget in budgets:
        key = (budget.epsilon0, budget.delta0)
        merged[key] = merged.get(key, 0) + budget.count
    if not merged:
        raise InvalidValueError("budgets", (), "needs at least one client")
    return tuple(LocalBudget(e, d, n) for (e, d), n in sorted(merged.items()))


def client_count(budgets: Sequence[LocalBudget]) -> int:
    """Return how many clients the classes hold."""
    return sum(budget.count for budget in budgets)
