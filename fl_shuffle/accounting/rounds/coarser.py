"""A coarser batch in place of one that arrived: similar rounds then share one certified curve.

Validity. Within every radius, the coarser batch has at most as many reports as arrived. So each of
its reports can be matched with one that arrived in a ball no larger, and the rest is told to the
attacker: its curve is an upper bound (docs/research/proofs, section 6). Nothing else is needed, and
how the shape was found does not matter.

Choice. Each distinct shape costs seconds to certify, and each report left out costs privacy. A few
candidate shapes are tried, the most widely shared first, and the first one is taken that is
predicted to cost at most `HARDLY_MORE` times the batch itself. Otherwise the count within each
radius is rounded down by itself, more finely. The result depends on the batch and the whole alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.curve import MIN_OTHERS
from fl_shuffle.accounting.bounds.partial_shuffle.gram import worst_variance
from fl_shuffle.accounting.client_classes import (
    ROUND_EXACT_REPORTS,
    AnyRound,
    DeclaredRound,
    ShuffledRound,
)

HARDLY_MORE = 1.035
"""A candidate shape may be predicted to cost this many times what the batch costs. Far out, where
few large ratios decide, epsilon grows by more than is predicted."""
CELLS_PER_OCTAVE = 8.0
"""Cells between two powers of two, where each count is rounded by itself: at most 1/9 is lost."""
LARGEST_LOSS = 1.0 / 32.0
"""At most this share of all reports is left out by rounding their number down. Below 1,000 reports
this is finer than the root. With 159 others and a root of 8, seven of them were left out, and far
out epsilon grew by a tenth."""
SLACKS = 2.0, 0.5
"""Slack below one share of the whole, in units of about the root of the batch's size: the standard
deviation of a count of independent arrivals is below that."""
DEPTHS = 1.0, 1.5, 2.0, 3.0
"""Predictions are made near epsilon = 0, and further out: with all lengths this many times. Each
prefix of the radii that is the best one at some epsilon should be the best one at some depth."""
SHORT_SHARE = 0.5
"""Classes whose arrival rate is below this share of the usual one may be left out of a shape."""
SHORT_SDS = 3.0
"""They must also lie this many standard deviations below it."""
USUAL_SHARE = 0.25
"""The usual rate: the highest one that this share of the arrived reports reaches."""
MAX_EXPONENT = 300.0
"""Larger exponents of a prediction mean that there is nothing to gain."""


def coarser(batch: AnyRound, whole: AnyRound) -> AnyRound:
    """Return a type that similar batches share, and that costs no less than `batch`.

    `whole` is the view of a round in which every client reports. A batch with at most
    `ROUND_EXACT_REPORTS` others, and the whole batch, are returned as they are.
    """
    if isinstance(batch, DeclaredRound):
        return batch.rounded_down()
    others = batch.anonymity - 1
    if not isinstance(whole, ShuffledRound) or others <= ROUND_EXACT_REPORTS or batch == whole:
        return batch
    # One list of radii for both: counts within them are compared elementwise.
    radii = np.array(sorted({radius for radius, _ in (*batch.others, *whole.others)}))
    here, there = _within(batch, radii), _within(whole, radii)
    cost = _Cost(batch, radii)
    most = HARDLY_MORE * cost(here)
    fits = (shape for shape in _shapes(here, there) if np.all(cost(shape) <= most))
    kept = next(fits, _rounded_by_root(here))
    # The rule that makes this valid is enforced, whatever the shapes are.
    kept = np.minimum(np.maximum.accumulate(np.floor(kept)), here)
    counts = np.diff(kept.astype(np.int64), prepend=0).tolist()
    pairs = zip(radii.tolist(), counts, strict=True)
    return replace(batch, others=tuple((radius, count) for radius, count in pairs if count > 0))


def _within(kind: ShuffledRound, radii: FloatArray) -> FloatArray:
    """Return the number of the others within each of these radii, shape (radii,)."""
    mine = np.array(kind.others, dtype=np.float64).reshape(-1, 2)
    numbers = np.concatenate([[0.0], np.cumsum(mine[:, 1])])
    result: FloatArray = numbers[np.searchsorted(mine[:, 0], radii, side="right")]
    return result


def _shapes(here: FloatArray, there: FloatArray) -> Iterator[FloatArray]:
    """Yield candidate counts within each radius, each described by few numbers.

    Shapes: one share of the whole less some slack, with all reports that arrived; one share of the
    whole at every radius from one on, with the smaller balls counted at that radius; the first
    again without the classes from which hardly any report arrived; and each count rounded alone.
    """
    unit = min(
        2.0 ** math.floor(0.5 * math.log2(here[-1])),
        2.0 ** max(math.floor(math.log2(here[-1] * LARGEST_LOSS)), 0),
    )
    total = unit * math.floor(here[-1] / unit)
    if here.size == 1:
        yield np.array([total])
        return

    def below(whole: FloatArray, slack: float) -> FloatArray:
        wanted = total * whole / whole[-1]
        missing = max(float(np.max(wanted[:-1] - here[:-1])), 1.0)
        kept: FloatArray = np.floor(np.maximum(wanted - slack * math.ceil(missing / slack), 0.0))
        kept[-1] = total
        return kept

    yield below(there, SLACKS[0] * unit)
    for first in range(here.size):
        with np.errstate(divide="ignore", invalid="ignore"):
            least = float(np.nanmin(here[first:] / there[first:]))
        share = unit * math.floor(least * there[-1] / unit) / there[-1]
        kept = np.minimum(np.floor(share * there), here)
        kept[:first] = 0.0
        yield kept
    came, planned = np.diff(here, prepend=0.0), np.diff(there, prepend=0.0)
    rate = came / np.maximum(planned, 1.0)
    order = np.argsort(-rate, kind="stable")
    reached = np.searchsorted(np.cumsum(came[order]), USUAL_SHARE * here[-1])
    usual = float(rate[order[reached]])
    short = came + SHORT_SDS * np.sqrt(came + 1.0) < usual * planned
    short &= rate < SHORT_SHARE * usual
    left = np.cumsum(np.where(short, 0.0, planned))
    if left[-1] > 0.0:
        for slack in SLACKS:
            yield below(left, slack * unit)
    yield _rounded_alone(here)


def _rounded_alone(here: FloatArray) -> FloatArray:
    """Return each count rounded down to a grid with equal cells between powers of two."""
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(here, 1.0) / CELLS_PER_OCTAVE)), 0.0))
    result: FloatArray = unit * np.floor(here / unit)
    return result


def _rounded_by_root(here: FloatArray) -> FloatArray:
    """Return each count rounded down to a multiple of about its root, or less if it is small."""
    unit = np.exp2(np.floor(0.5 * np.log2(np.maximum(here, 1.0))))
    rounded: FloatArray = unit * np.floor(here / unit)
    # Where the other grid is the finer one it loses less.
    return np.maximum(rounded, _rounded_alone(here))


class _Cost:
    """Predict how a client's epsilon grows with the reports that hide it: a guide, not a bound."""

    def __init__(self, batch: ShuffledRound, radii: FloatArray) -> None:
        widths = radii / batch.scale
        own = batch.radius / batch.scale
        self._move = batch.exposure
        self._gaussian = batch.noise == "gaussian"
        self._masses = np.exp(-widths)
        if self._gaussian:
            self._variances = _variances(own, self._move, tuple(widths.tolist()))
        else:
            farthest = np.minimum(np.maximum(own + widths, self._move), MAX_EXPONENT)
            self._variances = np.exp(farthest)[None, :]

    def __call__(self, within: FloatArray) -> FloatArray:
        """Return predictions for the best prefix of the nearest others, shape (depths,)."""
        numbers = np.maximum(within, 1e-9)
        counts = np.diff(within, prepend=0.0)
        if not self._gaussian:
            # Two theorems: convex order, all others at the widest; blankets, each by its own mass.
            # The expected number of blanket reports: each other draws from the blanket with mass
            # e^-radius.
            blanket = 1.0 + float(counts @ self._masses)
            widest = np.sqrt(self._variances[0] / numbers).min()
            return np.array([widest, 1.0 / math.sqrt(blanket)])
        # The normal approximation: sqrt(sum of the others' variances) / number of others.
        sums = np.cumsum(self._variances * counts, axis=1)
        # Capped exponents make a variance negative where reports are far apart: no guess there.
        each = np.sqrt(np.where(sums >= 0.0, sums, math.inf)) / numbers
        each[:, within < MIN_OTHERS] = math.inf
        result: FloatArray = np.minimum(each.min(axis=1), self._move)
        return result


@lru_cache(maxsize=1 << 10)
def _variances(own: float, move: float, radii: tuple[float, ...]) -> FloatArray:
    """Return what one other adds to the variance of the privacy loss, shape (depths, radii)."""
    return np.array(
        [[worst_variance(k * own, k * r, k * move, 1.0) for r in radii] for k in DEPTHS]
    )
