"""E(sum)_+ of independent terms by a trapezoidal sum (section 12, The line)."""

from __future__ import annotations

from flint import acb, arb

from .balls import ONE, ZERO, positive, up
from .reading import LARGE, Fields, Work

MOST_FREQUENCIES = 20_000


class Contour:
    """Re s = theta, at the frequencies i * step, |i| <= last, for a sum of `count` terms.

    Copies that the steps bring along and a normal variable of variance `smoothing` only add.
    """

    def __init__(self, witness: Fields, count: int) -> None:
        self.count, self.theta, self.step = count, witness.free("theta"), witness.free("h")
        self.smoothing = witness.free("smoothing", high=LARGE)
        self.exact = witness.integer("exact", 1, MOST_FREQUENCIES)
        self.last = witness.integer("last", self.exact, MOST_FREQUENCIES)

    def weight(self, i: int) -> arb:
        """Return c_k of section 12, The line, for k = i h and, with it, -i h."""
        k = self.step * i
        grown = (self.smoothing * (self.theta**2 - k**2) / 2).exp() / (self.theta**2 + k**2)
        return grown * self.step / (arb.pi() * (2 if i == 0 else 1))

    def rest(self) -> arb:
        """Return what all c_k beyond the last one weigh at most."""
        k, v = self.step * self.last, self.smoothing
        return (v * (self.theta**2 - k**2) / 2).exp() / (arb.pi() * v * k**3)

    def of_equals(self, law: list[tuple[arb, arb]], work: Work) -> arb:
        """Return at least E(sum of `count` independent terms of one distribution)_+; `law`: (mass,
        value).

        The line's trapezoidal sum itself: no moduli, for all terms are alike.
        """
        work.spend(60 * self.last * (len(law) + 20))
        grown = [(mass * (self.theta * x).exp(), x) for mass, x in law]
        whole, found = sum((mass for mass, _ in grown), ZERO), self.rest()
        for i in range(self.last + 1):
            k = self.step * i
            moment = sum((mass * acb(0, k * x).exp() for mass, x in grown), acb(0)) / whole
            turn = acb(0, self.smoothing * self.theta * k).exp()
            turn *= (self.theta**2 + k**2) / acb(self.theta, k) ** 2
            found += self.weight(i) * (moment**self.count * turn).real
        return positive(found * whole**self.count)

    # Terms of different distributions: moduli instead, exact up to k_1 and by Lemma 4 from there
    # on.

    def columns(self, x: arb, in_bulk: bool) -> list[arb]:
        """Return what an atom x adds to E e^(s X) at the exact frequencies, and to the bulk's
        moments."""
        grown = (self.theta * x).exp()
        turns = [(self.step * i * x).sin_cos() for i in range(self.exact)]
        moments = [grown * x**r if in_bulk else ZERO for r in range(5)]
        return [grown * c for _, c in turns] + [grown * s for s, _ in turns] + moments

    def weights(self) -> tuple[list[arb], arb, arb]:
        """Return c up to k_1; what all c in [k_1, k_2] weigh; and those beyond."""
        c = [self.weight(i) for i in range(self.last + 1)]
        return c[: self.exact], sum(c[self.exact :], ZERO), self.rest()

    def bound(self, row: list[arb], c: list[arb], middle: arb, rest: arb) -> arb:
        """Return D of one distribution: sum of c_k m_k^N (Lemma 4); `row`: the distribution's mean
        of `columns`."""
        whole, (m0, *moments) = row[0], row[2 * self.exact :]
        found = c[0] + rest
        for i in range(1, self.exact):
            square = up((row[i] ** 2 + row[self.exact + i] ** 2) / whole**2).max(ZERO)
            found += c[i] * (square**self.count).sqrt()
        m1, m2, m3, m4 = (m / m0 for m in moments)
        s2 = m2 - m1**2
        mu4 = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        ends = (self.step * self.exact, self.step * self.last)
        at = [up(1 - k**2 * s2 + k**4 * (2 * mu4 + 6 * s2**2) / 24) for k in ends]
        share = m0 / whole
        between = up(share * at[0].max(at[1]).max(ZERO).sqrt() + 1 - share).min(ONE)
        return up((found + middle * between**self.count) * whole**self.count)
