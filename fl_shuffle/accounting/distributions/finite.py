"""Local randomizers with finitely many kinds of report, as the accountant sees them.

Each gives its blanket mass gamma, the pairs of inputs that can be worst (as `OutcomePair`), and the
datasets whose exact divergence serves as a lower bound: the differing client holds x0 or x1, all
others hold one common value or draw theirs from a mix. Sources: Su, Cheng and Wang 2025, Section 5
and Table 1 (k-RR, binary local hashing, RAPPOR, OUE, Hadamard response); the finite-domain unary
encodings and the matrix are the same construction carried out without the large-domain limit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.amplification import Case
from fl_shuffle.accounting.distributions.outcome_pair import OutcomePair
from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.errors import InvalidValueError, require_integer, require_real

MIXES = (0.25, 0.5, 0.75)
"""Shares of one value where the others hold a mix of two."""


class AccountedRandomizer(ABC):
    """What the accountant needs to know of any local randomizer."""

    name: str
    epsilon0: float
    source = "Su, Cheng, Wang 2025, Theorem 4 and Table 1"
    assumptions: tuple[str, ...] = ()

    @property
    def local_epsilon(self) -> float:
        """The pure local budget of one report (infinite if there is none)."""
        return self.epsilon0

    @abstractmethod
    def cases(self) -> tuple[Case, ...]:
        """Return the pairs of inputs, in both directions, of which one is worst."""

    @abstractmethod
    def witness_cases(self) -> tuple[Case, ...]:
        """Return pairs, in both directions, whose exact divergence is a lower bound (all others
        hold one common value)."""

    def _set(self, **known: object) -> None:
        """Set fields that follow from those given."""
        for name, value in known.items():
            object.__setattr__(self, name, value)


class FiniteRandomizer(AccountedRandomizer):
    """A randomizer with finitely many kinds of report."""

    @abstractmethod
    def pairs(self) -> tuple[OutcomePair, ...]:
        """Return pairs (both directions) of which one is worst, against the blanket."""

    @abstractmethod
    def witnesses(self) -> tuple[OutcomePair, ...]:
        """Return pairs against the report distribution of the others: a common input, or inputs
        drawn from a mix.

        For a common input the divergence is exact. For a mix it is that of the average over the
        data sets it draws, which some of them reach: divergences are jointly convex.
        """

    def cases(self) -> tuple[Case, ...]:
        return tuple(pair.case() for pair in self.pairs())

    def witness_cases(self) -> tuple[Case, ...]:
        pairs = self.witnesses()
        both = distinct((*pairs, *(pair.reversed() for pair in pairs)))
        return tuple(pair.case() for pair in both)


def require_epsilon0(value: float) -> float:
    """Return a pure local budget that questions may have, or `InvalidValueError`."""
    return require_real("epsilon0", value, minimum=0.0, maximum=MAX_EPSILON0)


@dataclass(frozen=True)
class KRandomizedResponse(FiniteRandomizer):
    """k-ary randomized response: the true value with probability e^eps0/(e^eps0 + k - 1).

    The pair is symmetric, so one direction is enough. The blanket is uniform with mass
    k/(e^eps0 + k - 1).
    """

    epsilon0: float
    k: int

    def __post_init__(self) -> None:
        require_epsilon0(self.epsilon0)
        require_integer("k", self.k, minimum=2, maximum=10**12)
        self._set(name=f"{self.k}-RR")

    def pairs(self) -> tuple[OutcomePair, ...]:
        return (cap_pair(self.epsilon0, 1.0 / self.k),)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        """Return the pairs in which all others hold a third value, x1 or x0, or mixes of these; k =
        2 knows no third.

        One more witness: each other holds one of the k - 2 values beside x0 and x1 at random.
        """
        e, high = self.epsilon0, math.exp(self.epsilon0)
        low = 1.0 / (high + self.k - 1.0)
        # Four kinds of report: x0, x1, a third value, and the k - 3 others together. Only the
        # first two tell the inputs apart.
        x0, x1 = np.array([high * low, low, low, 0.0]), np.array([low, high * low, low, 0.0])
        third = np.array([low, low, high * low, 0.0])
        rest = np.array([0.0, 0.0, 0.0, max(self.k - 3, 0) * low])
        loss = [e, -e, 0.0, 0.0]
        if self.k == 2:
            x0[2] = x1[2] = 0.0
            laws = [x1, x0, *mixes(x0, x1)]
        else:
            # An input that is uniform on the k - 2 values beside x0 and x1 is reported as x0 or
            # x1 with the least probability, and as each of the k - 2 with equal shares of the
            # rest.
            beside = (1.0 - 2.0 * low) / (self.k - 2.0)
            anything = np.array([low, low, beside, (self.k - 3) * beside])
            # The likeliest worst one first: a third value sends x0 and x1 as rarely as anything
            # does.
            laws = [third, x1, x0, *mixes(x0, x1), *mixes(x1, third), *mixes(x0, third)]
            laws = [*(law + rest for law in laws), anything]
        p, q = x0 + rest, x1 + rest
        return tuple(OutcomePair.of(p, q, law, loss, blanket_mass=1.0) for law in laws)


def mixes(first: FloatArray, second: FloatArray) -> list[FloatArray]:
    return [(1.0 - share) * first + share * second for share in MIXES]


def cap_pair(epsilon0: float, share: float) -> OutcomePair:
    """Return two disjoint caps of base measure `share` each, density ratio e^eps0 inside against
    outside.

    k-ary randomized response is share = 1/k.
    """
    gain = math.expm1(epsilon0)
    # The density is gamma e^eps0 in the own cap and gamma elsewhere, so that it adds up to one:
    # gamma (share e^eps0 + 1 - share) = 1. The least density is the blanket, of mass gamma.
    gamma = 1.0 / (1.0 + share * gain)
    # Two caps of a base measure of one; for k = 2 nothing is left, up to round-off.
    rest = max(0.0, 1.0 - 2.0 * share)
    high = gamma * share * math.exp(epsilon0)
    low = gamma * share
    return OutcomePair.of(
        [high, low, gamma * rest],
        [low, high, gamma * rest],
        [low, low, gamma * rest],
        [epsilon0, -epsilon0, 0.0],
        blanket_mass=gamma,
    )


@dataclass(frozen=True)
class MatrixRandomizer(FiniteRandomizer):
    """A user's own randomizer: `matrix[x][y]` is the probability of report y on input x.

    The blanket is the column minimum; all ordered pairs of inputs are considered. A report that
    some input never produces is outside the blanket and its divergence is added in full; if no
    report is shared by all inputs the blanket is empty and the answer is the local one.
    """

    matrix: ArrayLike
    name: str = "probability matrix"
    source = "Su, Cheng, Wang 2025, Theorem 4, blanket = column minimum"
    rows: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows = np.asarray(self.matrix, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[0] < 2 or rows.shape[1] < 1:
            raise InvalidValueError("matrix", rows.shape, "needs two or more inputs as rows")
        if not (np.all(np.isfinite(rows)) and np.all(rows >= 0.0)):
            worst = rows[~(np.isfinite(rows) & (rows >= 0.0))][0]
            raise InvalidValueError("matrix", float(worst), "entries must be finite and >= 0")
        sums = rows.sum(axis=1)
        wrong = np.flatnonzero(np.abs(sums - 1.0) > 1e-9)
        if wrong.size:
            raise InvalidValueError(
                f"matrix row {int(wrong[0])}", float(sums[wrong[0]]), "must sum to one within 1e-9"
            )
        rows.setflags(write=False)
        self._set(rows=rows)

    @property
    def local_epsilon(self) -> float:
        """Largest log ratio between two inputs (infinite if one excludes a report)."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.rows)
        # A report that no input produces would give -inf - (-inf).
        possible = logs[:, np.any(self.rows > 0.0, axis=0)]
        return float(np.max(possible.max(axis=0) - possible.min(axis=0)))

    def pairs(self) -> tuple[OutcomePair, ...]:
        # The largest measure below all rows: no other blanket has more mass (Su, Cheng, Wang
        # 2025, Theorem 4).
        low = self.rows.min(axis=0)
        inputs = range(self.rows.shape[0])
        return distinct(
            OutcomePair.of(self.rows[a], self.rows[b], low) for a, b in permutations(inputs, 2)
        )

    def witnesses(self) -> tuple[OutcomePair, ...]:
        """Return every ordered pair of inputs against every input the others may hold."""
        inputs = range(self.rows.shape[0])
        return distinct(
            OutcomePair.of(self.rows[a], self.rows[b], self.rows[c], blanket_mass=1.0)
            for a, b in permutations(inputs, 2)
            for c in inputs
        )


def distinct(pairs: Iterable[OutcomePair]) -> tuple[OutcomePair, ...]:
    """Drop pairs that differ only in the names of their outcomes."""
    found: dict[object, OutcomePair] = {}
    for pair in pairs:
        # Pairs that differ in the names of outcomes have one curve, and each curve costs a
        # transform. Of k-RR k (k - 1) ordered pairs are one.
        found.setdefault(pair.canonical(), pair)
    return tuple(found.values())
