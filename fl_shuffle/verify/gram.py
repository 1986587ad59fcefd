"""Gaussian reports by the Gram order (section 12): boxes of others, and laws above them.

The witness chooses every free parameter and a tree of boxes; that boxes cover follows from its
being one tree. Atoms of all laws lie on one grid of e^(width i) and -e^(width i), so a product of
independent factors is a product of polynomials.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from flint import arb, arb_poly, fmpq

from .balls import ONE, ZERO, ceiling, normal, up
from .reading import Fields, require

EXTRA = ("0", "0.02", "0.05", "0.1", "0.2", "0.4", "0.7", "1.2", "2", "3.5", "6", "10", "25", "80")
"""e of Lemma 3 in units of a box's Delta, named by letters from a on; any e is valid."""
MOST_BOXES, DEEPEST_BOX = 5000, 12
MOST_PLACES, MOST_KEPT = 4000, 1000
BEYOND = fmpq(19, 5)
"""The nodes z of ell are x + x^3/8 for x up to this, 10.7; from -7.3 on."""

Box = tuple[int, int, int, str]
"""Place (i, j) among squares of side 1/2^depth, depth, and e."""


@dataclass(frozen=True)
class Gram:
    """A matrix (U, W, X) by what its law hangs on: d_1, d_2 and b (section 12, Finite laws)."""

    d1: arb
    d2: arb
    b: arb
    _nodes: dict[int, list[tuple[arb, ...]]] = field(default_factory=dict)

    def nodes(self, fine: int) -> list[tuple[arb, ...]]:
        """z, Phi(z), Phi(z - d_1), Phi(z + d_2), upwards; kept, as all epsilons ask for them."""
        if fine not in self._nodes:
            self._nodes[fine] = [(z, below, *self.tails(z)) for z, below in nodes(fine)]
        return self._nodes[fine]

    def tails(self, z: arb) -> tuple[arb, arb]:
        """Phi(z - d_1) and Phi(z + d_2)."""
        return normal(z - self.d1), normal(z + self.d2)


@dataclass
class Others:
    """One group of others, `reach` from the centre at most, beside a client's ball `own`."""

    own: arb
    reach: arb
    count: int
    _corners: dict[Box, Gram] = field(default_factory=dict)

    def corner(self, box: Box) -> Gram:
        """`corner` of a box; the last thousand are kept."""
        if box not in self._corners:
            if len(self._corners) >= MOST_KEPT:
                self._corners.clear()
            self._corners[box] = corner(self.own, self.reach, box)
        return self._corners[box]


def boxes(tree: Any) -> Iterator[Box]:
    """Leaves of a tree over [0, pi]^2.

    's' halves a box both ways; another letter keeps it. Boxes with i + j >= 2^depth hold nothing:
    g_1 + g_2 <= pi.
    """
    require(isinstance(tree, str) and len(tree) <= MOST_BOXES, "boxes: not a short tree")
    letters, open_boxes = iter(tree), [(0, 0, 0)]
    while open_boxes:
        i, j, depth = open_boxes.pop()
        if i + j < 1 << depth:
            letter = next(letters, "")
            require(letter, "boxes: too short a tree")
            if letter != "s":
                yield i, j, depth, letter
                continue
            require(depth < DEEPEST_BOX, "boxes: too small")
            open_boxes += [(2 * i + x, 2 * j + y, depth + 1) for x in (1, 0) for y in (1, 0)]
    require(next(letters, None) is None, "boxes: more than the tree needs")


def corner(own: arb, other: arb, box: Box) -> Gram:
    """Lemmas 2 and 3: above every law with g_1, g_2 in the box; p, q within `own` of the centre."""
    i, j, depth, letter = box
    place, all_of_pi = ord(letter) - ord("a"), 1 << depth
    require(0 <= place < len(EXTRA), f"boxes: no letter {letter!r}")
    both, twice = own**2 + other**2, 2 * own * other
    u, w = both + twice * cosine(i, all_of_pi), both + twice * cosine(j, all_of_pi)
    u1, w1 = both + twice * cosine(i + 1, all_of_pi), both + twice * cosine(j + 1, all_of_pi)
    spread = (u - u1).max(w - w1)
    chord = 2 * own**2 * (1 - cosine(min(i + j + 2, all_of_pi), all_of_pi))
    more = arb(EXTRA[place]) * spread
    u, w, s = u + more, w + more, (more + spread).sqrt() - more.sqrt()
    x = ((u + w - chord - s**2) / 2).max(-(u * w).sqrt())
    d = (u + w - 2 * x).sqrt()
    d1, d2 = (u - x) / d, (w - x) / d
    # A larger b is above in the order, so it need not be zero.
    return Gram(d1, d2, (up((u - d1**2).max(ZERO)) + arb(2) ** -80).sqrt().upper())


@lru_cache(maxsize=4096)
def cosine(part: int, whole: int) -> arb:
    """cos(pi part/whole)."""
    return (arb.pi() * part / whole).cos()


