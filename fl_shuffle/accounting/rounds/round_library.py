"""Privacy of one client over the rounds it took part in, with the reports that really arrived.

A round looks to a client like a `ShuffledRound`: its own report class and the balls of the others
that carry the same noise. A client's history is how often it met each type; equal rounds are
composed by repetition, so a thousand equal rounds cost as much as one. Rounds with slightly
different batches share a type wherever the type is provably not better than the batch: fewer
reports, or larger balls, can only raise the curve.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting import pair_cache
from fl_shuffle.accounting.bounds import VERSION
from fl_shuffle.accounting.bounds.check_in import CheckInCurve
from fl_shuffle.accounting.bounds.one_round import OneRoundCurve
from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.client_classes import AnyRound, DeclaredRound, LocalMechanism
from fl_shuffle.accounting.numerics.composition import Composition, certainly_within
from fl_shuffle.accounting.numerics.dominating_pairs import DominatingPair, trade_off
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair
from fl_shuffle.accounting.rounds.local_guarantees import local_delta, local_epsilon, own_pair

ROUND_KNOWN_EPSILONS = 1 << 14
"""Number of histories whose epsilons are kept: a long run has new ones in every round."""
FEW_BALLS = 8
"""With more radii than this in a batch the others are the same for every client."""


Spent = Mapping[AnyRound, int]


def curve_of(kind: AnyRound) -> OneRoundCurve:
    """Return a fresh one-round curve of `kind`; its values depend on the kind alone."""
    if isinstance(kind, DeclaredRound):
        return ProfileCurve(profiles.approximate(kind.epsilon0, kind.delta0), kind.others + 1)
    return VectorCurve(kind) if kind.participation == 1.0 else CheckInCurve(kind)


class RoundLibrary:
    """Computes and remembers one-round pairs and compositions. Holds no privacy state itself.

    Every number is a proven upper bound, the smaller of the shuffled composition and the exact
    composition of the client's own noise.
    """

    def __init__(self) -> None:
        self._pairs: dict[AnyRound, DominatingPair | None] = {}
        self._epsilons: dict[tuple[frozenset[tuple[AnyRound, int]], float], float] = {}

    @property
    def known_pairs(self) -> dict[AnyRound, DominatingPair]:
        """The pairs that were asked for and are there."""
        return {kind: pair for kind, pair in self._pairs.items() if pair is not None}

    def pair(self, kind: AnyRound) -> DominatingPair | None:
        """Return the dominating pair of one round of `kind`; None if its losses are too large for
        one."""
        if kind not in self._pairs:
            # Without credit the curve is the local one, whose pair needs no search.
            credit = curve_of(kind).credit
            self._pairs[kind] = _certified_pair(kind) if credit else own_pair(kind.law)
        return self._pairs[kind]

    def local_epsilon(self, spent: Spent, delta: float) -> float:
        """Return the exact composition of the client's own noise, the shuffler ignored; rounded up.

        Of several kinds of noise in one history: equal shares of delta, plain addition.
        """
        laws = _own_laws(spent)
        # Basic composition of the kinds: epsilons and deltas add up. Within a kind the
        # composition is exact.
        shares = delta / max(1, len(laws))
        return math.fsum(local_epsilon(law, times, shares) for law, times in laws.items())

    def composition(self, spent: Spent) -> Composition | None:
        """Return the composed shuffled rounds; None where a round has no dominating pair."""
        parts = []
        for kind, times in spent.items():
            pair = self.pair(kind)
            # One round without a pair bounds nothing, so neither does the product: the local
            # number stands.
            if pair is None:
                return None
            parts.append((pair, times))
        return Composition(parts)

    def epsilon(self, spent: Spent, delta: float) -> float:
        """Return the smallest proven epsilon at `delta` of a client with this history; rounded
        up."""
        # The order of rounds does not matter: the losses of a product add up (section 6, step 6).
        key = (frozenset(spent.items()), delta)
        if key not in self._epsilons:
            best = self.local_epsilon(spent, delta)
            single = _single(spent)
            if single is None:
                composed = self.composition(spent)
                best = best if composed is None else min(best, composed.epsilon(delta))
            elif curve_of(single).credit:
                # The curve itself, at the target alone.
                best = min(best, _alone_epsilon(SingleRound(single, delta)))
            # Emptied as a whole: histories grow by a round each time, so old ones seldom come
            # back.
            if len(self._epsilons) >= ROUND_KNOWN_EPSILONS:
                self._epsilons.clear()
            self._epsilons[key] = best
        return self._epsilons[key]

    def profile(self, spent: Spent, epsilons: ArrayLike) -> FloatArray:
        """Return upper bounds on delta at each of `epsilons` (>= 0) of a client with this
        history."""
        grid = np.asarray(epsilons, dtype=np.float64).ravel()
        single = _single(spent)
        if single is not None:
            curve = curve_of(single)
            return np.array([curve.delta(float(value)) for value in grid])
        laws = _own_laws(spent)
        # Of no report nothing is lost. Several kinds of noise have no common closed curve: 1
        # until the composition says more.
        best = np.full(grid.shape, float(len(laws) > 0))
        if len(laws) == 1:
            ((law, times),) = laws.items()
            best = local_delta(law, times, grid)
        composed = self.composition(spent)
        return best if composed is None else np.minimum(best, composed.profile(grid))

    def trade_off(self, spent: Spent, type_one: ArrayLike) -> FloatArray:
        """Return a lower bound on an attacker's type II error at each type I error, to plot
        (f-DP)."""
        # Lines of the profile beyond this epsilon move the trade-off function by less than 1e-9.
        end = self.epsilon(spent, 1e-9)
        return trade_off(type_one, lambda grid: self.profile(spent, grid), end, 120)


def _single(spent: Spent) -> AnyRound | None:
    """Return the round, if it is one in all: its epsilon comes from the curve itself."""
    met = [kind for kind, times in spent.items() if times > 0]
    # A pair connects points of the curve by chords, which lie above it: at one point the curve
    # itself is the smaller bound.
    return met[0] if sum(spent.values()) == 1 else None


@pair_cache.kept(VERSION)
def _certified_pair(kind: AnyRound) -> DominatingPair:
    """Return the pair of a shuffled round; a function of the kind alone."""
    return shuffled_pair(curve_of(kind))


@dataclass(frozen=True)
class SingleRound:
    """One shuffled round of which the epsilon at `delta` is asked."""

    played: AnyRound
    delta: float


@pair_cache.kept(VERSION)
def _alone_epsilon(single: SingleRound) -> float:
    """Return the epsilon from the curve itself; a function of the round and delta alone."""
    return float(curve_of(single.played).epsilon(single.delta))


def _own_laws(spent: Spent) -> Counter[LocalMechanism]:
    """Return how many reports of each distribution of its own noise a client has sent."""
    laws: Counter[LocalMechanism] = Counter()
    for kind, times in spent.items():
        # A report whose exposure and delta0 are zero has no loss.
        if times > 0 and max(kind.law[1:]) > 0.0:
            laws[kind.law] += times
    return laws


def largest_epsilon(
    library: RoundLibrary, spents: Sequence[Spent], delta: float, most: Sequence[float]
) -> float:
    """Return the largest epsilon at `delta` (nats) of these histories; 0 of none.

    That of history i is the smaller of `most[i]` and `RoundLibrary.epsilon`, or `most[i]` alone if
    it is empty. Most of many need not be computed: those that another outweighs, and those that
    are certainly below the target at the largest epsilon so far.
    """
    # The longest history is probably the most exposed one. The earlier it is known, the fewer of
    # the others have to be composed.
    lengths = [sum(spent.values()) for spent in spents]
    left = sorted(range(len(spents)), key=lambda i: (-lengths[i], -most[i]))
    worst = 0.0
    known: list[tuple[Spent, float]] = []
    while left:
        spent, bound, left = spents[left[0]], most[left[0]], left[1:]
        # If `more` outweighs this history, its epsilon bounds this one's, too.
        bound = min([bound, *(cost for more, cost in known if spent and outweighs(more, spent))])
        if bound <= worst:
            continue
        if spent:
            known.append((spent, library.epsilon(spent, delta)))
            bound = min(bound, known[-1][1])
        worst = max(worst, bound)
        # A single round's epsilon needs no pair, and pairs are dear.
        if left and sum(spent.values()) > 1:
            left = _not_within(library, {i: spents[i] for i in left}, spent, worst, delta)
    return worst


def _not_within(
    library: RoundLibrary, spents: Mapping[int, Spent], similar: Spent, epsilon: float, delta: float
) -> list[int]:
    """Return which of the histories are not certainly within `epsilon`, the most spread ones first.

    Those with rounds whose pairs are not known yet come last: nothing is certified here.
    """
    known, composed = library.known_pairs, library.composition(similar)
    clear = [i for i, spent in spents.items() if spent and spent.keys() <= known.keys()]
    if not clear or composed is None:
        return list(spents)
    kinds = list({kind: None for i in clear for kind in spents[i]})
    pairs = [known[kind] for kind in kinds]
    times = np.array([[spents[i].get(kind, 0) for kind in kinds] for i in clear], dtype=float)
    within = certainly_within(pairs, times, epsilon, delta, composed)
    # The variance of the sum of losses: the larger it is, the larger is epsilon, about.
    spread = times @ np.array([pair.moments(0.0)[2] for pair in pairs])
    order = np.argsort(-spread, kind="stable").tolist()
    ahead = [clear[place] for place in order if not within[place]]
    return ahead + [i for i in spents if i not in set(clear)]


def outweighs(more: Spent, less: Spent) -> bool:
    """Return whether `more` has, for every round of `less`, one that costs provably no less; or no
    answer.

    True is certain, False is not: equal rounds are matched first, then others in their order.
    """
    left, wanted = Counter(more), Counter(less)
    # Of a multiset of rounds, equal ones cancel: what is left has to be matched in pairs, each
    # round of `less` with one of `more` that is dominated by it and so costs at least as much.
    same = left & wanted
    left, wanted = left - same, wanted - same
    for kind in wanted:
        for other in left:
            if other.is_dominated_by(kind):
                taken = min(wanted[kind], left[other])
                wanted[kind] -= taken
                left[other] -= taken
        if wanted[kind]:
            return False
    return True
