"""The curve of one client among reports of which only a common local profile is known."""

from __future__ import annotations

import math
from functools import cached_property

from fl_shuffle.accounting.bounds.partial_shuffle.profile import LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import profile_delta
from fl_shuffle.accounting.engine.monotone_search import near_crossing
from fl_shuffle.accounting.engine.stop_loss import DeltaBound
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import require_integer, require_open_unit


class ProfileCurve:
    """The privacy curve of one client among `clients` whose reports share a local profile; proven.

    Any randomizers, of any dimension, may be mixed, as long as *any two* report laws that occur are
    within `profile` of each other, both orders. Replace-one; valid in both directions.
    """

    def __init__(self, profile: LocalProfile, clients: int) -> None:
        self.profile = profile
        self._others = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS) - 1
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

    def local_delta(self, epsilon: float) -> float:
        """The divergence of one report at `epsilon`, the shuffler ignored."""
        return self.profile.local_delta(epsilon)

    @cached_property
    def credit(self) -> bool:
        """Whether the theorem says more than the local profile."""
        return self._others >= TOLERANCES.convex_order_min_others and self.delta(
            0.0
        ) < TOLERANCES.partial_shuffle_max_share * self.local_delta(0.0)

    @cached_property
    def predicted_mu(self) -> float:
        """The Gaussian-DP parameter with the same delta(0): not a bound, only a scale."""
        low, high = TOLERANCES.profile_predicted_deltas
        return gaussian_mu(0.0, min(max(self.delta(0.0), low), high))

    def loosened(self, relative_error: float) -> ProfileCurve:
        """This curve: it has no numerical excess to trade for speed."""
        return self

    def epsilon(self, delta: float, *, tolerance: float = TOLERANCES.profile_curve_step) -> float:
        """The smallest epsilon found with delta(epsilon) <= `delta`, rounded up; may be infinite.

        The curve there is within `tolerance` (relative) of the target. Never above the local value.
        """
        target = require_open_unit("delta", delta)
        high = self.profile.local_epsilon(target)
        if not self.credit or high == 0.0 or math.isinf(high):
            return high
        first = min(gaussian_epsilon(target, self.predicted_mu), high)
        return near_crossing(self.delta, target, first, high, tolerance)
