"""Data sets on which an attack on vector reports does well: what every report is to the attacker.

The client's mean moves along a line, between `radius` and `radius - sensitivity`. The others' means
lie where they hide it least:

* *one end*: at the other end of their own balls. To first order an attack has v^T A^+ v / N, v the
  difference of the client's two laws and A the mean of diag(R) - R R^T over the others: convex in
  A, which is linear in how often each law occurs, so the best data set has them all at one mean;
* *corner* (Laplace noise, two coordinates or more): at another corner of their l1 balls.

A report matters through two independent parts: its coordinate along the line, and a second one that
is the coordinate along the others' corner, or the size of the rest where noise scales differ. Both
are cut into cells, the attacker's choice. The line has no length: all is in widths of the client's
noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, ndtr

from fl_shuffle.accounting.reports import RoundType
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows

ATTACK_CELLS = 400
"""Cells of the line on which the attack's score is computed."""
ATTACK_CELL_ERROR = 1e-14
"""Allowance for the relative error of a cell's probability."""
ATTACK_REACH = 9.5
"""The cells cover so many noise widths beyond the outermost means."""
ATTACK_MAX_SHIFT = 12.0
"""Reports more than twice so many noise widths apart give themselves away: nothing is computed."""
ATTACK_SIZE_CELLS = 12
"""Cells of a report's distance from the line, beside those along it."""
ATTACK_CORNER_LINE = 120
"""Cells along the line where one corner is compared with others ..."""
ATTACK_CORNER_CELLS = 20
"""... and places of the corner that are compared."""
ATTACK_FEW_GROUPS = 64
"""Up to so many groups of others the cells are fine ..."""
ATTACK_MANY_GROUPS = 1000
"""... up to so many coarse; beyond, nothing is claimed."""
ATTACK_RADIUS_BIN = 0.02
"""More radii than that are rounded down within bins this wide, in logarithms."""
ATTACK_COARSE_CELLS = 120
"""Coarse cells along the line ..."""
ATTACK_COARSE_SIZE_CELLS = 6
"""... and of the distance from it."""
ATTACK_SIZE_REACH = 6.0
"""Distances are told apart within so many deviations of the noise's own."""
ATTACK_MOST_ACROSS = 100_000
"""So many coordinates across the line are used: up to there gamma integrals are good to 1e-13."""
ATTACK_UNSEEN = 1e-22
"""Cells less likely than this are left out and counted as error."""
ATTACK_SIZE_CELL_ERROR = 1e-11
"""Allowance for the relative error of a cell's probability where distances are used."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """`count` others: how far their means may lie from the centre, and their noise scale."""

    radius: float
    scale: float
    count: int


@dataclass(frozen=True)
class Batch:
    """A shuffled batch as one client's attacker sees it, in widths of that client's noise.

    Relation: one unit of the client is replaced, which moves its mean by `move`. `dimension` is
    that of the reports; what one coordinate shows holds in any dimension.
    """

    noise: str
    radius: float
    move: float
    others: tuple[Group, ...]
    dimension: int

    @classmethod
    def of(cls, kind: RoundType, dimension: int = 1) -> Batch:
        """A batch of one noise scale."""
        move, radius, radii, counts = kind.in_widths
        others = zip(radii.tolist(), counts.tolist(), strict=True)
        groups = tuple(Group(at, 1.0, count) for at, count in others)
        return cls(kind.noise, radius, move, groups, dimension)

    @property
    def equal_scales(self) -> bool:
        """Whether everybody's noise has one scale."""
        return all(group.scale == 1.0 for group in self.others)


