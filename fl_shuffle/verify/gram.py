"""Gaussian reports by the Gram order (section 12): boxes of others, and distributions above them.

The witness chooses every free parameter and a tree of boxes; that boxes cover follows from its
being one tree. Atoms of all distributions lie on one grid of e^(width i) and -e^(width i), so a
product of independent factors is a product of polynomials.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from flint import arb, arb_poly, fmpq

from .balls import ONE, ZERO, ceiling, normal, up
from .reading import Fields, require

EXTRA = ("0", "0.02", "0.05", "0.1", "0.2", "0.4", "0.7", "1.2", "2", "3.5", "6", "10", "25", "80")
"""e of Lemma 3 in units of a box's Delta, named by letters from a on; any e is valid."""
MOST_BOXES, MOST_PARTS = 5000, 1 << 14
MOST_PLACES, MOST_KEPT = 4000, 1000
BEYOND = fmpq(19, 5)
"""The nodes z of ell are x + x^3/8 for x up to this, 10.7; from -7.3 on."""

NOTHING, TINY = ".", arb(2) ** -50

Box = tuple[int, int, int, int, str]
"""Place (i, j) among the parts of either side, how many those are, and e, or `NOTHING`."""

Sides = tuple[arb, arb, arb, arb, bool]
"""U_2, W_2, Delta and D^2 of Lemma 3, and whether a box holds nothing."""


@dataclass(frozen=True, eq=False)
class Gram:
    """A matrix (U, W, X) by what its distribution depends on: d_1, d_2 and b (section 12, Finite
    distributions)."""

    d1: arb
    d2: arb
    b: arb


@dataclass(frozen=True, eq=False)
class Others:
    """One group of others, `reach` from the center at most, beside a client's ball `own`.

    The client's two means are at most `move` apart.
    """

    own: arb
    reach: arb
    move: arb
    count: int


def boxes(tree: Any) -> Iterator[Box]:
    """Yield the leaves of a tree over a square: 'x' or 'y' halves that side, another letter keeps a
    box.

    Theorem 1 asks for boxes that cover: the leaves of one tree do.
    """
    require(isinstance(tree, str) and len(tree) <= MOST_BOXES, "boxes: not a short tree")
    letters, open_boxes = iter(tree), [(0, 0, 1, 1)]
    while open_boxes:
        i, j, columns, rows = open_boxes.pop()
        letter = next(letters, "")
        require(letter, "boxes: too short a tree")
        require(max(columns, rows) <= MOST_PARTS, "boxes: too small")
        if letter == "x":
            open_boxes += [(2 * i + x, j, 2 * columns, rows) for x in (1, 0)]
        elif letter == "y":
            open_boxes += [(i, 2 * j + y, columns, 2 * rows) for y in (1, 0)]
        else:
            yield i, j, columns, rows, letter
    require(next(letters, None) is None, "boxes: more than the tree needs")


@lru_cache(maxsize=MOST_KEPT)
def corner(others: Others, box: Box) -> Gram | None:
    """Return Lemma 3's corner: above every distribution of the box; None for one that holds nothing
    and is left out."""
    *_, letter = box
    sides = by_angles if not others.move < 2 * others.own else by_lengths
    u, w, spread, chord, nothing = sides(others, *box[:4])
    if letter == NOTHING:
        require(nothing, "boxes: one that is left out may hold something")
        return None
    place = ord(letter) - ord("a")
    require(0 <= place < len(EXTRA), f"boxes: no letter {letter!r}")
    more = arb(EXTRA[place]) * spread
    u, w, s = u + more, w + more, (more + spread).sqrt() - more.sqrt()
    # A longer chord is above, too, and no d is zero by coincidence.
    x = ((u + w - chord * (1 + TINY) - s**2) / 2).max(-(u * w).sqrt())
    d = (u + w - 2 * x).sqrt()
    d1, d2 = (u - x) / d, (w - x) / d
    # A larger b is above in the order, so it need not be zero.
    return Gram(d1, d2, (up((u - d1**2).max(ZERO)) + TINY**2).sqrt().upper())


