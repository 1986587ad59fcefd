"""Certified lower bounds: the exact divergence of chosen datasets.

If all other clients hold one value, the shuffled divergence equals the blanket expression with the
law of that value as a blanket of mass one (Su, Cheng and Wang 2025, Theorem 5). If each draws its
value from a mix, the same expression is an average that some data set reaches. The numerical error
of the engine is subtracted, so the number is never above the divergence of that dataset.
"""

from __future__ import annotations

from fl_shuffle.accounting.bounds.participation import require_participation, with_absence
from fl_shuffle.accounting.engine.monotone_search import SEARCH_LOG_TOLERANCE, Point, crossing
from fl_shuffle.accounting.engine.stop_loss import (
    STOP_LOSS_ROUNDED_ERROR,
    DeltaBound,
    amplified_delta,
)
from fl_shuffle.accounting.laws.amplification import Case
from fl_shuffle.accounting.laws.finite import Randomizer
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.errors import NotApplicableError, require_integer, require_open_unit, require_real

MAX_EPSILON = 100.0
"""Above this nothing is claimed: the lower bound is zero."""


def _certified(
    case: Case, n: int, epsilon: float, participation: float, relative_error: float | None
) -> DeltaBound:
    """Bracket of the exact divergence of one dataset; above `MAX_EPSILON` nothing is claimed."""
    if epsilon > MAX_EPSILON:
        return DeltaBound(0.0, 0.0)
    exposed = participation * case.exposed(epsilon)
    law = case.law(epsilon)
    if law is None:
        return DeltaBound(exposed, 1e-12 * exposed)
    accuracy = STOP_LOSS_ROUNDED_ERROR if relative_error is None else relative_error
    law, others = with_absence(law, [(case.blanket_mass, n - 1)], participation, epsilon)
    bound = amplified_delta(law, others, relative_error=accuracy, best_effort=True)
    # The client's law is rounded up by a few units in the last place where reports may be absent.
    lower = (bound.lower + exposed) * (1.0 - 1e-12)
    delta = bound.delta + exposed
    return DeltaBound(delta, max(delta - lower, 0.0))


def _witnesses(randomizer: Randomizer) -> tuple[Case, ...]:
    cases = randomizer.witness_cases()
    if not cases:
        raise NotApplicableError(
            f"{randomizer.name} has no lower bound: it needs the report law of a third input"
        )
    return cases


def lower_bound_delta(
    randomizer: Randomizer,
    n: int,
    epsilon: float,
    *,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Point:
    """A delta that the shuffle of `n` reports certainly reaches at `epsilon`; rounded down.

    The largest over the randomizer's `witness_cases`. `participation` < 1: secret check-in, as in
    `blanket_delta`.

    Raises `NotApplicableError` if the randomizer offers no dataset to test.
    """
    budget = require_real("epsilon", epsilon, minimum=0.0)
    count = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS)
    rate = require_participation(participation)
    cases = _witnesses(randomizer)
    bounds = [_certified(case, count, budget, rate, relative_error) for case in cases]
    bound = max(bounds, key=lambda each: each.lower)
    return Point(budget, min(1.0, bound.lower), bound.error)


def lower_bound_epsilon(
    randomizer: Randomizer,
    n: int,
    delta: float,
    *,
    participation: float = 1.0,
    relative_error: float | None = None,
) -> Point:
    """The largest epsilon found at which the shuffle certainly exceeds `delta`; zero if none."""
    target = require_open_unit("delta", delta)
    count = require_integer("n", n, minimum=1, maximum=MAX_CLIENTS)
    rate = require_participation(participation)
    maximum = min(randomizer.local_epsilon, MAX_EPSILON)
    cases = _witnesses(randomizer)
    tolerance = min(SEARCH_LOG_TOLERANCE, relative_error or STOP_LOSS_ROUNDED_ERROR)
    best, error = 0.0, 0.0
    for case in cases:
        seen: dict[float, DeltaBound] = {}

        def curve(epsilon: float, case: Case = case, seen: dict[float, DeltaBound] = seen) -> float:
            seen[epsilon] = _certified(case, count, epsilon, rate, relative_error)
            return seen[epsilon].lower

        # Where this dataset does not exceed the target at the best epsilon so far, it is no better.
        found, _ = crossing(curve, target, maximum, "above", minimum=best, tolerance=tolerance)
        if found > best or not best:
            best, error = found, seen[found].error
    return Point(best, target, error)
