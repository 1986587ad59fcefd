"""Method `profile`: the shuffled guarantee of any randomizer of known local profile."""

from __future__ import annotations

import math

from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile import PROFILE_MAX_EPSILON, LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_curve import ProfileCurve
from fl_shuffle.accounting.engine.monotone_search import solve
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.guarantees import SHUFFLED, answer_to, over_rounds
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import NotApplicableError

SOURCE = "partial shuffle by a random swap, then convex order (docs/proofs.md, section 13)"


def query_profile(query: Question) -> LocalProfile:
    """The profile a query states: its list of points, or its (epsilon0, delta0)."""
    if query.profile:
        return profiles.points(query.pairs)
    epsilon0, delta0, _ = query.local
    if not 0.0 < epsilon0 <= PROFILE_MAX_EPSILON:
        raise NotApplicableError(
            f"profile needs 0 < epsilon0 <= {PROFILE_MAX_EPSILON:g}, got {epsilon0:g}"
        )
    return profiles.approximate(epsilon0, delta0)


def profile_answer(query: Question) -> Guarantee:
    """The guarantee of any randomizer, from its local profile alone."""
    if query.personal:
        raise NotApplicableError(
            "profile is stated for one local profile that holds between any two reports; with "
            "personal budgets give the weakest of them, or use blanket or proven"
        )
    profile = query_profile(query)
    clients = query.clients or 1
    curve = ProfileCurve(profile, clients)
    if query.rounds == 1:
        epsilon, delta, _ = solve(
            curve, math.log(profile.top), epsilon=query.epsilon, delta=query.delta
        )
        if query.delta is not None:
            epsilon = min(epsilon, profile.local_epsilon(query.delta))
    else:
        pure = profile.beyond == 0.0
        epsilon, delta = over_rounds(query, curve, math.log(profile.top), pure=pure)
    assumed = (SHUFFLED, f"any two reports are within the local profile {profile.name}")
    return answer_to(query, (epsilon, delta), Status.PROVEN, SOURCE, assumed)
