"""Before a run of which only sums leave: what given reports cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.attacks.laplace_sums import LaplaceSumTest
from fl_shuffle.accounting.attacks.sum_attack import laplace_sum_test
from fl_shuffle.accounting.bounds.sum_release.gaussian import (
    attacked_variance,
    drawn_variance,
    sum_mu,
)
from fl_shuffle.accounting.bounds.sum_release.honest import (
    AssumedHonest,
    honest_reports,
)
from fl_shuffle.accounting.bounds.sum_release.laplace import SUM_INFLATION, SUM_RARE, laplace_sum_mu
from fl_shuffle.accounting.bounds.sum_release.sum_curve import SumCurve
from fl_shuffle.accounting.laws.report_grid import report_grids
from fl_shuffle.accounting.limits import MAX_ROUNDS
from fl_shuffle.accounting.queries.planned_cost import ClassCost, client_class, proven_costs
from fl_shuffle.accounting.reports import ReportClass, RoundType
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilon
from fl_shuffle.accounting.rounds.round_library import Spent
from fl_shuffle.accounting.rounds.sum_account import SUM_MOST_COORDINATES
from fl_shuffle.errors import (
    NotApplicableError,
    require_integer,
    require_open_unit,
)

Vector = NDArray[np.float64]


def class_curves(
    classes: Sequence[ReportClass],
    rounds: int,
    assumed_honest: AssumedHonest = None,
    dimension: int | None = None,
) -> list[SumCurve]:
    """What `rounds` sums of these reports cost a client of each class; proven.

    Of Laplace reports of unknown `dimension` any up to 10^9 is allowed for.
    """
    noise = require_one_noise(classes)
    scale, shift, counts = _columns(classes)
    grids = report_grids(scale, np.array([kind.radius for kind in classes]))
    honest = honest_reports(assumed_honest, int(counts.sum()))
    if noise == "gaussian":
        mu = sum_mu(scale, shift, grids, counts, honest) * math.sqrt(rounds)
        return [SumCurve(value) for value in mu.tolist()]
    mu = laplace_sum_mu(
        scale,
        shift,
        grids,
        counts,
        dimension=SUM_MOST_COORDINATES if dimension is None else dimension,
        honest=honest,
    )
    rare = rounds * SUM_RARE
    alone = accounted_locally(ClassTable.of(map(client_class, classes))).exposure
    return [
        SumCurve(value * math.sqrt(rounds), rare, pure, rounds)
        for value, pure in zip(mu.tolist(), alone.tolist(), strict=True)
    ]


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


def attacked_class_mu(
    classes: Sequence[ReportClass], assumed_honest: AssumedHonest = None
) -> tuple[Vector, float]:
    """What the best test on one sum of Gaussian reports reaches for each class; its coarsest grid
    (in scales)."""
    scale, shift, counts = _columns(classes)
    radius = np.array([kind.radius for kind in classes])
    honest = honest_reports(assumed_honest, int(counts.sum()))
    coarsest = float(np.max(report_grids(scale, radius) / scale))
    return shift / np.sqrt(attacked_variance(scale, counts, honest)), coarsest


def laplace_class_tests(
    classes: Sequence[ReportClass], rounds: int, assumed_honest: AssumedHonest = None
) -> list[LaplaceSumTest]:
    """The test on `rounds` sums of these Laplace reports against a client of each class."""
    scale, shift, counts = _columns(classes)
    grids = report_grids(scale, np.array([kind.radius for kind in classes]))
    honest = honest_reports(assumed_honest, int(counts.sum()))
    return [
        laplace_sum_test(scale, grids, counts, honest, index, move, rounds)
        for index, move in enumerate(shift.tolist())
    ]


def require_one_noise(classes: Sequence[ReportClass]) -> str:
    """The noise of all these reports; raises `NotApplicableError` if there are two kinds."""
    noises = {kind.noise for kind in classes}
    if len(noises) != 1:
        raise NotApplicableError("sum: nothing is proven of sums of different kinds of noise")
    return noises.pop()


def _columns(classes: Sequence[ReportClass]) -> tuple[Vector, Vector, NDArray[np.int64]]:
    """Scale, shift and count of each class."""
    scale = np.array([kind.scale for kind in classes])
    shift = np.array([kind.ratio * kind.scale for kind in classes])
    return scale, shift, np.array([kind.count for kind in classes], dtype=np.int64)


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
    arrived = sum(kind.count for kind in classes)
    honest = honest_reports(assumed_honest, arrived)
    curves = class_curves(classes, rounds, assumed_honest, dimension)
    if require_one_noise(classes) != "laplace":
        return _costs(classes, curves, honest, rounds, delta)
    counts = np.array([kind.count for kind in classes], dtype=np.int64)
    known = [client_class(kind) for kind in classes]
    costs = []
    for shuffled in proven_costs(known, counts, rounds, delta, arrived - honest):
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
    scale, shift, clients = _columns(classes)
    grids = report_grids(scale, np.array([kind.radius for kind in classes]))
    reports = max(1, int(binom.ppf(rare / rounds, int(clients.sum()), participation)))
    honest = honest_reports(assumed_honest, reports)
    if assumed_honest is None:
        variance = drawn_variance(scale, grids, clients, participation, rare / rounds)
        mu = shift / np.sqrt(variance) * SUM_INFLATION
    else:
        # Whoever is drawn, the honest ones' noise is at least the smallest of everybody's.
        mu = sum_mu(scale, shift, grids, clients, honest)
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
