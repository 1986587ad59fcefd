"""Data sets on which an attack on vector reports does well: what every report is to the attacker.

The client's mean moves along a line, between `radius` and `radius - sensitivity`. The others' means
lie on that line, at the other end of their own balls. To first order an attack has v^T A^+ v / N, v
the difference of the client's two distributions and A the mean of diag(R) - R R^T over the others:
convex in A, which is linear in how often each distribution occurs, so the best data set has them
all at one mean.

The best mean need not lie on the line. For Laplace noise, means in other corners of the same l1
ball can hide the client less, so two more data sets are attacked where reports have at least two
coordinates (docs/research/proofs, section 8): the client moves between two corners while the others
lie on an axis of their own, and the client moves from a corner to another axis while the others lie
at the corner opposite to the first.

A report matters through two independent parts: its coordinate along the line, and where noise
scales differ the size of the rest. Both are cut into cells, the attacker's choice. Lengths
are in units of the scale of the client's noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, ndtr

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions.continuous import laplace_cells
from fl_shuffle.accounting.round_off import UNIT
from fl_shuffle.accounting.rounds.class_table import ClassTable, distinct_rows

ATTACK_CELLS = 400
"""Cells of the line on which the attack's score is computed."""
ATTACK_PLANE_CELLS = 160, 100
"""Cells of each of two coordinates, where Laplace reports off the line are attacked."""
ATTACK_CELL_ERROR = 4e-13
"""Allowance for the relative error of a cell's probability. An edge x is off by a unit in the last
place, 2^-52 |x| at most, and a normal tail changes by |x| times that: 38.5^2 2^-52 = 3.3e-13 where
it underflows. Measured against 50 digits: 2.3e-13."""
ATTACK_REACH = 9.5
"""Noise standard deviations that the cells cover beyond the outermost means."""
ATTACK_MAX_SHIFT = 12.0
"""Reports more than twice this many noise standard deviations apart are told apart: no
computation."""
ATTACK_SIZE_CELLS = 12
"""Cells of a report's distance from the line, beside those along it."""
ATTACK_FEW_GROUPS = 64
"""Up to this number of groups of others, the cells are fine ..."""
ATTACK_MANY_GROUPS = 1000
"""... up to this number, coarse; beyond, nothing is claimed."""
ATTACK_RADIUS_BIN = 0.02
"""More radii than that are rounded down within bins this wide, in logarithms."""
ATTACK_COARSE_CELLS = 120
"""Coarse cells along the line ..."""
ATTACK_COARSE_SIZE_CELLS = 6
"""... and of the distance from it."""
ATTACK_SIZE_REACH = 6.0
"""Distances are told apart within this many deviations of the noise's own."""
ATTACK_MOST_ACROSS = 100_000
"""Coordinates across the line that are used: up to there, gamma integrals are good to 1e-13."""
ATTACK_UNSEEN = 1e-22
"""Cells less likely than this are left out and counted as error."""
ATTACK_SIZE_CELL_ERROR = 1e-11
"""Allowance for the relative error of a cell's probability where distances are used."""


@dataclass(frozen=True)
class AttackedBatch:
    """A shuffled batch as one client's attacker sees it, in units of that client's noise scale.

    Relation: one unit of the client is replaced, which moves its mean by `move`. `others` lists
    (how far their means may lie from the center, their noise scale, their number). `dimension` is
    that of the reports; what one coordinate shows holds in any dimension.
    """

    noise: str
    radius: float
    move: float
    others: tuple[tuple[float, float, int], ...]
    dimension: int

    @classmethod
    def of(cls, kind: ShuffledRound, dimension: int = 1) -> AttackedBatch:
        """Return a batch of one noise scale."""
        move, radius, radii, counts = kind.in_widths
        scales = np.ones(radii.size)
        others = zip(radii.tolist(), scales.tolist(), counts.tolist(), strict=True)
        return cls(kind.noise, radius, move, tuple(others), dimension)