def by_angles(others: Others, i: int, j: int, columns: int, rows: int) -> Sides:
    """Return the sides for any means in the ball: (g_1, g_2) in [0, pi]^2, g_1 + g_2 <= pi (Lemma
    2)."""
    own, other, pi = others.own, others.reach, columns * rows
    low1, low2 = i * rows, j * columns
    high1, high2 = min(low1 + rows, pi - low2), min(low2 + columns, pi - low1)
    u, w, u1, w1 = (
        own**2 + other**2 + 2 * own * other * cosine(k, pi) for k in (low1, low2, high1, high2)
    )
    chord = 2 * own**2 * (1 - cosine(min(low1 + rows + low2 + columns, pi), pi))
    return u, w, (u - u1).max(w - w1), chord, low1 + low2 >= pi


def by_lengths(others: Others, i: int, j: int, columns: int, rows: int) -> Sides:
    """Return the sides where one record moves the client's mean: U in [0, M], U - W in [-m, m].

    Section 12, Boxes: M = (C_1 + C_2)^2, m = 2 D (C_1 + C_2).
    """
    own, other, move = others.own, others.reach, others.move
    most, side = (own + other) ** 2, 2 * move * (own + other)
    least, u = most * i / columns, most * (i + 1) / columns
    low, high = side * (2 * j - rows) / rows, side * (2 * j + 2 - rows) / rows
    w = (u - low).min(most).max(ZERO) + most * TINY
    both = least + (least - high).max(ZERO) - 2 * (own**2 + other**2)
    chord = (4 * own**2 - (both.max(ZERO) / (2 * other)) ** 2).min(move**2)
    reach = move * (u.sqrt() + w.sqrt())
    nothing = u < low or chord < 0 or least - high > most or low > reach or -high > reach
    return u, w, (high - u + w).max(u - w - low), chord.max(ZERO), nothing


@lru_cache(maxsize=4096)
def cosine(part: int, whole: int) -> arb:
    """Return cos(pi part/whole)."""
    return (arb.pi() * part / whole).cos()


