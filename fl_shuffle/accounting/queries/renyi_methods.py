"""How Renyi divergences answer a query: the proven one, published ones, and a lower bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fl_shuffle.accounting.bounds.published import (
    chen2024_rdp,
    girgis_lower_rdp,
    girgis_upper_rdp,
    reached_epsilon,
)
from fl_shuffle.accounting.bounds.renyi import (
    CONVERSION,
    RDP_SOURCE,
    PureRound,
    best_order,
    pure_epsilon,
    rdp_delta,
    rdp_epsilon,
    rounds_divergence,
    rounds_epsilon,
)
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.limits import MAX_ORDER
from fl_shuffle.accounting.numerics.monotone_search import CurvePoint
from fl_shuffle.accounting.queries.guarantees import (
    ONE_RANDOMIZER,
    SHUFFLED,
    Method,
    answer_to,
    require_one_round,
)
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import NotApplicableError

LEAST_EPSILON0 = 1e-6
"""Published formulas are evaluated from here on: below, their differences cancel."""
LARGEST_WHOLE_ORDER = 4096.0
"""Formulas for integer orders sum as many terms as the order."""
AGAIN = "each round is shuffled afresh; parameters depend on public outputs only"
ROUNDS = "divergences of rounds add up (Mironov 2017, Proposition 1)"


@dataclass(frozen=True)
class _Bound:
    """A bound on the Renyi divergence of one round, for every order that it is stated for."""

    divergence: Callable[[float], float]
    status: Status
    source: str
    assumptions: tuple[str, ...]
    whole: bool = False

    @property
    def largest(self) -> float:
        return LARGEST_WHOLE_ORDER if self.whole else MAX_ORDER


def pure_batch(query: BoundQuery) -> tuple[float, int]:
    """Return (epsilon0, clients) of a query with one pure budget and at least two reports."""
    query.require_pure()
    epsilon0, _, clients = query.local
    if query.randomizer == "gaussian":
        raise NotApplicableError(
            f"{query.method} needs a pure local budget, which Gaussian noise does not have: use "
            "vector"
        )
    require_several(query, clients)
    return epsilon0, clients


def require_several(query: BoundQuery, clients: int) -> None:
    """Raise `NotApplicableError` for a single report, which no shuffle hides."""
    if clients < 2:
        raise NotApplicableError(
            f"{query.method} needs clients >= 2, got {clients}: one report alone is not hidden by "
            "a shuffle and costs epsilon0"
        )


def published_batch(query: BoundQuery) -> tuple[float, int]:
    """Return `pure_batch` for formulas that are not evaluated at tiny budgets."""
    epsilon0, clients = pure_batch(query)
    if epsilon0 < LEAST_EPSILON0:
        raise NotApplicableError(
            f"{query.method} is evaluated for epsilon0 >= {LEAST_EPSILON0:g}, got {epsilon0:g}"
        )
    return epsilon0, clients


def _chosen_order(query: BoundQuery, bound: _Bound, value: Callable[[float], float]) -> float:
    """Return the order that the query names, or the best one for what it asks."""
    if query.order is None:
        return best_order(value, whole=bound.whole, largest=bound.largest)
    if bound.whole and query.order != round(query.order):
        raise NotApplicableError(
            f"{query.method} is stated for integer orders from 2 on, got order = {query.order:g}"
        )
    if query.order > bound.largest:
        raise NotApplicableError(
            f"{query.method} is evaluated up to order {bound.largest:g}, got {query.order:g}"
        )
    return query.order


def _converted(query: BoundQuery, bound: _Bound) -> Guarantee:
    """Return the answer of a published formula at the best order; divergences of rounds add up."""
    rounds = query.rounds

    def total(order: float) -> float:
        # Renyi divergences of one order add up over rounds; orders must not be mixed.
        return rounds * bound.divergence(order)

    if query.delta is not None:
        delta = query.delta
        # Every order gives a bound, so the one with the smallest answer may be looked for.
        order = _chosen_order(query, bound, lambda each: rdp_epsilon(each, total(each), delta))
        epsilon = rdp_epsilon(order, total(order), delta) * ROUND_UP
    else:
        epsilon = query.epsilon or 0.0
        order = _chosen_order(query, bound, lambda each: rdp_delta(each, total(each), epsilon))
        delta = min(1.0, rdp_delta(order, total(order), epsilon) * ROUND_UP)
    return _answered(query, bound, (epsilon, delta), order, total(order))


def _answered(
    query: BoundQuery, bound: _Bound, point: tuple[float, float], order: float, divergence: float
) -> Guarantee:
    """Return the guarantee, with the order that it comes from and the divergence of all rounds."""
    several = (ROUNDS, AGAIN) if query.rounds > 1 else ()
    assumptions = (SHUFFLED, *bound.assumptions, *several)
    source = f"{bound.source}; converted by {CONVERSION}"
    details = {"order": order, "rdp": divergence, "conversion": CONVERSION}
    return answer_to(query, point, bound.status, source, assumptions, **details)


def rdp_guarantee(query: BoundQuery) -> Guarantee:
    """Return the guarantee of any pure randomizer that all clients share, by its pair's divergence.

    The epsilon is that of a run's column `rdp`: both call `rounds_epsilon`.
    """
    rounds = {PureRound(*pure_batch(query)): query.rounds}

    def total(order: float) -> float:
        return rounds_divergence(rounds, order)

    # Of all rounds together.
    bound = _Bound(total, Status.PROVEN, RDP_SOURCE, (ONE_RANDOMIZER,))
    if query.delta is not None:
        found = rounds_epsilon(rounds, query.delta, query.order)
        return _answered(query, bound, (found.epsilon, query.delta), found.order, found.divergence)
    epsilon = query.epsilon or 0.0
    order = _chosen_order(query, bound, lambda each: rdp_delta(each, total(each), epsilon))
    # Nobody loses more than epsilon0 in a round.
    delta = rdp_delta(order, total(order), epsilon) if epsilon < pure_epsilon(rounds) else 0.0
    return _answered(query, bound, (epsilon, min(1.0, delta * ROUND_UP)), order, total(order))


RDP = Method(
    "rdp",
    "Renyi divergence of the shuffled pair, any randomizer",
    rdp_guarantee,
    headline=False,
    orders=True,
)
"""Not asked for the smallest proven bound: `clone` composes the same pair without a conversion."""


def asymptotic_guarantee(query: BoundQuery) -> Guarantee:
    epsilon0, clients = published_batch(query)
    theorem = "Theorem 3" if query.rounds > 1 else "Corollary 2"
    bound = _Bound(
        lambda order: chen2024_rdp(epsilon0, clients, order),
        Status.AS_PUBLISHED,
        f"Chen, Cao, Ge 2024 (ICASSP), {theorem}",
        ("a central limit theorem without error term",),
    )
    return _converted(query, bound)


RDP_ASYMPTOTIC = Method(
    "rdp-asymptotic",
    "2 e^epsilon0 order/(n - 1), as published",
    asymptotic_guarantee,
    headline=False,
    orders=True,
)


def girgis_upper_guarantee(query: BoundQuery) -> Guarantee:
    epsilon0, clients = published_batch(query)
    bound = _Bound(
        lambda order: girgis_upper_rdp(epsilon0, clients, round(order)),
        Status.AS_PUBLISHED,
        "Girgis et al. 2021 (CCS), smallest of its upper bounds",
        (ONE_RANDOMIZER, "its proof is not reproduced here"),
        whole=True,
    )
    return _converted(query, bound)


GIRGIS_UPPER = Method(
    "girgis-upper",
    "Girgis et al. 2021, upper bound at integer orders, as published",
    girgis_upper_guarantee,
    headline=False,
    orders=True,
)


def girgis_lower_guarantee(query: BoundQuery) -> Guarantee:
    """Return what binary randomized response certainly loses, by its Renyi divergence."""
    epsilon0, clients = published_batch(query)
    require_one_round(query)
    # For no randomizer: binary randomized response is one of that budget, so no bound on all of
    # them can be smaller.
    if query.matrix or query.randomizer not in (None, "krr") or (query.k or 2) != 2:
        raise NotApplicableError(
            f"{query.method} is reached by binary randomized response: it needs randomizer = krr "
            "with k = 2, or no randomizer"
        )
    if query.delta is None:
        raise NotApplicableError(f"{query.method} computes epsilon only: give delta")
    delta = query.delta

    def reached(order: float) -> float:
        found = girgis_lower_rdp(epsilon0, clients, round(order))
        return reached_epsilon(epsilon0, order, found, delta)

    bound = _Bound(reached, Status.LOWER_BOUND, "", (), whole=True)
    # A lower bound at every order: here the largest is looked for.
    order = _chosen_order(query, bound, lambda each: -reached(each))
    return answer_to(
        query,
        CurvePoint(reached(order), delta, 0.0),
        Status.LOWER_BOUND,
        "Girgis et al. 2021 (CCS), lower bound, against what (epsilon, delta) allow",
        ("all clients use binary randomized response with this local budget",),
        order=order,
        rdp=girgis_lower_rdp(epsilon0, clients, round(order)),
    )


GIRGIS_LOWER = Method(
    "girgis-lower",
    "Girgis et al. 2021, lower bound at integer orders",
    girgis_lower_guarantee,
    headline=False,
    orders=True,
    sees="reports",
)

RENYI_METHODS = (RDP, RDP_ASYMPTOTIC, GIRGIS_UPPER, GIRGIS_LOWER)