def population_batch(
    classes: ClassTable, counts: NDArray[np.int64], index: int, dimension: int
) -> Batch | None:
    """Around a client of class `index` among `counts[j]` of every class j, whatever their scales.

    None where no attack would be tried: kinds of noise are mixed, or scales too many.

    Others of many radii are put at the smallest of their neighbours' radii: a mean there is one of
    the data sets that their own ball allows. Many scales cannot be merged.
    """
    own = classes[index]
    others = counts.copy()
    others[index] -= 1
    there = others > 0
    if bool((classes.noise[there] != classes.noise[index]).any()):
        return None
    radius, scale = classes.radius[there] / own.scale, classes.scale[there] / own.scale
    rows = distinct_rows(radius, scale)
    if rows.first.size > ATTACK_MANY_GROUPS:
        # Radii below a thousandth of the largest are almost the centre.
        size = np.maximum(radius, 1e-3 * radius.max(initial=1e-300))
        bins = np.floor(np.log(size) / ATTACK_RADIUS_BIN)
        rows = distinct_rows(bins, scale)
        least = np.full(rows.first.size, np.inf)
        np.minimum.at(least, rows.inverse, radius)
        radius = least[rows.inverse]
    number = np.bincount(rows.inverse, others[there], minlength=rows.first.size).astype(np.int64)
    radius, scale = radius[rows.first], scale[rows.first]
    if radius.size > ATTACK_MANY_GROUPS:
        # As many scales as this, all near the client's own, would all be told apart.
        nearest = np.argsort(np.abs(np.log(scale)), kind="stable")
        nearest = nearest[: ATTACK_MANY_GROUPS + 1]
        across = min(dimension - 1, ATTACK_MOST_ACROSS)
        seen = _sizes(own.noise, across, scale[nearest], ATTACK_COARSE_SIZE_CELLS)
        if bool((seen.sum(axis=1) * number[nearest] >= ATTACK_UNSEEN).all()):
            return None
    order = np.lexsort((scale, radius))
    groups = zip(radius[order].tolist(), scale[order].tolist(), number[order].tolist(), strict=True)
    return Batch(
        own.noise,
        own.radius / own.scale,
        own.exposure,
        tuple(Group(*group) for group in groups),
        dimension,
    )


@dataclass(frozen=True)
class DataSet:
    """Probabilities of the cells: of the client's report under both hypotheses, of the others'.

    `others` has one row for each group of `counts`. `left_out` bounds the probability, per round,
    that a report which no row describes matters; `cell_error` the relative error of a probability.
    """

    name: str
    first: FloatArray
    second: FloatArray
    others: FloatArray
    counts: FloatArray
    left_out: float = 0.0
    cell_error: float = ATTACK_CELL_ERROR

    def reversed(self) -> DataSet:
        """The same with the two hypotheses exchanged."""
        return DataSet(
            self.name, self.second, self.first, self.others, self.counts, self.left_out,
            self.cell_error,
        )  # fmt: skip


def data_sets(batch: Batch) -> list[DataSet]:
    """The data sets to attack, in both directions; none where the reports lie too far apart."""
    furthest = batch.radius + max((group.radius for group in batch.others), default=batch.radius)
    if batch.move == 0.0 or furthest > 2.0 * ATTACK_MAX_SHIFT:
        return []
    if not batch.equal_scales:
        found = _unequal_scales(batch)
    else:
        found = [_one_end(batch)]
        if batch.noise == "laplace" and batch.others and batch.dimension > 1:
            found.append(_corner(batch))
    return [item for data in found for item in (data, data.reversed())]


def _one_end(batch: Batch) -> DataSet:
    means = [-group.radius for group in batch.others]
    own, others = _line(batch, means, ATTACK_CELLS)
    return DataSet("one end", own[0], own[1], others, _counts(batch.others))


def _corner(batch: Batch) -> DataSet:
    """The client on the first axis, the others at the end of the second."""
    own, others = _line(batch, [0.0] * len(batch.others), ATTACK_CORNER_LINE)
    furthest = max(group.radius for group in batch.others)
    edges = np.linspace(0.0, furthest, ATTACK_CORNER_CELLS)
    at_zero = cell_probabilities(batch.noise, edges)
    at_corner = np.stack([cell_probabilities(batch.noise, edges - g.radius) for g in batch.others])
    return DataSet(
        "corner",
        np.outer(at_zero, own[0]).ravel(),
        np.outer(at_zero, own[1]).ravel(),
        np.einsum("gs,gl->gsl", at_corner, others).reshape(len(others), -1),
        _counts(batch.others),
    )


