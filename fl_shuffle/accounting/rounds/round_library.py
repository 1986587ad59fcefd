"""Privacy of one client over the rounds it took part in, with the reports that really arrived.

A round looks to a client like a `RoundType`: its own report class and the balls of the others that
carry the same noise. A client's history is how often it met each type; equal rounds are composed by
repetition, so a thousand equal rounds cost as much as one. Rounds with slightly different batches
share a type wherever the type is provably not better than the batch: fewer reports, or larger
balls, can only raise the curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.bounds.check_in import CheckInCurve
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon, local_pair
from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair, trade_off
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.reports import RoundType
from fl_shuffle.accounting.rounds.declared_round import (
    DeclaredRound,
    declared_local_delta,
    declared_local_epsilon,
)
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair

ROUND_KNOWN_EPSILONS = 1 << 14
"""So many histories' epsilons are kept: a long run has new ones in every round."""
FEW_BALLS = 8
"""With more radii than this in a batch the others are the same for every client."""
MAX_LOCAL_PAIR_RATIO = 12.0
"""Moves of more noise widths than this get no dominating pair: their losses overflow."""

FloatArray = NDArray[np.float64]

RoundKind = RoundType | DeclaredRound
Spent = Mapping[RoundKind, int]


def curve_of(kind: RoundKind) -> OneRoundCurve:
    """A fresh one-round curve of `kind`: its values depend on what it was asked before."""
    if isinstance(kind, DeclaredRound):
        return kind.curve()
    return VectorCurve(kind) if kind.participation == 1.0 else CheckInCurve(kind)


