"""Means and frequencies from randomized reports with personal budgets, without a federation.

Local randomizers of one category out of k, with personal budgets.

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

Local randomizers of one number in a public range [low, high], with personal budgets.

| name     | report                                   | local         | variance             |
|----------|------------------------------------------|---------------|----------------------|
| laplace  | x + Laplace((high - low)/eps)            | eps           | 2 ((high-low)/eps)^2 |
| gaussian | x + N(0, (sigma (high - low))^2)         | (eps, delta)  | (sigma (high-low))^2 |
| duchi    | middle +- half * (e^eps + 1)/(e^eps - 1) | eps           | depends on x         |

sigma is the analytic Gaussian calibration at sensitivity 1. duchi (Duchi, Jordan, Wainwright 2018)
rounds x at random to an end of the range and applies binary randomized response, so it shuffles
exactly as k-ary randomized response with k = 2 does. Every report is unbiased for x.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
from fl_shuffle.errors import (
    InvalidValueError,
    require_choice,
    require_integer,
    require_open_unit,
    require_real,
)

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


BOUNDED = ("laplace", "gaussian", "duchi")


@dataclass(frozen=True)
class BoundedRandomizer:
    """A randomizer of numbers in [low, high]; `name` is one of `BOUNDED`.

    `delta0` is used by gaussian only and must be in (0, 1) there; the others are pure.
    """

    name: str
    low: float
    high: float
    delta0: float | FloatArray = 0.0

    def __post_init__(self) -> None:
        require_choice("randomizer", self.name, BOUNDED)
        low = require_real("low", self.low, minimum=-1e12, maximum=1e12)
        require_real("high", self.high, minimum=low, exclusive_minimum=True, maximum=1e12)
        delta = np.asarray(self.delta0, dtype=np.float64)
        if self.name == "gaussian" and not bool(np.all((delta > 0) & (delta < 1))):
            wrong = float(delta.reshape(-1)[~((delta > 0) & (delta < 1)).reshape(-1)][0])
            raise InvalidValueError("delta0", wrong, "the Gaussian randomizer needs (0, 1)")

    @property
    def half(self) -> float:
        """Half the width of the range."""
        return 0.5 * (self.high - self.low)

    @property
    def middle(self) -> float:
        """The middle of the range."""
        return self.low + self.half

    def scales(self, epsilon0: FloatArray) -> FloatArray:
        """Per user: the Laplace b, the Gaussian standard deviation, or duchi's half distance."""
        if self.name == "laplace":
            return np.asarray(2.0 * self.half / epsilon0)
        if self.name == "gaussian":
            return 2.0 * self.half * _gaussian_sigmas(epsilon0, np.asarray(self.delta0))
        return np.asarray(self.half / np.tanh(epsilon0 / 2.0))

    def randomize(
        self, values: NDArray[np.floating], epsilon0: FloatArray, rng: np.random.Generator
    ) -> FloatArray:
        """Reports float64 [n] of users with `values` [n] and budgets `epsilon0` [n] or one number.

        Raises `InvalidValueError` for a value outside [low, high] or not finite.
        """
        truth = np.asarray(values)
        if truth.ndim != 1 or truth.size == 0 or truth.dtype.kind not in "iuf":
            raise InvalidValueError(
                "values", f"{truth.dtype} {list(truth.shape)}", "must be numbers, a vector"
            )
        outside = ~((truth >= self.low) & (truth <= self.high))
        if bool(outside.any()):
            raise InvalidValueError(
                "value", float(truth[outside][0]), f"must be in [{self.low:g}, {self.high:g}]",
                "clip the data to a range chosen without looking at it",
            )  # fmt: skip
        budgets = require_budgets(epsilon0, truth.size)
        scales = self.scales(budgets)
        if self.name == "laplace":
            return np.asarray(truth + scales * rng.laplace(size=truth.size))
        if self.name == "gaussian":
            return np.asarray(truth + scales * rng.standard_normal(truth.size))
        chance = 0.5 + 0.5 * (truth - self.middle) / scales
        sign = np.where(rng.random(truth.size) < chance, 1.0, -1.0)
        return np.asarray(self.middle + scales * sign)

    def variances(self, scales: FloatArray, mean: float | None = None) -> FloatArray:
        """Variance [n] of each report given its user's value, from `scales(epsilon0)`.

        For duchi it is scale^2 - (x - middle)^2; x is unknown, so this returns the largest value,
        scale^2, or, with an estimated `mean` of the data, scale^2 - (mean - middle)^2, which the
        average over users cannot exceed.
        """
        if self.name == "laplace":
            return np.asarray(2.0 * scales**2)
        if self.name == "gaussian" or mean is None:
            return np.asarray(scales**2)
        offset = min(abs(mean - self.middle), self.half)
        return np.asarray(scales**2 - offset**2)


