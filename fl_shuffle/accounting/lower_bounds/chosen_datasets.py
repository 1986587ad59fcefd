"""Certified lower bounds: the exact divergence of chosen datasets.

If all other clients hold one value, the shuffled divergence equals the blanket expression with the
distribution of that value as a blanket of mass one (Su, Cheng and Wang 2025, Theorem 5). If each
draws its value from a mix, the same expression is an average that some data set reaches. The
numerical error of the engine is subtracted, so the number is never above the divergence of that
dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

from fl_shuffle.accounting.bounds.participation import hidden_delta, require_participation
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution, Case
from fl_shuffle.accounting.distributions.finite import AccountedRandomizer, KRandomizedResponse
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.numerics.monotone_search import (
    SEARCH_LOG_TOLERANCE,
    CurvePoint,
    crossing,
)
from fl_shuffle.accounting.numerics.stop_loss import STOP_LOSS_ROUNDED_ERROR as ERROR
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_OFF
from fl_shuffle.errors import NotApplicableError, require_integer, require_open_unit, require_real

MAX_EPSILON = 100.0
"""Above this nothing is claimed: the lower bound is zero."""


def _brackets(
    randomizer: AccountedRandomizer, n: int, participation: float
) -> list[Callable[[float], DeltaBound]]:
    """Return for each of the randomizer's `witness_cases`: epsilon -> bracket of the exact
    divergence.

    Raises `NotApplicableError` if the randomizer offers no data set to test.
    """
    others = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS) - 1
    rate = require_participation(participation)
    # Probably the worst first: a search for the largest value then meets it early.
    cases = sorted(randomizer.witness_cases(), key=_spread, reverse=True)
    if not cases:
        raise NotApplicableError(
            f"{randomizer.name} has no lower bound: it needs the report distribution of a third "
            "input"
        )

    return [partial(_bracket, case, others, rate) for case in cases]


def _bracket(case: Case, others: int, rate: float, epsilon: float) -> DeltaBound:
    if epsilon > MAX_EPSILON:
        return DeltaBound(0.0, 0.0)
    # The same expression as an upper bound's (`bounds/blanket.py`), with the others' own
    # distribution as a blanket of mass one: then it is the exact divergence.
    exposed, law = rate * case.exposed(epsilon), case.law(epsilon)
    if law is None:
        return DeltaBound(exposed, ROUND_OFF * exposed)
    bound = hidden_delta(law, [(case.blanket_mass, others)], rate, epsilon, ERROR)
    # The distribution is rounded up by a few units in the last place where reports may be absent.
    lower = (bound.lower + exposed) * ROUND_DOWN
    # The bracket's width, so that `lower` of the result is this lower end.
    return DeltaBound(bound.delta + exposed, max(bound.delta + exposed - lower, 0.0))


@lru_cache(maxsize=16)
def binary_lower_delta(epsilon0: float, n: int, epsilon: float) -> float:
    """Return a delta that binary randomized response certainly reaches: the others hold one
    value."""
    # The others hold x1, as k = 2 has no third value.
    (first, *_) = KRandomizedResponse(epsilon0, 2).witness_cases()
    return _bracket(first, n - 1, 1.0, epsilon).lower


def _spread(case: Case) -> float:
    """Return the variance of one report's ratio over the share of reports that hide: a guide, no
    more."""
    law = case.law(0.0)
    if not isinstance(law, AtomicDistribution):
        return math.inf
    return float(law.probabilities @ (law.values * law.values)) / case.blanket_mass


def lower_bound_delta(
    randomizer: AccountedRandomizer,
    n: int,
    epsilon: float,
    *,
    participation: float = 1.0,
) -> CurvePoint:
    """Return a delta that the shuffle of `n` reports certainly reaches at `epsilon`; rounded down.

    The largest over the randomizer's `witness_cases`. `participation` < 1: secret check-in, as in
    `blanket_delta`.
    """
    budget = require_real("epsilon", epsilon, minimum=0.0)
    brackets = _brackets(randomizer, n, participation)
    bound = max((bracket(budget) for bracket in brackets), key=lambda each: each.lower)
    return CurvePoint(budget, min(1.0, bound.lower), bound.error)


def lower_bound_epsilon(
    randomizer: AccountedRandomizer,
    n: int,
    delta: float,
    *,
    participation: float = 1.0,
) -> CurvePoint:
    """Return the largest epsilon found at which the shuffle certainly exceeds `delta`; zero if
    none."""
    target = require_open_unit("delta", delta)
    maximum = min(randomizer.local_epsilon, MAX_EPSILON)
    tolerance = min(SEARCH_LOG_TOLERANCE, ERROR)
    # The largest over data sets: each search begins at the best epsilon so far.
    best, error = 0.0, 0.0
    for bracket in _brackets(randomizer, n, participation):
        curve = lru_cache(maxsize=None)(bracket)
        # Where this data set hardly exceeds the target at the best epsilon so far, it is no better.
        if best and curve(best).lower <= target * (1.0 + tolerance):
            continue
        found, _ = crossing(
            lambda epsilon, of=curve: of(epsilon).lower,  # type: ignore[misc]
            target,
            maximum,
            "above",
            minimum=best,
            tolerance=tolerance,
        )
        if found > best or not best:
            best, error = found, curve(found).error
    return CurvePoint(best, target, error)