@lru_cache(maxsize=8)
def nodes(fine: int) -> list[tuple[arb, arb]]:
    """Return exact places z, `fine` to a unit in the middle, and Phi(z)."""
    parts = [fmpq(i, fine) for i in range(-(16 * fine // 5), int(BEYOND * fine) + 1)]
    places = [arb(x + x**3 / 8).mid() for x in parts]
    return [(z, normal(z)) for z in places]


@lru_cache(maxsize=MOST_KEPT)
def nodes_of(gram: Gram, fine: int) -> list[tuple[arb, ...]]:
    """Return `node` of every place, upwards; kept, as all epsilons ask for them."""
    return [node(gram, *place) for place in nodes(fine)]


def node(gram: Gram, z: arb, below: arb) -> tuple[arb, ...]:
    """Return z, Phi(z), Phi(z - d_1), Phi(z + d_2)."""
    return z, below, normal(z - gram.d1), normal(z + gram.d2)


class Places:
    """The grid: e^(width i) for low <= i <= top, -e^(width i) for low <= i <= bottom, and 0."""

    def __init__(self, witness: Fields) -> None:
        self.width = witness.free("width", fmpq(1, 100), 1)
        self.low = witness.integer("low", -2000, 2000)
        self.top = witness.integer("top", self.low + 1, 2000)
        self.bottom = witness.integer("bottom", self.low + 1, 2000)

    @cached_property
    def values(self) -> list[arb]:
        """Upwards."""
        below = [-self.at(i) for i in range(self.bottom, self.low - 1, -1)]
        return [*below, ZERO, *(self.at(i) for i in range(self.low, self.top + 1))]

    def at(self, i: int) -> arb:
        """Return e^(width i)."""
        return (self.width * i).exp()


class OnGrid:
    """Masses on the grid (Finite distributions): put there upwards, at the cost of `over` beyond
    its top."""

    def __init__(self, places: Places) -> None:
        self.places, self.masses, self.over = places, [ZERO] * len(places.values), ZERO

    def put(self, value: arb, mass: arb) -> None:
        """Put an atom to its two neighbors, mean kept: to the least above it, and the one
        before."""
        at, masses = self.places.values, self.masses
        i = bisect_left(at, True, key=lambda place: place > value)
        if i == len(at):
            masses[-1] += mass
            self.over += mass * (value - at[-1]).max(ZERO)
            return
        # Where a ball leaves open which place comes before, the share is cut: upwards.
        share = ((value - at[i - 1]) / (at[i] - at[i - 1])).max(ZERO).min(ONE) if i else ONE
        masses[i] += mass * share
        if i:
            masses[i - 1] += mass * (1 - share)

    def times(self, gram: Gram) -> OnGrid:
        """Return the distribution of the product with Lambda, which is independent (Finite
        distributions)."""
        factor, last, gone, beyond = factor_law(gram.b, self.places.width)
        low, found = self.places.low, OnGrid(self.places)
        zero = self.places.bottom + 1 - low
        found.over = self.over + beyond
        found.masses[zero] = self.masses[zero] + gone * (1 - self.masses[zero])
        for sign, held in ((-1, self.masses[zero - 1 :: -1]), (1, self.masses[zero + 1 :])):
            for i, mass in enumerate((arb_poly(held) * arb_poly(factor)).coeffs(), low - last):
                if low <= i < low + len(held):
                    found.masses[zero + sign * (i - low + 1)] += mass
                else:
                    found.put(sign * self.places.at(i), mass)
        return found


def spread(at: list[arb], below: list[arb], mean: list[arb]) -> list[arb]:
    """Return masses at `at`: each cell's mass goes to its two ends, mean kept (Finite
    distributions).

    `below` and `mean` are the mass and the mean up to each end; a cell's values lie between its
    ends'.
    """
    masses = [ZERO] * len(at)
    for i in range(len(at) - 1):
        mass, rise = below[i + 1] - below[i], at[i + 1] - at[i]
        require(rise > 0 or rise < 0, "boxes: the ends of a cell are not told apart")
        share = (mean[i + 1] - mean[i] - mass * at[i]) / rise
        masses[i + 1] += share
        masses[i] += mass - share
    return masses


def ell_law(gram: Gram, a: arb, fine: int, places: Places) -> tuple[OnGrid, arb]:
    """Return ell's distribution on the grid, and what lies beyond the last node (section 12, Finite
    distributions)."""
    d1, d2, at = gram.d1, gram.d2, nodes_of(gram, fine)
    require((d1 > 0 or d1 < 0) and (d2 > 0 or d2 < 0), "boxes: signs of d_1, d_2 are not known")

    def ell(x: arb) -> arb:
        return (d1 * x - d1**2 / 2).exp() - a * (-d2 * x - d2**2 / 2).exp()

    least = ZERO if d2 < 0 else ell(at[0][0])
    if d1 < 0 or d2 < 0:
        turn = (-a * d2 / d1).log() / (d1 + d2) + (d1 - d2) / 2
        left, right = [x for x in at if x[0] < turn], [x for x in at if x[0] > turn]
        # A node that is not told apart from it gives way to it.
        require(len(left) + len(right) >= len(at) - bool(left and right), "boxes: turn")
        if left and right:
            at = [*left, node(gram, turn, normal(turn)), *right]
        elif d1 < 0 and not left:
            least = ell(turn)
    end, t, below = at[-1][0], [ell(x[0]) for x in at], [x[1] for x in at]
    masses = spread(t, below, [x[2] - a * x[3] for x in at])
    masses[-1] += normal(-end)
    found = OnGrid(places)
    # Below the first node: no value is larger than this one.
    found.put(t[0].max(least), below[0])
    for value, mass in zip(t, masses, strict=True):
        found.put(value, mass)
    return found, normal(d1 - end) + (-t[-1]).max(ZERO) * normal(-end)


def factor_law(b: arb, width: arb) -> tuple[list[arb], int, arb, arb]:
    """Return Lambda's masses on e^(width i), |i| <= last, and `last`; its mass at 0; what lies
    beyond.

    Finite distributions: Phi(b - y_last) is what is left out.
    """
    stride = max(1, ceiling(b / (4 * width)) - 1)
    last = (ceiling((8 * b + b**2) / (stride * width)) + 1) * stride
    require(last <= MOST_PLACES, "grid: too fine")
    ends = range(-last, last + 1, stride)
    y = [width * i / b + b / 2 for i in ends]
    below, mean = [normal(z) for z in y], [normal(z - b) for z in y]
    values = [(width * i).exp() for i in ends]
    held = spread(values, below, mean)
    first = mean[0] / values[0]
    held[0] += first
    held[-1] += normal(-y[-1])
    masses = [ZERO] * (2 * last + 1)
    masses[::stride] = held
    return masses, last, below[0] - first, normal(b - y[-1])


def law(gram: Gram, a: arb, fine: int, places: Places) -> tuple[list[arb], arb]:
    """Return A_B of Theorem 1, in the order of `Places.values`, and what it leaves out:
    kappa_B/sigma."""
    held, missing = ell_law(gram, a, fine, places)
    found = held.times(gram)
    return found.masses, missing + found.over
