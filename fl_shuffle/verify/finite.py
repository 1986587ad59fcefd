"""Randomizers with finitely many reports (section 2): rounds of equal clients."""

from __future__ import annotations

from flint import arb, fmpq

from .balls import ZERO, Profile, positive
from .line import Contour
from .reading import LARGEST_EPSILON, Fields, Work
from .rounds import composed, curve


def finite(facts: Fields, witness: Fields, work: Work) -> Profile:
    """Return delta of `times` rounds of `clients` reports of k-ary randomized response.

    By the blanket of section 2: omega is uniform over the k values, every input's report has its
    mass at least gamma omega; P and Q differ on two values, so one pair serves all.
    """
    randomizer = facts.object("randomizer")
    randomizer.word("name", "krr")
    k, growth = randomizer.integer("k", 2, 10**9), randomizer.number("epsilon0", 0, 50)
    clients, times = facts.integer("clients", 1, 10**12), facts.integer("times", 1, 10**7)
    e0 = arb(growth).exp()
    low = 1 / (e0 + k - 1)
    gamma = k * low

    def bound(epsilon: arb, point: Fields) -> arb:
        """Return E(sum of n copies of B L)_+ / (n gamma), B ~ Bernoulli(gamma) (section 2), or the
        own."""
        work.begin_point()
        a = epsilon.exp()
        if point.word("by", "local", "blanket") == "local":
            return positive(((e0 - a) * low).max(ZERO))
        values = [(e0 - a, low), (1 - a * e0, low), (1 - a, gamma - 2 * low)]
        law = [(mass, gamma * value) for value, mass in values] + [(1 - gamma, ZERO)]
        return positive(Contour(point, clients).of_equals(law, work) / (clients * gamma))

    step = witness.free("step", fmpq(1, 10**9), LARGEST_EPSILON)
    return composed([(curve(witness, step, bound), times)], step, witness, work)
