"""From a certified curve or a closed form to a `Guarantee`: what the named bounds share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fl_shuffle import settings_schema
from fl_shuffle.accounting.bounds.participation import ASSUMPTION, EACH_ROUND, ONCE
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.limits import MIN_DELTA
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.monotone_search import CurvePoint, solve
from fl_shuffle.accounting.numerics.stop_loss import DeltaCurve
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
from fl_shuffle.errors import NotApplicableError

SHUFFLED = "n reports arrive, each shuffled whole with independent randomness"
ONE_RANDOMIZER = "all clients use one randomizer with this local budget"


@dataclass(frozen=True)
class Method:
    """One bound: its name, what it is in a line, and how it answers.

    `of_records`: it knows that epsilon0 may be about one of several records in a report. `absence`:
    it knows that clients may be absent in secret. `sees` names what its adversary sees: `any` for
    bounds on all reports, which also hold where only their sum leaves; `reports` for attacks on
    single reports; `sum` for what needs sums. `headline`: it is asked for the smallest proven
    bound, or named where there is none. `orders`: it takes an order. `any_randomizer`: its number
    holds for every randomizer of the local budget, whichever is named.
    """

    name: str
    summary: str
    answer: Callable[[BoundQuery], Guarantee]
    of_records: bool = False
    absence: bool = False
    sees: str = "any"
    headline: bool = True
    orders: bool = False
    any_randomizer: bool = False


def answer_to(
    query: BoundQuery,
    point: tuple[float, float] | CurvePoint,
    status: Status,
    source: str,
    assumptions: tuple[str, ...],
    **details: object,
) -> Guarantee:
    """Return what the query's method says about the query's unit; `details` beside the query's
    own."""
    # A pair has no numerical error of its own: `CurvePoint` fills in 0.
    epsilon, delta, error = CurvePoint(*point)
    if status is Status.PROVEN and delta < MIN_DELTA and not query.pure:
        # What is that small may have underflowed, and nobody's delta is 0 here.
        delta = MIN_DELTA
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=str(query.method),
        status=status,
        source=source,
        assumptions=assumptions,
        numerical_error=error,
        unit=query.replaced,
        details={**query_details(query), **details},
    )


def guarantee_from_curve(
    query: BoundQuery,
    curve: DeltaCurve,
    local_epsilon: float,
    status: Status,
    source: str,
    assumptions: tuple[str, ...] = (),
) -> Guarantee:
    """Read the curve at the query's epsilon or delta, composed over its rounds."""
    if query.rounds > 1:
        again = "each round is shuffled afresh; parameters depend on public outputs only"
        # The rounds are independent given the past, and the curve bounds each of them whatever
        # the past was: pairs multiply (docs/research/proofs, section 6, step 5).
        point: Any = over_rounds(query, curve, local_epsilon)
        return answer_to(query, point, status, source, (*assumed(query), *assumptions, again))
    point = solve(
        curve,
        local_epsilon,
        epsilon=query.epsilon,
        delta=query.delta,
    )
    return answer_to(query, point, status, source, (*assumed(query), *assumptions))


def assumed(query: BoundQuery) -> tuple[str, ...]:
    """State what every bound on shuffled reports assumes."""
    return (SHUFFLED, *secrecy(query))


def over_rounds(
    query: BoundQuery, curve: DeltaCurve, local_epsilon: float, *, pure: bool = True
) -> tuple[float, float]:
    """Return the answer over all rounds; `pure`: nobody loses more than `local_epsilon` in one of
    them."""
    whole = _composed(query, curve, local_epsilon)
    # Pure rounds add up: from T epsilon0 on delta is zero, where a composed pair still counts
    # what was cut off and rounded.
    most = query.rounds * local_epsilon if pure else math.inf
    return epsilon_and_delta(
        query,
        lambda delta: min(whole.epsilon(delta), most),
        lambda epsilon: 0.0 if epsilon >= most else whole.delta(epsilon),
    )


_KNOWN: dict[object, Composition] = {}
MOST_KNOWN = 16
"""Number of compositions kept for the next query: some hundred evaluations of a curve each."""


def _composed(query: BoundQuery, curve: DeltaCurve, local_epsilon: float) -> Composition:
    """Return the composition of the query's rounds; it does not depend on which point is asked
    for."""
    key = (curve_key(query), local_epsilon)
    if query.method is None or key not in _KNOWN:
        whole = compose_equal_rounds(curve, local_epsilon, query.rounds)
        if query.method is None:  # the question does not say whose curve it is
            return whole
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = whole
    return _KNOWN[key]


def curve_key(query: BoundQuery) -> tuple[object, ...]:
    """Return all of a question but the point of its curve that it asks for."""
    # All fields but these two decide the curve; leaving one out would mix the curves of two
    # questions.
    names = settings_schema.settings_of(BoundQuery).keys() - {"epsilon", "delta"}
    return tuple(getattr(query, name) for name in sorted(names))


def epsilon_and_delta(
    query: BoundQuery,
    epsilon_at: Callable[[float], float],
    delta_at: Callable[[float], float],
) -> tuple[float, float]:
    """Return the answer: the query gives one of the two (epsilon 0 if neither), the bound the
    other."""
    if query.delta is not None:
        return epsilon_at(query.delta), query.delta
    epsilon = query.epsilon if query.epsilon is not None else 0.0
    return epsilon, delta_at(epsilon)


def secrecy(query: BoundQuery) -> tuple[str, ...]:
    """Return what has to be assumed where clients may be absent."""
    if query.participation == 1.0:
        return ()
    if query.rounds == 1:
        return (ASSUMPTION,)
    return ASSUMPTION, ONCE if query.drawn_once else EACH_ROUND


def query_details(query: BoundQuery) -> dict[str, object]:
    names = ("randomizer", "k", "epsilon0", "delta0", "clients", "rounds", "participation")
    found = {name: getattr(query, name) for name in names}
    if query.budgets:
        found["budget_classes"] = len(query.classes)
    return {name: value for name, value in found.items() if value not in (None, "")}


def require_one_round(query: BoundQuery) -> None:
    if query.rounds > 1:
        raise NotApplicableError(
            f"{query.method} is stated for one round, not for {query.rounds}; for an upper "
            "bound use profile"
        )
