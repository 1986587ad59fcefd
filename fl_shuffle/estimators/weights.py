"""How much each report counts, and what can be claimed for the answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fl_shuffle.errors import require_choice, require_open_unit

FloatArray = NDArray[np.float64]

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
