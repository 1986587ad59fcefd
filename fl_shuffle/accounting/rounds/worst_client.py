"""A client of a run, the most exposed one or any, with the curves of its guarantee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from numpy.typing import ArrayLike

from fl_shuffle.accounting.rounds.round_library import FloatArray, RoundLibrary, Spent
from fl_shuffle.accounting.rounds.sum_account import SumCurve


class WorstClient(Protocol):
    """A client in the headline's column: its number, its epsilon, its curves."""

    @property
    def client(self) -> int:
        """Its number."""

    @property
    def epsilon(self) -> float:
        """Its epsilon, nats, at the run's delta."""

    def profile(self, epsilons: ArrayLike) -> FloatArray:
        """Upper bounds on delta at each of `epsilons`."""

    def trade_off(self, type_one: ArrayLike) -> FloatArray:
        """Lower bounds on an attacker's type II error at each type I error."""


@dataclass(frozen=True)
class WorstInReports:
    """Where shuffled reports are seen: what it went through."""

    client: int
    epsilon: float
    spent: Spent
    library: RoundLibrary

    def profile(self, epsilons: ArrayLike) -> FloatArray:
        """See `WorstClient`."""
        return self.library.profile(self.spent, epsilons)

    def trade_off(self, type_one: ArrayLike) -> FloatArray:
        """See `WorstClient`."""
        return self.library.trade_off(self.spent, type_one)


@dataclass(frozen=True)
class WorstInSums:
    """Where only sums are seen."""

    client: int
    epsilon: float
    curve: SumCurve

    def profile(self, epsilons: ArrayLike) -> FloatArray:
        """See `WorstClient`."""
        return self.curve.profile(epsilons)

    def trade_off(self, type_one: ArrayLike) -> FloatArray:
        """See `WorstClient`."""
        return self.curve.trade_off(type_one)