def population_batch(
    classes: ClassTable, counts: NDArray[np.int64], index: int, dimension: int
) -> AttackedBatch | None:
    """Return the batch around a client of class `index` among `counts[j]` of every class j,
    whatever their scales.

    None where no attack would be tried: kinds of noise are mixed.

    Others of many radii are put at the smallest of their neighbors' radii: a mean there is one of
    the data sets that their own ball allows. Many scales cannot be merged.
    """
    own = classes[index]
    others = counts.copy()
    others[index] -= 1
    there = others > 0
    if bool((classes.noise[there] != classes.noise[index]).any()):
        return None
    radius, scale = classes.radius[there] / own.scale, classes.scale[there] / own.scale
    rows = distinct_rows(scale, radius)
    if rows.first.size > ATTACK_MANY_GROUPS:
        # Radii below a thousandth of the largest are almost the center.
        size = np.maximum(radius, 1e-3 * radius.max(initial=1e-300))
        rows = distinct_rows(scale, np.floor(np.log(size) / ATTACK_RADIUS_BIN))
        least = np.full(rows.first.size, np.inf)
        np.minimum.at(least, rows.inverse, radius)
        radius = least[rows.inverse]
    number = np.bincount(rows.inverse, others[there], minlength=rows.first.size).astype(np.int64)
    columns = radius[rows.first], scale[rows.first], number
    groups = tuple(zip(*(column.tolist() for column in columns), strict=True))
    return AttackedBatch(own.noise, own.radius / own.scale, own.exposure, groups, dimension)


@dataclass(frozen=True)
class DataSet:
    """Probabilities of the cells: of the client's report under both hypotheses, of the others'.

    `others` has one row for each group of `counts`. `left_out` bounds the probability, per round,
    that a report which no row describes matters; `cell_error` the relative error of a probability.
    """

    first: FloatArray
    second: FloatArray
    others: FloatArray
    counts: FloatArray
    left_out: float
    cell_error: float

    def reversed(self) -> DataSet:
        """Return the same with the two hypotheses exchanged."""
        return replace(self, first=self.second, second=self.first)


def data_sets(batch: AttackedBatch) -> list[DataSet]:
    """Return the data set to attack, in both directions.

    None where the reports lie too far apart, or of too many noise scales are told apart.
    """
    radii, scales, counts = np.array(batch.others, dtype=np.float64).reshape(-1, 3).T
    furthest = batch.radius + radii.max(initial=batch.radius)
    if batch.move == 0.0 or furthest > 2.0 * ATTACK_MAX_SHIFT:
        return []
    differ = bool((scales != 1.0).any())
    across = min(batch.dimension - 1, ATTACK_MOST_ACROSS) if differ else 0
    bins = ATTACK_SIZE_CELLS if scales.size <= ATTACK_FEW_GROUPS else ATTACK_COARSE_SIZE_CELLS
    sizes = _sizes(batch.noise, across, np.append(1.0, scales), bins)
    # Reports that are never of such a size add nothing to the attacker's sum.
    seen = sizes[1:].sum(axis=1) * counts
    kept = seen >= ATTACK_UNSEEN
    radii, scales, counts = radii[kept], scales[kept], counts[kept]
    if scales.size > ATTACK_MANY_GROUPS:
        return []
    fine = not differ or scales.size <= ATTACK_FEW_GROUPS
    own, others = _line(batch, radii, scales, ATTACK_CELLS if fine else ATTACK_COARSE_CELLS)
    first, second = (np.outer(sizes[0], law).ravel() for law in own)
    rows = np.einsum("gs,gl->gsl", sizes[1:][kept], others).reshape(scales.size, first.size)
    error = ATTACK_CELL_ERROR
    if across:
        error = ATTACK_SIZE_CELL_ERROR
        rows, first, second = (
            np.concatenate([law, np.maximum(1.0 - law.sum(-1, keepdims=True), 0.0)], axis=-1)
            for law in (rows, first, second)
        )
    found = [DataSet(first, second, rows, counts, float(seen[~kept].sum()), error)]
    if batch.noise == "laplace" and batch.dimension > 1 and not differ:
        found += _off_the_line(batch, radii, counts)
    return [each for data in found for each in (data, data.reversed())]