class RoundLibrary:
    """Computes and remembers one-round pairs and compositions. Holds no privacy state itself.

    Every number is a proven upper bound, the smaller of the shuffled composition and the exact
    composition of the client's own noise.
    """

    def __init__(self) -> None:
        self._curves: dict[RoundKind, OneRoundCurve] = {}
        self._pairs: dict[RoundKind, DominatingPair | None] = {}
        self._epsilons: dict[tuple[frozenset[tuple[RoundKind, int]], float], float] = {}

    def curve(self, kind: RoundKind) -> OneRoundCurve:
        """The one-round curve of `kind`."""
        if kind not in self._curves:
            self._curves[kind] = curve_of(kind)
        return self._curves[kind]

    def pair(self, kind: RoundKind) -> DominatingPair | None:
        """The dominating pair of one round of `kind`; None if its losses are too large for one."""
        if kind not in self._pairs:
            curve = self.curve(kind)
            if curve.credit:
                self._pairs[kind] = _certified_pair(kind)
            elif isinstance(kind, DeclaredRound):
                small = kind.epsilon0 <= MAX_LOCAL_PAIR_RATIO
                self._pairs[kind] = kind.local_pair if small else None
            elif kind.own.ratio > MAX_LOCAL_PAIR_RATIO:
                self._pairs[kind] = None
            elif kind.noise == "laplace":
                self._pairs[kind] = local_pair(kind.own.ratio)
            else:
                grid = np.linspace(0.0, kind.own.ratio * (9.0 + 0.5 * kind.own.ratio), 400)
                grid = grid if kind.own.ratio > 0.0 else np.zeros(1)
                self._pairs[kind] = DominatingPair.from_curve(
                    grid, gaussian_profile(grid, kind.own.ratio)
                )
        return self._pairs[kind]

    def local_epsilon(self, spent: Spent, delta: float) -> float:
        """Exact composition of the client's own noise, the shuffler ignored; rounded up."""
        rounds, declared = _merged_ratios(spent), _merged_budgets(spent)
        epsilons = []
        gaussian = {ratio: times for (noise, ratio), times in rounds.items() if noise == "gaussian"}
        laplace = {ratio: times for (noise, ratio), times in rounds.items() if noise == "laplace"}
        # Several kinds of reports in one history: equal shares of delta, plain addition.
        delta /= max(1, bool(gaussian) + bool(laplace) + len(declared))
        epsilons += [declared_local_epsilon(*own, t, delta) for own, t in declared.items()]
        if len(gaussian) == 1:
            # The same number as `local_epsilon` of the client's class.
            (ratio, times), *_ = gaussian.items()
            epsilons.append(gaussian_epsilon(delta, ratio * math.sqrt(times)))
        elif gaussian:
            mu = math.sqrt(math.fsum(times * ratio * ratio for ratio, times in gaussian.items()))
            epsilons.append(gaussian_epsilon(delta, mu))
        if len(laplace) == 1:
            (ratio, times), *_ = laplace.items()
            epsilons.append(laplace_epsilon(delta, ratio, times))
        elif laplace:
            pure = math.fsum(times * ratio for ratio, times in laplace.items())
            if max(laplace) <= MAX_LOCAL_PAIR_RATIO:
                parts = [(local_pair(ratio), times) for ratio, times in laplace.items()]
                pure = min(pure, Composition(parts).epsilon(delta))
            epsilons.append(pure)
        return math.fsum(epsilons)

    def composition(self, spent: Spent) -> Composition | None:
        """The composed shuffled rounds; None where a round has no dominating pair."""
        parts = []
        for kind, times in spent.items():
            pair = self.pair(kind)
            if pair is None:
                return None
            parts.append((pair, times))
        return Composition(parts)

    def epsilon(self, spent: Spent, delta: float) -> float:
        """The smallest proven epsilon at `delta` of a client with this history; rounded up."""
        key = (frozenset(spent.items()), delta)
        if key not in self._epsilons:
            best = self.local_epsilon(spent, delta)
            met = [kind for kind, times in spent.items() if times > 0]
            if any(self.curve(kind).credit for kind in met):
                if _is_single(spent):
                    # The curve itself, at the target alone.
                    best = min(best, _alone_epsilon(SingleRound(met[0], delta)))
                else:
                    composed = self.composition(spent)
                    best = best if composed is None else min(best, composed.epsilon(delta))
            if len(self._epsilons) >= ROUND_KNOWN_EPSILONS:
                self._epsilons.clear()
            self._epsilons[key] = best
        return self._epsilons[key]

    def profile(self, spent: Spent, epsilons: ArrayLike) -> FloatArray:
        """Upper bounds on delta at each of `epsilons` (>= 0) of a client with this history."""
        grid = np.asarray(epsilons, dtype=np.float64).ravel()
        best = np.array([self._local_delta(spent, float(value)) for value in grid])
        if _is_single(spent):
            once = [kind for kind, times in spent.items() if times > 0]
            curve = curve_of(once[0])
            return np.array([curve.delta(float(value)) for value in grid])
        composed = self.composition(spent)
        return best if composed is None else np.minimum(best, composed.profile(grid))

    def _local_delta(self, spent: Spent, epsilon: float) -> float:
        rounds, declared = _merged_ratios(spent), _merged_budgets(spent)
        if declared:
            (own, times), *more = declared.items()
            return 1.0 if more or rounds else declared_local_delta(*own, times, epsilon)
        if any(noise != "gaussian" for noise, _ in rounds):
            pure = math.fsum(times * ratio for (_, ratio), times in rounds.items())
            only_laplace = all(noise == "laplace" for noise, _ in rounds)
            return 0.0 if only_laplace and epsilon >= pure else 1.0
        mu = math.sqrt(math.fsum(times * ratio**2 for (_, ratio), times in rounds.items()))
        return float(gaussian_profile(epsilon, mu))

    def trade_off(self, spent: Spent, type_one: ArrayLike) -> FloatArray:
        """Lower bound on an attacker's type II error at each type I error, to plot (f-DP)."""
        end = self.epsilon(spent, 1e-9)
        return trade_off(type_one, lambda grid: self.profile(spent, grid), end, 120)


def _is_single(spent: Spent) -> bool:
    """Whether it is one round in all: its epsilon comes from the curve itself."""
    return sum(spent.values()) == 1


@pair_cache.kept
def _certified_pair(kind: RoundKind) -> DominatingPair:
    """The pair of a shuffled round; a function of the kind alone."""
    return shuffled_pair(curve_of(kind))


@dataclass(frozen=True)
class SingleRound:
    """One shuffled round of which the epsilon at `delta` is asked."""

    played: RoundKind
    delta: float


@pair_cache.kept
def _alone_epsilon(single: SingleRound) -> float:
    """From the curve itself; a function of the round and delta alone."""
    return float(curve_of(single.played).epsilon(single.delta))


def _merged_ratios(spent: Spent) -> dict[tuple[str, float], int]:
    merged: dict[tuple[str, float], int] = {}
    for kind, times in spent.items():
        if isinstance(kind, RoundType) and times > 0 and kind.own.ratio > 0.0:
            key = kind.noise, kind.own.ratio
            merged[key] = merged.get(key, 0) + times
    return merged


def _merged_budgets(spent: Spent) -> dict[tuple[float, float], int]:
    merged: dict[tuple[float, float], int] = {}
    for kind, times in spent.items():
        if isinstance(kind, DeclaredRound) and times > 0:
            key = kind.epsilon0, kind.delta0
            merged[key] = merged.get(key, 0) + times
    return merged