@lru_cache(maxsize=8)
def nodes(fine: int) -> list[tuple[arb, arb]]:
    """Exact places z, `fine` to a unit in the middle, and Phi(z)."""
    parts = [fmpq(i, fine) for i in range(-(16 * fine // 5), int(BEYOND * fine) + 1)]
    places = [arb(x + x**3 / 8).mid() for x in parts]
    return [(z, normal(z)) for z in places]


@dataclass
class Places:
    """The grid: e^(width i) for low <= i <= top, -e^(width i) for low <= i <= bottom, and 0."""

    width: arb
    low: int
    top: int
    bottom: int
    _known: dict[int, arb] = field(default_factory=dict)

    @classmethod
    def of(cls, witness: Fields) -> Places:
        """As the witness has it."""
        low = witness.integer("low", -2000, 2000)
        top, bottom = (witness.integer(end, low + 1, 2000) for end in ("top", "bottom"))
        return cls(witness.free("width", fmpq(1, 100), 1), low, top, bottom)

    def values(self) -> list[arb]:
        """Upwards."""
        below = [-self.at(i) for i in range(self.bottom, self.low - 1, -1)]
        return [*below, ZERO, *(self.at(i) for i in range(self.low, self.top + 1))]

    def at(self, i: int) -> arb:
        """e^(width i)."""
        if i not in self._known:
            self._known[i] = (self.width * i).exp()
        return self._known[i]


class Signed:
    """Masses on the grid; what is put there goes upwards, at the cost of `over` beyond its top."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.plus = [ZERO] * (places.top + 1 - places.low)
        self.minus = [ZERO] * (places.bottom + 1 - places.low)
        self.zero = self.over = ZERO

    def put(self, value: arb, mass: arb) -> None:
        """An atom to its two neighbours, mean kept; where a ball leaves it open, to the upper."""
        at, low, width = self.places.at, self.places.low, self.places.width
        side, size = (self.minus, -value) if value < 0 else (self.plus, value.max(ZERO))
        if size < at(low):
            i = low - 1
        elif side is self.plus:
            i = max(low, ceiling(size.log() / width)) - 1
        else:
            i = max(low - 1, -ceiling(-size.log() / width))
        under = at(i) if i >= low else ZERO
        share = ((size - under) / (at(i + 1) - under)).max(ZERO).min(ONE)
        self.add(side, i, mass * (1 - share))
        self.add(side, i + 1, mass * share)

    def add(self, side: list[arb], i: int, mass: arb) -> None:
        """A mass at e^(width i), or -e^(width i); below `low` at 0."""
        low, end = self.places.low, self.places.low + len(side) - 1
        if i < low:
            self.zero += mass
        else:
            side[min(i, end) - low] += mass
            if i > end and side is self.plus:
                self.over += mass * (self.places.at(i) - self.places.at(end))

    def times(self, gram: Gram) -> Signed:
        """The law of the product with Lambda, which is independent."""
        factor, last, gone, beyond = factor_law(gram.b, self.places.width)
        low, found = self.places.low, Signed(self.places)
        found.over = self.over + beyond
        found.zero = self.zero + gone * (1 - self.zero)
        for held, side in ((self.minus, found.minus), (self.plus, found.plus)):
            for i, mass in enumerate((arb_poly(held) * arb_poly(factor)).coeffs(), low - last):
                share = self.places.at(i - low) if i < low else ONE
                found.add(side, max(i, low), mass * share)
                found.zero += mass * (1 - share)
        return found


def spread(at: list[arb], below: list[arb], mean: list[arb]) -> list[arb]:
    """Masses at `at`: each cell's mass goes to its two ends, mean kept.

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


def ell_law(gram: Gram, a: arb, fine: int, places: Places) -> tuple[Signed, arb]:
    """ell's law on the grid, and what lies beyond the last node (section 12, Finite laws)."""
    d1, d2, at = gram.d1, gram.d2, gram.nodes(fine)
    require((d1 > 0 or d1 < 0) and (d2 > 0 or d2 < 0), "boxes: signs of d_1, d_2 are not known")

    def ell(x: arb) -> arb:
        return (d1 * x - d1**2 / 2).exp() - a * (-d2 * x - d2**2 / 2).exp()

    least = ZERO if d2 < 0 else ell(at[0][0])
    if d1 < 0 or d2 < 0:
        turn = (-a * d2 / d1).log() / (d1 + d2) + (d1 - d2) / 2
        left, right = (
            [node for node in at if node[0] < turn],
            [node for node in at if node[0] > turn],
        )
        if left and right:
            at = [*left, (turn, normal(turn), *gram.tails(turn)), *right]
        require(
            len(left) + len(right) >= len(gram.nodes(fine)) - bool(left and right), "boxes: turn"
        )
        if d1 < 0 and not left:
            least = ell(turn)
    end, t, below = at[-1][0], [ell(node[0]) for node in at], [node[1] for node in at]
    masses = spread(t, below, [node[2] - a * node[3] for node in at])
    masses[-1] += normal(-end)
    signed = Signed(places)
    # Below the first node: no value is larger than this one.
    signed.put(t[0].max(least), below[0])
    for value, mass in zip(t, masses, strict=True):
        signed.put(value, mass)
    return signed, normal(d1 - end) + (-t[-1]).max(ZERO) * normal(-end)


def factor_law(b: arb, width: arb) -> tuple[list[arb], int, arb, arb]:
    """Lambda's masses on e^(width i), |i| <= last, and `last`; its mass at 0; what lies beyond."""
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
    """A_B on the grid, in the order of `Places.values`, and what it leaves out: kappa_B/sigma."""
    signed, missing = ell_law(gram, a, fine, places)
    found = signed.times(gram)
    return [*reversed(found.minus), found.zero, *found.plus], missing + found.over
