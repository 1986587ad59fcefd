"""Shuffled Gaussian reports: types of rounds, and a point of the curve by convex order alone.

That is a proof of four steps: the swap (section 11), one law for every other report (section 12),
the sum of N of them, the dominating pair (section 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flint import arb, fmpq

from .balls import ONE, ZERO, Profile, excess, gaussian_delta, max_of, positive, up
from .gaussian import MOST_REPORTS, Round, rounds_of
from .gram import Others
from .line import Line
from .reading import LARGE, LARGEST_EPSILON, Fields, Work, require, whole
from .rounds import composed, curve, kinks
from .swap import above_zeta, gram_delta, too_small

MOST_TOLD_APART = 8
"""Groups of others by radius."""


@dataclass(frozen=True)
class Setting:
    """A round in noise widths: the client's means lie `move` apart in a ball about the centre.

    `groups` of others, the nearest first.
    """

    move: arb
    groups: tuple[Others, ...]

    @property
    def count(self) -> int:
        """N, the number of others."""
        return sum(others.count for others in self.groups)

    @property
    def spread(self) -> arb:
        """At least |p - r| and |q - r| for every other mean r, and |p - q|."""
        return max_of((others.own + others.reach).max(self.move) for others in self.groups)


def shuffled(facts: Fields, witness: Fields, work: Work) -> Profile:
    """delta of all rounds together, against whoever sees each round's shuffled reports."""
    rounds = rounds_of(facts)
    step = witness.free("step", fmpq(1, 10**9), LARGEST_EPSILON)
    kinds, left = [], dict(enumerate(rounds))
    for entry in witness.objects("types", len(rounds), 1):
        places = {whole(i, "rounds", 0, LARGE) for i in entry.items("rounds", len(rounds), 1)}
        require(places <= left.keys(), "types: a round twice, or one that there is not")
        members = [left.pop(place) for place in sorted(places)]
        bound = partial(point_delta, setting_of(members, entry), work)
        kinds.append((curve(entry, step, bound), sum(each.times for each in members)))
    require(not left, "types: not every round is in one")
    return composed(kinds, step, witness, work)


def setting_of(rounds: list[Round], entry: Fields) -> Setting:
    """A round that costs no less than any of `rounds` (section 6, "may be accounted as").

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
        groups.append(Others(arb(own / scale), arb(last / scale), count))
    return Setting(arb(move / scale), tuple(groups))


def point_delta(setting: Setting, work: Work, epsilon: arb, point: Fields) -> arb:
    """One point of the curve, by the bound that it names."""
    by = point.word("by", "local", "gram", "convex order")
    if by == "local":
        return positive(gaussian_delta(epsilon, setting.move))
    require(setting.groups, "groups: nobody to hide among")
    if by == "gram":
        return gram_delta(setting.move, setting.groups, epsilon, point, work)
    return convex_order_delta(setting, epsilon, point, work)


def convex_order_delta(setting: Setting, epsilon: arb, witness: Fields, work: Work) -> arb:
    """At least delta of one round: (1/m) E(sum_k phi(L*_k))_+, the cut, (A) and (B).

    Section 11 with its constants from a profile: every weight at most zeta, no floor, so that
    phi(l) = l + eta |l|, eta = zeta/m, and no (C).
    """
    work.spend(1.5e6)  # some thousand tails of the normal distribution
    count, a, groups = setting.count, epsilon.exp(), setting.groups
    m, zeta = witness.free("m", high=count), witness.free("zeta", 1)
    eta = up(zeta / m)
    require(eta < 1, "zeta: not below m")
    local = positive(excess(a, setting.move))
    rare = local * too_small(m, zeta, witness.free("rate"), groups)  # (A)
    large = (local + a - 1) * above_zeta(zeta, groups) / m  # (B)
    law, cut = comparison(a, setting.move, setting.spread, eta, witness)
    main = Line.of(witness, count).of_equals(law, work)
    return positive((main + count * cut) / m + rare + large)


def comparison(
    a: arb, move: arb, spread: arb, eta: arb, witness: Fields
) -> tuple[list[tuple[arb, arb]], arb]:
    """A law (mass, value) above phi(min(L, K)) in the increasing convex order, and E(phi(L) - K)_+.

    Section 12, "Convex order, from profiles": L = (P - aQ)/R for any R within `spread` of both.
    The law's stop-loss transform lies above theirs at unit * sinh(i/16), and chords lie above it
    between them; `beyond` is an atom that makes up for the cut.
    """

    def split(own: arb, other: arb) -> arb:
        """min over theta of theta h(own/theta) + (1 - theta) g(other/(1 - theta)).

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
        """At least E(phi(L) - t)_+."""
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
