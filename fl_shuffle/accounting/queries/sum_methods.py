"""Vector reports of which only the sum leaves: methods `sum` and `sum-attack`."""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.guarantees import epsilon_and_delta
from fl_shuffle.accounting.queries.vector_methods import report_classes, report_details
from fl_shuffle.errors import NotApplicableError


def sum_guarantee(query: BoundQuery) -> Guarantee:
    """The worst client's proven guarantee over `rounds` equal sums of reports.

    The reports are those of `proven_vector_guarantee`, each counting once in the sum: everybody's
    noise hides everybody, whatever its scale. Raises `NotApplicableError` for other reports.
    """
    from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption
    from fl_shuffle.accounting.queries.planned_sums import class_curves
    from fl_shuffle.accounting.rounds.sum_account import SUM_SOURCE

    classes = report_classes(query, "for other randomizers use blanket, for any randomizer clone")
    curves = class_curves(classes, query.rounds, query.assumed_honest)
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: max(curve.epsilon(delta) for curve in curves),
        lambda epsilon: max(float(curve.profile(epsilon)) for curve in curves),
    )
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.PROVEN,
        source=SUM_SOURCE,
        assumptions=(
            sum_assumption(query.clients or 1, query.assumed_honest),
            "n reports arrive, with independent noise; parameters depend on public outputs only",
        ),
        unit=query.unit,
        details={**report_details(query, classes), "release": query.release},
    )


def sum_attack_guarantee(query: BoundQuery) -> Guarantee:
    """What the best test on the sums certainly reaches against the worst client.

    Raises `NotApplicableError` where it reaches nothing.
    """
    from fl_shuffle.accounting.attacks.sum_attack import (
        SUM_LOWER_SOURCE,
        sum_attack_delta,
        sum_attack_epsilon,
    )
    from fl_shuffle.accounting.queries.planned_sums import attacked_class_mu

    classes = report_classes(query, "for other randomizers there is no attack on sums here")
    each, coarsest = attacked_class_mu(classes, query.assumed_honest)
    mu = float(np.max(each)) * math.sqrt(query.rounds)
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: sum_attack_epsilon(delta, mu, coarsest),
        lambda epsilon: sum_attack_delta(epsilon, mu, coarsest),
    )
    if min(epsilon, delta) == 0.0 and (query.delta is not None or delta == 0.0):
        raise NotApplicableError(f"{query.method}: the test on the sums reaches nothing here")
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.LOWER_BOUND,
        source=SUM_LOWER_SOURCE,
        assumptions=("the client's mean moves along one coordinate",),
        unit=query.unit,
        details={**report_details(query, classes), "release": query.release},
    )
