"""Before a run of which only sums leave: what given reports cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.sum_release.gaussian import drawn_variance
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, honest_reports
from fl_shuffle.accounting.bounds.sum_release.laplace import SUM_INFLATION
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.limits import MAX_ROUNDS
from fl_shuffle.accounting.queries.planned_cost import ClassCost, client_class, proven_costs
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.accounting.rounds.local_guarantees import local_epsilon
from fl_shuffle.accounting.rounds.round_library import Spent
from fl_shuffle.accounting.rounds.sum_account import SumTable
from fl_shuffle.errors import NotApplicableError, require_integer, require_open_unit


@dataclass(frozen=True)
class EqualSums:
    """`rounds` equal sums of reports of classes, `counts` of each, `honest` of them honest."""

    table: SumTable
    counts: NDArray[np.int64]
    honest: int
    rounds: int

    @classmethod
    def of(
        cls,
        classes: Sequence[ReportClass],
        rounds: int,
        assumed_honest: AssumedHonest = None,
        dimension: int | None = None,
    ) -> EqualSums:
        """Of Laplace reports of unknown `dimension` any up to 10^9 is allowed for.

        Raises `NotApplicableError` for reports of two kinds of noise.
        """
        require_one_noise(classes)
        counts = np.array([kind.count for kind in classes], dtype=np.int64)
        honest = honest_reports(assumed_honest, int(counts.sum()))
        return cls(SumTable.of(map(client_class, classes), dimension), counts, honest, rounds)

    def curves(self) -> list[SumCurve]:
        """What they cost a client of each class; proven."""
        squares = self.rounds * self.table.cost(self.counts, self.honest).mu_squared
        return [self.table.curve(i, mu, self.rounds) for i, mu in enumerate(squares.tolist())]

    def attacked_mu(self) -> float:
        """What the best test on these Gaussian sums reaches against the worst class."""
        squares = self.table.cost(self.counts, self.honest).attacked_mu_squared
        return math.sqrt(self.rounds * float(squares.max()))


def shuffled_histories(
    classes: Sequence[ReportClass], rounds: int, assumed_honest: AssumedHonest = None
) -> list[Spent]:
    """What a client of each class went through if these reports were seen themselves, shuffled.

    Of Laplace reports alone, where that may cost less than what is proven of their sum: none for
    Gaussian ones.
    """
    if require_one_noise(classes) != "laplace":
        return []
    arrived = sum(kind.count for kind in classes)
    colluders = arrived - honest_reports(assumed_honest, arrived)
    return [
        {RoundType.of(classes, index).without(colluders): rounds} for index in range(len(classes))
    ]


def require_one_noise(classes: Sequence[ReportClass]) -> str:
    """The noise of all these reports; raises `NotApplicableError` if there are two kinds."""
    noises = {kind.noise for kind in classes}
    if len(noises) != 1:
        raise NotApplicableError("sum: nothing is proven of sums of different kinds of noise")
    return noises.pop()


def sum_cost(
    classes: Sequence[ReportClass],
    rounds: int,
    delta: float,
    *,
    assumed_honest: AssumedHonest = None,
    dimension: int | None = None,
) -> list[ClassCost]:
    """The proven cost of `rounds` equal sums for each class of a batch that arrives whole.

    It is the number a run over such rounds would print: of Laplace reports of that `dimension` the
    smaller one of the cost of their sum and that of the shuffled reports it is computed from.
    `anonymity` counts the reports whose noise may hide the client. Classes with no clients are left
    out.
    """
    require_integer("rounds", rounds, minimum=1, maximum=MAX_ROUNDS)
    require_open_unit("delta", delta)
    sums = EqualSums.of(classes, rounds, assumed_honest, dimension)
    honest, curves = sums.honest, sums.curves()
    if not sums.table.laplace:
        return _costs(classes, curves, honest, rounds, delta)
    known = [client_class(kind) for kind in classes]
    colluders = int(sums.counts.sum()) - honest
    costs = []
    for shuffled in proven_costs(known, sums.counts, rounds, delta, colluders):
        epsilon = min(curves[shuffled.index].epsilon(delta), shuffled.epsilon)
        credit = epsilon < shuffled.local
        costs.append(replace(shuffled, anonymity=honest, epsilon=epsilon, credit=credit))
    return costs


def drawn_sum_cost(
    classes: Sequence[ReportClass],
    rounds: int,
    delta: float,
    *,
    taken: int,
    participation: float,
    rare: float,
    assumed_honest: AssumedHonest = None,
) -> list[ClassCost]:
    """`sum_cost` where clients take part by public coins, for one who does so `taken` times.

    Some of the `rounds` sums hide less with probability `rare` at most.
    """
    from scipy.stats import binom

    if require_one_noise(classes) != "gaussian":
        raise NotApplicableError(
            "sum: a plan with training.participation < 1 is made for Gaussian reports alone"
        )
    sums = EqualSums.of(classes, rounds, assumed_honest)
    table, clients = sums.table, sums.counts
    reports = max(1, int(binom.ppf(rare / rounds, int(clients.sum()), participation)))
    honest = honest_reports(assumed_honest, reports)
    if assumed_honest is None:
        variance = drawn_variance(table.scale, table.grid, clients, participation, rare / rounds)
        mu = table.shift / np.sqrt(variance) * SUM_INFLATION
    else:
        # Whoever is drawn, the honest ones' noise is at least the smallest of everybody's.
        mu = table.mu(clients, honest)
    curves = [SumCurve(value * math.sqrt(taken)) for value in mu.tolist()]
    return _costs(classes, curves, honest, taken, delta)


def _costs(
    classes: Sequence[ReportClass],
    curves: Sequence[SumCurve],
    honest: int,
    rounds: int,
    delta: float,
) -> list[ClassCost]:
    """The cost of so many sums with these curves, classes without clients left out."""
    costs = []
    for index, (own, curve) in enumerate(zip(classes, curves, strict=True)):
        if own.count:
            local = local_epsilon(client_class(own), rounds, delta)
            epsilon = curve.epsilon(delta)
            costs.append(ClassCost(index, own.count, honest, epsilon, local, epsilon < local))
    return costs
