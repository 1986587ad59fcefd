"""A question's rounds as one law of privacy losses: for composing them with something else."""

from __future__ import annotations

import math
from dataclasses import replace

from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dp_accounting_export import EXPORT_SMALLEST_DELTA
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import MAX_EPSILON, Question
from fl_shuffle.accounting.queries.vector_methods import batches, report_classes
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.errors import NotApplicableError


def query_composition(query: Question) -> Composition:
    """The composed law of the query's rounds, by its method; for replacing one unit.

    The one-round bound is asked at some 500 budgets: seconds for the costly methods. The epsilon or
    delta that the query gives only serves to ask whether the method answers at all. Raises
    `NotApplicableError` where it does not, or where its answer is not a proven upper bound.
    """
    answer = bound(query)
    query = replace(query, method=answer.method)
    if answer.status is not Status.PROVEN:
        raise NotApplicableError(
            f"{query.method} is no proven upper bound: only those can be composed with others"
        )

    whole = _vector_composition(query)
    if whole is not None:
        return whole

    def at(epsilon: float) -> DeltaBound:
        answer = bound(replace(query, rounds=1, epsilon=epsilon, delta=None))
        return DeltaBound(answer.delta, answer.numerical_error)

    budgets = query.local_budgets
    end = max(budget.epsilon0 for budget in budgets)
    if any(budget.delta0 > 0.0 for budget in budgets):
        far = bound(replace(query, rounds=1, epsilon=None, delta=EXPORT_SMALLEST_DELTA)).epsilon
        end = min(far, MAX_EPSILON) if math.isfinite(far) else end
    return compose_equal_rounds(at, end, query.rounds)


def _vector_composition(query: Question) -> Composition | None:
    """Where all clients send vector reports with one noise; the points of a run's own accounting.

    None elsewhere, and where the noise is too small for a dominating pair.
    """
    if query.method != "proven" or query.personal:
        return None
    (kind,) = batches(query, report_classes(query, "for other randomizers use blanket"))
    return RoundLibrary().composition({kind: query.rounds})
