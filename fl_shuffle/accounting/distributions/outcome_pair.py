"""A pair of inputs against a blanket, over finitely many kinds of report.

Reports that all of P, Q and the blanket treat alike are one outcome, so a randomizer on a huge
domain often has three to five.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.amplification import AtomicDistribution, Case
from fl_shuffle.errors import InvalidValueError


@dataclass(frozen=True)
class OutcomePair:
    """Distributions P and Q of the differing report, blanket distribution omega, and the blanket
    mass gamma.

    `p`, `q` and `omega` are probability vectors over the outcomes; `loss` is log(p/q), kept apart
    because it is usually known exactly while p - e^eps q cancels. Where omega is zero, the outcome
    is never hidden by anybody: its divergence is added as it stands.
    """

    p: FloatArray
    q: FloatArray
    omega: FloatArray
    loss: FloatArray
    blanket_mass: float

    @classmethod
    def of(
        cls,
        p: ArrayLike,
        q: ArrayLike,
        minimum: ArrayLike,
        loss: ArrayLike | None = None,
        *,
        blanket_mass: float | None = None,
    ) -> OutcomePair:
        """Return the pair with unnormalized blanket `minimum` (at most every input's distribution,
        pointwise).

        The blanket mass is the total of `minimum` unless given. Outcomes that nobody produces are
        dropped. Raises `InvalidValueError` if p or q does not sum to one within 1e-9.
        """
        p_, q_, low = (np.asarray(x, dtype=np.float64).ravel() for x in (p, q, minimum))
        for name, masses in (("p", p_), ("q", q_)):
            total = math.fsum(masses.tolist())
            if not (abs(total - 1.0) <= 1e-9 and np.all(masses >= 0.0)):
                raise InvalidValueError(name, total, "must be nonnegative and sum to one")
        with np.errstate(divide="ignore", invalid="ignore"):
            known = np.log(p_) - np.log(q_) if loss is None else np.asarray(loss, dtype=np.float64)
        # Outcomes of the blanket alone stay: there L = 0, and they are a part of omega's mass.
        used = (p_ > 0.0) | (q_ > 0.0) | (low > 0.0)
        mass = math.fsum(low.tolist())
        # The infimum of all inputs' distributions is gamma omega: its mass is gamma, its shape
        # omega.
        omega = low / mass if mass > 0.0 else low
        both_zero = (p_ == 0.0) & (q_ == 0.0)
        # log 0 - log 0 is NaN. Any finite loss does: with q = 0 it gives L = 0.
        known = np.where(both_zero, 0.0, known)
        # A total above one is round-off. Where the others' distribution itself stands in place of
        # the blanket, the caller gives a mass of one.
        gamma = min(mass, 1.0) if blanket_mass is None else blanket_mass
        return cls(p_[used], q_[used], omega[used], known[used], gamma)

    def law(self, epsilon: float) -> AtomicDistribution | None:
        """Return the distribution of L = (P - e^eps Q)/omega under omega, free of cancellation.

        None if the blanket is empty: nothing is hidden then.
        """
        hidden = self.omega > 0.0
        if not np.any(hidden):
            return None
        p, q, omega, loss = (x[hidden] for x in (self.p, self.q, self.omega, self.loss))
        finite = np.isfinite(loss)
        # p - e^eps q = e^eps q (e^(loss - eps) - 1).
        gain = np.expm1(np.where(finite, loss, 0.0) - epsilon)
        # At a loss of +inf q is zero, so L = p/omega; at -inf p is zero, so L = -e^eps q/omega.
        values = np.where(finite, math.exp(epsilon) * (q / omega) * gain, p / omega)
        values = np.where(np.isneginf(loss), -math.exp(epsilon) * q / omega, values)
        return AtomicDistribution.of(values, omega)

    def exposed(self, epsilon: float) -> float:
        """Return the divergence of the outcomes outside the blanket: sum over omega = 0 of (P -
        e^eps Q)_+."""
        # No other client sends such a report in place of this one: seeing it excludes all others.
        bare = self.omega == 0.0
        return float(np.sum(np.maximum(self.p[bare] - math.exp(epsilon) * self.q[bare], 0.0)))

    def case(self) -> Case:
        """Return this pair as the engine's front end takes it."""
        return Case(self.blanket_mass, self.law, self.exposed)

    def reversed(self) -> OutcomePair:
        """Return the other direction: Q against P."""
        return OutcomePair(self.q, self.p, self.omega, -self.loss, self.blanket_mass)

    def canonical(self) -> tuple[tuple[str, ...], ...]:
        """Return a key that is equal for pairs that differ only in the names of their outcomes."""
        # Sorted, so that a permutation of outcomes changes nothing. Twelve digits hide round-off
        # of equal formulas: two pairs that differ by less than that have the same curve to that
        # accuracy, and only one of them is evaluated.
        columns = zip(self.loss, self.omega, self.q, self.p, strict=True)
        return tuple(sorted(tuple(f"{x:.11e}" for x in column) for column in columns))
