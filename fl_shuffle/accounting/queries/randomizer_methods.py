"""How the bounds of a randomizer, and of any randomizer of a local budget, answer a `Question`.

Every function checks its conditions and raises `NotApplicableError` naming the one that failed.
"""

from __future__ import annotations

import math
from typing import Any

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta, lower_bound_epsilon
from fl_shuffle.accounting.bounds import blanket_moments
from fl_shuffle.accounting.bounds.blanket import BlanketBound
from fl_shuffle.accounting.bounds.clones import (
    clone_curve,
    clone_law,
    delta0_penalty,
    local_delta,
    standard_clone,
)
from fl_shuffle.accounting.bounds.personal_budgets import LocalBudget
from fl_shuffle.accounting.bounds.published import closed_form
from fl_shuffle.accounting.bounds.worst_client import worst_client_curve
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.guarantees import (
    ONE_RANDOMIZER,
    answer_to,
    assumed,
    guarantee_from_curve,
    guarantee_from_epsilon,
    require_one_round,
    secrecy,
)
from fl_shuffle.accounting.queries.question import Question, make_randomizer
from fl_shuffle.errors import NotApplicableError

SAFE_CLONE = ("krr", "laplace", "privunit")
"""Randomizers whose bound survives clones with probability 2/(1 + e^eps0) at equal budgets."""


def _setting(query: Question) -> dict[str, Any]:
    return {"participation": query.participation, "relative_error": query.relative_error}


def blanket_guarantee(query: Question) -> Guarantee:
    query.require_pure()
    if query.personal:
        return _personal_blanket(query)
    epsilon0, _, clients = query.local
    randomizer = make_randomizer(query, epsilon0)
    bound = BlanketBound.of(randomizer, clients, **_setting(query))
    source, assumptions = randomizer.source, randomizer.assumptions
    if query.rounds == 1:
        point = bound.solve(epsilon=query.epsilon, delta=query.delta)
        assumptions = (*assumed(query), *assumptions)
        return answer_to(query, point, Status.PROVEN, source, assumptions)
    local = randomizer.local_epsilon
    return guarantee_from_curve(query, bound.delta, local, Status.PROVEN, source, assumptions)


def _personal_blanket(query: Question) -> Guarantee:
    if query.randomizer not in SAFE_CLONE:
        raise NotApplicableError(
            "blanket with personal budgets needs a blanket law that does not depend on the "
            f"budget: krr, laplace (common noise, personal clipping) or privunit, not "
            f"{query.randomizer}; account per cohort of equal budgets instead"
        )
    largest = make_randomizer(query, max(query.classes).epsilon0)
    curve = worst_client_curve(
        query.classes,
        lambda epsilon0: make_randomizer(query, epsilon0).cases()[0].law,  # type: ignore[arg-type, return-value]
        lambda own, other: make_randomizer(query, other.epsilon0).cases()[0].blanket_mass,
        participation=query.participation,
        relative_error=query.relative_error,
    )
    return guarantee_from_curve(
        query,
        curve,
        largest.local_epsilon,
        Status.PROVEN,
        f"{largest.source}, blanket masses of each client",
        (*largest.assumptions, "the worst client's curve; budgets are public"),
    )


def chosen_dataset_guarantee(query: Question) -> Guarantee:
    require_one_round(query)
    query.require_pure()
    epsilon0, _, clients = query.local
    randomizer = make_randomizer(query, epsilon0)
    if query.delta is not None:
        point = lower_bound_epsilon(randomizer, clients, query.delta, **_setting(query))
    else:
        point = lower_bound_delta(randomizer, clients, query.epsilon or 0.0, **_setting(query))
    assumptions = (
        "a chosen data set: the others hold x0, x1, a third value or a mix of them",
        *secrecy(query),
        *randomizer.assumptions,
    )
    source = "Su, Cheng, Wang 2025, Theorem 5"
    return answer_to(query, point, Status.LOWER_BOUND, source, assumptions)


def moments_guarantee(query: Question, tail: str) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    formula = getattr(blanket_moments, f"{tail}_delta")
    if query.randomizer is None and not (query.parallel or query.matrix):
        cases, local, note = None, epsilon0, ONE_RANDOMIZER
    else:
        randomizer = make_randomizer(query, epsilon0)
        cases, local, note = randomizer.cases(), randomizer.local_epsilon, randomizer.name

    def curve(epsilon: float) -> DeltaBound:
        if cases is None:
            moments = [blanket_moments.BlanketMoments.generic(epsilon0, epsilon)]
        else:
            moments = [
                blanket_moments.BlanketMoments.of_law(law, case.blanket_mass, case.exposed(epsilon))
                for case in cases
                if (law := case.law(epsilon)) is not None
            ]
        values = [formula(each, clients, epsilon) for each in moments]
        return DeltaBound(min(max(values, default=1.0), local_delta(epsilon, local, 0.0)), 0.0)

    source = f"Balle, Bell, Gascon, Nissim 2019, Section 5 ({tail.capitalize()})"
    return guarantee_from_curve(query, curve, local, Status.PROVEN, source, (note,))


# --- bounds for any randomizer of a local budget -----------------------------------------------


