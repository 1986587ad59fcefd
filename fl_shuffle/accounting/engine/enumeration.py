"""Few reports of few kinds: the bound as a plain sum over how often each kind occurs.

    delta = sum_m w_m E(S_{m+1})_+,    w_m = P(M = m)/(m + 1),

M the number of blanket reports among the others. Every term is nonnegative, so the sum has the
relative accuracy of its terms, however small delta is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np
from scipy.special import gammaln

from fl_shuffle.accounting.engine.tilted_moments import UNIT
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray

Classes = Sequence[tuple[float, int]]


def outcomes(law: AtomicLaw, classes: Classes) -> int:
    """How many terms the sum has."""
    least, most = _range(classes)
    kinds = law.values.size
    return comb(most + 1 + kinds, kinds) - comb(least + kinds, kinds)


def enumerated_delta(law: AtomicLaw, classes: Classes) -> tuple[float, float]:
    """Bounds on E[L_1 1{L_1 + sum_j B_j L_j > 0}] from below and above.

    `classes` lists (gamma > 0, count > 0) of the other reports. Time and memory grow with
    `outcomes(law, classes)`.
    """
    least, most = _range(classes)
    counts = _counts(law.values.size, least + 1, most + 1)
    total = counts.sum(axis=1).astype(np.int64)
    with np.errstate(divide="ignore"):
        log_weights = np.log(_blanket_counts(classes)) - np.log(np.arange(most + 1) + 1.0)
    logs = log_weights[total - 1] + gammaln(total + 1.0)
    logs -= gammaln(counts + 1.0).sum(axis=1)
    logs += counts @ np.log(law.probabilities)
    sums = counts @ law.values
    # Each product and each partial sum is off by half a unit in the last place at most.
    doubt = (law.values.size + 3.0) * UNIT * (counts @ np.abs(law.values))
    weights = np.exp(logs)
    size = gammaln(most + 2.0) + float(np.max(np.abs(np.log(law.probabilities)))) * (most + 1)
    slack = UNIT * (16.0 * (size + 100.0) + 4.0 * most)
    low = float(weights @ np.maximum(sums - doubt, 0.0)) * (1.0 - slack)
    high = float(weights @ np.maximum(sums + doubt, 0.0)) * (1.0 + slack)
    # Probabilities below the smallest float have become zero.
    return low, high + 1e-290 * float(np.max(np.abs(sums)))


def _range(classes: Classes) -> tuple[int, int]:
    """The smallest and the largest number of blanket reports."""
    least = sum(count for gamma, count in classes if gamma >= 1.0)
    return least, sum(count for _, count in classes)


def _blanket_counts(classes: Classes) -> FloatArray:
    """P(M = m), m = 0..: convolutions of positive terms keep their relative accuracy."""
    law = np.ones(1)
    for gamma, count in classes:
        m = np.arange(count + 1, dtype=np.float64)
        if gamma >= 1.0:
            part = np.where(m == count, 1.0, 0.0)
        else:
            logs = gammaln(count + 1.0) - gammaln(m + 1.0) - gammaln(count - m + 1.0)
            part = np.exp(logs + m * np.log(gamma) + (count - m) * np.log1p(-gamma))
        law = np.convolve(law, part)
    return law


@lru_cache(maxsize=4)
def _counts(kinds: int, least: int, most: int) -> FloatArray:
    """Every way `least`..`most` reports can fall into `kinds` kinds [ways, kinds]."""
    rest = np.arange(least, most + 1)
    columns: list[np.ndarray] = []
    for _ in range(kinds - 1):
        repeats = rest + 1
        parent = np.repeat(np.arange(rest.size), repeats)
        first = np.cumsum(repeats) - repeats
        here = np.arange(parent.size) - first[parent]
        columns = [column[parent] for column in columns]
        columns.append(here)
        rest = rest[parent] - here
    table = np.stack([*columns, rest], axis=1).astype(np.float64)
    table.setflags(write=False)
    return table
