"""Privacy of one client over the rounds it took part in, with the reports that really arrived.

A round looks to a client like a `RoundType`: its own report class and the balls of the others that
carry the same noise. A client's history is how often it met each type; equal rounds are composed by
repetition, so a thousand equal rounds cost as much as one. Rounds with slightly different batches
share a type wherever the type is provably not better than the batch: fewer reports, or larger
balls, can only raise the curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon, local_pair
from fl_shuffle.accounting.bounds.partial_shuffle.profile_curve import ProfileCurve
from fl_shuffle.accounting.bounds.report_class import ReportClass
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair, trade_off_from_profile
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.other_processes import usable_processes, values_of
from fl_shuffle.accounting.rounds.declared_round import (
    DeclaredRound,
    declared_local_delta,
    declared_local_epsilon,
)
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import InvalidValueError, require_integer

FloatArray = NDArray[np.float64]

RoundKind = Union["RoundType", DeclaredRound]
Spent = Mapping[RoundKind, int]

# A pair takes .2 to 1.2 s, another process that works pairs out .4 to .7 s to start.
PAIRS_A_PROCESS = 3


@dataclass(frozen=True)
class RoundType:
    """What one shuffled batch is to one client: its own class, and the others with its noise.

    `others` lists (radius, count), by radius, the client itself left out.
    """

    noise: str
    scale: float
    radius: float
    sensitivity: float
    others: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, classes: Sequence[ReportClass], index: int) -> RoundType:
        """The view of a client of class `index` of this batch."""
        own = classes[index]
        require_integer("count of the client's class", own.count, minimum=1)
        merged: dict[float, int] = {}
        for position, other in enumerate(classes):
            if (other.noise, other.scale) == (own.noise, own.scale):
                count = other.count - (position == index)
                merged[other.radius] = merged.get(other.radius, 0) + count
        others = tuple((radius, count) for radius, count in sorted(merged.items()) if count > 0)
        return cls(own.noise, own.scale, own.radius, own.sensitivity, others)

    @property
    def own(self) -> ReportClass:
        """The client's report class."""
        return ReportClass(self.noise, self.scale, self.radius, self.sensitivity, 1)

    def curve(self, relative_error: float = TOLERANCES.round_relative_error) -> VectorCurve:
        """The one-round curve of this type."""
        others = [
            ReportClass(self.noise, self.scale, radius, 0.0, count) for radius, count in self.others
        ]
        return VectorCurve(
            [self.own, *others],
            0,
            relative_error=relative_error,
            concentrate=len(others) > TOLERANCES.few_balls,
        )

    def without(self, lost: int) -> RoundType:
        """The same if `lost` of the others hide nobody: those in the smallest balls."""
        if lost <= 0:
            return self
        counts = np.array([count for _, count in self.others], dtype=np.int64)
        kept = np.diff(np.maximum(np.cumsum(counts) - lost, 0), prepend=0).tolist()
        pairs = zip(self.others, kept, strict=True)
        others = tuple((radius, count) for (radius, _), count in pairs if count > 0)
        return RoundType(self.noise, self.scale, self.radius, self.sensitivity, others)

    def in_smallest_place(self) -> RoundType:
        """The same if the client's own place in the batch were one in the smallest of its balls.

        The others then hide the client no better, and are the same for every client of a batch.
        """
        counts = dict(self.others)
        counts[self.radius] = counts.get(self.radius, 0) + 1
        return replace(self, others=tuple(sorted(counts.items()))).without(1)

    def lessened(self, whole: RoundType) -> RoundType:
        """A type that batches like this one share, not better than it; a function of the two alone.

        `whole` is the view if every client had reported: within every radius the number of reports
        kept is one share of the whole, a round number of about the root of the batch's size. At
        most `round_exact_reports` others, or the whole batch: the type itself.
        """
        total = sum(count for _, count in self.others)
        if total <= TOLERANCES.round_exact_reports or self == whole:
            return self
        everybody = sum(count for _, count in whole.others)
        within = np.cumsum([count for _, count in whole.others])
        radii = np.array([radius for radius, _ in whole.others])
        mine = np.array(self.others, dtype=np.float64).reshape(-1, 2)
        present = np.concatenate([[0.0], np.cumsum(mine[:, 1])])
        here = present[np.searchsorted(mine[:, 0], radii, side="right")]
        unit = 2.0 ** math.floor(0.5 * math.log2(total))
        share = unit * math.floor(float(np.min(here / within)) * everybody / unit) / everybody
        kept = np.minimum(np.floor(share * within), here).astype(np.int64)
        counts = np.diff(kept, prepend=0)
        pairs = zip(radii.tolist(), counts.tolist(), strict=True)
        others = tuple((radius, count) for radius, count in pairs if count > 0)
        return RoundType(self.noise, self.scale, self.radius, self.sensitivity, others)

    def not_better_than(self, other: RoundType) -> bool:
        """Whether `other` has, for every radius, at least as many reports within that radius.

        Then each report here can be matched with one there in a smaller ball, so this type's curve
        is not below the other's. The differing client's own ball and sensitivity must not be
        smaller here: what it can do there it can do here.
        """
        if (self.noise, self.scale) != (other.noise, other.scale):
            return False
        if self.radius < other.radius or self.sensitivity < other.sensitivity:
            return False
        mine = np.array(self.others, dtype=np.float64).reshape(-1, 2)
        theirs = np.array(other.others, dtype=np.float64).reshape(-1, 2)
        within = np.searchsorted(theirs[:, 0], mine[:, 0], side="right")
        available = np.concatenate([[0.0], np.cumsum(theirs[:, 1])])[within]
        return bool(np.all(np.cumsum(mine[:, 1]) <= available))


