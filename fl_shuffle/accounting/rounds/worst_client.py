"""A client of a run, the most exposed one or any, with the curves of its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.gaussian_cover import GaussianCover, smallest_cover


@dataclass(frozen=True)
class WorstClient:
    """A client in the headline's column: its number, its epsilon (nats, at the run's delta)."""

    client: int
    epsilon: float
    profile: Callable[[ArrayLike], FloatArray]
    """Upper bounds on delta at each of some epsilons."""
    trade_off: Callable[[ArrayLike], FloatArray]
    """Lower bounds on an attacker's type II error at each of some type I errors."""
    exact: GaussianCover | None = None
    """The same guarantee as Gaussian DP, where it is a Gaussian one."""

    def gaussian_cover(self, delta: float) -> GaussianCover:
        """Return the guarantee as Gaussian DP.

        `delta` is that of `epsilon`, and is given up where the guarantee is not a Gaussian one.
        """
        if self.exact is not None:
            return self.exact
        return smallest_cover(self.profile, self.epsilon, delta)
