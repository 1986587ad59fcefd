"""Method `profile`: the shuffled guarantee of any randomizer of known local profile."""

from __future__ import annotations

import math

from fl_shuffle.accounting.bounds.clones import solve
from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile import LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import profile_delta
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.guarantee import Guarantee, Status
from fl_shuffle.accounting.queries.bound_query import BoundQuery
from fl_shuffle.accounting.queries.guarantees import SHUFFLED, epsilon_and_delta, query_details
from fl_shuffle.accounting.rounds.equal_rounds import compose_equal_rounds
from fl_shuffle.errors import NotApplicableError, require_integer

SOURCE = "partial shuffle by a random swap, then convex order (docs/proofs.md)"


class ProfileCurve:
    """The privacy curve of one client among `clients` whose reports share a local profile; proven.

    Any randomizers, of any dimension, may be mixed, as long as *any two* report laws that occur are
    within `profile` of each other, both orders. Replace-one; valid in both directions.
    """

    def __init__(self, profile: LocalProfile, clients: int) -> None:
        self.profile = profile
        self._others = require_integer("clients", clients, minimum=1, maximum=10**12) - 1
        self._seen: dict[float, float] = {}

    def delta(self, epsilon: float) -> float:
        """Upper bound on the divergence at `epsilon` >= 0 (nats); never above the local one."""
        if epsilon not in self._seen:
            local = self.profile.local_delta(epsilon)
            self._seen[epsilon] = min(local, profile_delta(self.profile, self._others, epsilon))
        # The true curve is nonincreasing, so an earlier point may say more than this one.
        return min(value for at, value in self._seen.items() if at <= epsilon)

    def __call__(self, epsilon: float) -> DeltaBound:
        return DeltaBound(self.delta(epsilon), 0.0)

    def composed(self, rounds: int) -> Composition:
        """`rounds` rounds, each shuffled afresh."""
        return compose_equal_rounds(self, math.log(self.profile.top), rounds)


def query_profile(query: BoundQuery) -> LocalProfile:
    """The profile a query states: its list of points, or its (epsilon0, delta0)."""
    if query.profile:
        return profiles.points(query.profile)
    epsilon0, delta0, _ = query.local
    if not 0.0 < epsilon0 <= profiles.MAX_EPSILON0:
        raise NotApplicableError(
            f"profile needs 0 < epsilon0 <= {profiles.MAX_EPSILON0:g}, got {epsilon0:g}"
        )
    return profiles.approximate(epsilon0, delta0)


def profile_answer(query: BoundQuery) -> Guarantee:
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
        whole = curve.composed(query.rounds)
        pure = query.rounds * math.log(profile.top) if profile.beyond == 0.0 else math.inf
        epsilon, delta = epsilon_and_delta(
            query,
            lambda delta: min(whole.epsilon(delta), pure),
            lambda epsilon: 0.0 if epsilon >= pure else whole.delta(epsilon),
        )
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        method=query.method,
        status=Status.PROVEN,
        source=SOURCE,
        assumptions=(SHUFFLED, f"any two reports are within the local profile {profile.name}"),
        unit=query.unit,
        details=query_details(query),
    )
