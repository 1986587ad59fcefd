"""Shuffled Gaussian reports: types of rounds, and a point of the curve in two ways.

By convex order alone, a proof of four steps: the swap (section 11), one distribution for every
other report (section 12), the sum of N of them, the dominating pair (section 6). And by Theorem 2
of section 12: the swap's other end, Hölder's inequality, the Gram order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise

from flint import arb, arb_mat, fmpq

from .balls import ONE, ZERO, Profile, excess, gaussian_delta, max_of, positive, up
from .gaussian import MOST_REPORTS, Round, rounds_of
from .gram import Others, Places, boxes, corner, law
from .line import Contour
from .reading import LARGE, LARGEST_EPSILON, Fields, Work, decimal, require, whole
from .rounds import composed, curve, kinks

MOST_TOLD_APART = 8
"""Groups of others by radius."""
PAGE = ("local", "convex order")
"""How a point may be proven in a page ..."""
WAYS = (*PAGE, "gram")
"""... and how at all."""
MOST_ENTRIES, BATCH = 2_000_000, 64
LADDER = [fmpq(3, 10) * i - 20 for i in range(47)] + [fmpq(2, 25) * i - 6 for i in range(1, 260)]

Groups = tuple[Others, ...]
Ways = tuple[str, ...]
GroupDistances = tuple[arb, Groups]
"""A round in noise standard deviations: how far apart the client's means lie; groups of others,
nearest first."""


def shuffled(facts: Fields, witness: Fields, work: Work, ways: Ways = WAYS) -> Profile:
    """Return delta of all rounds together (section 6), against an attacker who sees the shuffled
    reports.

    `ways`: by which each point may be proven.
    """
    rounds = rounds_of(facts)
    step = witness.free("step", fmpq(1, 10**9), LARGEST_EPSILON)
    kinds, left = [], dict(enumerate(rounds))
    for entry in witness.objects("types", len(rounds), 1):
        places = {whole(i, "rounds", 0, LARGE) for i in entry.items("rounds", len(rounds), 1)}
        require(places <= left.keys(), "types: a round twice, or one that there is not")
        members = [left.pop(place) for place in sorted(places)]
        bound = partial(point_delta, setting_of(members, entry), work, ways)
        kinds.append((curve(entry, step, bound), sum(each.times for each in members)))
    require(not left, "types: not every round is in one")
    return composed(kinds, step, witness, work)


def setting_of(rounds: list[Round], entry: Fields) -> GroupDistances:
    """Return a round that costs no less than any of `rounds` (section 6, "may be accounted as").

    Within every radius of a group `rounds` have at least as many others as the groups up to it: the
    rest is told to the attacker, and a ball may be taken larger (section 13).
    """
    scale = rounds[0].scale
    require(all(each.scale == scale for each in rounds), "types: rounds of different scales")
    own, move = max(each.radius for each in rounds), max(each.move for each in rounds)
    require(move > 0, "sensitivity: zero")
    within, last, groups = 0, fmpq(0), []
    for group in entry.objects("groups", MOST_TOLD_APART):
        last = group.number("radius", max(last, own / 10**6))
        count = group.integer("count", 1, MOST_REPORTS)
        within += count
        for each in rounds:
            there = sum(many for radius, many in each.hiding() if radius <= last)
            require(within <= there, "groups: more others than the facts state within a radius")
        groups.append(Others(arb(own / scale), arb(last / scale), arb(move / scale), count))
    return arb(move / scale), tuple(groups)


def point_delta(
    setting: GroupDistances, work: Work, ways: Ways, epsilon: arb, point: Fields
) -> arb:
    """Return one point of the curve by the bound that it names: section 1, 11 and 12, or Theorem
    2."""
    work.begin_point()
    move, groups = setting
    by = point.word("by", *ways)
    if by == "local":
        return positive(gaussian_delta(epsilon, move))
    require(groups, "groups: nobody to hide among")
    if by == "gram":
        return gram_delta(groups, epsilon, point, work)
    return convex_order_delta(groups, epsilon, point, work)


def convex_order_delta(groups: Groups, epsilon: arb, witness: Fields, work: Work) -> arb:
    """Return at least delta of one round: (1/m) E(sum_k phi(L*_k))_+, the cut, (A) and (B).

    Section 11 with its constants from a profile: every weight at most zeta, no floor, so that
    phi(l) = l + eta |l|, eta = zeta/m, and no (C).
    """
    work.spend(1.5e6)  # some thousand tails of the normal distribution
    count, a, move = sum(others.count for others in groups), epsilon.exp(), groups[0].move
    m, zeta = witness.free("m", high=count), witness.free("zeta", 1)
    eta = up(zeta / m)
    require(eta < 1, "zeta: not below m")
    local = positive(excess(a, move))
    rare = local * too_small(m, zeta, witness.free("rate"), groups)  # (A)
    large = (local + a - 1) * above_zeta(zeta, groups) / m  # (B)
    # At least |p - r| and |q - r| for every other mean r, and |p - q|.
    spread = max_of((others.own + others.reach).max(move) for others in groups)
    law, cut = comparison(a, move, spread, eta, witness)
    main = Contour(witness, count).of_equals(law, work)
    return positive((main + count * cut) / m + rare + large)


def comparison(
    a: arb, move: arb, spread: arb, eta: arb, witness: Fields
) -> tuple[list[tuple[arb, arb]], arb]:
    """Return a distribution (mass, value) above phi(min(L, K)) in the increasing convex order, and
    E(phi(L) - K)_+.

    Section 12, "Convex order, from profiles": L = (P - aQ)/R for any R within `spread` of both.
    The distribution's stop-loss transform lies above theirs at unit * sinh(i/16), and chords lie
    above it between them; `beyond` is an atom that makes up for the cut.
    """

    def split(own: arb, other: arb) -> arb:
        """Return min over theta of theta h(own/theta) + (1 - theta) g(other/(1 - theta)).

        h and g are the Gaussian profiles at `move` and `spread`. Any theta will do: the best is
        looked for by bisection.
        """
        if other == 0:
            return excess(own, move)
        low, high = arb(-60), arb(60)
        for _ in range(24):
            x = (low + high) / 2
            theta, rest = 1 / (1 + (-x).exp()), 1 / (1 + x.exp())
            slope = (other / rest).log() / spread - (own / theta).log() / move
            low, high = (x, high) if slope < (spread - move) / 2 else (low, x)
        theta, rest = theta.mid(), 1 - theta.mid()
        return theta * excess(own / theta, move) + rest * excess(other / rest, spread)

    mean = 2 * eta * excess(a, move) - (1 - eta) * (a - 1)  # of phi(L): E L = 1 - a, E L^+ = H

    def transform(t: arb) -> arb:
        """Return at least E(phi(L) - t)_+."""
        if t >= 0:
            return up((1 + eta) * split(a, t / (1 + eta)))
        return up(mean - t + (1 - eta) * a * split(1 / a, -t / ((1 - eta) * a)))

    unit = witness.free("unit")
    below, above = witness.integer("below", 1, 1000), witness.integer("above", 1, 1000)
    places = [(unit * (arb(i) / 16).sinh()).mid() for i in range(-below, above + 1)]
    nodes = [(0, t, transform(t)) for t in places]
    cut = nodes[-1][2]
    nodes.append((0, witness.free("beyond", high=LARGE), ZERO))
    require(nodes[-1][1] > places[-1], "beyond: too near")
    return [(positive(mass), t) for _, t, mass in kinks(nodes, -ONE)], cut


def by_chords(f: Callable[[arb], arb], beyond: arb, reach: arb, zeta: arb) -> arb:
    """Return at least E f(Z), f convex with slope `beyond` from zeta on; Z of mean one (Theorem 2,
    v).

    f is replaced by its chords between nodes: the chord over the mean, and breakpoints on both
    sides of it, where E(Z - t)_+ and E(t - Z)_+ = t E(Z - 1/t)_+ are needed. All terms are
    positive, so nothing cancels where f is steep.
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
    """Return (A) over H: E(1 - S/m)_+ <= e^(rate m - 1)/(rate m) prod E e^(-rate min(Z_g,
    zeta))^n_g."""
    found = (rate * m - 1).exp() / (rate * m)
    for others in groups:
        falling = by_chords(lambda z: (-rate * z).exp(), ZERO, others.reach, zeta)
        found *= falling**others.count
    return found


