"""delta(epsilon) of Laplace reports by the tripod order.

Source: docs/research/proofs, section 18, Theorem 3.

    delta <= (1/m) sum_g n_g max over boxes B of [ S D_B/(N s_g) + kappa_B ] + (A) + (C),
    D_B = sum_i p_gi D'(B; x_i),   S = e^(theta beta) prod_g s_g^(n_g/N),   any s_g > 0,

as for Gaussian reports (`gaussian_bound`), with another cover of the others, other laws of L, and
other weights of the nodes. Every free parameter is chosen here, from public numbers and the epsilon
alone; every choice gives a bound, and what was chosen is paid for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.partial_shuffle import tripod
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import (
    LINES,
    LOW_END,
    NEGLIGIBLE,
    WIDE_NODES,
    ClientAmongGroups,
    OnLine,
    choose_cut,
    low_end,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import LEAST_RADIUS, Swap
from fl_shuffle.accounting.bounds.partial_shuffle.joined_law import GridEnds, Half, TwoSided
from fl_shuffle.accounting.bounds.partial_shuffle.laplace_swap import (
    choose_swap,
    convex_from_one,
)
from fl_shuffle.accounting.bounds.partial_shuffle.tripod import BEYOND, OPPOSITE, TripodCover
from fl_shuffle.accounting.round_off import ROUND_OFF, ROUND_UP

TOLERANCE = 0.002
"""Boxes may say this much more of the variance than the largest value found, relatively ..."""
MOST_TOLERANCE = 0.04
"""... but not more of delta than this."""
MOST_BOXES = 1500
"""After this number of evaluations boxes are kept as they come: valid, only larger."""
PROMISING = 3
"""Boxes of which one tripod is tried, to know the largest value better."""
CHUNK = 64
"""Boxes at a time."""
NEARLY = 1.0 - 1e-6
"""Of the move: beyond this epsilon L hardly exceeds zero, and the local delta is all there is."""
PASSES = 3
"""Costs are chosen for a goal, and again for what was found, if it lies outside ..."""
NEAR_GOAL = 0.3, 4.0
"""... this range of the goal."""
GOALS = 1.0, 8.0, 64.0, 512.0
"""With few others a small cost cannot be had: a larger one still gives a bound."""
COST_SHARE = 0.0015
"""Of the goal, for each of (A) and (C)."""
LEAST_GOAL = 1e-18
"""Costs are chosen for at least this delta."""
CUT_WORTH = 0.9
"""A cut at this share of the largest L or further out is none."""
GRID_NODES = 176
"""Of the grid that all laws of one epsilon lie on."""
MOST_EXACT = 400
"""Largest number of frequencies with exact moduli: where few large ratios decide, Lemma 4 of
section 12 says little."""


@dataclass(frozen=True)
class LaplaceGeometry(ClientAmongGroups):
    """A client among others with Laplace noise: lengths in l1, in noise scales."""

    @cached_property
    def covers(self) -> list[TripodCover]:
        """One a group."""
        return [TripodCover(self.move, self._to(other)) for other, _ in self.groups]

    def _to(self, other: float) -> float:
        """Return how far the mean of another client of this radius may lie from the client's."""
        return max(self.own, 0.5 * self.move) + max(other, LEAST_RADIUS)

    @property
    def furthest(self) -> float:
        """The largest of these distances."""
        return max(self._to(other) for other, _ in self.groups)

    @property
    def cells(self) -> int:
        """Cells of a segment."""
        return tripod.cells_of(self.furthest)

    @cached_property
    def seconds(self) -> list[float]:
        """The largest E L^2 at a = 1 of each group's guides, about: a scale."""
        return [self._second(area) for area in self.covers]

    def _second(self, area: TripodCover) -> float:
        boxes = area.ends
        above, below = area.above(boxes), area.below(boxes)
        total = np.zeros(len(boxes))
        for kind in (BEYOND, OPPOSITE):
            for column, of, part in (
                (3, above, tripod.positive_part), (4, below, tripod.negative_part)
            ):  # fmt: skip
                rows = boxes[:, column] == kind
                f, r, t, p, _ = part(kind, chosen(of, rows), 1.0, self.cells)
                total[rows] += (r * f * f).sum(axis=1) * (p * t * t).sum(axis=1)
        return float(total.max())

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve at epsilon = 0: not a bound, only a scale."""
        each = [n * s for (_, n), s in zip(self.groups, self.seconds, strict=True)]
        return math.sqrt(sum(each)) / self.count


def chosen(of: tripod.Lengths, rows: NDArray[np.bool_]) -> tripod.Lengths:
    """Return some rows of lengths."""
    return tripod.Lengths(
        *(each[rows] for each in (of.al, of.be, of.between, of.apart, of.moved))
    )  # fmt: skip


@lru_cache(maxsize=1 << 14)
def laplace_delta(setting: LaplaceGeometry, epsilon: float) -> float:
    """Return the bound on delta(epsilon) of Laplace reports, both orders.

    Parameters
    ----------
    setting : LaplaceGeometry
        The client and the others, in noise scales.
    epsilon : float
        In nats, at least 0.

    Returns
    -------
    float
        delta; the local one where no constants are found.

    Notes
    -----
    Statement: docs/research/proofs, section 18, Theorem 3. Neighbors: replace-one. Direction of
    error: the result is raised by 1e-8 + 1e-11 N of itself for round-off, and every other error is
    added. It depends on nothing that was asked before.
    """
    local = float(laplace_profile(epsilon, setting.move)) * ROUND_UP
    if local < NEGLIGIBLE or epsilon >= NEARLY * setting.move:
        return max(local, 0.0)
    a = math.exp(epsilon)
    guides = LaplaceGuides.of(setting, a)
    goal = max(choose_cut(guides, setting)[2] / setting.count, LEAST_GOAL)
    z = epsilon / setting.predicted_mu
    # A normal curve's delta grows with its variance to the power (1 + z^2)/2 at z deviations.
    tolerance = min(0.5 * TOLERANCE * (1.0 + z * z), MOST_TOLERANCE)
    best = local
    for _ in range(PASSES):
        main = _main(setting, a, guides, local, goal)
        if main is None:
            break
        # What guides say is no bound; it tells whether the goal was a good one.
        said = main.least
        if NEAR_GOAL[0] * goal < said < NEAR_GOAL[1] * goal or said >= best:
            break
        goal = max(0.9 * said, LEAST_GOAL)
    if main is not None and main.least < best:
        found = main.bound(tolerance)
        # Round-off of the whole bound, at the end of section 12: 1e-8 + 1e-11 N.
        best = min(best, found * (1.0 + (10.0 + 0.01 * setting.count) * ROUND_OFF))
    return best


def _main(
    setting: LaplaceGeometry, a: float, guides: LaplaceGuides, local: float, goal: float
) -> LaplaceMain | None:
    """Return the main term with constants for the first of the goals that has some."""
    for factor in GOALS:
        if goal * factor > 8.0 * local:
            break
        swap = choose_swap(setting.groups, local, guides.second, goal * factor, COST_SHARE)
        if swap is not None:
            return LaplaceMain(setting, a, guides, swap)
    return None


@dataclass(frozen=True)
class LaplaceGuides:
    """Laws of the tripods that are nearly always the worst ones, as many for each group.

    They guide all free choices.
    """

    second: float
    """The largest E L^2."""
    largest: float
    """The largest L."""
    wide: FloatArray
    """Values of a grid for all of them ..."""
    binned: FloatArray
    """... and the laws on it."""

    @classmethod
    def of(cls, setting: LaplaceGeometry, a: float) -> LaplaceGuides:
        """Return the guides at a = e^epsilon."""
        ends = GridEnds.of(setting.move, setting.furthest, a)
        # About the deviation: at a > 1, L = x - a y has a few times the second moment of x - y.
        scale = a * math.sqrt(max(setting.seconds))
        grid = TwoSided.of(-ends.bottom, scale, ends.top, WIDE_NODES, ends)
        rows = [laws_of(setting, grid, area, area.ends, a)[0] for area in setting.covers]
        binned = np.nan_to_num(np.concatenate(rows))
        nodes = grid.grid.nodes
        return cls(float((binned @ nodes**2).max()), ends.top, nodes, binned)


def laws_of(
    setting: LaplaceGeometry, grid: TwoSided, area: TripodCover, boxes: FloatArray, a: float
) -> tuple[FloatArray, FloatArray]:
    """Return masses on the grid of laws above all L of each box, and what they leave out above."""
    ends = GridEnds.of(area.move, area.to_other, a)
    own = TwoSided(grid.grid, ends.top, ends.bottom)
    above = _half(setting, own, a, area.above(boxes), boxes[:, 3], above=True)
    below = _half(setting, own, a, area.below(boxes), boxes[:, 4], above=False)
    return own.joined(above, below, a)


def _half(
    setting: LaplaceGeometry,
    grid: TwoSided,
    a: float,
    of: tripod.Lengths,
    kinds: FloatArray,
    *,
    above: bool,
) -> Half:
    """Return laws above L_+ or L_- of tripods of these kinds."""
    part = tripod.positive_part if above else tripod.negative_part
    found = {
        kind: grid.half(part(kind, chosen(of, rows), a, setting.cells), above=above)
        for kind in (BEYOND, OPPOSITE)
        if (rows := kinds == kind).any()
    }
    nodes = next(iter(found.values())).nodes
    masses, over = np.zeros((len(kinds), nodes.size)), np.zeros(len(kinds))
    for kind, half in found.items():
        masses[kinds == kind], over[kinds == kind] = half.masses, half.over
    return Half(nodes, masses, over)


class LaplaceMain(OnLine):
    """The main term and what is cut off, for one choice of K, the line and the swap's constants."""

    _setting: LaplaceGeometry
    most_exact = MOST_EXACT

    def __init__(
        self, setting: LaplaceGeometry, a: float, guides: LaplaceGuides, swap: Swap
    ) -> None:
        self._setting, self._a, self.swap = setting, a, swap
        spread = math.sqrt(max(guides.second - (a - 1.0) ** 2, 1e-3 * guides.second))
        cut, theta, goal = choose_cut(guides, setting, swap)
        # Ratios are bounded: nothing is cut off, unless that pays.
        cut = guides.largest if cut >= CUT_WORTH * guides.largest else cut
        low = low_end(guides, LOW_END * goal / setting.count)
        ends = GridEnds.of(setting.move, setting.furthest, a)
        self._two = TwoSided.of(min(low, -spread), spread, cut, GRID_NODES, ends)
        self._grid = self._two.grid
        ended = [laws_of(setting, self._two, area, area.ends, a) for area in setting.covers]
        masses = np.nan_to_num(np.concatenate([m for m, _ in ended]))
        with np.errstate(over="ignore", invalid="ignore"):
            self._transform = self._best_line(masses, LINES * theta)
        self._prepared = self._transform.prepared()
        said = [
            self._of_laws(*of, weights) for of, weights in zip(ended, swap.weights, strict=True)
        ]
        self._scales = np.array([log[np.isfinite(log)].max(initial=-600.0) for log, _ in said])
        log_main = float(setting.shares @ self._scales) + self.theta * swap.beta
        self._main = math.exp(min(max(log_main, -600.0), 600.0))
        each = [
            self._values(*of, scale).max()
            for of, scale in zip(said, self._scales.tolist(), strict=True)
        ]
        self._guided = each
        self.least = self._whole(each)
        """The bound over the guides alone: not a bound, and about the least that one can be."""

    def _of_laws(
        self, masses: FloatArray, over: FloatArray, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return log D_B and kappa_B of laws."""
        with np.errstate(over="ignore", invalid="ignore"):
            log = self._transform.log_d(masses, self._prepared)
            # Relative to D at lambda, so that nothing overflows.
            d = convex_from_one(np.exp(log - log[:, 1:2]), self.swap.nodes)
            return log[:, 1] + np.log(d @ weights), self.swap.slope * over * ROUND_UP

    def _values(self, log: FloatArray, kappa: FloatArray, scale: float) -> FloatArray:
        """Return D_B/s_g + N kappa_B/S; what is no number counts as infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            v = np.exp(log - scale) + self._setting.count * kappa / self._main
        result: FloatArray = np.nan_to_num(v, nan=math.inf, posinf=math.inf)
        return result

    def _whole(self, each: list[float]) -> float:
        """Return the bound with these largest values of the groups."""
        total = float(self._setting.shares @ np.array(each))
        return self._main * total / self.swap.m + self.swap.cost

    def bound(self, tolerance: float) -> float:
        """Return the whole bound: the mean over the others of what the worst of their group adds.

        prod_g D_g^(n_g/N) <= S sum_g (n_g/N) D_g/s_g (weighted means), s_g the guides' largest D_g.
        """
        each = zip(
            self._setting.covers,
            self.swap.weights,
            self._scales.tolist(),
            self._guided,
            strict=True,
        )
        return self._whole([self._largest(*of, tolerance) for of in each])

    def _largest(
        self, area: TripodCover, weights: FloatArray, scale: float, best: float, tolerance: float
    ) -> float:
        """Return a number that no box of `area` exceeds; boxes hold all others.

        A box is kept once its value is at most 1 + `tolerance` times the largest value that a
        single tripod has; else it is halved.
        """

        def said(boxes: FloatArray) -> FloatArray:
            parts = np.array_split(boxes, 1 + len(boxes) // CHUNK)
            laws = [laws_of(self._setting, self._two, area, part, self._a) for part in parts]
            found = [self._values(*self._of_laws(*each, weights), scale) for each in laws]
            return np.concatenate(found)

        boxes, asked, most = area.start(), 0, 0.0
        points = boxes[:0]
        while len(boxes):
            # Single tripods of the last boxes, to know the largest value better.
            v = said(np.concatenate([boxes, points]))
            single, v = v[len(boxes) :], v[: len(boxes)]
            best = max(best, float(single[np.isfinite(single)].max(initial=0.0)))
            asked += len(boxes)
            done = (v <= best * (1.0 + tolerance)) | (asked > MOST_BOXES)
            most = max(most, float(v[done].max(initial=0.0)))
            points = area.points(boxes[~done][np.argsort(v[~done])[-PROMISING:]])
            boxes = area.halves(boxes[~done])
        return most
