"""Many rounds (section 6): a dominating pair from points of a curve, and its composition."""

from __future__ import annotations

from collections.abc import Callable

from flint import arb, arb_poly, fmpq

from .balls import ONE, ZERO, Profile, ceiling, positive, up
from .reading import LARGEST_EPSILON, Fields, Work, require

MOST_POINTS = 400
MOST_CELLS = 1 << 16
Curve = list[tuple[int, arb]]
"""Points (index, delta) upwards from index 0: an upper bound at index * step, both directions."""


def kinks(nodes: list[tuple[int, arb, arb]], steepest: arb) -> list[tuple[int, arb, arb]]:
    """Return breakpoints (label, x, jump of the slope) of a convex function above another (section
    6, step 2).

    `nodes` (label, x, y): upper bounds y, at exact places x, of a convex function whose slopes lie
    between `steepest` and 0. Any chord between nodes lies above it, so dropping a node is allowed:
    what is left has certainly increasing slopes.
    """
    kept: list[tuple[int, arb, arb]] = []
    slopes = [steepest]
    for node in nodes:
        while kept:
            slope = (node[2] - kept[-1][2]) / (node[1] - kept[-1][1])
            if slope > slopes[-1]:
                slopes.append(slope)
                break
            kept.pop()
            if kept:
                slopes.pop()
        kept.append(node)
    ends = zip(kept, slopes, [*slopes[1:], ZERO], strict=True)
    return [(label, x, right - left) for (label, x, _), left, right in ends]


def curve(witness: Fields, step: arb, bound: Callable[[arb, Fields], arb]) -> Curve:
    """Return the witness's points: `bound` at index * step, or the one before where that is less.

    A curve falls (section 6, step 2), so the one before bounds it here, too.
    """
    points: Curve = []
    for entry in witness.objects("points", MOST_POINTS, 1):
        index = entry.integer("index", points[-1][0] + 1 if points else 0, 1 << 20)
        require(points or index == 0, "points: the first is at epsilon = 0")
        require(step * index < LARGEST_EPSILON, "points: epsilon too large")
        points.append((index, bound(step * index, entry).min(points[-1][1] if points else ONE)))
    return points


def dominating_pair(points: Curve, step: arb) -> tuple[dict[int, arb], arb]:
    """Return by section 6, steps 1 to 3: P's mass by loss index, and where Q has none.

    The mirrored curve gives the points below epsilon = 0.
    """
    nodes = [(0, ZERO, ONE)]
    for index, delta in reversed(points[1:]):
        alpha = (-step * index).exp()
        nodes.append((-index, alpha, 1 - alpha + alpha * delta))
    nodes += [(index, (step * index).exp(), delta) for index, delta in points]
    masses = {i: positive(alpha * jump) for i, alpha, jump in kinks(nodes, arb.neg_inf())[1:]}
    return masses, points[-1][1]


def cyclic(left: arb_poly, right: arb_poly, cells: int) -> arb_poly:
    """Return the product modulo x^cells - 1."""
    both = (left * right).coeffs()
    return arb_poly(both[:cells]) + arb_poly(both[cells:])


def cyclic_power(base: arb_poly, times: int, cells: int) -> arb_poly:
    """Return base^times modulo x^cells - 1: index r holds the mass of all r + j cells."""
    if times == 1:
        return base
    half = cyclic_power(base, times // 2, cells)
    square = cyclic(half, half, cells)
    return cyclic(square, base, cells) if times % 2 else square


def composed(kinds: list[tuple[Curve, int]], step: arb, witness: Fields, work: Work) -> Profile:
    """Return at least delta of all rounds (section 6, steps 5 and 6), each curve this number of
    times.

    Masses times e^(tilt loss), scaled to one, are convolved modulo `cells`: any tilt > 0. Index r
    then holds all losses r + j cells, j >= 0; copies only add.
    """
    tilt = witness.free("tilt", fmpq(1, 10**9))
    cells = witness.integer("cells", 64, MOST_CELLS)
    total, scale, certain = arb_poly([1]), ONE, ZERO
    for points, times in kinds:
        masses, infinite = dominating_pair(points, step)
        work.spend(100 * cells * (times.bit_length() + 3))
        tilted = [ZERO] * cells
        for i, mass in masses.items():
            tilted[i % cells] += mass * (tilt * step * i).exp()
        whole = up(sum(tilted, ZERO))
        power = cyclic_power(arb_poly([mass / whole for mass in tilted]), times, cells)
        total = cyclic(total, power, cells)
        scale *= whole**times
        certain += times * infinite
    sums, turn = total.coeffs(), step * cells
    # e^(-tilt loss) (1 - e^(epsilon - loss)) of loss + j turns, j >= 0, in two geometric series.
    kept, aged = (-tilt * turn).exp(), (-(1 + tilt) * turn).exp()
    fall, fall_aged = (-tilt * step).exp(), (-(1 + tilt) * step).exp()

    def profile(epsilon: arb) -> arb:
        first, gained = ceiling(epsilon / step) - 3, ZERO
        one = (-tilt * step * first).exp() / (1 - kept)
        other = (epsilon - (1 + tilt) * step * first).exp() / (1 - aged)
        for index in range(first, first + cells):
            gain = one - other
            if not step * index > epsilon:
                # The first copy may gain nothing: at least the sum without it.
                gain = gain.max(one * kept - other * aged).max(ZERO)
            if (place := index % cells) < len(sums):
                gained += sums[place] * gain
            one *= fall
            other *= fall_aged
        return positive(gained * scale + certain)

    return profile
