"""The certificate of an answer of `bound`."""

from __future__ import annotations

import math
from typing import Any

from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.guarantee import Guarantee
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.queries.vector_methods import report_classes
from fl_shuffle.accounting.report_grid import report_grids
from fl_shuffle.certificates.writing import (
    certificate,
    exact,
    randomized_response,
    shuffled_witness,
)
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.verify.gaussian import rounds_of
from fl_shuffle.verify.reading import Fields

ANY_DIMENSION = 10**9
"""Sums are certified for every dimension up to this."""
KINDS = {"vector": "shuffled", "sum": "sum"}


def certificate_of(query: BoundQuery, answer: Guarantee) -> dict[str, Any]:
    """Return what `fl_shuffle.verify` accepts for the question that `answer` answers.

    Its epsilon is the one that the verifier proves, at the answer's delta. Raises
    `NotApplicableError` where there is none.
    """
    if not 0 < answer.delta < 1:
        raise NotApplicableError(
            f"no certificate can be written at delta = {answer.delta:g}; give a delta above 0"
        )
    if query.participation < 1:
        raise NotApplicableError(
            "no certificate can be written with participation < 1: leave it out"
        )
    if answer.method == "blanket" and query.randomizer == "krr" and len(query.local_budgets) == 1:
        return randomized_response(
            int(query.k or 2),
            float(query.epsilon0 or 0),
            int(query.clients or 0),
            query.rounds,
            answer.delta,
            answer.epsilon,
        )
    kind = KINDS.get(answer.method)
    if kind is None or query.randomizer != "gaussian" or query.assumed_honest is not None:
        raise NotApplicableError(
            "certificates are written for Gaussian reports (methods vector, sum; all honest) and "
            "for randomized response (method blanket)"
        )
    (own,) = _one_class(report_classes(query, "no certificate for them"))
    facts = {"dimension": str(ANY_DIMENSION), "rounds": [_round(own, query.rounds)]}
    witness, page = {}, None
    if kind == "shuffled":
        rounds = rounds_of(Fields(facts, "facts"))
        witness = shuffled_witness(rounds, answer.delta, printed=answer.epsilon)
        page = shuffled_witness(rounds, answer.delta, printed=answer.epsilon, short=True)
    return certificate(
        kind,
        facts,
        witness,
        unit=query.replaced,
        client=None,
        delta=answer.delta,
        start=max(answer.epsilon, math.ulp(1.0)),
        page=page,
    )


def _one_class(classes: list[ClientClass]) -> tuple[ClientClass]:
    if len(classes) != 1:
        raise NotApplicableError(
            "no certificate can be written for several budgets: give one epsilon0"
        )
    return (classes[0],)


def _round(own: ClientClass, times: int) -> dict[str, Any]:
    """Return one type of round: `count` clients with the same noise, radius and sensitivity."""
    (grid,) = report_grids([own.scale], [own.radius])  # type: ignore[arg-type]
    alike = {"scale": exact(own.scale), "radius": exact(own.radius), "grid": exact(float(grid))}
    # The claim is about any client: each one's sensitivity has to be stated.
    alike["sensitivity"] = exact(own.sensitivity)
    others = [{**alike, "count": str(own.count - 1)}] if own.count > 1 else []
    return {
        "times": str(times),
        "noise": own.noise,
        **alike,
        "others": others,
        "colluders": "0",
    }
