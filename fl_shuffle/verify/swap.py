"""One point of the curve by Theorem 2 of section 12: the swap's end, Hölder's inequality, costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from flint import arb, arb_mat, fmpq

from .balls import ONE, ZERO, excess, max_of, positive, up
from .gram import Others, Places, boxes, law
from .line import Line
from .reading import Fields, Work, decimal, require

MOST_ENTRIES, BATCH = 2_000_000, 64
LADDER = [fmpq(3, 10) * i - 20 for i in range(47)] + [fmpq(2, 25) * i - 6 for i in range(1, 260)]

Groups = tuple[Others, ...]


def by_chords(f: Callable[[arb], arb], beyond: arb, reach: arb, zeta: arb) -> arb:
    """At least E f(Z), f convex with slope `beyond` from zeta on; Z of mean one, parameter `reach`.

    f is replaced by its chords between nodes: the chord over the mean, and kinks on both sides of
    it, where E(Z - t)_+ and E(t - Z)_+ = t E(Z - 1/t)_+ are needed. All terms are positive, so
    nothing cancels where f is steep.
    """
    inner = [(reach * arb(g) - reach * reach / 2).exp().mid() for g in LADDER]
    nodes = [ZERO, *(t for t in inner if t < zeta), zeta]
    points = [(t, f(t)) for t in nodes]
    slopes = [(v - u) / (t - s) for (s, u), (t, v) in pairwise(points)] + [beyond]
    middle = sum(1 for t in nodes if t <= 1) - 1
    total = points[middle][1] + slopes[middle] * (1 - nodes[middle])
    for i, t in enumerate(nodes[1:], 1):
        beside = excess(t, reach) if i > middle else t * excess(1 / t, reach)
        total += (slopes[i] - slopes[i - 1]) * beside
    return up(total)


def too_small(m: arb, zeta: arb, rate: arb, groups: Groups) -> arb:
    """(A) over H: E(1 - S/m)_+ <= e^(rate m - 1)/(rate m) prod E e^(-rate min(Z_g, zeta))^n_g."""
    found = (rate * m - 1).exp() / (rate * m)
    for others in groups:
        falling = by_chords(lambda z: (-rate * z).exp(), ZERO, others.reach, zeta)
        found *= falling**others.count
    return found


def above_zeta(zeta: arb, groups: Groups) -> arb:
    """(B) over (H + a - 1)/m: sum of E(Z_g - zeta)_+ over all others."""
    return sum((others.count * excess(zeta, others.reach) for others in groups), ZERO)


@dataclass(frozen=True)
class Swap:
    """The constants of Theorem 2 at one epsilon, lambda = 1; any of these ranges is valid."""

    m: arb
    zeta: arb
    alpha: arb
    beta: arb
    nodes: list[arb]
    """1 = x_1 < .. < x_K = zeta."""

    @classmethod
    def of(cls, witness: Fields, count: int) -> Swap:
        """As the witness has them."""
        m, zeta = witness.free("m", high=count), witness.free("zeta")
        inner = [arb(decimal(x, "nodes")).mid() for x in witness.items("nodes", 4)]
        nodes = [ONE, *inner, zeta]
        require(all(x < y for x, y in pairwise(nodes)), "nodes: not upwards from 1 to zeta")
        require(m >= zeta, "m: below zeta")
        return cls(m, zeta, witness.free("alpha"), witness.free("beta", 0), nodes)

    def lift(self, x: arb, w: arb) -> arb:
        """phi_w(x) of Theorem 2."""
        s = (x / self.alpha).max(-ONE).min(self.zeta - 1)
        return x + (((1 - w) * x).max(ZERO) + s * x - self.alpha * s * s / 2) / self.m

    def weights(self, reach: arb) -> list[arb]:
        """p of step (iv) at the nodes 0, x_1, .., x_K for a group of this radius."""
        growth, low = (reach * reach).exp(), excess(ONE, reach)
        above = [(x, growth * excess(x / growth, reach)) for x in self.nodes]
        slopes = [(e - f) / (y - x) for (x, e), (y, f) in pairwise(above)] + [ZERO]
        return [
            positive(p) for p in (low, 1 - slopes[0] - low, *(s - t for s, t in pairwise(slopes)))
        ]

    @staticmethod
    def mean(d: list[arb], weights: list[arb]) -> arb:
        """sum p_i D'(x_i), D' at 0 at least D(1), from 1 on a running maximum (step iv)."""
        rising = [d[0].max(d[1]), *accumulate(d[1:], arb.max)]
        return up(sum((p * value for p, value in zip(weights, rising, strict=True)), ZERO))

    def drift(self, rate: arb, groups: Groups) -> arb:
        """(C), m times: E((alpha/2m) sum (w_k - 1)^2 - beta)_+."""
        kappa, found = rate * self.alpha / (2 * self.m), (-1 - rate * self.beta).exp() / rate

        def hbar(z: arb) -> arb:
            return (kappa * (z - 1) ** 2).exp()

        slope = 2 * kappa * (self.zeta - 1) * hbar(self.zeta)
        for others in groups:
            found *= by_chords(hbar, slope, others.reach, self.zeta) ** others.count
        return found


def gram_delta(move: arb, groups: Groups, epsilon: arb, witness: Fields, work: Work) -> arb:
    """Theorem 2: at least delta of one round, main and cut under one maximum."""
    a, count = epsilon.exp(), sum(others.count for others in groups)
    swap, line = Swap.of(witness, count), Line.of(witness, count)
    local = positive(excess(a, move))
    costs = local * too_small(swap.m, swap.zeta, witness.free("below"), groups)
    costs += swap.drift(witness.free("above"), groups) / swap.m
    costs += (local + a - 1) * above_zeta(swap.zeta, groups) / swap.m
    places, fine = Places.of(witness), witness.integer("fine", 1, 64)
    table, c = table_of(places, swap, line, witness, work), line.weights()
    size, found = 2 * line.exact + 5, []
    for others, tree in zip(groups, witness.items("boxes", len(groups), len(groups)), strict=True):
        weights, laws, each = swap.weights(others.reach), [], []
        for box in boxes(tree):
            work.spend(
                40_000 + 2500 * fine + 100 * table.nrows() + table.nrows() * table.ncols() // 30
            )
            laws.append(law(others.corner(box), a, fine, places))
        for start in range(0, len(laws), BATCH):
            batch = laws[start : start + BATCH]
            rows = (arb_mat([masses for masses, _ in batch]) * table).tolist()
            for row, (_, missing) in zip(rows, batch, strict=True):
                each_node = [line.bound(row[i : i + size], *c) for i in range(0, len(row), size)]
                # phi_w rises by at most 1 + zeta/m.
                each.append((swap.mean(each_node, weights), up((1 + swap.zeta / swap.m) * missing)))
        found.append((others.count, each))
    largest = [max_of(d for d, _ in each) for _, each in found]
    together = (line.theta * swap.beta).exp()
    for (many, _), most in zip(found, largest, strict=True):
        together *= (most.log() * many / count).exp()
    main = ZERO
    for (many, each), most in zip(found, largest, strict=True):
        main += many * max_of(up(together * d / (count * most) + kappa) for d, kappa in each)
    return positive(main / swap.m + costs)


def table_of(places: Places, swap: Swap, line: Line, witness: Fields, work: Work) -> arb_mat:
    """One row an atom, for the functions phi_w of all nodes w side by side."""
    values, size = places.values(), (len(swap.nodes) + 1) * (2 * line.exact + 5)
    last = len(values)
    require(last * size <= MOST_ENTRIES, "grid: too many atoms and frequencies")
    work.spend(20 * last * size + 50 * line.last)
    bulk = range(witness.integer("bulk from", 0, last), witness.integer("bulk to", 0, last))
    return arb_mat(
        [
            [y for w in (ZERO, *swap.nodes) for y in line.columns(swap.lift(x, w), i in bulk)]
            for i, x in enumerate(values)
        ]
    )