_FEW_BUDGETS = 1024
"""Up to so many distinct budgets each gets a calibration of its own."""


def _gaussian_sigmas(epsilon0: FloatArray, delta0: FloatArray) -> FloatArray:
    """Analytic sigma at sensitivity 1 for every budget, one calibration per distinct budget.

    With more than 1,024 distinct epsilon0 at one delta0 each is first rounded *down* to the next
    power of 2^(1/128): at most 0.6% more noise than necessary, never less.
    """
    deltas = np.broadcast_to(delta0, epsilon0.shape)
    sigma = np.empty_like(epsilon0)
    for delta in np.unique(delta0):
        users = deltas == delta
        sigma[users] = _sigmas_at(epsilon0[users], float(delta))
    return sigma


def _sigmas_at(epsilon0: FloatArray, delta0: float) -> FloatArray:
    distinct = np.unique(epsilon0)
    if distinct.size <= _FEW_BUDGETS:
        table = np.array([_analytic_sigma(float(epsilon), delta0) for epsilon in distinct])
        return np.asarray(table[np.searchsorted(distinct, epsilon0)], dtype=np.float64)
    level = np.floor(np.log2(epsilon0) * 128).astype(np.int64)
    # The logarithm may round up onto a power: step down where it did.
    level -= np.exp2(level / 128) > epsilon0
    lowest = int(level.min())
    table = np.full(int(level.max()) - lowest + 1, np.nan)
    for used in np.flatnonzero(np.bincount(level - lowest)):
        table[used] = _analytic_sigma(2.0 ** ((lowest + int(used)) / 128), delta0)
    return np.asarray(table[level - lowest], dtype=np.float64)


@lru_cache(maxsize=1 << 16)
def _analytic_sigma(epsilon0: float, delta0: float) -> float:
    return analytic_sigma(epsilon0, delta0, 1.0)


UNBIASED, PUBLISHED, INVERSE_VARIANCE = "unbiased", "published", "inverse-variance"
ESTIMATORS = (UNBIASED, PUBLISHED, INVERSE_VARIANCE)

ALWAYS = "always"
IF_INDEPENDENT = "only if budgets are independent of the data"


@dataclass(frozen=True)
class Estimate:
    """Estimates with intervals for properties of the *users at hand*, not of a wider population.

    `value`, `error` (standard error), `low` and `high` have one entry per quantity: [1] for a mean,
    [k] for frequencies. `unbiased` is `ALWAYS` or `IF_INDEPENDENT`: with unequal weights a group of
    users with larger budgets counts for more, so if budgets go with the data the answer leans
    towards that group, and neither the value nor the interval says so. Values are not clipped to
    their range (clipping would bias them).
    """

    value: FloatArray
    error: FloatArray
    low: FloatArray
    high: FloatArray
    confidence: float
    estimator: str
    unbiased: str


def normalised_weights(
    estimator: str, signal: FloatArray, variance: FloatArray
) -> tuple[FloatArray, str]:
    """Weights [n] that add up to one for unbiased single-report estimates, and when they are right.

    `variance` is the variance of each single-report estimate; `signal` is p - q of Chen, Cao, Ge
    2024, Algorithm 2, whose (A - B)/(n - 2B) weighs reports by it.
    """
    require_choice("estimator", estimator, ESTIMATORS)
    if estimator == UNBIASED:
        return np.full(variance.size, 1.0 / variance.size), ALWAYS
    raw = signal if estimator == PUBLISHED else variance.min() / variance
    equal = bool(raw.min() == raw.max())
    return np.asarray(raw / raw.sum()), ALWAYS if equal else IF_INDEPENDENT


def assignment_variance(weights: FloatArray, spread: FloatArray) -> FloatArray:
    """Variance that unequal weights add when budgets are dealt to users at random.

    The weighted mean of x under a random permutation of the weights varies by
    S^2 (sum w^2 - 1/n), S^2 = n/(n-1) * `spread`, where `spread` bounds the mean squared deviation
    of x among the users.
    """
    count = weights.size
    excess = max(0.0, float(np.square(weights).sum()) - 1.0 / count)
    return np.asarray(spread * excess * count / max(1, count - 1), dtype=np.float64)


def with_interval(
    value: FloatArray, variance: FloatArray, *, confidence: float, estimator: str, unbiased: str
) -> Estimate:
    """A normal interval (the reports are many and independent; no claim for a handful of users)."""
    require_open_unit("confidence", confidence)
    error = np.sqrt(variance)
    reach = -float(ndtri(0.5 * (1.0 - confidence))) * error
    return Estimate(value, error, value - reach, value + reach, confidence, estimator, unbiased)


