"""Local randomizers of one category out of k, with personal budgets.

Each randomizer is a *pure protocol* (Wang, Blocki, Li, Jha 2017): a report supports a set of
values; the true value is supported with probability p(epsilon0), any other with probability
q(epsilon0). Estimators need nothing else. All are exactly epsilon0-DP locally (replace-one,
delta0 = 0):

| name     | report                        | p                       | q                 |
|----------|-------------------------------|-------------------------|-------------------|
| krr      | a value                       | e^eps / (e^eps + k - 1) | 1/(e^eps + k - 1) |
| oue      | k bits                        | 1/2                     | 1/(e^eps + 1)     |
| rappor   | k bits                        | e^(eps/2)/(e^(eps/2)+1) | 1 - p             |
| blh      | a hash function and one bit   | e^eps / (e^eps + 1)     | 1/2               |
| hadamard | a column of a Hadamard matrix | e^eps / (e^eps + 1)     | 1/2               |

krr is k-ary randomized response (Warner 1965 for k = 2); oue is optimized unary encoding and blh
binary local hashing (Wang et al. 2017); rappor is the symmetric one-time form of Erlingsson et al.
2014; hadamard is Hadamard response with two halves (Acharya, Sun, Zhang 2019).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError, require_choice, require_integer

FloatArray = NDArray[np.float64]
MAX_CATEGORIES = 2**31
"""A table of more frequencies does not fit the memory."""


@dataclass(frozen=True)
class Reports:
    """Randomized reports of n users: `codes` [n] (krr, hadamard), bits [n, k] (oue, rappor), or
    rows (multiplier, offset, bit) [n, 3] uint64 (blh). Users stay in order; the shuffler permutes.
    """

    codes: NDArray[np.generic]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True)
class CategoricalRandomizer(ABC):
    """A randomizer of values 0 .. categories-1."""

    categories: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        require_integer("categories", self.categories, minimum=2, maximum=MAX_CATEGORIES)

    @abstractmethod
    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(p, q): the chance to support the true value, and any other value."""

    @abstractmethod
    def randomize(
        self, values: NDArray[np.integer], epsilon0: FloatArray, rng: np.random.Generator
    ) -> Reports:
        """Reports of users with `values` [n] and local budgets `epsilon0` [n] or one number."""

    @abstractmethod
    def supported(self, reports: Reports, weights: FloatArray) -> FloatArray:
        """For each value v, the sum of `weights` [n] over the reports that support v: [k].

        `weights` may also be [m, n]; the answer is then [m, k].
        """

    def _inputs(
        self, values: NDArray[np.integer], epsilon0: float | FloatArray
    ) -> tuple[NDArray[np.int64], FloatArray]:
        array = np.asarray(values)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise InvalidValueError(
                "values", f"{array.dtype} {list(array.shape)}", "must be whole numbers, a vector"
            )
        if int(array.min()) < 0 or int(array.max()) >= self.categories:
            wrong = array[(array < 0) | (array >= self.categories)][0]
            raise InvalidValueError("value", int(wrong), f"must be in [0, {self.categories - 1}]")
        return array.astype(np.int64, copy=False), require_budgets(epsilon0, array.size)


def require_budgets(epsilon0: float | FloatArray, count: int) -> FloatArray:
    """`epsilon0` as float64 [count]; raises `InvalidValueError` unless finite, > 0, and fitting."""
    given = np.asarray(epsilon0)
    if given.dtype.kind not in "iuf" or given.shape not in ((), (count,)):
        raise InvalidValueError(
            "epsilon0", f"{given.dtype} {list(given.shape)}", f"must be one number or {count}"
        )
    budgets = given.astype(np.float64)
    bad = ~np.isfinite(budgets) | (budgets <= 0)
    if bool(bad.any()):
        wrong = float(budgets.reshape(-1)[bad.reshape(-1)][0])
        raise InvalidValueError("epsilon0", wrong, "must be a finite number > 0")
    return np.broadcast_to(budgets, (count,))


def _keep(epsilon0: FloatArray, others: float) -> FloatArray:
    """e^eps / (e^eps + others) without overflow."""
    return np.asarray(1.0 / (1.0 + others * np.exp(-epsilon0)), dtype=np.float64)


class KaryRandomizedResponse(CategoricalRandomizer):
    """The true value with probability p, else one of the other k - 1, uniformly."""

    name = "krr"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        scaled = np.exp(-epsilon0)
        total = 1.0 + (self.categories - 1) * scaled
        return np.asarray(1.0 / total), np.asarray(scaled / total)

    def randomize(
        self, values: NDArray[np.integer], epsilon0: FloatArray, rng: np.random.Generator
    ) -> Reports:
        truth, budgets = self._inputs(values, epsilon0)
        p, _ = self.probabilities(budgets)
        shift = rng.integers(1, self.categories, size=truth.size)
        shift[rng.random(truth.size) < p] = 0
        return Reports((truth + shift) % self.categories)

    def supported(self, reports: Reports, weights: FloatArray) -> FloatArray:
        return _weighted_counts(reports.codes, weights, self.categories)


def _weighted_counts(codes: NDArray[np.generic], weights: FloatArray, size: int) -> FloatArray:
    integers = codes.astype(np.intp, copy=False)
    rows = [np.bincount(integers, row, minlength=size) for row in np.atleast_2d(weights)]
    return np.asarray(rows, dtype=np.float64).reshape(*weights.shape[:-1], size)


