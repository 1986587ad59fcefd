"""What several runs on the same clients cost together: their dominating pairs are composed.

The releases of a run are dominated by a product of pairs, whatever earlier runs released (docs/
research/proofs, section 6): its noise is fresh, and its curves hold for every choice of the others'
data. So the product over all runs dominates all of their releases. Per column that product is

    local     one factor for each report, the pair of the client's own noise. Gaussian factors of
              parameters mu_i are one factor sqrt(sum mu_i^2) (Dong, Roth, Su 2022).
    shuffled  one factor for each round as the client saw it.
    sum       a Gaussian factor, sqrt(sum mu_i^2) over all sums, but for the probability that
              Laplace sums give up, which adds up; and the own noise of runs where it alone counts.

A run that releases sums alone and one that releases reports have different columns for the same
attacker: `headline` composes of each run the column that matches its own release.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.accountant import Accountant, Releases
from fl_shuffle.accounting.bounds.sum_release.gaussian import SUM_DELTA_SHARE
from fl_shuffle.accounting.bounds.sum_release.laplace import SUM_RARE
from fl_shuffle.accounting.client_classes import AnyRound, LocalMechanism
from fl_shuffle.accounting.distributions.gaussian_mechanism import MAX_MU, gaussian_epsilon
from fl_shuffle.accounting.numerics.composition import Composition
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.accounting.rounds.local_guarantees import local_epsilon, own_pair
from fl_shuffle.accounting.rounds.round_library import RoundLibrary

COLUMNS = ("shuffled", "sum", "local", "gspa", "headline")


class TogetherSpend(NamedTuple):
    """What several runs cost together, in arrays of shape (clients,), by column.

    `epsilon` are nats at one delta, NaN where a column says nothing; `reasons` says why.
    `headline` is the column of the headline where all runs have the same, else "released".
    """

    epsilon: dict[str, Vector]
    reasons: dict[str, str]
    headline: str


@dataclass
class ReleaseFactors:
    """The factors of a product of dominating pairs: releases about one client.

    `rounds` are shuffled rounds, `laws` the client's own noise, `mu_squared` a Gaussian factor, and
    `rare` the probability that is given up.
    """

    rounds: Counter[AnyRound] = field(default_factory=Counter)
    laws: Counter[LocalMechanism] = field(default_factory=Counter)
    mu_squared: float = 0.0
    rare: float = 0.0

    def add(self, other: ReleaseFactors) -> None:
        """Compose with other releases."""
        self.rounds.update(other.rounds)
        self.laws.update(other.laws)
        self.mu_squared += other.mu_squared
        self.rare += other.rare

    def epsilon(self, delta: float, library: RoundLibrary) -> float:
        """Return the smallest proven epsilon (nats) at `delta`, rounded up; infinite if there is
        none."""
        # Section 15: delta(epsilon) is at most that of the product plus what is given up.
        # Section 14: a share of delta covers the grids of sums.
        left = (delta - self.rare) * (SUM_DELTA_SHARE if self.mu_squared else 1.0)
        if left <= 0.0:
            return math.inf
        own = _gaussians_joined(self.laws, self.mu_squared)
        kinds = len(own) + (self.rounds.total() > 0)
        if not kinds:
            return 0.0
        # Basic composition: epsilons and deltas of the kinds add up.
        share = left / kinds
        apart = math.fsum(_alone(law, times, share) for law, times in own.items())
        if self.rounds:
            apart += library.epsilon(self.rounds, share)
        if kinds == 1:
            return apart
        pairs = [(library.pair(kind), times) for kind, times in self.rounds.items()]
        pairs += [(own_pair(law), times) for law, times in own.items()]
        known = [(pair, times) for pair, times in pairs if pair is not None]
        if len(known) < len(pairs):  # a factor without a pair bounds nothing
            return apart
        return min(apart, Composition(known).epsilon(left))


def _gaussians_joined(
    laws: Counter[LocalMechanism], mu_squared: float = 0.0
) -> Counter[LocalMechanism]:
    """Return the laws with all Gaussian ones, and a factor of this parameter, as one; laws without
    loss are left out."""
    found = Counter[LocalMechanism]()
    total = mu_squared
    for law, times in laws.items():
        if law.noise == "gaussian":
            total += times * law.exposure**2
        elif times and max(law.exposure, law.delta0) > 0.0:
            found[law] += times
    if total:
        found[LocalMechanism("gaussian", math.sqrt(total) * ROUND_UP)] = 1
    return found


def _alone(law: LocalMechanism, times: int, delta: float) -> float:
    """Return the epsilon of reports of one law; infinite beyond what closed formulas hold."""
    if law.noise == "gaussian" and law.exposure > MAX_MU:
        return math.inf
    return local_epsilon(law, times, delta)


def compose_runs(
    accountants: Sequence[Accountant],
    places: Sequence[NDArray[np.int64]],
    delta: float,
    library: RoundLibrary,
) -> TogetherSpend:
    """Return what runs on the same clients have cost together.

    Parameters
    ----------
    accountants : sequence of Accountant
        What each run has counted.
    places : sequence of ndarray of int64, shape (clients,)
        For each run, the number in it of every client.
    delta : float
        Delta of every epsilon, in (0, 1).
    library : RoundLibrary
        Cache of one-round curves.

    Returns
    -------
    TogetherSpend
        Epsilons of shape (clients,), by column.

    Notes
    -----
    Neighbors: replace-one, the same unit in all runs. Direction of error: rounded up. The runs'
    noises must be independent, and their settings may not depend on what earlier ones released.
    Column `gspa` is as published: parameters mu of all rounds, squares added; no guarantee.
    """
    runs = [each.releases for each in accountants]
    composing = _Composing(runs, places, delta, library)
    names = {each.headline for each in runs}
    headline = names.pop() if len(names) == 1 else "released"
    epsilon, reasons = dict[str, Vector](), dict[str, str]()
    nothing = np.full(len(places[0]), math.nan)
    for name in ("local", "shuffled", "sum"):
        reasons[name] = next((why for each in runs if (why := each.reasons.get(name, ""))), "")
        epsilon[name] = nothing if reasons[name] else composing.column(name)
    if not reasons["shuffled"]:
        epsilon["shuffled"] = np.minimum(epsilon["shuffled"], epsilon["local"])
        # A sum is computed from the shuffled reports.
        if not reasons["sum"] and any(each.smaller for each in runs):
            epsilon["sum"] = np.minimum(epsilon["sum"], epsilon["shuffled"])
    # Every report is a client's own: what holds of reports holds of their sums.
    epsilon["sum"] = np.minimum(epsilon["sum"], epsilon["local"])
    why = next((why for each in runs if (why := each.reasons.get("gspa", ""))), "")
    epsilon["gspa"], reasons["gspa"] = nothing if why else composing.gspa(), why
    if headline in epsilon:
        epsilon["headline"] = epsilon[headline]
    else:
        # `fmin`: where a run adds no noise nothing stands in `local`.
        epsilon["headline"] = np.fmin(composing.column("headline"), epsilon["local"])
    given = {name: why for name, why in reasons.items() if why}
    return TogetherSpend({name: epsilon[name] for name in COLUMNS}, given, headline)


@dataclass(frozen=True)
class _Composing:
    """Several runs, and the number in each of every client."""

    runs: Sequence[Releases]
    places: Sequence[NDArray[np.int64]]
    delta: float
    library: RoundLibrary

    def column(self, name: str) -> Vector:
        """Return the composed epsilon of every client, shape (clients,)."""
        # Clients that met the same in every run have one product: it is computed once.
        codes = [
            _codes(each, name)[place] for each, place in zip(self.runs, self.places, strict=True)
        ]
        _, first, inverse = np.unique(
            np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
        )
        found = np.array([self._epsilon(name, client) for client in first.tolist()])
        return np.asarray(found[inverse.reshape(-1)], dtype=np.float64)

    def _epsilon(self, name: str, client: int) -> float:
        product = ReleaseFactors()
        for each, place in zip(self.runs, self.places, strict=True):
            product.add(_factors(each, name, int(place[client])))
        return product.epsilon(self.delta, self.library)

    def gspa(self) -> Vector:
        """Return the published epsilon of all rounds together, 0 for clients without a report."""
        mu = math.sqrt(math.fsum(each.mu_squared for each in self.runs))
        epsilon = gaussian_epsilon(self.delta, mu) if mu <= MAX_MU else math.inf
        pairs = zip(self.runs, self.places, strict=True)
        taken = np.any([each.taken[place] > 0 for each, place in pairs], axis=0)
        return np.where(taken, epsilon, 0.0)


def _codes(run: Releases, name: str) -> NDArray[np.int64]:
    """Return a number for every client of a run, the same only where its factors are the same."""
    column = run.headline if name == "headline" else name
    if column == "none":
        return np.asarray(run.taken > 0, dtype=np.int64)
    own = run.class_of * (int(run.taken.max(initial=0)) + 1) + run.taken
    if column == "local":
        return own
    if column == "shuffled":
        distinct = run.histories.distinct
        empty = np.array([not spent for spent in distinct])[run.histories.group_of]
        return np.where(empty, len(distinct) + own, run.histories.group_of)
    values, index = np.unique(run.sums.mu_squared, return_inverse=True)
    index = index.reshape(-1) * (int(run.taken.max(initial=0)) + 1) + run.taken
    alone = ~np.isfinite(run.sums.mu_squared)
    return np.where(alone, len(values) * (int(run.taken.max(initial=0)) + 1) + own, index)


def _factors(run: Releases, name: str, client: int) -> ReleaseFactors:
    """Return what one client's releases in a run are to the attacker of a column."""
    column, taken = run.headline if name == "headline" else name, int(run.taken[client])
    if not taken:
        return ReleaseFactors()
    if column == "none":
        return ReleaseFactors(rare=1.0)  # its update was released as it is
    if column == "shuffled":
        histories = run.histories
        spent = histories.distinct[int(histories.group_of[client])]
        if spent:
            return ReleaseFactors(rounds=Counter(spent))
    if column == "sum":
        mu_squared = float(run.sums.mu_squared[client])
        if math.isfinite(mu_squared):
            # Section 15 gives up rho in each of the sums.
            return ReleaseFactors(
                mu_squared=mu_squared, rare=taken * SUM_RARE * run.sums.table.laplace
            )
    # Its own noise is all that counts: no round gives credit, or no sum does.
    return ReleaseFactors(laws=Counter({run.alone[int(run.class_of[client])].law: taken}))