def spent_to_json(spent: Spent) -> list[dict[str, Any]]:
    """A client's history as JSON data; `spent_from_json` restores it exactly."""
    return [
        {**asdict(kind), "times": times}
        if isinstance(kind, DeclaredRound)
        else {
            "noise": kind.noise,
            "scale": kind.scale,
            "radius": kind.radius,
            "sensitivity": kind.sensitivity,
            "others": [list(pair) for pair in kind.others],
            "times": times,
        }
        for kind, times in spent.items()
    ]


def spent_from_json(data: Sequence[Mapping[str, Any]]) -> dict[RoundKind, int]:
    """Restore a history. Raises `InvalidValueError` for entries that are not rounds."""
    spent: dict[RoundKind, int] = {}
    for entry in data:
        try:
            kind = _kind_from_json(entry)
            times = require_integer("times", entry["times"], minimum=0)
        except (KeyError, TypeError) as error:
            raise InvalidValueError("spent", entry, f"is not a round ({error})") from None
        kind.curve()
        spent[kind] = spent.get(kind, 0) + times
    return spent


def _kind_from_json(entry: Mapping[str, Any]) -> RoundKind:
    if "epsilon0" in entry:
        return DeclaredRound(entry["epsilon0"], entry["delta0"], entry["others"])
    return RoundType(
        str(entry["noise"]),
        float(entry["scale"]),
        float(entry["radius"]),
        float(entry["sensitivity"]),
        tuple((float(radius), int(count)) for radius, count in entry["others"]),
    )


