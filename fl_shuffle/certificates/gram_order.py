"""Witnesses for one point of the curve by the Gram order.

Source: docs/research/proofs, section 12, Theorem 2.

Floating point and a matter of taste, as everywhere in this folder: the accountant's own search
finds the constants, the line and the boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import (
    Ends,
    MainTerm,
    RoundGeometry,
    gaussian_delta,
    guided_bound,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import LAMBDA, Swap, choose_swap
from fl_shuffle.accounting.bounds.partial_shuffle.gram import (
    ADDED,
    Cover,
    frontier,
    second_moment,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from fl_shuffle.verify.gram import NOTHING

Box = tuple[int, int, int, int]
"""As in `fl_shuffle.verify.gram`, without the letter."""
TOLERANCE = 0.003
"""Boxes may say this much more than the worst configuration, times 1 + z^2 at z deviations ..."""
MOST_TOLERANCE = 0.08
"""... and no more than this."""
MOST_PARTS, MOST_SPLITS = 1 << 13, 2000
"""Of either side; of all boxes together."""
FINE = 20
"""Nodes of ell to a unit."""
WIDTH = 0.05
"""The grid's atoms lie at multiples of e^this."""
LEAST = 0.02
"""Atoms nearer to zero than this share of a deviation are not told apart."""


def gram_point(setting: RoundGeometry, epsilon: float, delta: float) -> dict[str, object] | None:
    """Return a witness for the point at `epsilon`; the accountant finds `delta` there.

    None where there are no constants.
    """
    a = math.exp(epsilon)
    local = float(gaussian_profile(epsilon, setting.move))
    ends = Ends.of(setting, a)
    swap = choose_swap(setting.groups, local, a, ends.second, delta)
    if swap is None:
        return None
    z = epsilon / setting.predicted_mu
    tolerance = min(TOLERANCE * (1 + z * z), MOST_TOLERANCE)
    ends = guided_bound(MainTerm(setting, a, ends, swap), tolerance)[1]
    term = MainTerm(setting, a, ends, swap)
    line = term.line
    scale = math.sqrt(ends.second - (a - 1) ** 2)
    top = math.ceil(math.log(term.cut) / WIDTH)
    bottom = math.ceil(math.log(-float(term._grid.nodes[0])) / WIDTH)
    low = min(math.floor(math.log(LEAST * scale) / WIDTH), top - 2, bottom - 2)
    width = repr(WIDTH)
    below = [-math.exp(WIDTH * i) for i in range(bottom, low - 1, -1)]
    places = np.array([*below, 0.0, *(math.exp(WIDTH * i) for i in range(low, top + 1))])
    phi = swap.lift(places, LAMBDA)
    centre, radius = term._transform.centre, term._transform.radius
    bulk = np.flatnonzero(np.abs(phi - centre) <= radius)
    return {
        "by": "gram",
        "m": repr(swap.m),
        "zeta": repr(swap.zeta),
        "alpha": repr(swap.alpha),
        "beta": repr(swap.beta),
        "nodes": [repr(float(x)) for x in swap.nodes[2:-1]],
        "below": repr(_below_rate(setting, swap)),
        "above": repr(_above_rate(setting, swap)),
        "theta": repr(line.theta),
        "h": repr(line.step),
        "smoothing": repr((2.5 / line.k2) ** 2),
        "exact": str(line.weights.size),
        "last": str(round(line.k2 / line.step)),
        "width": width,
        "low": str(low),
        "top": str(top),
        "bottom": str(bottom),
        "fine": str(FINE),
        "bulk from": str(bulk[0]),
        "bulk to": str(bulk[-1] + 1),
        "boxes": _trees(setting, term, swap, a, tolerance),
    }


def _trees(
    setting: RoundGeometry, term: MainTerm, swap: Swap, a: float, tolerance: float
) -> list[str]:
    """Return for each group a tree whose leaves say hardly more than the worst configuration
    known."""
    scales = [
        float(term.value(area, p, area.ends)[0].max())
        for area, p in zip(setting.covers, swap.weights, strict=True)
    ]
    log_main = float(setting.shares @ np.array(scales)) + term.theta * swap.beta
    main = math.exp(min(max(log_main, -600.0), 600.0))

    def tree(area: Cover, weights: FloatArray, scale: float) -> str:
        def value(boxes: FloatArray) -> FloatArray:
            log, kappa = term.value(area, weights, boxes)
            return np.asarray(np.exp(np.minimum(log - scale, 600.0)) + setting.count * kappa / main)

        best = float(value(area.ends).max())
        split: dict[Box, str] = {}
        level = [(0, 0, 1, 1)]
        while level:
            boxes = np.array([_sides(area, *box) for box in level])
            values = value(boxes)
            best = max(best, float(value(area.middles(boxes)).max()))
            halved = []
            for box, v in zip(level, values.tolist(), strict=True):
                coarse = min(box[2:]) < MOST_PARTS and len(split) < MOST_SPLITS
                if coarse and v > best * (1 + tolerance):
                    split[box] = _better_split(area, box, a)
                    halved += [half for half in _halves(*box, split[box]) if _holds(area, *half)]
            level = halved
        return _written(split, lambda *box: _letter(area, box, a))

    return [
        tree(area, p, s) for area, p, s in zip(setting.covers, swap.weights, scales, strict=True)
    ]


