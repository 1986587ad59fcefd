"""Frequencies of categories from their randomized reports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.estimators.weights import (
    UNBIASED,
    Estimate,
    assignment_variance,
    normalised_weights,
    with_interval,
)
from fl_shuffle.randomizers.categorical import CategoricalRandomizer, Reports, require_budgets

FloatArray = NDArray[np.float64]


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