def above_zeta(zeta: arb, groups: Groups) -> arb:
    """Return (B) over (H + a - 1)/m: sum of E(Z_g - zeta)_+ over all others."""
    return sum((others.count * excess(zeta, others.reach) for others in groups), ZERO)


class SwapWitness:
    """The constants of Theorem 2 at one epsilon, lambda = 1; any of these ranges is valid.

    `nodes`: 1 = x_1 < .. < x_K = zeta.
    """

    def __init__(self, witness: Fields, count: int) -> None:
        self.m, self.zeta = witness.free("m", high=count), witness.free("zeta")
        self.alpha, self.beta = witness.free("alpha"), witness.free("beta", 0)
        inner = [arb(decimal(x, "nodes")).mid() for x in witness.items("nodes", 4)]
        self.nodes = [ONE, *inner, self.zeta]
        require(all(x < y for x, y in pairwise(self.nodes)), "nodes: not upwards from 1 to zeta")
        require(self.m >= self.zeta, "m: below zeta")

    def lift(self, x: arb, w: arb) -> arb:
        """Return phi_w(x) of Theorem 2."""
        s = (x / self.alpha).max(-ONE).min(self.zeta - 1)
        return x + (((1 - w) * x).max(ZERO) + s * x - self.alpha * s * s / 2) / self.m

    def weights(self, reach: arb) -> list[arb]:
        """Return p of step (iv) at the nodes 0, x_1, .., x_K for a group of this radius."""
        growth, low = (reach * reach).exp(), excess(ONE, reach)
        above = [(x, growth * excess(x / growth, reach)) for x in self.nodes]
        slopes = [(e - f) / (y - x) for (x, e), (y, f) in pairwise(above)] + [ZERO]
        between = [s - t for s, t in pairwise(slopes)]
        return [positive(p) for p in (low, 1 - slopes[0] - low, *between)]

    def drift(self, rate: arb, groups: Groups) -> arb:
        """Return (C), m times: E((alpha/2m) sum (w_k - 1)^2 - beta)_+."""
        kappa, found = rate * self.alpha / (2 * self.m), (-1 - rate * self.beta).exp() / rate

        def hbar(z: arb) -> arb:
            return (kappa * (z - 1) ** 2).exp()

        slope = 2 * kappa * (self.zeta - 1) * hbar(self.zeta)
        for others in groups:
            found *= by_chords(hbar, slope, others.reach, self.zeta) ** others.count
        return found


