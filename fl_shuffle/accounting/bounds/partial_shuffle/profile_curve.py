"""The curve of one client among reports of which only a common local profile is known."""

from __future__ import annotations

from functools import cached_property

from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.bounds.partial_shuffle.profile import LocalProfile
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import (
    CONVEX_ORDER_MIN_OTHERS,
    profile_delta,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_mu
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.errors import require_integer

PARTIAL_SHUFFLE_MAX_SHARE = 0.98
"""A predicted mu above this share of the local one is no gain."""
PROFILE_PREDICTED_DELTAS = 1e-12, 0.99
"""delta(0) is taken into this range for the predicted mu, a scale only."""


class ProfileCurve(OneRoundCurve):
    """The privacy curve of one client among `clients` whose reports share a local profile; proven.

    Any randomizers, of any dimension, may be mixed, as long as *any two* report laws that occur are
    within `profile` of each other, both orders.
    """

    def __init__(self, profile: LocalProfile, clients: int) -> None:
        super().__init__()
        self.profile = profile
        self._others = require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS) - 1

    def local_delta(self, epsilon: float) -> float:
        return self.profile.local_delta(epsilon)

    def local_epsilon(self, delta: float) -> float:
        return self.profile.local_epsilon(delta)

    def _shuffled(self, epsilon: float, local: float) -> float:
        return profile_delta(self.profile, self._others, epsilon)

    @cached_property
    def credit(self) -> bool:
        return self._others >= CONVEX_ORDER_MIN_OTHERS and self.delta(
            0.0
        ) < PARTIAL_SHUFFLE_MAX_SHARE * self.local_delta(0.0)

    @cached_property
    def predicted_mu(self) -> float:
        """The Gaussian-DP parameter with the same delta(0): not a bound, only a scale."""
        low, high = PROFILE_PREDICTED_DELTAS
        return gaussian_mu(0.0, min(max(self.delta(0.0), low), high))
