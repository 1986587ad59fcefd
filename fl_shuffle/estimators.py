"""Means and frequencies from randomized reports with personal budgets, without a federation.

Both kinds of local randomizers are exactly epsilon0-DP (replace-one, delta0 = 0).

*One category out of k*: k-ary randomized response (Warner 1965 for k = 2) reports the true value
with probability p = e^eps / (e^eps + k - 1), any other with q = 1 / (e^eps + k - 1).

*One number in a public range [low, high]*:

| name    | report                                   | variance             |
|---------|------------------------------------------|----------------------|
| laplace | x + Laplace((high - low)/eps)            | 2 ((high-low)/eps)^2 |
| duchi   | middle +- half * (e^eps + 1)/(e^eps - 1) | depends on x         |

duchi (Duchi, Jordan, Wainwright 2018) rounds x at random to an end of the range and applies binary
randomized response, so it shuffles exactly as k-ary randomized response with k = 2 does. Every
report is unbiased for x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

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
BOUNDED = ("laplace", "duchi")
ESTIMATORS = ("unbiased", "published", "inverse-variance")
ALWAYS = "always"
IF_INDEPENDENT = "only if budgets are independent of the data"


@dataclass(frozen=True)
class KaryRandomizedResponse:
    """A randomizer of values 0 .. categories-1: the true value with probability p, else one of the
    others, uniformly."""

    categories: int

    def __post_init__(self) -> None:
        require_integer("categories", self.categories, minimum=2, maximum=MAX_CATEGORIES)

    def probabilities(self, epsilon0: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(p, q): the chance to report the true value, and any other value."""
        scaled = np.exp(-epsilon0)
        total = 1.0 + (self.categories - 1) * scaled
        return 1.0 / total, scaled / total

    def randomize(
        self, values: NDArray[Any], epsilon0: float | FloatArray, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        """Reports [n] of users with `values` [n] and budgets `epsilon0` [n] or one number. Users
        stay in order; the shuffler permutes. Raises `InvalidValueError`."""
        truth = _require_values(values, "iu", 0, self.categories - 1)
        p, _ = self.probabilities(require_budgets(epsilon0, truth.size))
        shift = generator.integers(1, self.categories, size=truth.size)
        shift[generator.random(truth.size) < p] = 0
        return np.asarray((truth.astype(np.int64) + shift) % self.categories)


@dataclass(frozen=True)
class BoundedRandomizer:
    """A randomizer of numbers in [low, high]; `name` is one of `BOUNDED`."""

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        require_choice("randomizer", self.name, BOUNDED)
        low = require_real("low", self.low, minimum=-1e12, maximum=1e12)
        require_real("high", self.high, minimum=low, exclusive_minimum=True, maximum=1e12)

    @property
    def middle(self) -> float:
        """The middle of the range."""
        return self.low + 0.5 * (self.high - self.low)

    def scales(self, epsilon0: FloatArray) -> FloatArray:
        """Per user: the Laplace b, or duchi's half distance."""
        divisor = epsilon0 if self.name == "laplace" else 2.0 * np.tanh(epsilon0 / 2.0)
        return (self.high - self.low) / divisor

    def randomize(
        self, values: NDArray[Any], epsilon0: float | FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """Reports float64 [n] of users with `values` [n] and budgets `epsilon0` [n] or one number.

        Raises `InvalidValueError` for a value outside [low, high] or not finite.
        """
        truth = _require_values(values, "iuf", self.low, self.high)
        scales = self.scales(require_budgets(epsilon0, truth.size))
        if self.name == "laplace":
            return np.asarray(truth + scales * generator.laplace(size=truth.size))
        chance = 0.5 + 0.5 * (truth - self.middle) / scales
        return self.middle + np.where(generator.random(truth.size) < chance, scales, -scales)

    def variances(self, scales: FloatArray, mean: float | None = None) -> FloatArray:
        """Variance [n] of each report given its user's value, from `scales(epsilon0)`.

        For duchi it is scale^2 - (x - middle)^2; x is unknown, so this returns the largest value,
        scale^2, or, with an estimated `mean` of the data, scale^2 - (mean - middle)^2, which the
        average over users cannot exceed.
        """
        if self.name == "laplace":
            return 2.0 * scales**2
        inside = self.middle if mean is None else min(max(mean, self.low), self.high)
        return scales**2 - (inside - self.middle) ** 2


def require_budgets(epsilon0: float | FloatArray, count: int) -> FloatArray:
    """`epsilon0` as float64 [count]; raises `InvalidValueError` unless finite, > 0, and fitting."""
    given = np.asarray(epsilon0)
    if given.dtype.kind not in "iuf" or given.shape not in ((), (count,)):
        found = f"{given.dtype} {list(given.shape)}"
        raise InvalidValueError("epsilon0", found, f"must be one number or {count}")
    for wrong in given[~(np.isfinite(given) & (given > 0))][:1]:
        raise InvalidValueError("epsilon0", float(wrong), "must be a finite number > 0")
    return np.broadcast_to(given.astype(np.float64), (count,))


def _require_values(values: NDArray[Any], kinds: str, low: float, high: float) -> NDArray[Any]:
    """A vector of whole numbers ("iu") or numbers in [low, high]; raises `InvalidValueError`."""
    given = np.asarray(values)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in kinds:
        what = "whole numbers" if kinds == "iu" else "numbers"
        found = f"{given.dtype} {list(given.shape)}"
        raise InvalidValueError("values", found, f"must be {what}, a vector")
    for wrong in given[~((given >= low) & (given <= high))][:1]:
        remedy = "clip the data to a range chosen without looking at it"
        raise InvalidValueError("value", wrong.item(), f"must be in [{low:g}, {high:.12g}]", remedy)
    return given


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


def _weights(estimator: str, signal: FloatArray, variance: FloatArray) -> FloatArray:
    """Weights [n] that add up to one for unbiased single-report estimates.

    `variance` is the variance of each single-report estimate; `signal` is p - q of Chen, Cao, Ge
    2024, Algorithm 2, whose (A - B)/(n - 2B) weighs reports by it.
    """
    require_choice("estimator", estimator, ESTIMATORS)
    raw = np.ones_like(variance)
    if estimator != "unbiased":
        raw = signal if estimator == "published" else variance.min() / variance
    return np.asarray(raw / raw.sum())


def _estimate(
    value: FloatArray, noise: FloatArray, spread: FloatArray, weights: FloatArray, *,
    estimator: str, confidence: float,
) -> Estimate:  # fmt: skip
    """With a normal interval (the reports are many and independent; no claim for a handful).

    To the variance of the noise comes what unequal weights add when budgets are dealt to users at
    random: the weighted mean of x under a random permutation of the weights varies by
    S^2 (sum w^2 - 1/n), S^2 = n/(n-1) * `spread`, where `spread` bounds the mean squared deviation
    of x among the users.
    """
    level, count = require_open_unit("confidence", confidence), weights.size
    excess = max(0.0, float(np.square(weights).sum()) - 1.0 / count)
    error = np.sqrt(noise + spread * excess * count / max(1, count - 1))
    reach = -float(ndtri(0.5 * (1.0 - level))) * error
    unbiased = ALWAYS if weights.min() == weights.max() else IF_INDEPENDENT
    return Estimate(value, error, value - reach, value + reach, level, estimator, unbiased)


def estimate_frequency(
    reports: NDArray[np.int64],
    epsilon0: float | FloatArray,
    randomizer: KaryRandomizedResponse,
    *,
    estimator: str = "unbiased",
    confidence: float = 0.95,
) -> Estimate:
    """Each category's share [k] of the users from `reports` made with budgets `epsilon0`.

    With s_i = 1 if report i is the category, (s_i - q_i)/(p_i - q_i) is unbiased for user i's
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
    # Budgets so small that e^epsilon0 rounds to 1 carry no information at all.
    for wrong in budgets[~(signal > 0)][:1]:
        raise InvalidValueError("epsilon0", float(wrong), "is too small to estimate anything")
    weights = _weights(estimator, signal, q * (1 - q) / signal**2)
    factor = weights / signal
    # Variance of a report's bit is q(1-q), plus `gain` if the category is the user's own.
    squared = factor**2
    base, gain = q * (1 - q), p * (1 - p) - q * (1 - q)
    value, own = (
        np.asarray(np.bincount(reports, row, randomizer.categories) - float(row @ q))
        for row in (factor, squared * gain / signal)
    )
    most = float(squared @ gain)
    noise = float(squared @ base) + np.clip(own, min(0.0, most), max(0.0, most))
    share = np.clip(value, 0.0, 1.0)
    spread = share * (1.0 - share)
    return _estimate(value, noise, spread, weights, estimator=estimator, confidence=confidence)


def estimate_mean(
    reports: FloatArray,
    epsilon0: float | FloatArray,
    randomizer: BoundedRandomizer,
    *,
    estimator: str = "unbiased",
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
    # Algorithm 1 is the plain average.
    weights = _weights(estimator, np.ones_like(values), randomizer.variances(scales))
    value = float(weights @ values)
    inside = min(max(value, randomizer.low), randomizer.high)
    noise = np.square(weights) @ randomizer.variances(scales, mean=inside)
    spread = (randomizer.high - inside) * (inside - randomizer.low)
    return _estimate(
        np.array([value]), np.array([noise]), np.array([spread]), weights,
        estimator=estimator, confidence=confidence,
    )  # fmt: skip
