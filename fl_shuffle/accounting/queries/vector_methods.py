"""Vector reports with Gaussian or Laplace noise, any dimension: methods `vector` and `attack`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.sum_release.honest import honest_reports
from fl_shuffle.accounting.client_classes import MAX_RATIO, ClientClass, ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import analytic_sigma, classical_sigma
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.lower_bounds.sum_attack import sum_attack_delta, sum_attack_epsilon
from fl_shuffle.accounting.queries.guarantees import Method, answer_to, epsilon_and_delta, secrecy
from fl_shuffle.accounting.queries.query import BoundQuery
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, Spent, curve_of
from fl_shuffle.accounting.rounds.sum_account import SumTable
from fl_shuffle.errors import InvalidValueError, NotApplicableError

VECTOR_RANDOMIZERS = ("gaussian", "laplace")
LARGEST_NOISE = 1e60
"""Largest noise scale, in clipping norms: larger squares, summed over clients, overflow."""
ON_ONE_LINE = "the client's mean moves along a line, at whose other end the others' means lie"
IN_THE_PLANE = (
    "the client's mean moves along a line or between two axes; the others' means lie together"
)
"""Of Laplace reports, which have two coordinates or more: `lower_bounds.vector_data_sets`."""


def vector_guarantee(query: BoundQuery) -> Guarantee:
    """Return the most exposed client's proven guarantee over `rounds` equal rounds, local guarantee
    included.

    The mean report lies in a ball of radius 1 (only ratios matter). Replacing one client moves it
    by at most 2; replacing one record, of `records` clipped one by one and averaged, by 2/records.
    The noise is calibrated to that and to (epsilon0, delta0). Personal budgets mean personal noise:
    a client hides only among clients of the same budget.
    """
    classes = report_classes(query, "for other randomizers use blanket, for any randomizer clone")
    library = RoundLibrary()
    # Each class is tried as the exposed one: its curve is over the others that share its noise.
    views = batches(query, classes)
    histories: list[Spent] = [{view: query.rounds} for view in views]
    numbers = epsilon_and_delta(
        query,
        lambda delta: max(library.epsilon(history, delta) for history in histories),
        lambda epsilon: max(float(library.profile(spent, [epsilon])[0]) for spent in histories),
    )
    return answer_to(
        query,
        numbers,
        Status.PROVEN,
        "partial shuffles by a random swap and blanket (theorems in docs/research/proofs, sections "
        + ("13, 5 and 16" if query.participation < 1.0 else "13 and 5")
        + "), minimum with the local curve",
        (
            "n reports arrive, each shuffled whole, unscaled and unlabelled, independent noise",
            "each round is shuffled afresh; parameters depend on public outputs only",
            *secrecy(query),
        ),
        **report_details(query, classes),
        shuffling_helps=any(curve_of(view).credit for view in views),
    )


VECTOR = Method(
    "vector",
    "vector reports: noise on a ball, any dimension",
    vector_guarantee,
    of_records=True,
    absence=True,
)


def attack_guarantee(query: BoundQuery) -> Guarantee:
    """Return an epsilon that a computed attack on the most exposed client certainly reaches, or a
    delta.

    The reports are those of `vector_guarantee`. The sum of the reports is computed from
    them, so what the test on the sums reaches is reached here: the larger one is the answer. Raises
    `NotApplicableError` where no attack of ours succeeds.
    """
    from fl_shuffle.accounting.lower_bounds.likelihood_ratio import attack_delta, attack_epsilon

    classes = report_classes(query, "for other randomizers use lower")
    views = batches(query, classes)
    by_sum = sum_test(query, classes)
    # What holds on one axis holds in any dimension. Data sets of Laplace reports have a second one.
    dimension = 2 if query.randomizer == "laplace" else 1
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: max(
            by_sum.epsilon(delta),
            *(attack_epsilon(view, query.rounds, delta, dimension) for view in views),
        ),
        lambda epsilon: max(
            by_sum.delta(epsilon),
            *(attack_delta(view, query.rounds, epsilon, dimension) for view in views),
        ),
    )
    if query.delta is not None and epsilon == 0.0:
        raise NotApplicableError(f"lower: no known attack reaches delta = {delta:g}")
    if delta == 0.0:
        raise NotApplicableError(f"lower: no known attack reaches epsilon = {epsilon:g}")
    return answer_to(
        query,
        (epsilon, delta),
        Status.LOWER_BOUND,
        "likelihood-ratio attack on a chosen data set, or on the sum of its reports; its errors "
        "counted against it",
        (
            IN_THE_PLANE if query.randomizer == "laplace" else ON_ONE_LINE,
            "the dimension is large enough to tell reports with another noise scale apart",
        ),
        **report_details(query, classes),
    )


@dataclass(frozen=True)
class SumTest:
    """The test on the sums of a query's reports: its Gaussian-DP parameter, 0 where there is none,
    and the coarsest grid of a report in units of its noise scale."""

    mu: float
    coarsest: float

    def epsilon(self, delta: float) -> float:
        """Return what it certainly reaches at `delta`; 0 if nothing."""
        return sum_attack_epsilon(delta, self.mu, self.coarsest)

    def delta(self, epsilon: float) -> float:
        """Return what it certainly reaches at `epsilon`; 0 if nothing."""
        return sum_attack_delta(epsilon, self.mu, self.coarsest)


def sum_test(query: BoundQuery, classes: list[ClientClass]) -> SumTest:
    """Return the test of the query's rounds against the most exposed class; none for Laplace
    reports."""
    table = SumTable.of(classes, None)
    if table.laplace:
        return SumTest(0.0, table.coarsest)
    counts = np.array([kind.count for kind in classes], dtype=np.int64)
    honest = honest_reports(query.assumed_honest, int(counts.sum()))
    # mu^2 of one sum; those of rounds add up, and the test weighs all sums.
    squares = table.cost(counts, honest)[1]
    return SumTest(math.sqrt(query.rounds * float(squares.max())), table.coarsest)


ATTACK = Method(
    "attack",
    "vector reports: what a computed attack reaches",
    attack_guarantee,
    of_records=True,
    sees="reports",
)


def batches(query: BoundQuery, classes: list[ClientClass]) -> list[ShuffledRound]:
    """Return the query's round as a client of each class sees it."""
    return [ShuffledRound.of(classes, i, query.participation) for i in range(len(classes))]