def _better_split(area: Cover, box: Box, a: float) -> str:
    """Return the side to halve: that which leaves the corners of the halves lower."""

    def left(side: str) -> float:
        halves = [_sides(area, *half) for half in _halves(*box, side) if _holds(area, *half)]
        if not halves:
            return 0.0
        return float(second_moment(area.corner(np.array(halves), a), a).sum())

    allowed = [side for side, parts in zip("xy", box[2:], strict=True) if parts < MOST_PARTS]
    return min(allowed, key=left)


def _sides(area: Cover, i: int, j: int, columns: int, rows: int) -> tuple[float, ...]:
    """Return a box of the verifier's square in the coordinates of `Cover`."""
    if area.client_unit:
        x, y = math.pi / columns, math.pi / rows
        return i * x, (i + 1) * x, j * y, (j + 1) * y
    reach = area.own + area.other
    most, side = reach * reach, 2 * reach * area.move
    low, high = ((2 * k - rows) / rows * side for k in (j, j + 1))
    return most * i / columns, most * (i + 1) / columns, low, high


def _holds(area: Cover, i: int, j: int, columns: int, rows: int) -> bool:
    """Return whether some configuration may lie there."""
    if area.client_unit:
        return i * rows + j * columns < columns * rows
    return bool(len(area.kept(np.array([_sides(area, i, j, columns, rows)]))))


def _halves(i: int, j: int, columns: int, rows: int, side: str) -> list[Box]:
    """Return the halves in the verifier's order."""
    if side == "x":
        return [(2 * i + x, j, 2 * columns, rows) for x in (0, 1)]
    return [(i, 2 * j + y, columns, 2 * rows) for y in (0, 1)]


def _written(split: dict[Box, str], letter: Callable[[int, int, int, int], str]) -> str:
    """Return the tree, depth first."""
    found, open_boxes = [], [(0, 0, 1, 1)]
    while open_boxes:
        box = open_boxes.pop()
        found.append(split[box] if box in split else letter(*box))
        if box in split:
            open_boxes += reversed(_halves(*box, split[box]))
    return "".join(found)


def _letter(area: Cover, box: Box, a: float) -> str:
    """Return which e of Lemma 3 ranks first."""
    if not _holds(area, *box):
        return NOTHING
    low1, high1, low2, high2 = (np.array([x]) for x in _sides(area, *box))
    if area.client_unit:
        u2, w2, _ = frontier(area.own, area.other, low1, low2)
        last1, last2 = np.minimum(high1, math.pi - low2), np.minimum(high2, math.pi - low1)
        u1, w1, _ = frontier(area.own, area.other, last1, last2)
        spread = np.maximum(u2 - u1, w2 - w1)
        chord = 2 * area.own**2 * (1 - np.cos(np.minimum(high1 + high2, math.pi)))
    else:
        u2, w2 = high1, np.clip(high1 - low2, 0.0, area.most)
        spread = np.maximum(high2 - u2 + w2, u2 - w2 - low2)
        chord = np.maximum(area.chord(low1, high2), 0.0)
    e = ADDED * spread
    u, w, s = u2 + e, w2 + e, np.sqrt(e + spread) - np.sqrt(e)
    x = np.maximum((u + w - chord - s * s) / 2, -np.sqrt(u * w))
    return chr(ord("a") + int(np.argmin(second_moment((u, w, x), a)[:, 0])))


def _weights(radius: float) -> tuple[FloatArray, FloatArray]:
    """Return values and masses of Z, of mean one and parameter `radius`."""
    g = np.linspace(-12.0, 12.0, 2001)
    p = np.exp(-0.5 * g * g)
    return np.exp(radius * g - 0.5 * radius * radius), p / p.sum()


def _below_rate(setting: RoundGeometry, swap: Swap) -> float:
    """Return the rate at which (A) is least."""
    rates = np.geomspace(1e-2, 1e3, 300)
    logs = rates * swap.m - 1 - np.log(rates * swap.m)
    for c, n in setting.groups:
        z, p = _weights(c)
        # Of weak reports every weight is about one: its exponential alone would be zero.
        logs += n * logsumexp(-np.multiply.outer(rates, np.minimum(z, swap.zeta)), b=p, axis=1)
    return float(rates[int(np.argmin(logs))])


def _above_rate(setting: RoundGeometry, swap: Swap) -> float:
    """Return the rate at which (C) is least."""
    kappa = swap.alpha / (2 * swap.m)
    reach = swap.zeta - LAMBDA
    rates = np.geomspace(0.02, 250, 300) / (kappa * reach * reach)
    logs = -1 - rates * swap.beta - np.log(rates)
    rate = rates[:, None] * kappa
    top = np.exp(rate * reach * reach)
    with np.errstate(over="ignore"):  # such a rate is not the least
        for c, n in setting.groups:
            z, p = _weights(c)
            near = np.exp(rate * (np.minimum(z, swap.zeta) - LAMBDA) ** 2)
            hbar = near + top * 2 * rate * reach * np.maximum(z - swap.zeta, 0.0)
            logs += n * np.log(hbar @ p)
    return float(rates[int(np.nanargmin(logs))])


__all__ = ["RoundGeometry", "gaussian_delta", "gram_point"]
