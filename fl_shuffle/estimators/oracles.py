"""Frequency oracles: local randomizers of one category out of k, with personal budgets.

Every oracle is exactly epsilon0-DP for its user (replace-one, delta0 = 0, nats). A report
*supports* some of the categories. It supports the user's own one with probability p and any other
one with probability q < p. Estimates need p, q, and the supports alone ("pure" protocols of Wang,
Blocki, Li, and Jha, USENIX Security 2017).

| name     | report                                         | p                 | q               |
|----------|------------------------------------------------|-------------------|-----------------|
| krr      | a category                                     | e/(e + k - 1)     | 1/(e + k - 1)   |
| oue      | k bits                                         | 1/2               | 1/(e + 1)       |
| rappor   | k bits                                         | r/(r + 1)         | 1/(r + 1)       |
| blh      | a binary hash function and a bit               | e/(e + 1)         | 1/2             |
| hadamard | a column of a Hadamard matrix                  | e/(e + 1)         | 1/2             |

Here e = e^epsilon0 and r = e^(epsilon0/2). The names are those of `fl-shuffle bound --randomizer`.

Coins have 53 random bits, and the generator is the caller's: these classes are for studies and
simulations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import InvalidValueError, require_integer
from fl_shuffle.estimators.inputs import (
    COIN_EPSILON0,
    require_budgets,
    require_values,
)

MAX_CATEGORIES = 2**31
"""A table of more frequencies does not fit the memory."""
MAX_BITS = 2**32
"""Bits of all reports of a unary encoding in one array, a byte each."""
CHUNK_BITS = 2**22
"""Bits of a unary encoding that are weighted at a time."""
LEAST_ORDER = 8
"""The accountant's lower bound for Hadamard response is stated for matrices from this order on."""


@dataclass(frozen=True)
class FrequencyOracle(ABC):
    """A local randomizer of values 0 to categories - 1.

    Parameters
    ----------
    categories : int, in [2, 2^31]
        Number of values k.

    Raises
    ------
    InvalidValueError
        If `categories` is no whole number in that range.
    """

    categories: int
    name: ClassVar[str]

    def __post_init__(self) -> None:
        require_integer("categories", self.categories, minimum=2, maximum=MAX_CATEGORIES)

    @abstractmethod
    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (p, q): the chance that a report supports the user's own value, and any other.

        Parameters
        ----------
        epsilon0 : float array, shape (n,), nats
            Local budget of each user.

        Returns
        -------
        tuple of two float arrays, shape (n,)
            p and q, with q < p.
        """

    @abstractmethod
    def _draw(
        self, truth: NDArray[np.int64], p: FloatArray, q: FloatArray, generator: np.random.Generator
    ) -> NDArray[Any]:
        """Return the reports of users with these values and probabilities."""

    @abstractmethod
    def require_reports(self, reports: NDArray[Any]) -> NDArray[Any]:
        """Return the reports if `randomize` can have made them; raise `InvalidValueError` else."""

    @abstractmethod
    def _support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the total weight of the reports that support each category, shape (k,)."""

    def randomize(
        self,
        values: NDArray[Any],
        epsilon0: float | FloatArray,
        generator: np.random.Generator,
    ) -> NDArray[Any]:
        """Return one report for each user.

        Parameters
        ----------
        values : integers in [0, categories - 1], shape (n,)
            What the users hold.
        epsilon0 : float or float array of shape (n,), in (0, 20], nats
            Local budget of all users, or of each.
        generator : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        array, shape (n,), or (n, categories) for unary encodings
            Users stay in order. The shuffler permutes.

        Raises
        ------
        InvalidValueError
            If a value or budget is outside its range, or if their numbers differ.

        Examples
        --------
        >>> import numpy as np
        >>> from fl_shuffle.estimators import KaryRandomizedResponse
        >>> KaryRandomizedResponse(3).randomize(np.array([0, 1, 2]), 20.0, np.random.default_rng(1))
        array([0, 1, 2])
        """
        truth = require_values(values, "iu", 0, self.categories - 1)
        budgets = require_budgets(epsilon0, truth.size, largest=COIN_EPSILON0)
        p, q = self.probabilities(budgets)
        return self._draw(truth.astype(np.int64), p, q, generator)

    def support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        """Return the total weight of the reports that support each category.

        Parameters
        ----------
        reports : array
            Reports of n users, as `randomize` returns them.
        weights : float array, shape (n,)
            Weight of each report.

        Returns
        -------
        float array, shape (categories,)

        Raises
        ------
        InvalidValueError
            If `randomize` cannot have made these reports, or if their number differs.

        Examples
        --------
        >>> import numpy as np
        >>> from fl_shuffle.estimators import KaryRandomizedResponse
        >>> KaryRandomizedResponse(3).support(np.array([0, 2, 2]), np.array([1.0, 1.0, 0.5]))
        array([1. , 0. , 1.5])
        """
        given = self.require_reports(reports)
        if np.shape(weights) != given.shape[:1]:
            raise InvalidValueError(
                "weights", list(np.shape(weights)), f"must be {len(given)}, one for each report"
            )
        return self._support(given, np.asarray(weights, dtype=np.float64))

    def _whole_numbers(self, reports: NDArray[Any], limit: int) -> NDArray[np.int64]:
        """Return reports that are whole numbers below `limit`."""
        given = np.asarray(reports)
        if given.size == 0:
            raise InvalidValueError("reports", 0, "must hold at least one report")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            found = f"{given.dtype} {list(given.shape)}"
            raise InvalidValueError("reports", found, f"must be whole numbers, as {self.name} has")
        for wrong in given[~((given >= 0) & (given < limit))][:1]:
            raise InvalidValueError("report", wrong.item(), f"must be in [0, {limit - 1}]")
        return given.astype(np.int64)


