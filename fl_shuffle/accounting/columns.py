"""A run's account, column by column: where the numbers come from, and every client's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import Vector
from fl_shuffle._internal.renamed import warn_renamed
from fl_shuffle.accounting.distributions.gaussian_mechanism import MAX_MU, gaussian_epsilon
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.shuffled_view import DECLARED_MECHANISM

GSPA_SOURCE = "Chen, Cao, Ge (AAAI 2024), Theorem 2, sqrt(T) composition"
DECLARED_TRAINING_SOURCE = (
    "exact composition of the Gaussian steps that clients declare (Dong, Roth, Su 2022)"
)
SU2025_SOURCE = "Su, Cheng, Wang (2025), Theorem 4, others within one unit's change"
SMALLER_NOTE = (
    "of so few reports more is proven when they are seen themselves, shuffled, than of their sum: "
    "a sum is computed from them, so that number stands here"
)


class ClientTotals(NamedTuple):
    """Spend of every client, in arrays of shape (clients,), epsilons in nats.

    Attributes
    ----------
    rounds : ndarray of int64
        Rounds in which the client's report was released.
    shuffled, local, sum : ndarray of float
        Epsilon in each proven column; `sum` is NaN where that column says nothing.
    headline : ndarray of float
        The one that matches the release.
    """

    rounds: NDArray[np.int64]
    shuffled: Vector
    local: Vector
    sum: Vector
    headline: Vector

    @property
    def proven(self) -> Vector:
        """The old name of `shuffled`."""
        warn_renamed("ClientTotals.proven", "ClientTotals.shuffled")
        return self.shuffled


def gspa_column(mu: float | None, delta: float, classes: Iterable[int]) -> Column:
    """Return the column `gspa` after rounds of parameter `mu` together."""
    if mu is None:
        return Column("gspa", Status.AS_PUBLISHED, GSPA_SOURCE, note="needs two reports a round")
    # Beyond `MAX_MU` squares overflow; its epsilon is astronomical in any case.
    epsilon = gaussian_epsilon(delta, mu) if mu <= MAX_MU else math.inf
    return Column("gspa", Status.AS_PUBLISHED, GSPA_SOURCE, dict.fromkeys(classes, epsilon))


def smaller_column(sums: Column, shuffled: Column, overall: float | None) -> Column:
    """Return the column `sum` with `shuffled` wherever that is smaller.

    A sum is computed from the shuffled reports, so what holds of these holds of it. `overall`: the
    most exposed client's smaller one.
    """
    # Class by class: both columns bound every client of the class.
    smaller = [index for index, value in sums.epsilon.items() if shuffled.epsilon[index] < value]
    if not smaller and overall == sums.overall:
        return sums
    epsilon = {**sums.epsilon, **{index: shuffled.epsilon[index] for index in smaller}}
    source = f"{sums.source}; or {shuffled.source}"
    return replace(sums, source=source, epsilon=epsilon, note=SMALLER_NOTE, overall=overall)


def larger_column(lower: Column, sums: Column) -> Column:
    """Return the column `shuffled_lower` with `sums` wherever that is larger.

    `sums` is what tests on the sums of the same reports certainly reach, and an attacker who sees
    the reports can add them.
    """
    larger = {
        index: value for index, value in sums.epsilon.items()
        if value > lower.epsilon.get(index, 0.0)
    }  # fmt: skip
    if not larger:
        return lower
    source = f"{lower.source}; or {sums.source}"
    return replace(lower, source=source, epsilon={**lower.epsilon, **larger}, note="")


def of_declared_training(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns of a run whose clients train privately themselves, as they declare.

    Nothing is proven, and what their own noise does stands in `local`.
    """
    found = {
        # Every other column would need the distribution of a report.
        name: replace(column, epsilon={}, note=DECLARED_MECHANISM, overall=None)
        for name, column in columns.items()
    }
    local = columns["local"]
    found["local"] = replace(local, status=Status.DECLARED, source=DECLARED_TRAINING_SOURCE)
    return found
