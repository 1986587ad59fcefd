"""What every client has spent where only sums of reports leave, over the rounds of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Mask, Vector
from fl_shuffle.accounting.bounds.sum_release.gaussian import (
    attacked_variance,
    sum_epsilons,
    sum_mu,
)
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.bounds.sum_release.laplace import SUM_RARE, laplace_sum_mu
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.client_classes import DISCRETE_GAUSSIAN, ClientClass
from fl_shuffle.accounting.report_grid import report_grids
from fl_shuffle.accounting.rounds.class_table import ClassTable, largest_of_classes
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilons
from fl_shuffle.accounting.rounds.words import CONTINUOUS, ColumnWords
from fl_shuffle.errors import NotApplicableError

SUM_MOST_COORDINATES = 10**9
"""Number of coordinates that reports of unknown dimension are assumed to have."""


SEQUENTIAL_SUM = (
    "in a sequential schedule each report meets the model alone: no sum hides it, and only the "
    "local guarantee holds"
)
FEW_LAPLACE = (
    "too few Laplace reports on one grid: what is proven of their sum is no better than the local "
    "guarantee; more clients, or fewer budget levels (budgets.levels), would change that"
)
MIXED_SUM = "not available: nothing is proven here of sums of different kinds of noise"
DECLARED_SUM = (
    "not available: of a training that clients declare the distribution of a report is not "
    "known, hence "
    "neither is that of a sum"
)


@dataclass(frozen=True)
class SumTable:
    """What the classes of clients contribute to a sum, as arrays [classes]."""

    scale: Vector
    shift: Vector
    grid: Vector
    local: ClassTable
    """The classes as far as their own noise is concerned."""
    dimension: int
    laplace: bool
    """Whether the noise is Laplace noise."""
    attacked: ClassTable
    """The classes as a test on the sums finds them."""

    @classmethod
    def of(cls, classes: Iterable[ClientClass], dimension: int | None) -> SumTable:
        """Return the table of reports of this dimension; of unknown `dimension` any up to 10^9 is
        allowed for."""
        rows = ClassTable.of(classes)
        # More coordinates only raise the bound on Laplace sums (the union bounds of section 15).
        coordinates = SUM_MOST_COORDINATES if dimension is None else dimension
        discrete = rows.is_noise(DISCRETE_GAUSSIAN)
        # Discrete noise has its own grid already; continuous reports are rounded to that of their
        # scale.
        grids = np.where(discrete, rows.step, report_grids(rows.scale, rows.radius))
        laplace, local = bool(rows.is_noise("laplace").any()), accounted_locally(rows)
        # `hiding_scale`: a discrete report counts as the continuous one that it is as good as,
        # s^2 - c^2 g^2.
        return cls(rows.hiding_scale, rows.move, grids, local, coordinates, laplace, rows.attacked)

    def mu(self, counts: NDArray[np.int64], honest: int) -> Vector:
        """Return the Gaussian parameter of one sum for each class; infinite: only the local one
        counts."""
        if not self.laplace:
            return sum_mu(self.scale, self.shift, self.grid, counts, honest)
        return laplace_sum_mu(
            self.scale, self.shift, self.grid, counts, dimension=self.dimension, honest=honest
        )

    def cost(self, counts: NDArray[np.int64], honest: int) -> tuple[Vector, Vector]:
        """Return what one sum of `counts` reports of each class, `honest` of them honest, costs
        each class: a squared Gaussian parameter, and that which a test reaches (0: none is
        known)."""
        mu = self.mu(counts, honest)
        if self.laplace:
            return mu * mu, np.zeros_like(mu)
        against = attacked_variance(self.attacked.scale, counts, honest)
        # The test's mu^2: the squared move over the most noise that can be in the sum.
        return mu * mu, self.attacked.move**2 / against

    @property
    def coarsest(self) -> float:
        """The coarsest grid of any report, in units of its noise scale."""
        return float(np.max(self.grid / self.scale, initial=0.0))

    def curve(self, index: int, mu_squared: float, times: int) -> SumCurve:
        """Return the curve of a client of class `index` in `times` sums of that squared parameter
        together."""
        mu = math.sqrt(mu_squared)
        if not self.laplace:
            return SumCurve(mu)
        # Section 15 gives up rho in each of the sums: T rho in all.
        return SumCurve(mu, times * SUM_RARE, float(self.local.exposure[index]), times)


class _SumCost(NamedTuple):
    """`SumTable.cost` of the latest sum: the next one often holds the same reports."""

    counts: NDArray[np.int64]
    honest: int
    cost: Vector
    attacked: Vector


@dataclass(frozen=True)
class SumAccount:
    """Every client's spend against an attacker who sees one sum of reports per round; immutable.

    `mu_squared[i]` bounds client i's squared Gaussian-DP parameter over the sums its report was in
    (infinite: the local guarantee counts), `taken[i]` of them; `attacked_mu_squared[i]` is what the
    best test on them reaches. `reason` says why there is no such guarantee (None: there is).
    Relation: replace-one. Statement: docs/research/proofs, sections 14 and 15.
    """

    class_of: NDArray[np.int64]
    reason: str | None
    assumed_honest: AssumedHonest
    mu_squared: Vector
    attacked_mu_squared: Vector
    taken: NDArray[np.int64]
    _table: SumTable | None = field(default=None, repr=False)
    _latest: _SumCost | None = field(default=None, repr=False)

    @classmethod
    def start(
        cls,
        classes: Sequence[ClientClass],
        class_of: NDArray[np.int64],
        *,
        schedule: str,
        assumed_honest: AssumedHonest = None,
        dimension: int | None = None,
        words: ColumnWords = CONTINUOUS,
    ) -> SumAccount:
        """Return an account with nothing released yet. `class_of[i]` is client i's class; scales
        are those in the sum.

        `dimension` is the number of coordinates of a report (used for Laplace noise alone).
        """
        rows = ClassTable.of(classes)
        honest = honest_reports(assumed_honest, max(1, len(class_of)))
        reason, table = None, None
        if schedule == "sequential":
            reason = SEQUENTIAL_SUM
        elif rows.is_noise("declared").any():
            reason = DECLARED_SUM
        elif rows.is_noise("user").any():
            reason = words.no_sum_law
        # Sections 14 and 15 are about one kind of noise each.
        elif len(np.unique(rows.noise)) > 1:
            reason = MIXED_SUM
        else:
            table = SumTable.of(rows, dimension)
            everybody = np.bincount(class_of, minlength=len(rows))
            # More reports hide better: if the sum of all of them bounds nobody, no sum will.
            if table.laplace and not np.isfinite(table.mu(everybody, honest)).any():
                reason, table = FEW_LAPLACE, None
        none, never = np.zeros(len(class_of)), np.zeros(len(class_of), dtype=np.int64)
        return cls(class_of, reason, assumed_honest, none, none, never, table)

    def after(self, present: Mask, times: int = 1, unusable: int = 0) -> SumAccount:
        """Return one more round of `times` sums, each of a report of these clients [n].

        `unusable` of the reports are in no sum, and whose they are is unknown.
        """
        table = self._table
        if table is None or not present.any():
            return self
        counts = np.bincount(self.class_of[present], minlength=len(table.scale))
        latest = self._latest
        # All of the unusable reports may be among the honest ones.
        honest = max(1, honest_reports(self.assumed_honest, int(counts.sum())) - unusable)
        same = latest is not None and latest.honest == honest
        if latest is None or not same or not np.array_equal(latest.counts, counts):
            latest = _SumCost(counts, honest, *table.cost(counts, honest))
        cost, attacked = latest.cost[self.class_of], latest.attacked[self.class_of]
        sent = times * present
        return replace(
            self,
            _latest=latest,
            mu_squared=_added(self.mu_squared, sent, cost),
            attacked_mu_squared=_added(self.attacked_mu_squared, sent, attacked),
            taken=self.taken + sent,
        )

    def epsilons(self, delta: float, clients: NDArray[np.int64] | slice = slice(None)) -> Vector:
        """Return the epsilon at `delta` (nats) of each of these clients, shape (clients,), proven.

        Raises `NotApplicableError` where there is no such guarantee.
        """
        table = self.table
        spent, taken = self.mu_squared[clients], self.taken[clients]
        found = np.zeros(len(taken))
        # A client's delta is what its sums of Laplace reports leave of it.
        # T rho depends on the number of sums, so Laplace clients are converted by groups of equal
        # T. Gaussian sums give nothing up, and T enters through mu^2 alone.
        rounds = taken if table.laplace else np.zeros_like(taken)
        alone = ~np.isfinite(spent)
        for times in np.unique(rounds[~alone]):
            some = (rounds == times) & ~alone
            # Section 15: delta(epsilon) is at most the Gaussian one plus T rho.
            left = delta - float(times) * SUM_RARE
            if left <= 0.0:
                alone |= some
                continue
            # Clients of one class and attendance have one mu^2: it is converted once.
            values, inverse = np.unique(spent[some], return_inverse=True)
            each = sum_epsilons(left, np.sqrt(values))
            found[some] = each[inverse.reshape(-1)]
        if alone.any():
            found[alone] = local_epsilons(
                table.local, self.class_of[clients][alone], taken[alone], delta
            )
        return found

    def worst_epsilons(self, delta: float) -> Vector:
        """Return the epsilon at `delta` of the most exposed client of each class [classes], 0 of
        none."""
        if self.table.laplace:
            return self.worst_of_classes(self.epsilons(delta))
        # Epsilon grows with mu: one conversion a class in place of one a client.
        worst = np.sqrt(self.worst_of_classes(self.mu_squared))
        return sum_epsilons(delta, worst)

    def worst_of_classes(self, values: Vector) -> Vector:
        """Return the largest of the clients' `values` [n] in each class [classes]; 0 for an empty
        one."""
        worst: Vector = largest_of_classes(values, self.class_of, len(self.table.scale))
        return worst

    def curve(self, client: int) -> SumCurve:
        """Return one client's privacy curve over all its rounds."""
        index, times = int(self.class_of[client]), int(self.taken[client])
        return self.table.curve(index, float(self.mu_squared[client]), times)

    @property
    def table(self) -> SumTable:
        """What the classes contribute; `NotApplicableError` if there is no guarantee."""
        if self._table is None:
            raise NotApplicableError(f"sum: {self.reason}")
        return self._table


def _added(spent: Vector, sent: NDArray[np.int64], cost: Vector) -> Vector:
    """Return `spent` plus what this number of reports costs each client, shape (n,); zero reports
    cost zero."""
    # `where`: 0 times infinity would be NaN, and an absent client of a class without a bound
    # costs 0.
    return spent + np.multiply(sent, cost, out=np.zeros_like(spent), where=sent > 0)