def _off_the_line(batch: AttackedBatch, radii: FloatArray, counts: FloatArray) -> list[DataSet]:
    """Return data sets of Laplace reports in two coordinates; lengths of l1.

    With h half the move and C the client's radius: means (h, h - C) and (-h, h - C), others at (0,
    C_g); and means (C, 0) and (C - h, h), others at (-C_g, 0). All lie in their balls.
    """
    own, half, zero = batch.radius, 0.5 * batch.move, np.zeros_like(radii)
    places = [
        (((half, half - own), (-half, half - own)), (zero, radii)),
        (((own, 0.0), (own - half, half)), (-radii, zero)),
    ]
    return [_in_the_plane(means, others, counts) for means, others in places]


def _in_the_plane(
    means: tuple[tuple[float, float], tuple[float, float]],
    others: tuple[FloatArray, FloatArray],
    counts: FloatArray,
) -> DataSet:
    """Return probabilities of the cells of the plane for the client's two means and the others'."""
    laws = []
    for axis, cells in enumerate(ATTACK_PLANE_CELLS):
        at = np.concatenate([others[axis], [means[0][axis], means[1][axis]]])
        # Beyond all means no ratio of two densities changes. All means are edges.
        edges = np.unique(np.append(np.linspace(at.min(), at.max(), cells + 1), at))
        laws.append([cell_probabilities("laplace", edges - place) for place in at])
    first, second = (np.array(each) for each in laws)
    product = np.einsum("gi,gj->gij", first, second).reshape(len(first), -1)
    return DataSet(
        product[-2], product[-1], product[:-2], counts, 0.0, 2.0 * ATTACK_CELL_ERROR + 4.0 * UNIT
    )


def _line(
    batch: AttackedBatch, radii: FloatArray, scales: FloatArray, cells: int
) -> tuple[list[FloatArray], FloatArray]:
    """Return cells of the line: the client's distribution at both its means [cells], the others'
    [g, cells]."""
    ends = (batch.radius - batch.move, batch.radius)
    low, high = min(*ends, *-radii), max(*ends, *-radii)
    # Beyond all means the ratio of two Laplace densities of one scale is constant.
    bare = batch.noise == "laplace" and not bool((scales != 1.0).any())
    beyond = 0.0 if bare else ATTACK_REACH
    edges = np.linspace(low - beyond, high + beyond, cells + 1)
    others = [
        cell_probabilities(batch.noise, (edges + radius) / scale)
        for radius, scale in zip(radii, scales, strict=True)
    ]
    own = [cell_probabilities(batch.noise, edges - at) for at in ends]
    return own, np.array(others).reshape(len(others), cells + 2)


def _sizes(noise: str, across: int, scales: FloatArray, bins: int) -> FloatArray:
    """Return probabilities [scales, bins] of the size of a report's part across the line.

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
    width = scales[:, None] ** (2 if gaussian else 1)
    at = edges[None, :] / width
    below, above = gammainc(shape, at), gammaincc(shape, at)
    # Differences of the smaller of the two keep their digits.
    lower, upper = np.diff(below, axis=1), -np.diff(above, axis=1)
    chosen: FloatArray = np.where(at[:, 1:] < shape, lower, upper)
    return np.maximum(chosen, 0.0)


def cell_probabilities(noise: str, edges: FloatArray) -> FloatArray:
    """Return probabilities of the cells between `edges` and beyond both ends, without cancellation.

    The noise has scale one and is centered at zero; J edges give J + 1 cells.
    """
    if noise == "laplace":
        return laplace_cells(edges)
    low, high = np.append(-np.inf, edges), np.append(edges, np.inf)
    flip = low > 0.0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    return np.asarray(ndtr(b) - ndtr(a), dtype=np.float64)
