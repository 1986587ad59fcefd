"""How the bounds of a randomizer, and of any randomizer of a local budget, answer a `BoundQuery`.

Every function checks its conditions and raises `NotApplicableError` naming the one that failed.
"""

from __future__ import annotations

import math

from fl_shuffle.accounting.bounds.blanket import blanket_curve, blanket_delta, blanket_epsilon
from fl_shuffle.accounting.bounds.clones import standard_clone_curve
from fl_shuffle.accounting.bounds.gspa import gspa_mu
from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile import PROFILE_MAX_EPSILON, LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve
from fl_shuffle.accounting.bounds.worst_client import worst_client_curve
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta, gaussian_epsilon
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.lower_bounds.chosen_datasets import (
    lower_bound_delta,
    lower_bound_epsilon,
)
from fl_shuffle.accounting.queries.guarantees import (
    ONE_RANDOMIZER,
    SHUFFLED,
    Method,
    answer_to,
    assumed,
    epsilon_and_delta,
    guarantee_from_curve,
    over_rounds,
    require_one_round,
    secrecy,
)
from fl_shuffle.accounting.queries.query import BoundQuery, make_randomizer
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import NotApplicableError

PROFILE_SOURCE = (
    "partial shuffle by a random swap, then convex order (docs/research/proofs, section 13)"
)
SHARED_BLANKETS = ("krr", "blh", "hadamard", "laplace")
"""Randomizers whose blanket distribution does not depend on the budget."""


def blanket_guarantee(query: BoundQuery) -> Guarantee:
    query.require_pure()
    if query.personal:
        return _personal_blanket(query)
    epsilon0, _, clients = query.local
    randomizer, share = make_randomizer(query, epsilon0), query.participation
    source, assumptions = randomizer.source, randomizer.assumptions
    # Rounds are composed from the whole curve; one round needs it at one point only.
    if query.rounds > 1:
        curve = blanket_curve(randomizer, clients, participation=share)
        local = randomizer.local_epsilon
        return guarantee_from_curve(query, curve, local, Status.PROVEN, source, assumptions)
    if query.delta is not None:
        point = blanket_epsilon(randomizer, clients, query.delta, participation=share)
    else:
        point = blanket_delta(randomizer, clients, query.epsilon or 0.0, participation=share)
    assumptions = (*assumed(query), *assumptions)
    return answer_to(query, point, Status.PROVEN, source, assumptions)


BLANKET = Method(
    "blanket",
    "the randomizer's own privacy blanket, solved exactly",
    blanket_guarantee,
    absence=True,
)


def _personal_blanket(query: BoundQuery) -> Guarantee:
    if query.randomizer not in SHARED_BLANKETS:
        given = f"not {query.randomizer}" if query.randomizer else "and no randomizer is named"
        raise NotApplicableError(
            f"{query.method} with personal budgets needs a blanket that does not depend on the "
            f"budget: krr, blh, hadamard, or laplace (common noise, personal clipping), {given}; "
            "account per cohort of equal budgets instead"
        )
    largest = make_randomizer(query, max(query.classes).epsilon0)
    curve = worst_client_curve(
        query.classes,
        # The shared blankets' pairs are symmetric: the first case is the only one.
        lambda epsilon0: make_randomizer(query, epsilon0).cases()[0].law,  # type: ignore[arg-type, return-value]
        # The blanket's shape is common, so its mass in another client's report depends on that
        # client's budget alone.
        lambda own, other: make_randomizer(query, other.epsilon0).cases()[0].blanket_mass,
        participation=query.participation,
    )
    return guarantee_from_curve(
        query,
        curve,
        largest.local_epsilon,
        Status.PROVEN,
        f"{largest.source}, blanket masses of each client",
        (*largest.assumptions, "the most exposed client's curve; budgets are public"),
    )


def chosen_dataset_guarantee(query: BoundQuery) -> Guarantee:
    require_one_round(query)
    query.require_pure()
    epsilon0, _, clients = query.local
    randomizer, share = make_randomizer(query, epsilon0), query.participation
    if query.delta is not None:
        point = lower_bound_epsilon(randomizer, clients, query.delta, participation=share)
    else:
        point = lower_bound_delta(randomizer, clients, query.epsilon or 0.0, participation=share)
    assumptions = (
        "a chosen data set: the others hold x0, x1, a third value or a mix of them",
        *secrecy(query),
        *randomizer.assumptions,
    )
    source = "Su, Cheng, Wang 2025, Theorem 5"
    return answer_to(query, point, Status.LOWER_BOUND, source, assumptions)


