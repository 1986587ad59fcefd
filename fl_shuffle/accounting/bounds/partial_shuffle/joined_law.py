"""One law above L from a law above its positive part and another above its negative part.

Source: docs/research/proofs, section 18, Lemmas 3 and 5. All laws lie on the two halves of one
grid: arrays have one row a law, one column a node, and nodes are distances from zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import Factors, Grid

SHARES = np.array([0.0, 0.12])
"""Shares of the mass on one side that are tried as free for the other one."""
END_ROUND_UP = 1.0 + 1e-12
"""Where L ends is rounded outwards by this."""
LEAST_MASS = 1e-12
"""No side gets less mass than this."""


class Half(NamedTuple):
    """Laws of L_+ or of L_-: nodes above zero, masses, and E of what lies beyond the last node."""

    nodes: FloatArray
    masses: FloatArray
    over: FloatArray

    @property
    def mean(self) -> FloatArray:
        """E L_+ or E L_-, shape (rows,)."""
        result: FloatArray = self.masses @ self.nodes + self.over
        return result


SHORT = 16.0
"""A grid whose upper end is this many times below its scale gets the end as its scale."""


@dataclass(frozen=True)
class TwoSided:
    """A grid for L, and where L ends for all others: at `top` and at -`bottom`."""

    grid: Grid
    top: float
    bottom: float

    @classmethod
    def of(cls, low: float, scale: float, high: float, count: int, ends: GridEnds) -> TwoSided:
        """Return a grid from `low` < 0 to `high` > 0, as `Grid.of` has it.

        Near epsilon = move, L hardly exceeds zero. Steps of a `scale` far above `high` would be
        so short then that half a million of them lead to `low`; any scale is valid.
        """
        if SHORT * high < scale:
            scale = high
        return cls(Grid.of(low, scale, high, count), *ends)

    def half(self, factors: Factors, *, above: bool) -> Half:
        """Return products of factors, all nonnegative, spread to this half, means kept.

        They then end where L does (Lemma 5).
        """
        t, zero = self.grid.nodes, self.grid.below
        nodes = t[zero:] if above else -t[zero::-1]
        half = Grid(self.grid.scale, self.grid.step, 0, nodes)
        masses, over = half.spread_products(factors)
        return ended(Half(nodes[1:], masses[:, 1:], over), self.top if above else self.bottom)

    def joined(self, above: Half, below: Half, a: float) -> tuple[FloatArray, FloatArray]:
        """Return masses at the nodes of laws above L, and what they leave out above the last node.

        Source: Lemma 3. What lies below the first node is raised to it, which is upwards for every
        nondecreasing function.
        """
        positive, negative = join(above, below, a)
        zero, size = self.grid.below, self.grid.nodes.size
        result = np.zeros((len(positive), size))
        high, low = size - 1 - zero, zero
        result[:, zero + 1 :] = positive[:, :high]
        result[:, :zero] = negative[:, low - 1 :: -1] if low else negative[:, :0]
        beyond = above.nodes[high:] - self.grid.nodes[-1]
        over = positive[:, high:] @ beyond
        result[:, -1] += positive[:, high:].sum(axis=1)
        result[:, 0] += negative[:, low:].sum(axis=1)
        result[:, zero] += np.maximum(1.0 - result.sum(axis=1), 0.0)
        return result, over


class GridEnds(NamedTuple):
    """Where L ends: L <= top and L >= -bottom."""

    top: float
    bottom: float

    @classmethod
    def of(cls, move: float, to_other: float, a: float) -> GridEnds:
        """Return the ends for all others at distance at most `to_other` of both means.

        L = (P/R)(1 - a Q/P) <= e^to_other (1 - a e^-move), and -L = (Q/R)(a - P/Q).
        """
        most = math.exp(to_other)
        top = most * max(-math.expm1(math.log(a) - move), 0.0)
        bottom = most * (a - math.exp(-move))
        return cls(max(top, 1e-300) * END_ROUND_UP, bottom * END_ROUND_UP)


def stop_losses(half: Half) -> tuple[FloatArray, FloatArray]:
    """Return E(X - t)_+ and P(X > t) at t = 0 and at every node, sums of positive terms."""
    nodes = np.append(0.0, half.nodes)
    masses = np.concatenate([np.zeros((len(half.masses), 1)), half.masses], axis=1)
    above = np.cumsum(masses[:, ::-1], axis=1)[:, ::-1] - masses
    # Going down from the last node: E(X - t_k)_+ grows by (t_(k+1) - t_k) P(X > t_k).
    steps = above[:, :-1] * np.diff(nodes)
    rest = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1] + half.over[:, None]
    return np.concatenate([rest, half.over[:, None]], axis=1), above


def ended(half: Half, top: float) -> Half:
    """Return laws that end at `top`, or at the first node from there on (Lemma 5).

    The stop-loss of L is convex and vanishes at `top`. So it lies below the chord from any point of
    a larger one to (top, 0): what lies above that point goes to it and to `top`, mean kept.
    """
    nodes = half.nodes
    last = int(np.searchsorted(nodes, top))
    if last == len(nodes):
        nodes = np.append(nodes, top)
    s, above = stop_losses(half)
    places = np.append(0.0, nodes[:last])
    s, above, end = s[:, : last + 1], above[:, : last + 1], nodes[last]
    own = np.concatenate([np.zeros((len(s), 1)), half.masses[:, :last]], axis=1)
    # The chord must not be steeper than E(X - t)_+ before it: then the whole is convex.
    at_end = s / (end - places)
    fits = at_end <= above + own
    # At zero every chord is good: it changes how much mass lies above zero.
    fits[:, 0] = True
    first = last - np.argmax(fits[:, ::-1], axis=1)
    rows = np.arange(len(s))
    share = at_end[rows, first]
    kept = np.where(np.arange(last + 1) < first[:, None], own, 0.0)
    kept[rows, first] = np.maximum((above + own)[rows, first] - share, 0.0)
    masses = np.zeros((len(s), len(nodes)))
    masses[:, :last] = kept[:, 1:]
    masses[:, last] = share
    return Half(nodes, masses, np.zeros(len(s)))


def join(above: Half, below: Half, a: float) -> tuple[FloatArray, FloatArray]:
    """Return masses above and below zero of one law of mean 1 - a whose stop-losses are no smaller.

    Notes
    -----
    Source: Lemma 3. With h = max(E L_+, E L_- - (a - 1)) the transforms are raised to max(S(t),
    h - M t) above zero, and to max(S(t), h + a - 1 - M' t) below, for masses M + M' = 1. The M with
    the least second moment of those tried is taken.
    """
    h = np.maximum(above.mean, below.mean - (a - 1.0))
    on_top, under = above.masses.sum(axis=1)[:, None], below.masses.sum(axis=1)[:, None]
    tried = np.concatenate([1.0 - under * (1.0 - SHARES), on_top * (1.0 - SHARES)], axis=1)
    tried = np.clip(tried, LEAST_MASS, 1.0 - LEAST_MASS)
    best = np.full(len(h), math.inf)
    positive, negative = np.zeros_like(above.masses), np.zeros_like(below.masses)
    sides = stop_losses(above), stop_losses(below)
    for most in tried.T:
        p = raised(above, sides[0], h, most)
        q = raised(below, sides[1], h + (a - 1.0), 1.0 - most)
        second = p @ above.nodes**2 + q @ below.nodes**2
        better = second < best
        best = np.where(better, second, best)
        positive[better], negative[better] = p[better], q[better]
    # Where no M is possible nothing is known.
    positive[np.isinf(best)] = math.nan
    return positive, negative


def raised(
    half: Half, of: tuple[FloatArray, FloatArray], h: FloatArray, most: FloatArray
) -> FloatArray:
    """Return masses of the transform max(S(t), h - `most` t), h >= S(0), at nodes joined by chords.

    `of` is `stop_losses(half)`. NaN where that does not end at the last node.
    """
    s, above = of
    nodes = np.append(0.0, half.nodes)
    line = h[:, None] - most[:, None] * nodes
    # The line lies above S up to a node, and below from there on: S is convex, h >= S(0).
    under = line <= s
    under[:, 0] = False
    k = np.argmax(under, axis=1)
    rows = np.arange(len(s))
    ends = under[rows, k]
    k = np.maximum(k, 1)
    # The chord over the last interval in which they cross.
    slope = (line[rows, k - 1] - s[rows, k]) / (nodes[k] - nodes[k - 1])
    slope = np.minimum(np.maximum(slope, above[rows, k]), most)
    masses: FloatArray = half.masses * (np.arange(1, len(nodes)) > k[:, None])
    masses[rows, k - 1] = np.maximum(slope - above[rows, k], 0.0)
    inner = k > 1
    masses[rows[inner], k[inner] - 2] = (most - slope)[inner]
    masses[~ends] = math.nan
    return masses
