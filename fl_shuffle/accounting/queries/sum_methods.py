"""Vector reports of which only the sum leaves: methods `sum` and `sum-attack`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fl_shuffle._internal.arrays import Counts
from fl_shuffle.accounting.add_remove import add_remove_epsilon
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports, sum_assumption
from fl_shuffle.accounting.client_classes import ClientClass, ShuffledRound
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.lower_bounds.sum_attack import LAPLACE_NOTE
from fl_shuffle.accounting.queries.guarantees import Method, answer_to, epsilon_and_delta
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.vector_methods import (
    report_classes,
    report_details,
    sum_test,
)
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, Spent
from fl_shuffle.accounting.rounds.sum_account import SumTable
from fl_shuffle.accounting.rounds.words import CONTINUOUS
from fl_shuffle.errors import NotApplicableError


def sum_guarantee(query: BoundQuery) -> Guarantee:
    """Return the most exposed client's proven guarantee over `rounds` equal sums of reports.

    The reports are those of `vector_guarantee`, each counting once in the sum: everybody's
    noise hides everybody, whatever its scale. Of Laplace reports, in any dimension up to 10^9, what
    is proven of them shuffled holds of their sum as well: the smaller cost is the answer. Raises
    `NotApplicableError` for other reports.
    """
    classes = report_classes(query, "for other randomizers use blanket, for any randomizer clone")
    table, counts, honest = _sum_of(query, classes)
    # Section 14: mu^2 of independent rounds add up.
    squares = query.rounds * table.cost(counts, honest)[0]
    curves = [table.curve(index, mu, query.rounds) for index, mu in enumerate(squares.tolist())]
    # For the shuffled reports, too, those that are not honest hide nobody.
    library, lost = RoundLibrary(), int(counts.sum()) - honest
    # Of Gaussian reports the sum never costs more than the reports.
    spent: list[Spent] = [
        {ShuffledRound.of(classes, index).without(lost): query.rounds}
        for index in range(len(classes) if table.laplace else 0)
    ]

    def epsilon_at(delta: float) -> float:
        # The smaller of two proven numbers for each class, and the largest class: a maximum of
        # minima.
        own = [curve.epsilon(delta) for curve in curves]
        seen = [library.epsilon(history, delta) for history in spent] or own
        return max(map(min, own, seen))

    def delta_at(epsilon: float) -> float:
        own = [float(curve.profile(epsilon)) for curve in curves]
        seen = [float(library.profile(history, [epsilon])[0]) for history in spent] or own
        return max(map(min, own, seen))

    return answer_to(
        query,
        epsilon_and_delta(query, epsilon_at, delta_at),
        Status.PROVEN,
        CONTINUOUS.sum,
        (
            sum_assumption(query.clients or 1, query.assumed_honest),
            "n reports arrive, with independent noise; parameters depend on public outputs only",
        ),
        **report_details(query, classes),
        **_add_remove(query, epsilon_at),
        release=query.release,
    )


SUM = Method(
    "sum",
    "vector reports of which only the sum leaves",
    sum_guarantee,
    of_records=True,
    sees="sum",
)


def _sum_of(query: BoundQuery, classes: list[ClientClass]) -> tuple[SumTable, Counts, int]:
    """Return what the classes contribute to a sum; how many reports of each, and honest ones in
    all."""
    counts = np.array([kind.count for kind in classes], dtype=np.int64)
    honest = honest_reports(query.assumed_honest, int(counts.sum()))
    return SumTable.of(classes, None), counts, honest


def _add_remove(query: BoundQuery, epsilon_at: Callable[[float], float]) -> dict[str, float]:
    """Return the answer's epsilon in the other relation, where it applies."""
    # The conversion goes through mu, which only Gaussian sums have.
    if query.delta is None or query.randomizer != "gaussian":
        return {}
    found = add_remove_epsilon(epsilon_at(query.delta), query.delta)
    return {} if found is None else {"epsilon_add_remove": found}


def sum_attack_guarantee(query: BoundQuery) -> Guarantee:
    """Return what the best test on the sums certainly reaches against the most exposed client.

    Raises `NotApplicableError` where it reaches nothing.
    """
    classes = report_classes(query, "for other randomizers there is no attack on sums here")
    if query.randomizer == "laplace":
        raise NotApplicableError(f"{query.method}: {LAPLACE_NOTE}")
    test = sum_test(query, classes)
    epsilon, delta = epsilon_and_delta(query, test.epsilon, test.delta)
    if min(epsilon, delta) == 0.0 and (query.delta is not None or delta == 0.0):
        raise NotApplicableError(
            f"{query.method}: the attack on the sums reaches no positive epsilon here"
        )
    return answer_to(
        query,
        (epsilon, delta),
        Status.LOWER_BOUND,
        CONTINUOUS.sum_lower,
        ("the client's mean moves along one coordinate",),
        **report_details(query, classes),
        release=query.release,
    )


SUM_ATTACK = Method(
    "sum-attack",
    "what the best test on sums of vector reports reaches",
    sum_attack_guarantee,
    of_records=True,
    sees="sum",
)
