"""The rounds of a question as one distribution of privacy losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.dp_accounting_export import EXPORT_SMALLEST_DELTA
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound
from fl_shuffle.accounting.queries.query import MAX_EPSILON, BoundQuery
from fl_shuffle.accounting.queries.vector_methods import batches, report_classes
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
from fl_shuffle.accounting.rounds.round_library import RoundLibrary


def composed_rounds(query: BoundQuery, answer: Callable[[BoundQuery], Guarantee]) -> Composition:
    """Compose `query.rounds` equal rounds, each bounded by the query's method.

    `answer` evaluates a query that names its method, a proven upper bound. It is called at some
    500 budgets for one round: seconds for the costly methods. Vector reports of one noise use the
    points of a run's own accounting instead. The query's epsilon or delta plays no part.
    """
    whole = _vector_composition(query)
    if whole is not None:
        return whole

    def at(epsilon: float) -> DeltaBound:
        found = answer(replace(query, rounds=1, epsilon=epsilon, delta=None))
        return DeltaBound(found.delta, found.numerical_error)

    budgets = query.local_budgets
    # Pure budgets: beyond the largest epsilon0 the curve is zero.
    end = max(budget.epsilon0 for budget in budgets)
    if any(budget.delta0 > 0.0 for budget in budgets):
        # Budgets with a delta0 have no such end: the curve is followed to where hardly anything
        # is left of it, and the rest counts as certain loss.
        far = answer(replace(query, rounds=1, epsilon=None, delta=EXPORT_SMALLEST_DELTA)).epsilon
        end = min(far, MAX_EPSILON) if math.isfinite(far) else end
    return compose_equal_rounds(at, end, query.rounds)


def _vector_composition(query: BoundQuery) -> Composition | None:
    """Return the composition where all clients send vector reports with one noise; the points of a
    run's own accounting.

    None elsewhere, and where the noise is too small for a dominating pair.
    """
    if query.method != "vector" or query.personal:
        return None
    (kind,) = batches(query, report_classes(query, "for other randomizers use blanket"))
    return RoundLibrary().composition({kind: query.rounds})
