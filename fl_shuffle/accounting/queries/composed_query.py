"""A question's rounds as one distribution of privacy losses: for composing them with something
else."""

from __future__ import annotations

from dataclasses import replace

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.queries.composed_rounds import composed_rounds
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.errors import NotApplicableError


def query_composition(query: BoundQuery) -> Composition:
    """Return the composed distribution of the query's rounds, by its method; for replacing one
    unit.

    The epsilon or delta that the query gives only serves to ask whether the method answers at all.
    Raises `NotApplicableError` where it does not, where its answer is not a proven upper bound, and
    for a sample of clients that is drawn once, whose rounds are not independent.
    """
    if query.drawn_once:
        raise NotApplicableError(
            "sampling = 'once': the rounds share their sample of clients and have no composed "
            "distribution of privacy losses; ask for one epsilon or delta with bound"
        )
    # Without a method in the query this also decides whose curve is composed.
    answer = bound(query)
    query = replace(query, method=answer.method)
    if answer.status is not Status.PROVEN:
        raise NotApplicableError(
            f"{query.method} is not a proven upper bound: only proven bounds can be composed"
        )
    return composed_rounds(query, bound)
