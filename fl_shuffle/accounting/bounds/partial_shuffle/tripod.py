"""The worst others of Laplace reports: configurations of few coordinates, and boxes that hold all.

Source: docs/research/proofs, section 18, Theorems 1 and 2. Lengths are l1, in noise scales.

p and q are the two means of client 1, r is that of another client, m their coordinatewise median,
al = |p - m|, be = |q - m|, ga = |r - m|. Then |p - q| = al + be, |p - r| = al + ga, and |q - r| =
be + ga. The positive part of L = (P - aQ)/R at a point of R is largest, in the sense of
E(L - t)_+ for t >= 0, where p and q lie on two sides of r on one axis (`OPPOSITE`), or where p and
r lie on two sides of q (`BEYOND`); everything else lies on axes of its own. Likewise below zero,
with p and q exchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import Factors

BEYOND, OPPOSITE = 0, 1
"""Kinds: p and r on two sides of q; p and q on two sides of r. Equal to the share of al that lies
where r is the median (Theorem 2)."""
CELLS_PER_LENGTH = 12.0
"""Cells of a segment per noise scale, near its far end, where ratios are large."""
GROWTH = 1.5
"""Cells grow by this rate with the distance from there."""
FEWEST_CELLS = 4
MOST_CELLS = 14
LENGTH_ROUND_UP = 1.0 + 1e-14
"""Lengths are quotients and sums of few doubles."""


def cells_of(length: float) -> int:
    """Return the number of cells of segments up to this long; any number is valid."""
    wanted = CELLS_PER_LENGTH * math.log1p(GROWTH * length) / GROWTH
    return min(max(math.ceil(wanted), FEWEST_CELLS), MOST_CELLS)


def graded(length: FloatArray, cells: int) -> FloatArray:
    """Return nodes from 0 to each length, denser towards the length, shape (rows, cells + 1)."""
    u = np.linspace(1.0, 0.0, cells + 1)
    # Distances d from the far end with a density of nodes like 1/(1 + GROWTH d).
    distance = np.expm1(np.log1p(GROWTH * length)[:, None] * u) / GROWTH
    nodes: FloatArray = np.maximum(length[:, None] - distance, 0.0)
    nodes[:, 0] = 0.0
    nodes[:, -1] = length
    return nodes


def masses_outward(nodes: FloatArray) -> FloatArray:
    """Return masses at nodes of a ray that begins at r, from the noise on its side alone.

    Parameters
    ----------
    nodes : ndarray, shape (rows, nodes)
        Distances from r, increasing from 0.

    Returns
    -------
    ndarray, shape (rows, nodes)
        With sum 1/2: what lies beyond the last node is at that node.

    Notes
    -----
    On the ray all ratios are affine in e^(2s), s the distance from r, whose density is e^(-s)/2.
    The mass of a cell [s, s + l], e^(-s) (1 - e^(-l))/2, goes to its two ends with E e^(2s) kept.
    The share of the far end is ((e^l - 1) - (1 - e^-l))/((e^(2l) - 1)(1 - e^-l)) = 1/(1 + e^l).
    So spread, the ratios are above those of the noise in the convex order, together.
    """
    length = np.diff(nodes, axis=1)
    mass = -0.5 * np.exp(-nodes[:, :-1]) * np.expm1(-length)
    far = mass / (1.0 + np.exp(length))
    result = np.zeros_like(nodes)
    result[:, 1:] = far
    result[:, :-1] += mass - far
    result[:, -1] += 0.5 * np.exp(-nodes[:, -1])
    return result


def alone(length: FloatArray, cells: int) -> tuple[FloatArray, FloatArray]:
    """Return values and masses of a ratio of two Laplace densities `length` apart, mean one."""
    s = graded(length, cells)
    p = masses_outward(s)
    # The half of the noise on the other side of r has the same ratio as r itself.
    p[:, 0] += 0.5
    return np.exp(2.0 * s - length[:, None]), p


def opposite(
    al: FloatArray, be: FloatArray, cells: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x = P/R, y = Q/R, and masses where p and q lie at these distances on two sides of r.

    On the side of p x grows and y = e^(-be); on that of q y grows and x = e^(-al).
    """
    s, t = graded(al, cells), graded(be, cells)
    p, q = masses_outward(s), masses_outward(t)
    x = np.concatenate([np.exp(2.0 * s - al[:, None]), np.exp(-al)[:, None] + 0.0 * t], axis=1)
    y = np.concatenate([np.exp(-be)[:, None] + 0.0 * s, np.exp(2.0 * t - be[:, None])], axis=1)
    return x, y, np.concatenate([p, q], axis=1)