class _UnaryEncoding(CategoricalRandomizer):
    """One bit per value, each drawn on its own: 1 with probability p (true value) or q."""

    def randomize(
        self, values: NDArray[np.integer], epsilon0: FloatArray, rng: np.random.Generator
    ) -> Reports:
        truth, budgets = self._inputs(values, epsilon0)
        p, q = self.probabilities(budgets)
        bits = rng.random((truth.size, self.categories)) < q[:, None]
        bits[np.arange(truth.size), truth] = rng.random(truth.size) < p
        return Reports(bits)

    def supported(self, reports: Reports, weights: FloatArray) -> FloatArray:
        return np.asarray(weights @ reports.codes.astype(np.float64))


class OptimizedUnaryEncoding(_UnaryEncoding):
    """Bits with p = 1/2 and q = 1/(e^eps + 1): the likelihood ratio is p(1-q)/(q(1-p)) = e^eps."""

    name = "oue"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        return np.full_like(epsilon0, 0.5), np.asarray(
            np.exp(-epsilon0) / (1.0 + np.exp(-epsilon0))
        )


class SymmetricUnaryEncoding(_UnaryEncoding):
    """Bits flipped with probability 1/(e^(eps/2) + 1); two bits differ, so the ratio is e^eps."""

    name = "rappor"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        p = _keep(epsilon0 / 2.0, 1.0)
        return p, np.asarray(np.exp(-epsilon0 / 2.0) * p)


class _OneBit(CategoricalRandomizer):
    """One bit about the value, and in public what the bit says: true with the usual odds, and for
    half of all public parts true of any other value."""

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        return _keep(epsilon0, 1.0), np.full_like(epsilon0, 0.5)


class BinaryLocalHashing(_OneBit):
    """A random hash h to one bit, and h(value) flipped with probability 1/(e^eps + 1).

    h(v) is the top bit of a v + b mod 2^64 with a, b uniform 64-bit numbers: pairwise independent
    for v < 2^63 (Dietzfelbinger 1996), so q is exactly 1/2. The report is (a, b, bit).
    """

    name = "blh"

    def randomize(
        self, values: NDArray[np.integer], epsilon0: FloatArray, rng: np.random.Generator
    ) -> Reports:
        truth, budgets = self._inputs(values, epsilon0)
        p, _ = self.probabilities(budgets)
        hashes = rng.integers(0, 2**64, size=(truth.size, 2), dtype=np.uint64)
        bit = _hash_bit(hashes[:, 0], hashes[:, 1], truth.astype(np.uint64))
        bit ^= rng.random(truth.size) >= p
        return Reports(np.column_stack([hashes, bit.astype(np.uint64)]))

    def supported(self, reports: Reports, weights: FloatArray) -> FloatArray:
        multiplier, offset, bit = (np.ascontiguousarray(c) for c in reports.codes.T)
        total = np.empty((*weights.shape[:-1], self.categories))
        # Value after value: h(v + 1) needs one addition more than h(v).
        running = offset.astype(np.uint64)
        ones = bit.astype(np.bool_)
        for value in range(self.categories):
            agree = (running >= np.uint64(2**63)) == ones
            total[..., value] = weights @ agree.astype(np.float64)
            running += multiplier.astype(np.uint64, copy=False)
        return total


def _hash_bit(
    multiplier: NDArray[np.uint64], offset: NDArray[np.uint64], values: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    return np.asarray(multiplier * values + offset >= np.uint64(2**63))


class HadamardResponse(_OneBit):
    """A column y of the K x K Hadamard matrix, K the smallest power of two above k.

    Value v owns the K/2 columns where row v + 1 is +1; the report is a uniform column of the true
    value's half with probability e^eps/(e^eps + 1), and of the other half otherwise. Two distinct
    rows agree on half the columns, so q = 1/2.
    """

    name = "hadamard"

    @property
    def columns(self) -> int:
        """K, the number of different reports."""
        return 1 << self.categories.bit_length()

    def randomize(
        self, values: NDArray[np.integer], epsilon0: FloatArray, rng: np.random.Generator
    ) -> Reports:
        truth, budgets = self._inputs(values, epsilon0)
        p, _ = self.probabilities(budgets)
        row = truth + 1
        column = rng.integers(0, self.columns, size=truth.size)
        wanted_odd = rng.random(truth.size) >= p
        wrong = (np.bitwise_count(row & column) & 1).astype(np.bool_) != wanted_odd
        # Flipping the lowest set bit of the row in the column changes the parity and maps each half
        # one to one onto the other, so the column stays uniform in its half.
        column[wrong] ^= (row & -row)[wrong]
        return Reports(column)

    def supported(self, reports: Reports, weights: FloatArray) -> FloatArray:
        counts = _weighted_counts(reports.codes, weights, self.columns)
        signed = _walsh_hadamard(counts)
        # Row 0 of the transform is the total; row v+1 is (supporting) - (not supporting).
        return 0.5 * (signed[..., :1] + signed[..., 1 : self.categories + 1])


def _walsh_hadamard(table: FloatArray) -> FloatArray:
    """The unnormalised Walsh-Hadamard transform along the last axis."""
    size = table.shape[-1]
    width = 1
    while width < size:
        blocks = table.reshape(*table.shape[:-1], size // (2 * width), 2, width)
        low, high = blocks[..., 0, :], blocks[..., 1, :]
        table = np.stack([low + high, low - high], axis=-2).reshape(table.shape)
        width *= 2
    return table


CATEGORICAL: dict[str, type[CategoricalRandomizer]] = {
    kind.name: kind
    for kind in (
        KaryRandomizedResponse,
        OptimizedUnaryEncoding,
        SymmetricUnaryEncoding,
        BinaryLocalHashing,
        HadamardResponse,
    )
}


def categorical_randomizer(name: str, categories: int) -> CategoricalRandomizer:
    """The randomizer called `name` (a key of `CATEGORICAL`) over `categories` values."""
    return CATEGORICAL[require_choice("randomizer", name, CATEGORICAL)](categories)
