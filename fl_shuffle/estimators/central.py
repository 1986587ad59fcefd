"""What the shuffle of all reports guarantees to each user: central epsilon from local budgets.

Budgets are public and do not depend on the data. Who hides whom depends on what the analyzer needs:

- No report says whose budget it has, and the distribution that hides is the same for every budget
(krr, blh,
  hadamard, duchi): all users hide each other, in proportion to their budgets.
- The same with personal Laplace noise: users with more noise hide users with less.
- The analyzer needs each report's budget, or the reports show it (the number of ones in oue and
  rappor): users of equal budgets hide each other, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle._internal.threads import with_one_blas_thread
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.personal_laplace import personal_laplace_curve
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.limits import MIN_DELTA
from fl_shuffle.accounting.numerics.monotone_search import solve
from fl_shuffle.accounting.queries.guarantees import SHUFFLED
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.randomizer_methods import SHARED_BLANKETS
from fl_shuffle.errors import require_real
from fl_shuffle.estimators.estimates import needs_budgets, require_users
from fl_shuffle.estimators.inputs import require_budgets
from fl_shuffle.estimators.numbers import BoundedRandomizer
from fl_shuffle.estimators.oracles import FrequencyOracle

PUBLIC_BUDGETS = "budgets are public and do not depend on the data"
NO_BUDGET = "no report says whose budget it has: the server knows how many users have each"
EQUAL_BUDGETS = "each report shows its budget: only reports of equal budgets hide each other"


def central_guarantee(
    randomizer: FrequencyOracle | BoundedRandomizer,
    epsilon0: FloatArray,
    *,
    delta: float,
    estimator: str = "published",
) -> Guarantee:
    """Return the smallest proven central guarantee of the most exposed user.

    Parameters
    ----------
    randomizer : FrequencyOracle or BoundedRandomizer
        Local randomizer of all users.
    epsilon0 : float array, shape (n,), nats
        Local budget of each user. One user counts once.
    delta : float, in [1e-290, 1)
        Central delta.
    estimator : str, default "published"
        What the server computes; it decides whether a report must carry its budget.

    Returns
    -------
    Guarantee
        Epsilon at `delta` against an attacker who sees the shuffled reports and all budgets. It
        never exceeds the largest local budget.

    Raises
    ------
    InvalidValueError
        If a budget, delta, or the estimator is not allowed.

    Notes
    -----
    Neighbors: replace-one, one user's value; budgets stay. Direction of error: errors are added, so
    epsilon is never too small. Source: the privacy blanket of each randomizer with the masses of
    all users (Su, Cheng, Wang 2025, Theorem 4; docs/research/proofs, sections 2 and 3).

    See Also
    --------
    fl_shuffle.bound : The same for one budget, for other randomizers, and over several rounds.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import HadamardOracle, central_guarantee
    >>> budgets = np.repeat([0.5, 1.0], [9_000, 1_000])
    >>> mixed = central_guarantee(HadamardOracle(20), budgets, delta=1e-6)
    >>> apart = central_guarantee(HadamardOracle(20), budgets, delta=1e-6, estimator="unbiased")
    >>> mixed.epsilon < apart.epsilon < 1.0
    True
    >>> str(mixed.status)
    'proven'
    """
    budgets = require_budgets(epsilon0, require_users(epsilon0))
    target = require_real("delta", delta, minimum=MIN_DELTA, maximum=1.0, exclusive_maximum=True)
    levels, counts = np.unique(budgets, return_counts=True)
    classes = tuple(
        LocalBudget(level, 0.0, count)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True)
    )
    if isinstance(randomizer, BoundedRandomizer):
        # duchi is binary randomized response of a random end of the range.
        name, k = ("laplace", None) if randomizer.name == "laplace" else ("krr", 2)
    else:
        bits = randomizer.name in ("blh", "hadamard")
        name, k = randomizer.name, None if bits else randomizer.categories
    return _worst(name, k, classes, target, needs_budgets(randomizer, estimator))


@lru_cache(maxsize=256)
@with_one_blas_thread
def _worst(
    name: str, k: int | None, classes: tuple[LocalBudget, ...], delta: float, shown: bool
) -> Guarantee:
    """Return the guarantee; `shown`: each report carries its budget."""
    apart = _of_equal_budgets(name, k, classes, delta)
    if len(classes) == 1:
        return apart
    if shown or name not in SHARED_BLANKETS:
        return _with(apart, EQUAL_BUDGETS, classes)
    if name == "laplace":
        together = _personal_laplace(classes, delta)
    else:
        together = bound(BoundQuery(randomizer=name, k=k, budgets=classes, delta=delta))
    # Both hold; hiding among fewer reports is what remains where merging budgets lost more.
    best = min(together, apart, key=lambda each: each.epsilon)
    return _with(best, NO_BUDGET, classes)


def _of_equal_budgets(
    name: str, k: int | None, classes: Sequence[LocalBudget], delta: float
) -> Guarantee:
    """Return the most exposed user's guarantee where only equal budgets hide each other.

    A class with a smaller budget and at least as many users as another is less exposed: its reports
    are the other's, changed one by one without looking at the data, plus further reports. (Binary
    channels, k-ary randomized response, and Laplace noise compose to those of a smaller budget.)
    """
    answers, fewest = [], None
    for each in sorted(classes, reverse=True):
        if fewest is not None and each.count >= fewest:
            continue
        fewest = each.count
        answers.append(
            bound(
                BoundQuery(
                    randomizer=name, k=k, epsilon0=each.epsilon0, clients=each.count, delta=delta
                )
            )
        )
    return max(answers, key=lambda answer: answer.epsilon)


def _personal_laplace(classes: Sequence[LocalBudget], delta: float) -> Guarantee:
    largest = max(classes).epsilon0
    point = solve(personal_laplace_curve(classes), largest, epsilon=None, delta=delta)
    return Guarantee(
        epsilon=point.epsilon,
        delta=point.delta,
        method="blanket",
        status=Status.PROVEN,
        source="privacy blanket of personal Laplace noise (docs/research/proofs, sections 2 and 3)",
        assumptions=(SHUFFLED, "one number in one public range from each user"),
        numerical_error=point.numerical_error,
        details={"randomizer": "laplace", "clients": sum(each.count for each in classes)},
    )


def _with(answer: Guarantee, who_hides: str, classes: Sequence[LocalBudget]) -> Guarantee:
    """Return the answer with what it assumes about budgets, and with its size."""
    details = {**answer.details, "budget_classes": len(classes)}
    assumptions = (*answer.assumptions, PUBLIC_BUDGETS, who_hides)
    return replace(answer, assumptions=tuple(dict.fromkeys(assumptions)), details=details)