def clone_guarantee(query: Question) -> Guarantee:
    if query.personal:
        return _personal_clone(query)
    epsilon0, delta0, clients = query.local
    if query.rounds == 1 or delta0 > 0.0:
        require_one_round(query)
        point = standard_clone(
            epsilon0,
            clients,
            epsilon=query.epsilon,
            delta=query.delta,
            delta0=delta0,
            **_setting(query),
        )
        theorem = "Theorem 3.8" if delta0 > 0.0 else "standard clone"
        source = f"Feldman, McMillan, Talwar 2022, {theorem}"
        assumptions = (*assumed(query), ONE_RANDOMIZER)
        return answer_to(query, point, Status.PROVEN, source, assumptions)
    curve = clone_curve(
        epsilon0,
        [(math.exp(-epsilon0), clients - 1)],
        participation=query.participation,
        relative_error=query.relative_error,
    )
    source = "Feldman, McMillan, Talwar 2022, standard clone"
    return guarantee_from_curve(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def _personal_clone(query: Question) -> Guarantee:
    query.require_pure()
    k = query.k

    def hiding(own: LocalBudget, other: LocalBudget) -> float:
        """e^-(how far the other's report law is from the own one's), both inputs arbitrary."""
        if query.randomizer == "laplace":
            return math.exp(-0.5 * (own.epsilon0 + other.epsilon0))
        rest = (k or 2) - 1.0
        mine, theirs = math.exp(-own.epsilon0), math.exp(-other.epsilon0)
        return min(1.0, theirs * (1.0 + rest * mine) / (1.0 + rest * theirs))

    if query.randomizer not in ("krr", "laplace"):
        raise NotApplicableError(
            "clone with personal budgets needs the distance between two clients' randomizers, "
            "which local budgets alone do not give: name krr or laplace, or use one cohort"
        )
    curve = worst_client_curve(
        query.classes,
        lambda epsilon0: lambda epsilon: clone_law(epsilon0, epsilon),
        hiding,
        participation=query.participation,
        relative_error=query.relative_error,
    )
    return guarantee_from_curve(
        query,
        curve,
        max(query.classes).epsilon0,
        Status.PROVEN,
        "Feldman, McMillan, Talwar 2022, standard clone, with personal clone probabilities",
        ("the worst client's curve; budgets are public",),
    )


def feldman2022_guarantee(query: Question) -> Guarantee:
    epsilon0, delta0, clients = query.local

    def pure(delta: float) -> float:
        return closed_form.feldman2022_epsilon(epsilon0, clients, delta)

    if delta0 == 0.0:
        source = "Feldman, McMillan, Talwar 2022, Theorem 3.1"
        return guarantee_from_epsilon(query, pure, Status.PROVEN, source, ONE_RANDOMIZER)

    require_one_round(query)

    def curve(epsilon: float) -> DeltaBound:
        try:
            hidden = closed_form.smallest_delta(pure, epsilon)
        except NotApplicableError:
            hidden = 1.0
        return DeltaBound(
            min(1.0, hidden + delta0_penalty(epsilon, epsilon0, delta0, clients)), 0.0
        )

    source = "Feldman, McMillan, Talwar 2022, Theorem 3.8"
    return guarantee_from_curve(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def feldman2023_guarantee(query: Question) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    _require_safe_clone(query)
    return guarantee_from_epsilon(
        query,
        lambda delta: closed_form.feldman2023_epsilon(epsilon0, clients, delta),
        Status.PROVEN,
        "Feldman, McMillan, Talwar 2023, closed form, where its reduction stands",
        ONE_RANDOMIZER,
    )


def _require_safe_clone(query: Question) -> None:
    if query.randomizer not in SAFE_CLONE or query.joint > 1:
        raise NotApplicableError(
            f"{query.method} needs every report law to be at least "
            "(R(x0) + R(x1))/(e^eps0 + 1); that is known for krr, laplace and privunit, not for "
            f"{query.randomizer or 'an arbitrary randomizer'}: its general proof is withdrawn"
        )


def variation_ratio_guarantee(query: Question) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    if query.randomizer != "krr" or query.joint > 1:
        raise NotApplicableError(
            "variation-ratio is sound where the two report laws of the differing client leave no "
            "common remainder; here that is checked for krr only"
        )
    k = query.k or 2
    low = 1.0 / (math.exp(epsilon0) + k - 1.0)
    remainder = (k - 2) * low
    if remainder > 0.0:
        raise NotApplicableError(
            f"variation-ratio is not an upper bound here: with k = {k} the differing client's "
            f"report falls on a third category with probability {remainder:.3g}, which the "
            "reduction treats as revealing nothing; use blanket"
        )
    curve = clone_curve(epsilon0, [(2.0 * low, clients - 1)], relative_error=query.relative_error)
    source = "Wang et al. 2025, where its decomposition is exact"
    return guarantee_from_curve(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


def erlingsson_guarantee(query: Question) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    return guarantee_from_epsilon(
        query,
        lambda delta: closed_form.erlingsson2019_epsilon(epsilon0, clients, delta),
        Status.PROVEN,
        "Erlingsson et al. 2019",
        ONE_RANDOMIZER,
    )