def estimate_frequency(
    reports: Reports,
    epsilon0: float | FloatArray,
    randomizer: CategoricalRandomizer,
    *,
    estimator: str = UNBIASED,
    confidence: float = 0.95,
) -> Estimate:
    """Each category's share [k] of the users from `reports` made with budgets `epsilon0`.

    With s_i = 1 if report i supports the category, (s_i - q_i)/(p_i - q_i) is unbiased for user i's
    indicator. The estimators average it:

    - "unbiased": equal weights; unbiased whatever the budgets have to do with the data.
    - "published": weights p_i - q_i, so (sum s_i - sum q_i)/(sum p_i - sum q_i), which for binary
      randomized response is Chen, Cao, Ge 2024, Algorithm 2. It is called unbiased there; it is so
      only if budgets are independent of the data.
    - "inverse-variance": weights (p_i - q_i)^2/(q_i (1 - q_i)), the inverse variance for a rare
      category; unbiased under the same condition.

    The interval covers the users' own share. Its variance is estimated without bias from the
    reports, then kept within what is possible; unequal weights add the spread of random assignment.
    """
    count = len(reports)
    if count == 0:
        raise InvalidValueError("reports", 0, "must hold at least one report")
    budgets = require_budgets(epsilon0, count)
    p, q = randomizer.probabilities(budgets)
    signal = p - q
    if not bool(np.all(signal > 0)):
        # Budgets so small that e^epsilon0 rounds to 1 carry no information at all.
        wrong = float(budgets[~(signal > 0)][0])
        raise InvalidValueError("epsilon0", wrong, "is too small to estimate anything")
    weights, unbiased = normalised_weights(estimator, signal, q * (1 - q) / signal**2)
    factor = weights / signal
    # Variance of a report's bit is q(1-q), plus `gain` if the category is the user's own.
    squared = factor**2
    base, gain = q * (1 - q), p * (1 - p) - q * (1 - q)
    rows = np.stack([factor, squared * gain / signal])
    support = randomizer.supported(reports, rows)
    value = support[0] - float(factor @ q)
    own = support[1] - float(rows[1] @ q)
    floor = float(squared @ base)
    most = float(squared @ gain)
    noise = floor + np.clip(own, min(0.0, most), max(0.0, most))
    share = np.clip(value, 0.0, 1.0)
    return with_interval(
        np.asarray(value, dtype=np.float64),
        noise + assignment_variance(weights, share * (1.0 - share)),
        confidence=confidence,
        estimator=estimator,
        unbiased=unbiased,
    )


def estimate_mean(
    reports: FloatArray,
    epsilon0: float | FloatArray,
    randomizer: BoundedRandomizer,
    *,
    estimator: str = UNBIASED,
    confidence: float = 0.95,
) -> Estimate:
    """The users' mean from `reports` [n] that `randomizer` made with budgets `epsilon0`.

    - "unbiased" and "published" are the plain average of the reports (Chen, Cao, Ge 2024,
      Algorithm 1): unbiased whatever the budgets have to do with the data.
    - "inverse-variance" weighs by 1/variance (for duchi by its largest variance): far more precise
      with uneven budgets, unbiased only if budgets are independent of the data.

    The interval covers the mean of these users' values. It uses the known noise variance; what
    depends on the unknown data is bounded from above: duchi's report variance, and the spread of
    the data that unequal weights let in (at most (high - m)(m - low), Bhatia and Davis 2000).
    """
    values = np.asarray(reports, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not bool(np.isfinite(values).all()):
        raise InvalidValueError("reports", list(values.shape), "must be finite numbers, a vector")
    scales = randomizer.scales(require_budgets(epsilon0, values.size))
    weights, unbiased = normalised_weights(
        INVERSE_VARIANCE if estimator == INVERSE_VARIANCE else _plain(estimator),
        np.ones_like(values),
        randomizer.variances(scales),
    )
    value = float(weights @ values)
    inside = min(max(value, randomizer.low), randomizer.high)
    noise = float(np.square(weights) @ randomizer.variances(scales, mean=inside))
    spread = np.array([(randomizer.high - inside) * (inside - randomizer.low)])
    return with_interval(
        np.array([value]),
        noise + assignment_variance(weights, spread),
        confidence=confidence,
        estimator=estimator,
        unbiased=unbiased,
    )


def _plain(estimator: str) -> str:
    """Algorithm 1 is the plain average, so "published" is "unbiased" here."""
    return UNBIASED if estimator == PUBLISHED else estimator