@dataclass(frozen=True)
class KaryRandomizedResponse(FrequencyOracle):
    """k-ary randomized response (Warner 1965 for k = 2): the true value, or any of the others.

    The true value is reported with probability p, else one of the others, uniformly. A report is a
    category. See `FrequencyOracle` for parameters and errors.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import KaryRandomizedResponse
    >>> p, q = KaryRandomizedResponse(10).probabilities(np.array([1.0]))
    >>> bool(np.isclose(p / q, np.e)), bool(np.isclose(p + 9 * q, 1.0))
    (True, True)
    """

    name = "krr"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return 1/(1 + (k - 1) e^-epsilon0) and e^-epsilon0 times that."""
        scaled = np.exp(-epsilon0)
        total = 1.0 + (self.categories - 1) * scaled
        return 1.0 / total, scaled / total

    def _draw(
        self, truth: NDArray[np.int64], p: FloatArray, q: FloatArray, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        shift = generator.integers(1, self.categories, size=truth.size)
        shift[generator.random(truth.size) < p] = 0
        return np.asarray((truth + shift) % self.categories)

    def require_reports(self, reports: NDArray[Any]) -> NDArray[np.int64]:
        """Return the reports if they are categories; raise `InvalidValueError` else."""
        return self._whole_numbers(reports, self.categories)

    def _support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(reports, weights, self.categories), dtype=np.float64)


@dataclass(frozen=True)
class _UnaryOracle(FrequencyOracle):
    """One bit for each category, drawn independently.

    The own bit is one with probability p, every other bit with probability q. Two inputs differ in
    two bits, so the ratio of two reports' probabilities is at most p (1 - q)/((1 - p) q).
    """

    def _draw(
        self, truth: NDArray[np.int64], p: FloatArray, q: FloatArray, generator: np.random.Generator
    ) -> NDArray[np.bool_]:
        bits = truth.size * self.categories
        if bits > MAX_BITS:
            raise InvalidValueError(
                "values",
                truth.size,
                f"need {bits} bits with {self.name}; at most {MAX_BITS} are allowed",
                "use blh or hadamard, whose reports are short, or fewer users at a time",
            )
        reports = generator.random((truth.size, self.categories)) < q[:, None]
        reports[np.arange(truth.size), truth] = generator.random(truth.size) < p
        return np.asarray(reports)

    def require_reports(self, reports: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the reports if they are k bits each; raise `InvalidValueError` else."""
        given = np.asarray(reports)
        if given.shape[:1] == (0,):
            raise InvalidValueError("reports", 0, "must hold at least one report")
        if given.ndim != 2 or given.shape[1] != self.categories or given.dtype.kind != "b":
            found = f"{given.dtype} {list(given.shape)}"
            raise InvalidValueError("reports", found, f"must be bool, n by {self.categories}")
        return given

    def _support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        total = np.zeros(self.categories)
        rows = max(1, CHUNK_BITS // self.categories)
        for start in range(0, len(reports), rows):
            total += weights[start : start + rows] @ reports[start : start + rows]
        return total


@dataclass(frozen=True)
class OptimizedUnaryOracle(_UnaryOracle):
    """OUE (Wang, Blocki, Li, Jha 2017): k bits, with rare ones where the value is not.

    The own bit is one with probability 1/2, every other bit with probability 1/(e^epsilon0 + 1). A
    report is k bits. See `FrequencyOracle` for parameters and errors.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import OptimizedUnaryOracle
    >>> p, q = OptimizedUnaryOracle(10).probabilities(np.array([1.0]))
    >>> bool(np.isclose(p * (1 - q) / ((1 - p) * q), np.e))
    True
    """

    name = "oue"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        # p (1 - q)/((1 - p) q) = (1 - q)/q = e^epsilon0.
        """Return 1/2 and 1/(e^epsilon0 + 1)."""
        scaled = np.exp(-epsilon0)
        return np.full_like(scaled, 0.5), scaled / (1.0 + scaled)


@dataclass(frozen=True)
class RapporOracle(_UnaryOracle):
    """Basic one-time RAPPOR (Erlingsson, Pihur, Korolova 2014), a symmetric unary encoding.

    Each of k bits is flipped with probability 1/(e^(epsilon0/2) + 1). A report is k bits. See
    `FrequencyOracle` for parameters and errors.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import RapporOracle
    >>> p, q = RapporOracle(10).probabilities(np.array([1.0]))
    >>> bool(np.isclose(p + q, 1.0)), bool(np.isclose((p / q) ** 2, np.e))
    (True, True)
    """

    name = "rappor"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        # With q = 1 - p the ratio is (p/q)^2 = e^epsilon0.
        """Return r/(r + 1) and 1/(r + 1) with r = e^(epsilon0/2)."""
        scaled = np.exp(-0.5 * epsilon0)
        return 1.0 / (1.0 + scaled), scaled / (1.0 + scaled)


@dataclass(frozen=True)
class LocalHashingOracle(FrequencyOracle):
    """BLH (Bassily, Smith 2015; Wang, Blocki, Li, Jha 2017): a random binary hash of the value.

    The hash then goes through binary randomized response. The hash function is part of the report.
    See `FrequencyOracle` for parameters and errors.

    Notes
    -----
    The hash functions are h(x) = <a, x> + c over GF(2) for a vector a and a bit c. The vectors (x,
    1) of any three distinct values are linearly independent, so hashes of three values are
    independent fair bits: the family is three-wise independent exactly, as the accountant assumes.
    The report is the whole number 4 a + 2 c + bit, and it supports x if the bit is h(x).

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import LocalHashingOracle
    >>> oracle = LocalHashingOracle(10)
    >>> reports = oracle.randomize(np.full(100, 7), 20.0, np.random.default_rng(1))
    >>> float(oracle.support(reports, np.ones(100))[7])
    100.0
    """

    name = "blh"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        # Another value's hash is a fair bit whatever the own one is.
        """Return e^epsilon0/(e^epsilon0 + 1) and 1/2."""
        p = 1.0 / (1.0 + np.exp(-epsilon0))
        return p, np.full_like(p, 0.5)

    @property
    def functions(self) -> int:
        """Number of vectors a: the smallest power of two from `categories` on."""
        return 1 << (self.categories - 1).bit_length()

    def _draw(
        self, truth: NDArray[np.int64], p: FloatArray, q: FloatArray, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        seed = generator.integers(0, 2 * self.functions, size=truth.size)
        hashed = _parity((seed >> 1) & truth) ^ (seed & 1)
        flipped = generator.random(truth.size) >= p
        return np.asarray(2 * seed + (hashed ^ flipped))

    def require_reports(self, reports: NDArray[Any]) -> NDArray[np.int64]:
        """Return the reports if they are a hash and a bit; raise `InvalidValueError` else."""
        return self._whole_numbers(reports, 4 * self.functions)

    def _support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        # The bit is h(x) if <a, x> = bit + c, so (1 + (-1)^(bit + c + <a, x>))/2 counts it.
        sign = 1.0 - 2.0 * ((reports & 1) ^ (reports >> 1 & 1))
        signed = np.bincount(reports >> 2, weights * sign, self.functions)
        transformed = walsh_hadamard(signed)[: self.categories]
        return np.asarray(0.5 * (weights.sum() + transformed))


@dataclass(frozen=True)
class HadamardOracle(FrequencyOracle):
    """Hadamard response (Acharya, Sun, Zhang 2019, high privacy): a column of a Hadamard matrix.

    Value x is row x + 1 of the matrix, and a report is a column. Columns in which the row is +1 are
    e^epsilon0 times as likely as the others. See `FrequencyOracle` for parameters and errors.

    Notes
    -----
    The matrix is Sylvester's, with entry (-1)^<row, column> over GF(2). Its order is the smallest
    power of two above `categories`, 8 at least. The first row is left out, because its entries are
    all +1. Two other rows agree in half of the columns, so q = 1/2.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import HadamardOracle
    >>> oracle = HadamardOracle(10)
    >>> reports = oracle.randomize(np.full(100, 7), 20.0, np.random.default_rng(1))
    >>> oracle.order, float(oracle.support(reports, np.ones(100))[7])
    (16, 100.0)
    """

    name = "hadamard"

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return e^epsilon0/(e^epsilon0 + 1) and 1/2."""
        p = 1.0 / (1.0 + np.exp(-epsilon0))
        return p, np.full_like(p, 0.5)

    @property
    def order(self) -> int:
        """Order of the matrix."""
        return max(LEAST_ORDER, 1 << self.categories.bit_length())

    def _draw(
        self, truth: NDArray[np.int64], p: FloatArray, q: FloatArray, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        row = truth + 1
        column = generator.integers(0, self.order, size=truth.size)
        negative = generator.random(truth.size) >= p
        # Adding the lowest set bit of the row to the column exchanges its entries +1 and -1.
        wrong = _parity(row & column) != negative
        return np.asarray(column ^ np.where(wrong, row & -row, 0))

    def require_reports(self, reports: NDArray[Any]) -> NDArray[np.int64]:
        """Return the reports if they are columns of the matrix; raise `InvalidValueError` else."""
        return self._whole_numbers(reports, self.order)

    def _support(self, reports: NDArray[Any], weights: FloatArray) -> FloatArray:
        signed = np.bincount(reports, weights, self.order)
        transformed = walsh_hadamard(signed)[1 : self.categories + 1]
        return np.asarray(0.5 * (weights.sum() + transformed))


def _parity(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of set bits modulo 2, elementwise."""
    return np.bitwise_count(numbers).astype(np.int64) & 1


def walsh_hadamard(values: NDArray[Any]) -> FloatArray:
    """Return the sums of values[a] (-1)^<a, x> over a, for every x; the length is a power of two.

    Takes size log2(size) additions.
    """
    found, size = np.array(values, dtype=np.float64), values.size
    half = 1
    while half < size:
        pairs = found.reshape(-1, 2, half)
        found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        half *= 2
    return found


ORACLES: dict[str, type[FrequencyOracle]] = {
    oracle.name: oracle
    for oracle in (
        KaryRandomizedResponse,
        OptimizedUnaryOracle,
        RapporOracle,
        LocalHashingOracle,
        HadamardOracle,
    )
}
"""Every frequency oracle by its name."""