LOWER = Method(
    "lower",
    "exact divergence of a dataset of the randomizer",
    chosen_dataset_guarantee,
    absence=True,
    sees="reports",
)


# --- bounds for any randomizer of a local budget -----------------------------------------------


def clone_guarantee(query: BoundQuery) -> Guarantee:
    query.require_pure()
    epsilon0, _, clients = query.local
    curve = standard_clone_curve(epsilon0, clients, participation=query.participation)
    source = "Feldman, McMillan, Talwar 2022, standard clone"
    return guarantee_from_curve(query, curve, epsilon0, Status.PROVEN, source, (ONE_RANDOMIZER,))


CLONE = Method(
    "clone",
    "standard clone, any randomizer, solved exactly",
    clone_guarantee,
    absence=True,
    any_randomizer=True,
)


def _profile_of(query: BoundQuery) -> LocalProfile:
    """Return the profile a query states: its list of points, or its (epsilon0, delta0)."""
    if query.profile:
        return profiles.points(query.pairs)
    epsilon0, delta0, _ = query.local
    # With an epsilon0 of 0 only certain loss is left, delta0, and no shuffle hides that.
    if not 0.0 < epsilon0 <= PROFILE_MAX_EPSILON:
        raise NotApplicableError(
            f"profile needs 0 < epsilon0 <= {PROFILE_MAX_EPSILON:g}, got {epsilon0:g}"
        )
    return profiles.approximate(epsilon0, delta0)


def profile_guarantee(query: BoundQuery) -> Guarantee:
    """Return the guarantee of any randomizer, from its local profile alone."""
    if query.personal:
        raise NotApplicableError(
            "profile is stated for one local profile that holds between any two reports; with "
            "personal budgets give the weakest of them, or use blanket or vector"
        )
    profile = _profile_of(query)
    clients = query.clients or 1
    curve = ProfileCurve(profile, clients)
    if query.rounds == 1:
        epsilon, delta = epsilon_and_delta(query, curve.epsilon, curve.delta)
    else:
        # h(top) = 0: no report gives its input away, and a round's loss is at most log(top).
        pure = profile.beyond == 0.0
        epsilon, delta = over_rounds(query, curve, math.log(profile.top), pure=pure)
    epsilon, delta = _not_above_composed(query, epsilon, delta)
    assumptions = (SHUFFLED, f"any two reports are within the local profile {profile.name}")
    return answer_to(query, (epsilon, delta), Status.PROVEN, PROFILE_SOURCE, assumptions)


def _not_above_composed(query: BoundQuery, epsilon: float, delta: float) -> tuple[float, float]:
    """Return the answer, or what the stated pairs add up to over the rounds where that is
    smaller."""
    pairs = query.pairs or (query.local[:2],)
    # Basic composition of a client's own reports: (T epsilon, T delta). Shuffling is
    # post-processing of them. The products are rounded up.
    times = query.rounds * (ROUND_UP if query.rounds > 1 else 1.0)
    sums = [(times * one, times * two) for one, two in pairs]
    if query.delta is not None:
        return min([epsilon, *(one for one, two in sums if two <= query.delta)]), delta
    return epsilon, min([delta, *(two for one, two in sums if one <= epsilon)])


PROFILE = Method(
    "profile",
    "any randomizer, from its local privacy profile alone",
    profile_guarantee,
    any_randomizer=True,
)


def gspa_guarantee(query: BoundQuery) -> Guarantee:
    # mu is the parameter of all rounds already.
    mu = gspa_mu(query.local_budgets, rounds=query.rounds)
    point = epsilon_and_delta(
        query,
        lambda delta: gaussian_epsilon(delta, mu),
        lambda epsilon: gaussian_delta(epsilon, mu),
    )
    theorem = "Theorems 2 and 5" if query.rounds > 1 else "Theorem 2"
    source = f"Chen, Cao, Ge 2024 (GSPA), {theorem}"
    assumptions = (SHUFFLED, "a central limit theorem without error term")
    return answer_to(query, point, Status.AS_PUBLISHED, source, assumptions, mu=mu)


GSPA = Method("gspa", "GSPA's Gaussian-DP parameter, as published", gspa_guarantee)