def report_details(query: BoundQuery, classes: list[ClientClass]) -> dict[str, Any]:
    """Return what an answer about vector reports says of the question, beside its other fields."""
    return {
        "records": query.records,
        "calibration": query.calibration,
        "budget_classes": len(classes),
    }


def report_classes(query: BoundQuery, instead: str) -> list[ClientClass]:
    """Return the query's reports: noise calibrated to its budgets on means in a ball of radius 1.

    Raises `NotApplicableError`, ending with `instead`, where the randomizer is another one.
    """
    if query.randomizer not in VECTOR_RANDOMIZERS:
        raise NotApplicableError(
            f"{query.method} is the bound for vector reports (randomizer gaussian or laplace); "
            + instead
        )
    # Means in a ball of radius 1: a whole client moves by its diameter, one of B averaged records
    # by 2/B (docs/research/proofs, section 0).
    sensitivity = 2.0 if query.unit == "client" else 2.0 / query.records
    if query.sigma is not None:
        count = query.clients or 1
        # The move, up to 2, in noise standard deviations.
        if query.sigma * MAX_RATIO < 2.0:
            raise InvalidValueError(
                "sigma", query.sigma, "is too small beside the reports to hide anything"
            )
        if query.sigma > LARGEST_NOISE:
            raise InvalidValueError(
                "sigma", query.sigma, f"must be at most {LARGEST_NOISE:g} clipping norms"
            )
        return [ClientClass(query.randomizer, query.sigma, 1.0, sensitivity, count=count)]
    return [_report_class(query, budget, sensitivity) for budget in query.local_budgets]


def _report_class(query: BoundQuery, budget: LocalBudget, sensitivity: float) -> ClientClass:
    if budget.epsilon0 <= 0.0:
        raise InvalidValueError("epsilon0", budget.epsilon0, "must be > 0 to fix a noise scale")
    if budget.epsilon0 < 1.0 / LARGEST_NOISE:
        raise InvalidValueError(
            "epsilon0", budget.epsilon0, f"must be at least {1.0 / LARGEST_NOISE:g} to fix a noise "
            "scale"
        )  # fmt: skip
    if query.randomizer == "laplace":
        if budget.delta0 > 0.0:
            raise InvalidValueError("delta0", budget.delta0, "must be 0 for Laplace noise")
        # One report is (sensitivity/b)-DP in l1: pure, whatever the dimension.
        scale = sensitivity / budget.epsilon0
    else:
        if budget.delta0 <= 0.0:
            raise InvalidValueError(
                "delta0",
                budget.delta0,
                "must be > 0 for Gaussian noise",
                "give --delta0, e.g. 1e-5",
            )
        sigma = classical_sigma if query.calibration == "classical" else analytic_sigma
        scale = sigma(budget.epsilon0, budget.delta0, sensitivity)
    return ClientClass(str(query.randomizer), scale, 1.0, sensitivity, count=budget.count)