class RoundLibrary:
    """Computes and remembers one-round pairs and compositions. Holds no privacy state itself.

    Every number is a proven upper bound, the smaller of the shuffled composition and the exact
    composition of the client's own noise. `processes`: so many at most certify many pairs side by
    side; 0: one a processor.
    """

    def __init__(self, processes: int = 0) -> None:
        self._processes = processes
        self._curves: dict[RoundKind, VectorCurve | ProfileCurve] = {}
        self._pairs: dict[RoundKind, DominatingPair | None] = {}
        self._epsilons: dict[tuple[frozenset[tuple[RoundKind, int]], float], float] = {}

    def curve(self, kind: RoundKind) -> VectorCurve | ProfileCurve:
        """The one-round curve of `kind`."""
        if kind not in self._curves:
            self._curves[kind] = kind.curve()
        return self._curves[kind]

    def pair(self, kind: RoundKind) -> DominatingPair | None:
        """The dominating pair of one round of `kind`; None if its losses are too large for one."""
        if kind not in self._pairs:
            curve = self.curve(kind)
            if curve.credit:
                self._pairs[kind] = _certified_pair(kind)
            elif isinstance(kind, DeclaredRound):
                small = kind.epsilon0 <= TOLERANCES.max_local_pair_ratio
                self._pairs[kind] = kind.local_pair if small else None
            elif kind.own.ratio > TOLERANCES.max_local_pair_ratio:
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

    def certify(self, spents: Iterable[Spent]) -> None:
        """Work out the pairs that `epsilon` needs of these histories: many side by side."""
        most = self._processes or usable_processes()
        if most == 1:
            return
        needed = dict.fromkeys(
            kind for spent in spents if not _is_single(spent) for kind in spent if spent[kind] > 0
        )
        wanted = [k for k in needed if k not in self._pairs and self.curve(k).credit]
        processes = min(most, len(wanted) // PAIRS_A_PROCESS)
        if processes > 1:
            pairs = values_of(_certified_pair, wanted, processes)
            self._pairs.update(zip(wanted, pairs, strict=True))

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
            if max(laplace) <= TOLERANCES.max_local_pair_ratio:
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
                    best = min(best, _alone(met[0]).epsilon(delta))
                else:
                    composed = self.composition(spent)
                    best = best if composed is None else min(best, composed.epsilon(delta))
            if len(self._epsilons) >= TOLERANCES.round_known_epsilons:
                self._epsilons.clear()
            self._epsilons[key] = best
        return self._epsilons[key]

    def profile(self, spent: Spent, epsilons: ArrayLike) -> FloatArray:
        """Upper bounds on delta at each of `epsilons` (>= 0) of a client with this history."""
        grid = np.asarray(epsilons, dtype=np.float64).ravel()
        best = np.array([self._local_delta(spent, float(value)) for value in grid])
        if _is_single(spent):
            once = [kind for kind, times in spent.items() if times > 0]
            few = grid.size <= TOLERANCES.round_precise_points
            curve = once[0].curve(TOLERANCES.vector_relative_error) if few else once[0].curve()
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

    def trade_off(self, spent: Spent, type_one: ArrayLike, *, points: int = 120) -> FloatArray:
        """Lower bound on an attacker's type II error at each type I error, to plot (f-DP)."""
        errors = np.asarray(type_one, dtype=np.float64).ravel()
        if not np.all((errors >= 0.0) & (errors <= 1.0)):
            raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
        grid = np.linspace(0.0, min(self.epsilon(spent, 1e-9), 700.0), points)
        return trade_off_from_profile(errors, grid, self.profile(spent, grid))


def _is_single(spent: Spent) -> bool:
    """Whether it is one round in all: its epsilon comes from the curve itself."""
    return sum(spent.values()) == 1


def _certified_pair(kind: RoundKind) -> DominatingPair:
    """The pair of a shuffled round; a function of the kind alone."""
    # A curve's values depend on what it was asked before: a fresh one.
    return shuffled_pair(kind.curve(), per_sd=_nodes_per_sd(kind))


def _nodes_per_sd(kind: RoundKind) -> float:
    """Fewer where a cohort has many kinds of clients: all but the one with the largest ball."""
    if isinstance(kind, DeclaredRound) or len(kind.others) <= TOLERANCES.few_balls:
        return TOLERANCES.round_nodes_per_sd
    largest = kind.radius >= max(radius for radius, _ in kind.others)
    return TOLERANCES.round_nodes_per_sd if largest else TOLERANCES.round_coarse_nodes_per_sd


def _alone(kind: RoundKind) -> VectorCurve | ProfileCurve:
    """A fresh curve for a single round: finer than for many, but where batches hardly repeat."""
    reports = kind.others if isinstance(kind, DeclaredRound) else sum(n for _, n in kind.others)
    few = reports <= TOLERANCES.round_exact_reports
    return kind.curve() if few else kind.curve(TOLERANCES.vector_relative_error)


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
