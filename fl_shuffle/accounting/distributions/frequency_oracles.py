"""Frequency oracles as the accountant sees them: local hashing, Hadamard, unary encodings.

Sources: Su, Cheng and Wang 2025, Section 5 and Table 1; the finite-domain unary encodings
are the same construction carried out without the large-domain limit.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import product

import numpy as np

from fl_shuffle.accounting.distributions.finite import FiniteRandomizer, mixes, require_epsilon0
from fl_shuffle.accounting.distributions.outcome_pair import OutcomePair
from fl_shuffle.errors import require_integer


class _BitRandomizer(FiniteRandomizer):
    """A report in which inputs appear as independent fair or biased bits.

    `k`: domain size; None: a large domain's limit (a safe, smaller blanket).
    """

    k: int | None = None

    @abstractmethod
    def _bits(self) -> tuple[float, float, float]:
        """Return how likely a foreign bit is one; what the bit of the own input, one or zero,
        multiplies the density by."""

    def pairs(self) -> tuple[OutcomePair, ...]:
        """Return the pair of x0 against x1."""
        (b, one, zero), gain = self._bits(), self.epsilon0
        # Every bit is a one: then no input is at its less likely value. Its probability b^k
        # vanishes in a large domain.
        inner = 0.0 if self.k is None else b**self.k
        # Bits of x0 and of x1: 10, 01, 00, 11 with a zero elsewhere, and all ones. An input
        # multiplies the density by `one` or `zero`, as its own bit is. So the least of all inputs
        # is `zero`, but for a report of ones alone.
        masses = np.array([b * (1 - b), b * (1 - b), (1 - b) ** 2, b * b - inner, inner])
        pair = OutcomePair.of(
            masses * [one, zero, zero, one, one],
            masses * [zero, one, zero, one, one],
            masses * [zero, zero, zero, zero, one],
            [gain, -gain, 0.0, 0.0, 0.0],
        )
        return (pair,)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        """Return the pairs in which all others hold a third input (unless there are two), x1, x0,
        or a mix of these two."""
        base, one, zero = self._bits()
        # Bits a, b, c of x0, x1, and a third input are independent under the base measure. An
        # input multiplies the density by the factor of its own bit, so the loss is log(one/zero)
        # (a - b), and one/zero is e^eps0 for every kind below.
        factor, chance = (zero, one), (1.0 - base, base)
        rows = []
        for a, b, c in product((0, 1), repeat=3):
            weight = chance[a] * chance[b] * chance[c]
            rows.append((*(weight * factor[bit] for bit in (a, b, c)), a - b))
        x0, x1, third, sign = (np.array(column) for column in zip(*rows, strict=True))
        others = [x1, x0, *mixes(x0, x1)]
        others = others if self.k == 2 else [third, *others]
        loss = sign * self.epsilon0
        return tuple(OutcomePair.of(x0, x1, law, loss, blanket_mass=1.0) for law in others)


@dataclass(frozen=True)
class BinaryLocalHashingDistribution(_BitRandomizer):
    """A random binary hash of the input, then binary randomized response; the hash is sent along.

    The hash family is assumed three-wise independent and the domain large (the smallest blanket,
    which is safe for any domain).
    """

    epsilon0: float
    name = "binary local hashing"
    assumptions = ("pairwise independent hash family (three-wise for the lower bound)",)

    def __post_init__(self) -> None:
        require_epsilon0(self.epsilon0)

    def _bits(self) -> tuple[float, float, float]:
        # A foreign bit is fair. The own one is right with probability e^eps0/(e^eps0 + 1), over
        # 1/2.
        high = math.exp(self.epsilon0)
        return 0.5, 2.0 * high / (high + 1.0), 2.0 / (high + 1.0)


@dataclass(frozen=True)
class HadamardResponseDistribution(BinaryLocalHashingDistribution):
    """Hadamard response: inputs are rows of a Hadamard matrix, reports are columns.

    Two distinct rows agree on half of the columns, so the distribution is that of binary local
    hashing. The lower bound takes x2 whose row is not the product of the rows of x0 and x1 (order
    at least 8).
    """

    name = "Hadamard response"
    assumptions = ("Hadamard matrix of order at least 8",)


@dataclass(frozen=True)
class _UnaryEncoding(_BitRandomizer):
    """One bit an input value, drawn independently; the own value's bit has a distribution of its
    own."""

    epsilon0: float
    k: int | None = None
    name = "unary encoding"

    def __post_init__(self) -> None:
        require_epsilon0(self.epsilon0)
        if self.k is not None:
            require_integer("k", self.k, minimum=2, maximum=10**12)
            self._set(name=f"{self.name} (k = {self.k})")


@dataclass(frozen=True)
class RapporDistribution(_UnaryEncoding):
    """Basic one-time RAPPOR: a unary encoding whose bits are each flipped with probability
    1/(e^(eps0/2) + 1)."""

    name = "RAPPOR"

    def _bits(self) -> tuple[float, float, float]:
        # Own bit: one with probability root/(root + 1), over b = 1/(root + 1) of a foreign one;
        # zero with 1/(root + 1), over root/(root + 1).
        root = math.exp(0.5 * self.epsilon0)
        return 1.0 / (root + 1.0), root, 1.0 / root


@dataclass(frozen=True)
class OptimizedUnaryEncodingDistribution(_UnaryEncoding):
    """OUE: the own bit is sent as one with probability 1/2, every other with 1/(e^eps0 + 1)."""

    name = "OUE"

    def _bits(self) -> tuple[float, float, float]:
        # Own bit: one with probability 1/2, over b = 1/(e^eps0 + 1) of a foreign one; zero with
        # 1/2, over e^eps0/(e^eps0 + 1).
        high = math.exp(self.epsilon0)
        one = 0.5 * (high + 1.0)
        return 1.0 / (high + 1.0), one, one / high
