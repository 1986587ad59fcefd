"""A client of a run, the most exposed one or any, with the curves of its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray


@dataclass(frozen=True)
class WorstClient:
    """A client in the headline's column: its number, its epsilon (nats, at the run's delta)."""

    client: int
    epsilon: float
    profile: Callable[[ArrayLike], FloatArray]
    """Upper bounds on delta at each of some epsilons."""
    trade_off: Callable[[ArrayLike], FloatArray]
    """Lower bounds on an attacker's type II error at each of some type I errors."""
