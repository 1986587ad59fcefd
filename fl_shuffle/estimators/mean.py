"""The mean of bounded numbers from their randomized reports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators.weights import (
    INVERSE_VARIANCE,
    PUBLISHED,
    UNBIASED,
    Estimate,
    assignment_variance,
    normalised_weights,
    with_interval,
)
from fl_shuffle.randomizers.bounded import BoundedRandomizer
from fl_shuffle.randomizers.categorical import require_budgets

FloatArray = NDArray[np.float64]


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
