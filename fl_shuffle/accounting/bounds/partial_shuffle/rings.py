"""Others by their distance from client 1's own mean: what each ring of them can do at most.

One law for all others must have the upper tail of those far from P (R near Q) and the variance of
those near it, which no single report has. So they are told apart by |p - r|, r the other's mean: a
ring near < |p - r| <= far (noise widths) has its own upper tail, that of L with P at most `far`
away, and its own variance. Which others lie in which ring is the data set's choice; `second_order`
takes the worst. For means in one ball of diameter mu (client unit, equal radii).

Variance, with u, v the means of P, Q seen from R's, U = |u|^2 >= near^2, the smallest ball around
the three points of diameter d <= mu:

* R on its boundary: u^(k), v^(k) (tensor powers) lie in the ball with diameter d^(k), so the
  largest |u^(k) - a v^(k)| is |u^(k) - a d^(k)/2| + a |d|^k/2, and |u^(k) - a d^(k)/2|^2 <=
  a^2 |d|^(2k)/4 - (a - 1) U^k: so Var L <= sum_k (sqrt(a^2 mu^(2k)/4 - (a - 1) U^k)
  + a mu^k/2)^2/k!.
* else P and Q are its ends, x = -<u, v> >= 0, |v|^2 <= mu^2 - U - 2x, and Var L = e^U - 1 + a^2
  (e^|v|^2 - 1) + 2a(1 - e^-x) falls with x: at most e^U - 1 + a^2 (e^(mu^2 - U) - 1), convex in U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    split_excess,
    square_of_tail,
    tail_nodes,
)
from fl_shuffle.accounting.engine.convex_rounding import atoms_through
from fl_shuffle.accounting.laws.amplification import AtomicLaw, FloatArray
from fl_shuffle.accounting.tolerances import TOLERANCES


@dataclass(frozen=True)
class Ring:
    """Others at most `far` from P: atoms that dominate min(L, K), and a bound on L's variance.

    The order is the increasing convex one. `tail` is what the cut at K, the ring's own, leaves of
    L: E(L - K)_+ at most. Below zero the atoms are those of all others.
    """

    far: float
    atoms: AtomicLaw
    variance: float
    tail: float


def rings(law: ConvexOrderLaw, mu: float, left: float, nodes: FloatArray) -> list[Ring]:
    """The rings of others in a ball of diameter `mu`; each law ends where `left` is left of it.

    `nodes`, from the law's lower end to its upper one, are where the rings' atoms may lie: those
    that suit one law for all others suit the rings' too, and need no search.
    """
    epsilon = law.epsilon
    count = TOLERANCES.rings
    # The upper tail matters most where a = e^epsilon is large: finer rings far out.
    power = 1.0 + min(TOLERANCES.rings_skew * epsilon, 1.0)
    edges = mu * np.sqrt(1.0 - (1.0 - np.arange(count + 1) / count) ** power)
    nodes = np.unique(np.concatenate([[law.lower, law.upper], nodes]))
    nodes = nodes[(nodes >= law.lower) & (nodes <= law.upper)]
    above = nodes > 0.0
    low, places = law.stop_loss(nodes[~above]), nodes[above]
    high = split_excess(epsilon, mu, edges[1:, None], places)
    # The cut of each: the first place where no more is left, or the last one.
    enough = high <= left * (1.0 + TOLERANCES.partial_shuffle_round_off)
    ends = np.where(enough.any(axis=1), np.argmax(enough, axis=1), places.size - 1).tolist()
    cuts, tails = places[ends].tolist(), high[np.arange(count), ends].tolist()
    far_out = [
        tail_nodes(epsilon, cut, far, tail)
        for cut, far, tail in zip(cuts, edges[1:].tolist(), tails, strict=True)
    ]
    above_cut, beyond = (np.array(each) for each in zip(*far_out, strict=True))
    left_there = split_excess(epsilon, mu, edges[1:, None], above_cut)
    squares = square_of_tail(above_cut, left_there, beyond).tolist()
    found = []
    for place, (end, cut, tail, square) in enumerate(zip(ends, cuts, tails, squares, strict=True)):
        near, far = edges[place : place + 2].tolist()
        kept = low.size + end + 1
        values = np.concatenate([low, high[place, : end + 1]])
        # Above the cut one atom keeps E(L - K)_+ and E(L - K)_+^2.
        atoms, extra = atoms_through(
            *(
                (np.append(nodes[:kept], cut + square / tail), np.append(values, 0.0))
                if tail > 0.0 and square > 0.0
                else (nodes[:kept], values)
            )
        )
        variance = ring_variance(math.exp(epsilon), mu, near, far)
        found.append(Ring(far, atoms, variance, tail + extra))
    return found


def ring_variance(a: float, mu: float, near: float, far: float) -> float:
    """Var L at most, L = (P - aQ)/R, means in a ball of diameter `mu`, near <= |p - r| <= far."""
    k = np.arange(1.0, TOLERANCES.ring_powers + 1.0)
    weight = np.exp(-np.cumsum(np.log(k)))
    whole, own = (mu * mu) ** k, (near * near) ** k
    root = np.sqrt(np.maximum(0.25 * a * a * whole - (a - 1.0) * own, 0.0))
    boundary = float(np.sum(weight * (root + 0.5 * a * np.sqrt(whole)) ** 2))
    # Every left-out power is at most a^2 mu^(2k)/k!, and they fall by more than half.
    boundary += 2.0 * a * a * float(weight[-1] * whole[-1])
    inside = max(math.expm1(U) + a * a * math.expm1(mu * mu - U) for U in (near * near, far * far))
    return max(boundary, inside) * (1.0 + TOLERANCES.partial_shuffle_round_off)