def _unequal_scales(batch: Batch) -> list[DataSet]:
    """Others at one end, told apart by the size of what lies across the line if there is any."""
    across = min(batch.dimension - 1, ATTACK_MOST_ACROSS)
    groups, left_out = batch.others, 0.0
    bins = ATTACK_SIZE_CELLS if len(groups) <= ATTACK_FEW_GROUPS else ATTACK_COARSE_SIZE_CELLS
    sizes = _sizes(batch.noise, across, [1.0, *(group.scale for group in groups)], bins)
    # Reports that are never of such a size add nothing to the attacker's sum.
    seen = sizes.sum(axis=1) * np.array([1.0, *_counts(groups)])
    kept = seen >= ATTACK_UNSEEN
    kept[0] = True
    left_out = float(seen[~kept].sum())
    groups = tuple(group for group, keep in zip(groups, kept[1:], strict=True) if keep)
    if len(groups) > ATTACK_MANY_GROUPS:
        return []
    cells = ATTACK_CELLS if len(groups) <= ATTACK_FEW_GROUPS else ATTACK_COARSE_CELLS
    own, others = _line(batch, [-group.radius for group in groups], cells, groups)
    rows = np.einsum("gs,gl->gsl", sizes[kept], np.concatenate([own[:1], others]))
    rows = rows.reshape(len(groups) + 1, -1)
    moved = np.outer(sizes[0], own[1]).ravel()
    rows, moved = (
        np.concatenate([part, np.maximum(1.0 - part.sum(-1, keepdims=True), 0.0)], axis=-1)
        for part in (rows, moved)
    )
    error = ATTACK_SIZE_CELL_ERROR
    return [DataSet("one end", rows[0], moved, rows[1:], _counts(groups), left_out, error)]


def _line(
    batch: Batch, means: Sequence[float], cells: int, groups: Sequence[Group] | None = None
) -> tuple[FloatArray, FloatArray]:
    """Cells of the line: the client's law at both its means [2, cells], the others' [g, cells]."""
    ends = (batch.radius - batch.move, batch.radius)
    low, high = min(*ends, *means), max(*ends, *means)
    # Beyond all means the ratio of two Laplace densities of one scale is constant.
    beyond = 0.0 if batch.noise == "laplace" and batch.equal_scales else ATTACK_REACH
    edges = np.linspace(low - beyond, high + beyond, cells + 1)
    own = np.stack([cell_probabilities(batch.noise, edges - at) for at in ends])
    members = batch.others if groups is None else groups
    others = [
        cell_probabilities(batch.noise, (edges - mean) / group.scale)
        for mean, group in zip(means, members, strict=True)
    ]
    return own, np.array(others).reshape(len(others), cells + 2)


def _counts(groups: Sequence[Group]) -> FloatArray:
    return np.array([group.count for group in groups], dtype=np.float64)


def _sizes(noise: str, across: int, scales: Sequence[float] | FloatArray, bins: int) -> FloatArray:
    """Probabilities [scales, bins] of the size of a report's part across the line.

    Gaussian: squared norm, a chi-square variable; Laplace: l1 norm, a gamma variable. The client's
    own lies outside all bins with probability about 1e-9.
    """
    if across == 0:
        return np.ones((len(scales), 1))
    gaussian = noise == "gaussian"
    shape = 0.5 * across if gaussian else float(across)
    low = max(shape - ATTACK_SIZE_REACH * math.sqrt(shape), 0.0)
    # A gamma variable's upper tail is heavier than a normal one's.
    high = shape + ATTACK_SIZE_REACH * math.sqrt(shape) + 0.5 * ATTACK_SIZE_REACH**2
    edges = np.linspace(low, high, bins + 1)
    width = np.asarray(scales)[:, None] ** (2 if gaussian else 1)
    at = edges[None, :] / width
    below, above = gammainc(shape, at), gammaincc(shape, at)
    # Differences of the smaller of the two keep their digits.
    lower, upper = np.diff(below, axis=1), -np.diff(above, axis=1)
    chosen: FloatArray = np.where(at[:, 1:] < shape, lower, upper)
    return np.maximum(chosen, 0.0)


def cell_probabilities(noise: str, edges: FloatArray) -> FloatArray:
    """Probabilities of the cells between `edges` and beyond both ends, without cancellation.

    The noise has scale one and is centred at zero; J edges give J + 1 cells.
    """
    low = np.concatenate([[-np.inf], edges])
    high = np.concatenate([edges, [np.inf]])
    flip = low > 0.0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    if noise == "gaussian":
        return np.asarray(ndtr(b) - ndtr(a), dtype=np.float64)

    def cdf(x: FloatArray) -> FloatArray:
        return np.where(
            x < 0.0, 0.5 * np.exp(np.minimum(x, 0.0)), 1.0 - 0.5 * np.exp(-np.maximum(x, 0.0))
        )

    return cdf(b) - cdf(a)