def beyond(al: FloatArray, ga: FloatArray, cells: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x = P/R, y = Q/R, and masses where p and r lie at al and ga on two sides of q."""
    near, far = graded(ga, cells), graded(al, cells)
    s = np.concatenate([near, ga[:, None] + far[:, 1:]], axis=1)
    p = masses_outward(s)
    p[:, 0] += 0.5
    # From r to q both ratios grow, from q to p only x.
    x = np.exp(2.0 * s - (al + ga)[:, None])
    y = np.exp(2.0 * np.minimum(s, ga[:, None]) - ga[:, None])
    return x, y, p


@dataclass(frozen=True)
class Lengths:
    """Lengths of many tripods, each shape (rows,); in the role of p.

    `between`: how much of ga lies opposite to al (`BEYOND`), `apart`: how much of it on an axis of
    its own. `moved`: how far r was moved (Lemma 4 of section 18).
    """

    al: FloatArray
    be: FloatArray
    between: FloatArray
    apart: FloatArray
    moved: FloatArray


def positive_part(kind: int, of: Lengths, a: float, cells: int) -> Factors:
    """Return distributions whose product is L_+, of tripods of this kind.

    L = x - a y. Every coordinate is spread for itself, which is upwards in the convex order: given
    the others, L is linear in the ratios of one coordinate. With `moved` = s values count e^s
    times, and masses e^-s times.
    """
    x, y, p = value_law(kind, of, cells)
    scales, masses = alone(of.apart, cells)
    # Moved by s, R is at least e^-s times what it was: E(L - t)_+ <= E(L' - t e^-s)_+.
    up = np.exp(of.moved)[:, None]
    return Factors(
        scales * up, masses / up, np.maximum(x - a * y, 0.0), p, np.zeros(len(x))
    )  # fmt: skip


def negative_part(kind: int, of: Lengths, a: float, cells: int) -> Factors:
    """Return distributions whose product is L_-, the lengths being in the role of q.

    As `positive_part`, with p and q exchanged: L = y - a x.
    """
    x, y, p = value_law(kind, of, cells)
    scales, masses = alone(of.apart, cells)
    up = np.exp(of.moved)[:, None]
    return Factors(
        scales * up, masses / up, np.maximum(a * x - y, 0.0), p, np.zeros(len(x))
    )  # fmt: skip


def value_law(kind: int, of: Lengths, cells: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x, y, and masses of all coordinates but that in which r alone differs."""
    if kind == OPPOSITE:
        return opposite(of.al, of.be, cells)
    x, y, p = beyond(of.al, of.between, cells)
    factor, q = alone(of.be, cells)
    rows = len(x)
    # q alone, on an axis of its own: it multiplies y.
    x = np.broadcast_to(x[:, :, None], (*x.shape, factor.shape[1])).reshape(rows, -1)
    y = (y[:, :, None] * factor[:, None, :]).reshape(rows, -1)
    return x, y, (p[:, :, None] * q[:, None, :]).reshape(rows, -1)


WHOLE, EVEN = 0, 1
"""Families of maximal tripods: al + be = D_12; and al = be < D_12/2."""


@dataclass(frozen=True)
class TripodCover:
    """Boxes that hold all others at distance at most `to_other` of both means, `move` apart.

    A box is a row (family, c, c', i, j, v, v'). In the family `WHOLE` al = c, be = move - c, and
    ga = to_other - max(al, be); in `EVEN` al = be = c and ga = to_other - c. i and j are the kinds
    that bound L above and below zero (Theorem 2). v: the share of ga that lies opposite to al where
    q is the median; the rest lies opposite to be. It is used where both kinds are `BEYOND`.
    """

    move: float
    to_other: float

    @property
    def ends(self) -> FloatArray:
        """Single tripods that are nearly always the worst ones."""
        low, high = self._range
        rows = []
        for c in np.linspace(low, high, 5).tolist():
            for i, j, v in ((1, 1, 0.0), (0, 1, 1.0), (1, 0, 0.0), (0, 0, 0.0), (0, 0, 1.0)):
                rows.append((WHOLE, c, c, i, j, v, v))
        return np.array(rows, dtype=np.float64)

    @property
    def _range(self) -> tuple[float, float]:
        """Beyond these c of `WHOLE`, ga would be negative."""
        return max(0.0, self.move - self.to_other), min(self.move, self.to_other)

    def start(self) -> FloatArray:
        """Return boxes that together hold all others."""
        (low, high), half = self._range, 0.5 * self.move
        pieces = ((WHOLE, low, half), (WHOLE, half, high), (EVEN, 0.0, half))
        kinds = ((0, 0, 0.0, 1.0), (0, 1, 1.0, 1.0), (1, 0, 0.0, 0.0), (1, 1, 0.0, 0.0))
        rows = [(f, c0, c1, i, j, v0, v1) for i, j, v0, v1 in kinds for f, c0, c1 in pieces]
        return np.array(rows, dtype=np.float64)

    def corner(self, boxes: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return al, be, and ga that are at least those of every tripod in a box."""
        family, c0, c1 = boxes[:, 0], boxes[:, 1], boxes[:, 2]
        whole, half = family == WHOLE, 0.5 * self.move
        be = np.where(whole, self.move - c0, c1)
        # The least max(al, be) in the box.
        least = np.where(c0 >= half, c0, np.maximum(self.move - c1, half))
        least = np.where(whole, least, c0)
        lengths = c1, be, np.maximum(self.to_other - least, 0.0)
        al, be, ga = (each * LENGTH_ROUND_UP for each in lengths)
        return al, be, ga

    def above(self, boxes: FloatArray) -> Lengths:
        """Return tripods whose E(L - t)_+, t >= 0, is at least that of every one in a box.

        In the role of p: of the kinds i.
        """
        al, be, ga = self.corner(boxes)
        return self._lengths(boxes, boxes[:, 3], (al, be, ga), (boxes[:, 5], boxes[:, 6]))

    def below(self, boxes: FloatArray) -> Lengths:
        """Return tripods whose E(t - L)_+, t <= 0, is at least that of every one in a box.

        In the role of q, of the kinds j: be, al, and the share 1 - v.
        """
        al, be, ga = self.corner(boxes)
        shares = 1.0 - boxes[:, 6], 1.0 - boxes[:, 5]
        return self._lengths(boxes, boxes[:, 4], (be, al, ga), shares)

    def _lengths(
        self,
        boxes: FloatArray,
        kinds: FloatArray,
        corner: tuple[FloatArray, FloatArray, FloatArray],
        shares: tuple[FloatArray, FloatArray],
    ) -> Lengths:
        al, be, ga = corner
        opposite_, whole = kinds == OPPOSITE, boxes[:, 0] == WHOLE
        # p and q at distance al + be = move, and r between them: every such r of the box is within
        # half its width of the middle one (Lemma 4).
        width = np.where(opposite_ & whole, boxes[:, 2] - boxes[:, 1], 0.0) * LENGTH_ROUND_UP
        middle = np.where(width > 0.0, al - 0.5 * width, al)
        other = np.where(width > 0.0, self.move * LENGTH_ROUND_UP - middle, be)
        v0, v1 = shares
        # r's coordinate opposite to al holds at most v' ga, and the rest at most (1 - v) ga. Where
        # v' = 1 all of it may be merged into the former.
        between = np.where(opposite_, 0.0, v1 * ga)
        apart = np.where(opposite_, ga, np.where(v1 >= 1.0, 0.0, (1.0 - v0) * ga))
        return Lengths(middle, other, between, apart, 0.5 * width)

    def halves(self, boxes: FloatArray) -> FloatArray:
        """Return each box as two: cut across c, or across v where that is the wider side."""
        if not len(boxes):
            return boxes
        _, c0, c1, i, j, v0, v1 = boxes.T
        ga = self.corner(boxes)[2]
        by_c = (c1 - c0) * (1.0 + 1.0 / self.move)
        # What remains at the ends of v is a ratio on an axis of its own: its second moment tells.
        at_low = np.where(v0 == 0.0, log_second_moment(v1 * ga), math.inf)
        at_high = np.where(v1 == 1.0, log_second_moment((1.0 - v0) * ga), math.inf)
        by_v = np.minimum(np.minimum(at_low, at_high), (v1 - v0) * ga)
        across_v = (i == BEYOND) & (j == BEYOND) & (by_v > by_c)
        middle_v = 0.5 * (v0 + v1)
        ended = (v0 > 0.0) | (v1 < 1.0)
        middle_v = np.where(ended & (v0 == 0.0), 0.4 * v1, middle_v)
        middle_v = np.where(ended & (v0 > 0.0) & (v1 == 1.0), 1.0 - 0.4 * (1.0 - v0), middle_v)
        first, second = boxes.copy(), boxes.copy()
        middle_c = 0.5 * (c0 + c1)
        first[:, 2] = np.where(across_v, c1, middle_c)
        second[:, 1] = np.where(across_v, c0, middle_c)
        first[:, 6] = np.where(across_v, middle_v, v1)
        second[:, 5] = np.where(across_v, middle_v, v0)
        return np.concatenate([first, second])

    def points(self, boxes: FloatArray) -> FloatArray:
        """Return one tripod of each box: at a vertex if the box has one, else the middle."""
        family, c0, c1, v0, v1 = (boxes[:, k] for k in (0, 1, 2, 5, 6))
        (low, high), half = self._range, 0.5 * self.move
        c = np.where((c1 == half) | (c1 == high), c1, 0.5 * (c0 + c1))
        c = np.where((family == WHOLE) & ((c0 == low) | (c0 == half)), c0, c)
        v = np.where(v0 == 0.0, 0.0, np.where(v1 == 1.0, 1.0, 0.5 * (v0 + v1)))
        result = boxes.copy()
        result[:, 1] = result[:, 2] = c
        result[:, 5] = result[:, 6] = v
        return result


def log_second_moment(length: FloatArray) -> FloatArray:
    """Return log E x^2 of a ratio of two Laplace densities this far apart: (2 e^u + e^-2u)/3."""
    result: FloatArray = np.log((2.0 * np.exp(length) + np.exp(-2.0 * length)) / 3.0)
    return result
