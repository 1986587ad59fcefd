"""The privacy curve of one client over all sums its reports were in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_delta, laplace_epsilon
from fl_shuffle.accounting.bounds.sum_release.gaussian import sum_epsilon, sum_profile
from fl_shuffle.accounting.engine.dominating_pairs import trade_off_from_profile
from fl_shuffle.errors import InvalidValueError, require_integer, require_real

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SumCurve:
    """One client's privacy curve towards whoever sees sums: Gaussian, with parameter `mu`.

    For Laplace noise but for probability `rare`. Where `mu` is infinite the curve is the local one
    of `rounds` Laplace reports of budget `pure` each.
    """

    mu: float
    rare: float = 0.0
    pure: float = 0.0
    rounds: int = 0

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon (nats) at `delta`, rounded up."""
        if math.isfinite(self.mu) and delta > self.rare:
            return sum_epsilon(delta - self.rare, self.mu)
        return laplace_epsilon(delta, self.pure, self.rounds) if self.rounds else math.inf

    def profile(self, epsilons: ArrayLike) -> Vector:
        """Upper bounds on delta at each epsilon >= 0."""
        grid = np.asarray(epsilons, dtype=np.float64)
        if math.isfinite(self.mu):
            return np.minimum(1.0, sum_profile(grid, self.mu) + self.rare)
        own = [laplace_delta(float(value), self.pure, self.rounds) for value in grid.ravel()]
        return np.reshape(np.array(own), grid.shape)

    def trade_off(self, type_one: ArrayLike) -> Vector:
        """A lower bound on an attacker's type II error at each type I error, to plot (f-DP)."""
        errors = np.asarray(type_one, dtype=np.float64)
        if not np.all((errors >= 0.0) & (errors <= 1.0)):
            raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
        if math.isfinite(self.mu):
            shifted = ndtr(-ndtri(np.minimum(1.0, errors + self.rare)) - self.mu) - self.rare
            return np.asarray(np.maximum(0.0, shifted), dtype=np.float64)
        grid = np.linspace(0.0, min(self.epsilon(1e-9), 700.0), 60)
        return trade_off_from_profile(errors.ravel(), grid, self.profile(grid))

    def to_json(self) -> dict[str, float]:
        """As JSON data, without what is zero or infinite; `from_json` restores it exactly."""
        values = {"mu": self.mu, "rare": self.rare, "pure": self.pure, "rounds": self.rounds}
        return {
            name: value
            for name, value in values.items()
            if math.isfinite(value) and (value > 0.0 or name == "mu")
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SumCurve:
        """Restore a curve; raises `InvalidValueError` for anything else."""
        names = {"mu", "rare", "pure", "rounds"}
        if not isinstance(data, Mapping) or not set(data) <= names:
            raise InvalidValueError("curve of sums", data, f"must hold {', '.join(sorted(names))}")
        rounds = require_integer("rounds", data.get("rounds", 0), minimum=0)
        if not rounds and "mu" not in data:
            raise InvalidValueError("curve of sums", data, "must hold mu or rounds")
        return cls(
            require_real("mu", data["mu"], minimum=0.0) if "mu" in data else math.inf,
            require_real("rare", data.get("rare", 0.0), minimum=0.0),
            require_real("pure", data.get("pure", 0.0), minimum=0.0),
            rounds,
        )
