"""Vector reports with Gaussian or Laplace noise, any dimension: methods `proven` and `attack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.guarantees import epsilon_and_delta, secrecy
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, NotApplicableError

if TYPE_CHECKING:
    from fl_shuffle.accounting.bounds.report_class import ReportClass
    from fl_shuffle.accounting.rounds.round_library import Spent

VECTOR_RANDOMIZERS = ("gaussian", "laplace")


def proven_vector_guarantee(query: BoundQuery) -> Guarantee:
    """The worst client's proven guarantee over `rounds` equal rounds, local guarantee included.

    The mean report lies in a ball of radius 1 (only ratios matter). Replacing one client moves it
    by at most 2; replacing one record, of `records` clipped one by one and averaged, by 2/records.
    The noise is calibrated to that and to (epsilon0, delta0). Personal budgets mean personal noise:
    a client hides only among clients of the same budget.
    """
    from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType

    classes = report_classes(query, "for other randomizers use blanket, for any randomizer clone")
    if query.participation < 1.0 or query.relative_error is not None:
        return _certified_answer(query, classes)
    library = RoundLibrary()
    histories: list[Spent] = [
        {RoundType.of(classes, index): query.rounds} for index in range(len(classes))
    ]
    epsilon, delta = epsilon_and_delta(
        query,
        lambda delta: max(library.epsilon(history, delta) for history in histories),
        lambda epsilon: max(float(library.profile(spent, [epsilon])[0]) for spent in histories),
    )
    credit = any(RoundType.of(classes, i).curve().credit for i in range(len(classes)))
    return _proven(query, classes, epsilon, delta, credit)


def _certified_answer(query: BoundQuery, classes: list[ReportClass]) -> Guarantee:
    """The same with secret check-in, or with a relative error that was asked for."""
    from fl_shuffle.accounting.bounds.vector import VectorCurve
    from fl_shuffle.accounting.engine.composition import Composition
    from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair
    from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType

    error = query.relative_error or TOLERANCES.vector_relative_error
    curves = [
        VectorCurve(classes, index, relative_error=error, participation=query.participation)
        for index in range(len(classes))
    ]
    if query.rounds == 1:
        epsilon, delta = epsilon_and_delta(
            query,
            lambda delta: max(curve.epsilon(delta, tolerance=min(1e-3, error)) for curve in curves),
            lambda epsilon: max(curve.delta(epsilon) for curve in curves),
        )
    else:
        # The local guarantee over all rounds holds whoever takes part.
        library = RoundLibrary()
        histories: list[Spent] = [
            {RoundType.of(classes, index): query.rounds} for index in range(len(classes))
        ]
        whole = [
            Composition([(shuffled_pair(curve), query.rounds)])
            for curve in curves
            if curve.credit or curve.own.ratio <= TOLERANCES.max_local_pair_ratio
        ]
        if len(whole) < len(curves):
            raise NotApplicableError(
                f"{query.method}: over several rounds the local noise is too small to compose with "
                "participation or relative_error; leave them out"
            )
        epsilon, delta = epsilon_and_delta(
            query,
            lambda delta: max(
                min(each.epsilon(delta), library.local_epsilon(spent, delta))
                for each, spent in zip(whole, histories, strict=True)
            ),
            lambda epsilon: max(each.delta(epsilon) for each in whole),
        )
    return _proven(query, classes, epsilon, delta, any(curve.credit for curve in curves))


def _proven(
    query: BoundQuery, classes: list[ReportClass], epsilon: float, delta: float, credit: bool
) -> Guarantee:
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.PROVEN,
        source=(
            "partial shuffles by a random swap and blanket (theorems in docs/proofs.md, sections "
            "13 and 5), minimum with the local curve"
        ),
        assumptions=(
            "n reports arrive, each shuffled whole, unscaled and unlabelled, independent noise",
            "each round is shuffled afresh; parameters depend on public outputs only",
            *secrecy(query),
        ),
        unit=query.unit,
        details={**report_details(query, classes), "shuffling_helps": credit},
    )


def attack_guarantee(query: BoundQuery) -> Guarantee:
    """An epsilon that a computed attack on the worst client certainly reaches, or a delta.

    The reports are those of `proven_vector_guarantee`. Raises `NotApplicableError` where no attack
    of ours succeeds.
    """
    from fl_shuffle.accounting.attacks.likelihood_ratio import attack_delta, attack_epsilon
    from fl_shuffle.accounting.rounds.round_library import RoundType

    classes = report_classes(query, "for other randomizers use lower")
    kinds = [RoundType.of(classes, index) for index in range(len(classes))]

    def epsilon_at(delta: float) -> float:
        epsilon = max(attack_epsilon(kind, query.rounds, delta) for kind in kinds)
        if epsilon == 0.0:
            raise NotApplicableError(f"attack: none that we compute reaches delta = {delta:g}")
        return epsilon

    def delta_at(epsilon: float) -> float:
        delta = max(attack_delta(kind, query.rounds, epsilon) for kind in kinds)
        if delta == 0.0:
            raise NotApplicableError(f"attack: none that we compute reaches epsilon = {epsilon:g}")
        return delta

    epsilon, delta = epsilon_and_delta(query, epsilon_at, delta_at)
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.LOWER_BOUND,
        source="likelihood-ratio attack on a chosen data set, its errors counted against it",
        assumptions=(
            "the others' means lie where they hide the client least",
            "the dimension is large enough to tell reports with another noise scale apart",
        ),
        unit=query.unit,
        details=report_details(query, classes),
    )


def report_details(query: BoundQuery, classes: list[ReportClass]) -> dict[str, object]:
    """What an answer about vector reports says of the question."""
    return {
        "randomizer": query.randomizer,
        "clients": query.clients,
        "rounds": query.rounds,
        "records": query.records,
        "participation": query.participation,
        "calibration": query.calibration,
        "budget_classes": len(classes),
    }


def report_classes(query: BoundQuery, instead: str) -> list[ReportClass]:
    """The query's reports: noise calibrated to its budgets on means in a ball of radius 1.

    Raises `NotApplicableError`, ending with `instead`, where the randomizer is another one.
    """
    if query.randomizer not in VECTOR_RANDOMIZERS or query.joint > 1:
        raise NotApplicableError(
            f"{query.method} is the bound for vector reports (randomizer gaussian or laplace); "
            + instead
        )
    return [_report_class(query, budget) for budget in query.local_budgets]


def _report_class(query: BoundQuery, budget: LocalBudget) -> ReportClass:
    from fl_shuffle.accounting.bounds.report_class import ReportClass
    from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma, classical_sigma

    sensitivity = 2.0 if query.unit == "client" else 2.0 / query.records
    if budget.epsilon0 <= 0.0:
        raise InvalidValueError("epsilon0", budget.epsilon0, "must be > 0 to fix a noise scale")
    if query.randomizer == "laplace":
        if budget.delta0 > 0.0:
            raise InvalidValueError("delta0", budget.delta0, "must be 0 for Laplace noise")
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
    return ReportClass(str(query.randomizer), scale, 1.0, sensitivity, budget.count)