def node_mean(d: list[arb], weights: list[arb]) -> arb:
    """Return the sum p_i D'(x_i), D' at 0 at least D(1), from 1 on a running maximum (step iv)."""
    rising = [d[0].max(d[1]), *accumulate(d[1:], arb.max)]
    return up(sum((p * value for p, value in zip(weights, rising, strict=True)), ZERO))


def gram_delta(groups: Groups, epsilon: arb, witness: Fields, work: Work) -> arb:
    """Return by Theorem 2 at least delta of one round, main and cut under one maximum."""
    a, count = epsilon.exp(), sum(others.count for others in groups)
    swap, line = SwapWitness(witness, count), Contour(witness, count)
    local = positive(excess(a, groups[0].move))
    costs = local * too_small(swap.m, swap.zeta, witness.free("below"), groups)
    costs += swap.drift(witness.free("above"), groups) / swap.m
    costs += (local + a - 1) * above_zeta(swap.zeta, groups) / swap.m
    places, fine = Places(witness), witness.integer("fine", 1, 64)
    table, c = table_of(places, swap, line, witness, work), line.weights()
    size, found = 2 * line.exact + 5, []
    for others, tree in zip(groups, witness.items("boxes", len(groups), len(groups)), strict=True):
        weights, each = swap.weights(others.reach), []
        kept = [gram for box in boxes(tree) if (gram := corner(others, box))]
        require(kept, "boxes: all are left out")
        steps = 40_000 + 2500 * fine + 100 * table.nrows() + table.nrows() * table.ncols() // 30
        work.spend(steps * len(kept))
        for start in range(0, len(kept), BATCH):
            batch = [law(gram, a, fine, places) for gram in kept[start : start + BATCH]]
            rows = (arb_mat([masses for masses, _ in batch]) * table).tolist()
            for row, (_, missing) in zip(rows, batch, strict=True):
                each_node = [line.bound(row[i : i + size], *c) for i in range(0, len(row), size)]
                # phi_w rises by at most 1 + zeta/m.
                each.append((node_mean(each_node, weights), up((1 + swap.zeta / swap.m) * missing)))
        found.append((others.count, each))
    largest = [max_of(d for d, _ in each) for _, each in found]
    together = (line.theta * swap.beta).exp()
    for (many, _), most in zip(found, largest, strict=True):
        together *= (most.log() * many / count).exp()
    main = ZERO
    for (many, each), most in zip(found, largest, strict=True):
        main += many * max_of(up(together * d / (count * most) + kappa) for d, kappa in each)
    return positive(main / swap.m + costs)


def table_of(
    places: Places, swap: SwapWitness, line: Contour, witness: Fields, work: Work
) -> arb_mat:
    """Return one row an atom, for the functions phi_w (Theorem 2) of all nodes w side by side."""
    values, size = places.values, (len(swap.nodes) + 1) * (2 * line.exact + 5)
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
