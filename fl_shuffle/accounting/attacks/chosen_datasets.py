"""Certified lower bounds: the exact divergence of chosen datasets.

If all other clients hold one value, the shuffled divergence equals the blanket expression with the
law of that value as a blanket of mass one (Su, Cheng and Wang 2025, Theorem 5). If each draws its
value from a mix, the same expression is an average that some data set reaches. The numerical error
of the engine is subtracted, so the number is never above the divergence of that dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fl_shuffle.accounting.bounds.participation import hidden_delta, require_participation
from fl_shuffle.accounting.engine.monotone_search import SEARCH_LOG_TOLERANCE, Point, crossing
from fl_shuffle.accounting.engine.stop_loss import STOP_LOSS_ROUNDED_ERROR as ERROR
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.laws.amplification import Case
from fl_shuffle.accounting.laws.finite import Randomizer
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_OFF
from fl_shuffle.errors import NotApplicableError, require_integer, require_open_unit, require_real

MAX_EPSILON = 100.0
"""Above this nothing is claimed: the lower bound is zero."""


def _brackets(
    randomizer: Randomizer, n: int, participation: float
) -> list[Callable[[float], DeltaBound]]:
    """For each of the randomizer's `witness_cases`: epsilon -> bracket of the exact divergence.

    Raises `NotApplicableError` if the randomizer offers no data set to test.
    """
    others = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS) - 1
    rate = require_participation(participation)
    cases = randomizer.witness_cases()
    if not cases:
        raise NotApplicableError(
            f"{randomizer.name} has no lower bound: it needs the report law of a third input"
        )

    def bracket(case: Case, epsilon: float) -> DeltaBound:
        if epsilon > MAX_EPSILON:
            return DeltaBound(0.0, 0.0)
        exposed, law = rate * case.exposed(epsilon), case.law(epsilon)
        if law is None:
            return DeltaBound(exposed, ROUND_OFF * exposed)
        bound = hidden_delta(law, [(case.blanket_mass, others)], rate, epsilon, ERROR)
        # The law is rounded up by a few units in the last place where reports may be absent.
        lower = (bound.lower + exposed) * ROUND_DOWN
        return DeltaBound(bound.delta + exposed, max(bound.delta + exposed - lower, 0.0))

    return [partial(bracket, case) for case in cases]


def lower_bound_delta(
    randomizer: Randomizer,
    n: int,
    epsilon: float,
    *,
    participation: float = 1.0,
) -> Point:
    """A delta that the shuffle of `n` reports certainly reaches at `epsilon`; rounded down.

    The largest over the randomizer's `witness_cases`. `participation` < 1: secret check-in, as in
    `blanket_delta`.
    """
    budget = require_real("epsilon", epsilon, minimum=0.0)
    brackets = _brackets(randomizer, n, participation)
    bound = max((bracket(budget) for bracket in brackets), key=lambda each: each.lower)
    return Point(budget, min(1.0, bound.lower), bound.error)


def lower_bound_epsilon(
    randomizer: Randomizer,
    n: int,
    delta: float,
    *,
    participation: float = 1.0,
) -> Point:
    """The largest epsilon found at which the shuffle certainly exceeds `delta`; zero if none."""
    target = require_open_unit("delta", delta)
    maximum = min(randomizer.local_epsilon, MAX_EPSILON)
    tolerance = min(SEARCH_LOG_TOLERANCE, ERROR)
    best, error = 0.0, 0.0
    for bracket in _brackets(randomizer, n, participation):

        def curve(epsilon: float, of: Callable[[float], DeltaBound] = bracket) -> float:
            return of(epsilon).lower

        # Where this dataset does not exceed the target at the best epsilon so far, it is no better.
        found, _ = crossing(curve, target, maximum, "above", minimum=best, tolerance=tolerance)
        if found > best or not best:
            best, error = found, bracket(found).error
    return Point(best, target, error)
