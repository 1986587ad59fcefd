"""Many rounds by one secret sample of the clients: amplified by the sampling once.

Each of n clients takes part in all T rounds or in none, by one coin of probability q. The number
K ~ Bin(n, q) of reports is the same in every round and in both worlds. Given K = k, the set S of
those who take part is uniform among all sets of k clients. Let P, Q, and A be the distributions of
the outcomes of all T rounds given that client 1 is in S with either input, or that it is not. The
derivation of docs/research/proofs, section 16, uses of one round only that P, Q, and A are mixtures
over S and that H, the hockey-stick divergence, is jointly convex. Both hold of T rounds together,
so

    delta(eps) <= E_K min{ (r a/alpha) D_K(alpha) + (1 - r) ((a - 1)/alpha) D_K(alpha), r D_K(a) }

with r = K/n, a = e^eps, alpha = 1 + (a - 1)/r, and D_k a bound on the divergence between T rounds
of k reports that differ in one client: the composition of T rounds in which all k take part. (The
third bound of that section, D_n(a), does not carry over: one shuffle of n reports does not say
which of them belong to the same k clients in every round.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fl_shuffle.accounting.bounds.participation import cells_of, mixture_weights
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.numerics.monotone_search import solve
from fl_shuffle.accounting.numerics.stop_loss import DeltaBound
from fl_shuffle.accounting.queries.composed_rounds import composed_rounds
from fl_shuffle.accounting.queries.guarantees import assumed
from fl_shuffle.accounting.queries.query import MAX_EPSILON, BoundQuery
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import NotApplicableError

SMALL_CELL = 1e-4
"""A cell of numbers of reports that is rarer than this share of the delta so far counts whole."""


class FixedSampleCurve:
    """delta(epsilon) of T rounds by one secret sample; an upper bound, for replacing one unit.

    `replaced(k)` and `moved(k)` compose T rounds of k reports, in which one client's input is
    replaced, or one client by another one.
    """

    def __init__(
        self,
        clients: int,
        rate: float,
        replaced: Callable[[int], Composition],
        moved: Callable[[int], Composition] | None = None,
    ) -> None:
        self._clients, self._rate = clients, rate
        self._cells = cells_of(clients, rate)
        self._replaced, self._moved = replaced, moved
        self._known: dict[tuple[int, bool], Composition] = {}

    def __call__(self, epsilon: float) -> DeltaBound:
        total = 0.0
        # All numbers of a cell count at its least favorable ends: the composition of its smallest
        # batch, r at its largest (docs/research/proofs, section 16, "Cells").
        for weight, low, high in self._cells:
            if weight <= SMALL_CELL * total:
                total += weight  # no divergence is above one
                continue
            at, of_replaced, of_moved = mixture_weights(
                low / self._clients, high / self._clients, epsilon
            )
            replaced = self._composed(low, moved=False)
            found = of_replaced * replaced.delta(at)
            found += of_moved * self._composed(low, moved=self._moved is not None).delta(at)
            # Step 4, without A: what T rounds of this batch would cost if everybody knew who is
            # in it, r times.
            total += weight * min(found, high / self._clients * replaced.delta(epsilon))
        # A client that is absent, with probability 1 - q, costs nothing.
        return DeltaBound(min(self._rate, total) * ROUND_UP, 0.0)

    def _composed(self, reports: int, *, moved: bool) -> Composition:
        """Return T rounds of this number of reports, made at the first request."""
        if (reports, moved) not in self._known:
            make = self._moved if moved and self._moved is not None else self._replaced
            self._known[reports, moved] = make(reports)
        return self._known[reports, moved]


def fixed_sample_guarantee(
    query: BoundQuery, answer: Callable[[BoundQuery], Guarantee]
) -> Guarantee:
    """Answer a query whose clients are drawn once for all of its rounds.

    `answer` evaluates queries in which all clients take part. Raises `NotApplicableError` for a
    method that is no proven upper bound, and for clients of different budgets.
    """
    if query.budgets:
        raise NotApplicableError(
            "sampling = 'once' is stated for clients of one budget: give epsilon0 and clients in "
            "place of budgets, or leave sampling out (clients are then drawn in every round)"
        )
    # One round of everybody: whether the method applies and what it assumes. Its number is not
    # used.
    checked = answer(replace(query, participation=1.0, sampling="each-round", rounds=1))
    if checked.status is not Status.PROVEN:
        raise NotApplicableError(
            f"{query.method} is not a proven upper bound: only proven bounds can be amplified by "
            "sampling"
        )
    curve = fixed_sample_curve(query, answer)
    point = solve(curve, MAX_EPSILON, epsilon=query.epsilon, delta=query.delta)
    details = {"rounds": query.rounds, "participation": query.participation}
    return replace(
        checked,
        epsilon=point.epsilon,
        delta=point.delta,
        numerical_error=0.0,
        source=f"{checked.source}; one secret sample (docs/research/proofs, section 16)",
        assumptions=(*checked.assumptions, *assumed(query)[1:]),
        details={**checked.details, **details, "sampling": query.sampling},
    )


def fixed_sample_curve(
    query: BoundQuery, answer: Callable[[BoundQuery], Guarantee]
) -> FixedSampleCurve:
    """Return delta(epsilon) of the query's rounds by one sample; see `fixed_sample_guarantee`."""
    whole = replace(query, participation=1.0, sampling="each-round")

    def of(**changed: Any) -> Callable[[int], Composition]:
        return lambda reports: composed_rounds(replace(whole, clients=reports, **changed), answer)

    # With one record in a report, replacing the record replaces the report: both curves are one.
    several = query.unit == "record" and query.records > 1
    # A client in another one's place changes all records of a report.
    moved = of(**_client_unit(whole)) if several else None
    return FixedSampleCurve(query.clients or 1, query.participation, of(), moved)


def _client_unit(query: BoundQuery) -> dict[str, Any]:
    """Return the same reports, of which a whole one is replaced: noise of the same scale."""
    if query.sigma is None:
        raise NotApplicableError(
            "sampling = 'once' with unit = 'record' needs the noise scale: give sigma in "
            "place of epsilon0 and delta0"
        )
    return {"unit": "client"}
