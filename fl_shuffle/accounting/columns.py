"""A run's account, column by column: where the numbers come from, and every client's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.laws.gaussian_mechanism import MAX_MU, gaussian_epsilon
from fl_shuffle.accounting.rounds.events import Column
from fl_shuffle.accounting.rounds.shuffled_view import (
    DECLARED_MECHANISM,
    ONE_OF_SEVERAL,
    TOO_FEW_DECLARED,
)
from fl_shuffle.accounting.rounds.sum_account import UNKNOWN_SUM

Vector = NDArray[np.float64]

GSPA_SOURCE = "Chen, Cao, Ge (AAAI 2024), Theorem 2, sqrt(T) composition"
LOCAL_SOURCE = "exact composition of the client's own noise"
SHUFFLED_SOURCE = (
    "partial shuffles by a random swap (theorem in docs/proofs.md, section 13) or the blanket "
    "theorem (section 5), the smaller at each epsilon; dominating-pair composition"
)
DECLARED_SOURCE = (
    "partial shuffles by a random swap for a declared local profile (theorem in docs/proofs.md, "
    "section 13), dominating-pair composition"
)
DECLARED_NOTE = (
    "given the declared budgets: any two inputs are (epsilon0, delta0)-close under the user's "
    "randomizer, which treats clients of one budget alike"
)
DECLARED_LOCAL_SOURCE = "exact composition of the declared budget (Kairouz, Oh, Viswanath 2015)"
DECLARED_TRAINING_SOURCE = (
    "exact composition of the Gaussian steps that clients declare (Dong, Roth, Su 2022)"
)
DISCRETE_WORDS = {
    DECLARED_SOURCE: (
        "partial shuffles by a random swap for the local profile that is proven of the discrete "
        "noise (theorem in docs/proofs.md, section 13), dominating-pair composition"
    ),
    DECLARED_NOTE: (
        "the law of the discrete noise is known, and its budget proven: any two inputs are "
        "(epsilon0, delta0)-close. The theorems for continuous noise do not cover it"
    ),
    DECLARED_LOCAL_SOURCE: (
        "exact composition of the budget that is proven of the discrete noise (Kairouz, Oh, "
        "Viswanath 2015)"
    ),
    UNKNOWN_SUM: (
        "not available: the law of the discrete noise is known, and the budget of one report "
        "proven; the theorems on sums are for continuous noise and do not cover it"
    ),
    ONE_OF_SEVERAL: (
        "shuffling adds nothing here: the law of the discrete noise is known, and its budget "
        "proven, but the theorems for continuous noise do not cover it, and the one for any "
        "randomizer is applied to whole reports alone: with privacy.unit = 'client', or one record "
        "in each report"
    ),
    TOO_FEW_DECLARED: (
        "shuffling adds nothing here: the law of the discrete noise is known, and its budget "
        "proven, but the theorems for continuous noise do not cover it, and for the one that goes "
        "by budgets too few clients share one or it is too large; fewer budget levels "
        "(budgets.levels), smaller budgets or more clients would change that"
    ),
}
"""What is said of an own randomizer, in the words that hold for discrete noise: it is accounted in
the same way, but nothing of it is declared."""
SPECIFIC_SOURCE = "Su, Cheng, Wang (2025), Theorem 4, others within one unit's change"
LOWER_SOURCE = "attack that knows the others' means: likelihood ratio, or recognition"
SMALLER_NOTE = (
    "of so few reports more is proven when they are seen themselves, shuffled, than of their sum: "
    "a sum is computed from them, so that number stands here"
)


class ClientTotals(NamedTuple):
    """Every client's own bill [n]: rounds taken part in, and its epsilon in each proven column;
    `sum` is NaN where that column says nothing. `headline` is the one that matches the release."""

    rounds: NDArray[np.int64]
    proven: Vector
    local: Vector
    sum: Vector
    headline: Vector


def gspa_column(mu: float | None, delta: float, classes: Iterable[int]) -> Column:
    """Its column after rounds of parameter `mu` together."""
    if mu is None:
        return Column("gspa", Status.AS_PUBLISHED, GSPA_SOURCE, note="needs two reports a round")
    epsilon = gaussian_epsilon(delta, mu) if mu <= MAX_MU else math.inf
    return Column("gspa", Status.AS_PUBLISHED, GSPA_SOURCE, dict.fromkeys(classes, epsilon))


def smaller_column(sums: Column, proven: Column, overall: float | None) -> Column:
    """The column `sum` with `proven` wherever that is smaller: a sum is computed from the shuffled
    reports, so what holds of these holds of it. `overall`: the worst client's smaller one."""
    smaller = [index for index, value in sums.epsilon.items() if proven.epsilon[index] < value]
    if not smaller and overall == sums.overall:
        return sums
    epsilon = {**sums.epsilon, **{index: proven.epsilon[index] for index in smaller}}
    source = f"{sums.source}; or {proven.source}"
    return replace(sums, source=source, epsilon=epsilon, note=SMALLER_NOTE, overall=overall)


def larger_column(lower: Column, sums: Column) -> Column:
    """The column `lower` with `sums`, what tests on the sums of the same reports certainly reach,
    wherever that is larger: whoever sees the reports can add them up."""
    larger = {
        index: value for index, value in sums.epsilon.items()
        if value > lower.epsilon.get(index, 0.0)
    }  # fmt: skip
    if not larger:
        return lower
    source = f"{lower.source}; or {sums.source}"
    return replace(lower, source=source, epsilon={**lower.epsilon, **larger}, note="")


def of_declared_training(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns of a run whose clients train privately themselves, as they declare: nothing is
    proven, and what their own noise does stands in `local`."""
    found = {
        name: replace(column, epsilon={}, note=DECLARED_MECHANISM, overall=None)
        for name, column in columns.items()
    }
    local = columns["local"]
    found["local"] = replace(local, status=Status.DECLARED, source=DECLARED_TRAINING_SOURCE)
    return found


def of_discrete_noise(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns of a run with discrete noise, in `DISCRETE_WORDS`; no number changes."""

    def words(text: str) -> str:
        return DISCRETE_WORDS.get(text, text)

    return {
        name: replace(column, source=words(column.source), note=words(column.note))
        for name, column in columns.items()
    }
