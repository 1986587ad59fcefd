"""Gaussian reports: facts, the local claim (section 1) and that for sums (section 14)."""

from __future__ import annotations

from dataclasses import dataclass

from flint import arb, fmpq

from .balls import Profile, gaussian_delta, positive
from .reading import Fields, Work, require

MOST_TYPES = 4000
MOST_ROUNDS = 10**7
MOST_REPORTS = 10**10
TINY = fmpq(1, 10**60)
"""Added to mu^2, so that what has not moved needs no formula of its own."""


@dataclass(frozen=True)
class Group:
    """`count` reports of others with one noise scale, radius and rounding step.

    `move` is how far replacing one unit of such a client moves its mean. Where the facts do not
    state that, it is two radii.
    """

    scale: fmpq
    radius: fmpq
    grid: fmpq
    move: fmpq
    count: int


@dataclass(frozen=True)
class Round:
    """One type of round as the claim's client sees it, played `times`.

    Lengths are in the units of the reports. `move` is how far replacing one unit moves the
    client's mean: the stated sensitivity, or twice the radius where that is less. This number of
    `colluders` are among the others, whichever they are.
    """

    scale: fmpq
    radius: fmpq
    grid: fmpq
    times: int
    move: fmpq
    others: tuple[Group, ...]
    colluders: int

    def alike(self) -> bool:
        """Return whether what holds of this client holds of each (section 17, Any client)."""
        own = (self.scale, self.radius, self.grid, self.move)
        every = ((group.scale, group.radius, group.grid, group.move) for group in self.others)
        return all(each == own for each in every)

    def hiding(self) -> list[tuple[fmpq, int]]:
        """Return (radius, count) of the honest others with the client's own noise and grid, by
        radius.

        Section 0, 3: the colluders are those of its noise in the smallest balls.
        """
        found: dict[fmpq, int] = {}
        for group in self.others:
            if (group.scale, group.grid) == (self.scale, self.grid):
                found[group.radius] = found.get(group.radius, 0) + group.count
        left, honest = self.colluders, []
        for radius, count in sorted(found.items()):
            lost = min(left, count)
            left -= lost
            if count > lost:
                honest.append((radius, count - lost))
        return honest


def rounds_of(facts: Fields) -> list[Round]:
    """Return the types of rounds that the certificate states."""
    facts.integer("dimension", 1, 10**12)
    return [_round(entry) for entry in facts.objects("rounds", MOST_TYPES, 1)]


def _round(entry: Fields) -> Round:
    entry.word("noise", "gaussian")
    groups = [
        Group(
            *_report(other),
            move=_move(other) if "sensitivity" in other.held else 2 * other.number("radius", 0),
            count=other.integer("count", 1, MOST_REPORTS),
        )
        for other in entry.objects("others", MOST_TYPES)
    ]
    return Round(
        *_report(entry),
        times=entry.integer("times", 1, MOST_ROUNDS),
        move=_move(entry),
        others=tuple(groups),
        colluders=entry.integer("colluders", 0, MOST_REPORTS),
    )


def _move(entry: Fields) -> fmpq:
    """Return how far replacing one unit moves the mean: the sensitivity, and at most two radii."""
    return min(entry.number("sensitivity", 0), 2 * entry.number("radius", 0))


def _report(entry: Fields) -> tuple[fmpq, fmpq, fmpq]:
    """Return scale, radius and the step of the grid that reports are rounded to: a power of two."""
    grid = entry.number("grid")
    both = int(grid.p) * int(grid.q)
    require(both & (both - 1) == 0, "grid: not a power of two")
    return entry.number("scale"), entry.number("radius", 0), grid


def local(facts: Fields, witness: Fields, work: Work) -> Profile:
    """Return delta_G(epsilon; mu), mu^2 = sum of times (move/scale)^2: the own noise alone (section
    1)."""
    square = sum((r.times * (r.move / r.scale) ** 2 for r in rounds_of(facts)), TINY)
    return lambda epsilon: positive(gaussian_delta(epsilon, arb(square).sqrt()))


def summed(facts: Fields, witness: Fields, work: Work) -> Profile:
    """Return e^h delta_G(epsilon - 2h; mu), c = 4: of a round only the sum is seen (section 14)."""
    rounds = rounds_of(facts)
    square = sum((r.times * r.move**2 / hiding_variance(r) for r in rounds), TINY)
    reports_once = max(1 + sum(group.count for group in each.others) for each in rounds)
    coordinates = facts.integer("dimension", 1, 10**12) * sum(each.times for each in rounds)
    # e_4 = 2 sum_l e^(-32 pi^2 l^2): the terms after the first add less than a millionth of it.
    error = 2 * (-32 * arb.pi() ** 2).exp() * arb("1.000001")
    h = -coordinates * reports_once * (-error).log1p()
    return lambda epsilon: positive(h.exp() * gaussian_delta(epsilon - 2 * h, arb(square).sqrt()))


def hiding_variance(own: Round) -> fmpq:
    """Return V of section 14, c = 4: s^2 - 64 g^2 of the own report and of each other that fits it.

    The colluders are those that count most; those that do not fit are honest in the worst case. At
    least s^2, the own noise alone (post-processing).
    """
    alone = own.scale**2
    counted = [
        (other.scale**2 - 64 * other.grid**2, other.count)
        for other in own.others
        if fits(own, other)
    ]
    left, total = own.colluders, alone - 64 * own.grid**2
    for variance, count in sorted(counted, reverse=True):
        lost = min(left, count)
        left -= lost
        total += variance * (count - lost)
    return max(alone, total)


def fits(own: Round, other: Group) -> bool:
    """Return whether a report counts beside the own one (section 14, after the claim).

    s^2 >= 64 g^2 for both, and the finer of two steps has s^2 >= 32 g^2, g the coarser step.
    """
    if min(own.scale / own.grid, other.scale / other.grid) < 8:
        return False
    finer = own.scale if own.grid < other.grid else other.scale
    return own.grid == other.grid or finer**2 >= 32 * max(own.grid, other.grid) ** 2
