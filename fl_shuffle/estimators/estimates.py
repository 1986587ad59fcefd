"""Unbiased estimates from reports with personal budgets, and the error to expect before any report.

An estimate is a weighted average of single-report estimates, each unbiased for its own user. The
estimators differ in their weights, and in what the analyzer must know for them:

| name             | weights                                          | a report needs its budget |
|------------------|--------------------------------------------------|---------------------------|
| published        | Algorithms 1 and 2 of Chen, Cao, Ge 2024 (GSPA)  | no                        |
| unbiased         | equal                                            | yes, but not for laplace  |
| inverse-variance | inverse variance of the single-report estimate   | yes                       |

For frequencies, and for duchi, "published" weighs a report by p - q. The estimate is then
(A - B)/(sum p - sum q), with A the number of reports that support the category and B = sum q: sums
over all users, so no report says whose budget it has. For Laplace reports it is the plain average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import InvalidValueError, require_choice, require_open_unit, require_real
from fl_shuffle.estimators.inputs import require_budgets
from fl_shuffle.estimators.numbers import BoundedRandomizer
from fl_shuffle.estimators.oracles import FrequencyOracle

ESTIMATORS = ("unbiased", "published", "inverse-variance")
ALWAYS = "always"
IF_INDEPENDENT = "only if budgets are independent of the data"


@dataclass(frozen=True)
class Estimate:
    """Estimates with intervals for properties of the *users at hand*, not of a wider population.

    Attributes
    ----------
    value : float array, shape (1,) for a mean, (categories,) for frequencies
        The estimates. They are not clipped to their range, because clipping would bias them.
    error : float array
        Standard error of each.
    low, high : float arrays
        Ends of the intervals.
    confidence : float
        Level of each interval, not of all together.
    estimator : str
        Name of the weights.
    unbiased : str
        "always", or "only if budgets are independent of the data". With unequal weights a group of
        users with larger budgets counts for more. If budgets depend on the data, the estimate leans
        towards that group, and neither the value nor the interval shows it.
    """

    value: FloatArray
    error: FloatArray
    low: FloatArray
    high: FloatArray
    confidence: float
    estimator: str
    unbiased: str


def needs_budgets(randomizer: FrequencyOracle | BoundedRandomizer, estimator: str) -> bool:
    """Return whether the analyzer must know the budget of each single report.

    Parameters
    ----------
    randomizer : FrequencyOracle or BoundedRandomizer
        Local randomizer of all users.
    estimator : str
        One of "unbiased", "published", "inverse-variance".

    Returns
    -------
    bool
        If true, reports carry their budgets, so only reports of equal budgets hide each other.

    Raises
    ------
    InvalidValueError
        For another estimator.

    Examples
    --------
    >>> from fl_shuffle.estimators import BoundedRandomizer, needs_budgets
    >>> needs_budgets(BoundedRandomizer("laplace", 0.0, 1.0), "unbiased")
    False
    >>> needs_budgets(BoundedRandomizer("duchi", 0.0, 1.0), "unbiased")
    True
    """
    require_choice("estimator", estimator, ESTIMATORS)
    if isinstance(randomizer, BoundedRandomizer) and randomizer.name == "laplace":
        return estimator == "inverse-variance"
    return estimator != "published"


def _weights(estimator: str, signal: FloatArray, variance: FloatArray) -> FloatArray:
    """Return weights, shape (n,), that add up to one, for unbiased single-report estimates.

    `variance` is the variance of each single-report estimate; `signal` are the published weights.
    """
    require_choice("estimator", estimator, ESTIMATORS)
    raw = np.ones_like(variance)
    if estimator != "unbiased":
        raw = signal if estimator == "published" else variance.min() / variance
    return np.asarray(raw / raw.sum())


def _excess(weights: FloatArray) -> float:
    """Return what a mean squared deviation S of the users' values adds to the variance, over S.

    Budgets are dealt to users at random: the weighted mean of x under a random permutation of the
    weights varies by S n/(n - 1) (sum w^2 - 1/n). It is zero for equal weights.
    """
    count = weights.size
    spare = max(0.0, float(np.square(weights).sum()) - 1.0 / count)
    return spare * count / max(1, count - 1)


def _estimate(
    value: FloatArray, variance: FloatArray, weights: FloatArray, *,
    estimator: str, confidence: float,
) -> Estimate:  # fmt: skip
    """Return the estimate with a normal interval: reports are many and independent.

    There is no claim for a handful.
    """
    level, error = require_open_unit("confidence", confidence), np.sqrt(variance)
    reach = -float(ndtri(0.5 * (1.0 - level))) * error
    unbiased = ALWAYS if weights.min() == weights.max() else IF_INDEPENDENT
    return Estimate(value, error, value - reach, value + reach, level, estimator, unbiased)


@dataclass(frozen=True)
class FrequencyPlan:
    """Weights of one estimate of frequencies, known before any report.

    With s_i = 1 if report i supports category v, (s_i - q_i)/(p_i - q_i) has mean 1 if v is the
    user's own category, and mean 0 else. So sum factor_i (s_i - q_i), factor_i = w_i/(p_i - q_i),
    is unbiased. The bit s_i varies by q_i (1 - q_i), plus `gain` if v is the own category.
    """

    q: FloatArray
    signal: FloatArray
    weights: FloatArray
    base: float
    squared_gain: FloatArray
    linked: bool
    """Whether the server knows each report's budget."""

    @property
    def rows(self) -> list[FloatArray]:
        """Weights of a report that supports the category, for each sum that is needed.

        The first is for the category's share. Where each report's budget is known, the second is
        for the part of the variance that its own users add.
        """
        own = [self.squared_gain / self.signal] if self.linked else []
        return [self.weights / self.signal, *own]


def frequency_plan(
    budgets: FloatArray, randomizer: FrequencyOracle, estimator: str
) -> FrequencyPlan:
    """Return the weights of an estimate; raise `InvalidValueError` if a budget says nothing."""
    p, q = randomizer.probabilities(budgets)
    signal = p - q
    # Budgets so small that e^epsilon0 rounds to 1 carry no information at all.
    for wrong in budgets[~(signal > 0)][:1]:
        raise InvalidValueError("epsilon0", float(wrong), "is too small to estimate anything")
    # The inverse variance is that of a rare category, the same for all categories.
    weights = _weights(estimator, signal, q * (1 - q) / signal**2)
    squared = (weights / signal) ** 2
    base, gain = q * (1 - q), p * (1 - p) - q * (1 - q)
    linked = needs_budgets(randomizer, estimator)
    return FrequencyPlan(q, signal, weights, float(squared @ base), squared * gain, linked)


def frequency_tally(
    reports: NDArray[Any], plan: FrequencyPlan, randomizer: FrequencyOracle, users: slice
) -> FloatArray:
    """Return the sums over these users that make an estimate, a line for each of `plan.rows`."""
    rows = [row[users] for row in plan.rows]
    return np.stack([randomizer.support(reports, row) - float(row @ plan.q[users]) for row in rows])


def frequencies_from(
    tally: FloatArray, plan: FrequencyPlan, *, estimator: str, confidence: float
) -> Estimate:
    """Return the estimate of all users whose tallies add up to `tally`."""
    value, most = tally[0], float(plan.squared_gain.sum())
    # Of users with unknown budgets, dealt at random, a share of all adds that share of `most`.
    own = tally[1] if plan.linked else value * most
    noise = plan.base + np.clip(own, min(0.0, most), max(0.0, most))
    share = np.clip(value, 0.0, 1.0)
    variance = noise + share * (1.0 - share) * _excess(plan.weights)
    return _estimate(value, variance, plan.weights, estimator=estimator, confidence=confidence)


def estimate_frequency(
    reports: NDArray[Any],
    epsilon0: float | FloatArray,
    randomizer: FrequencyOracle,
    *,
    estimator: str = "unbiased",
    confidence: float = 0.95,
) -> Estimate:
    """Estimate each category's share of the users from their reports.

    Parameters
    ----------
    reports : array
        Reports of n users, as `randomizer.randomize` returns them.
    epsilon0 : float or float array of shape (n,), nats
        Local budgets, in the order of the reports. "published" depends on sums over
        all budgets alone, so any order will do.
    randomizer : FrequencyOracle
        What made the reports.
    estimator : str, default "unbiased"
        "unbiased": equal weights, unbiased whatever the budgets have to do with the data.
        "published": weights p_i - q_i, so (sum s_i - sum q_i)/(sum p_i - sum q_i). For binary
        randomized response it is Algorithm 2 of Chen, Cao, Ge 2024 (GSPA). The paper calls it
        unbiased; it is so only if budgets are independent of the data.
        "inverse-variance": weights (p_i - q_i)^2/(q_i (1 - q_i)), the inverse variance for a rare
        category; unbiased under the same condition.
    confidence : float, in (0, 1), default 0.95
        Level of each interval.

    Returns
    -------
    Estimate
        Entries of shape (categories,). The interval covers the users' own share. Its variance is
        estimated without bias from the reports, then kept within what is possible. Unequal weights
        add the spread of random assignment.

    Raises
    ------
    InvalidValueError
        If reports and budgets do not fit the randomizer or each other, or a budget is so small that
        its reports carry no information.

    See Also
    --------
    expected_frequency_error : The standard error before any report.
    fl_shuffle.private_frequencies : All steps in one call.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import KaryRandomizedResponse, estimate_frequency
    >>> oracle = KaryRandomizedResponse(4)
    >>> reports = oracle.randomize(np.zeros(1_000, int), 2.0, np.random.default_rng(1))
    >>> found = estimate_frequency(reports, 2.0, oracle)
    >>> bool(found.low[0] <= 1.0 <= found.high[0]), found.unbiased
    (True, 'always')
    """
    found = randomizer.require_reports(reports)
    plan = frequency_plan(require_budgets(epsilon0, len(found)), randomizer, estimator)
    tally = frequency_tally(found, plan, randomizer, slice(None))
    return frequencies_from(tally, plan, estimator=estimator, confidence=confidence)


def estimate_mean(
    reports: FloatArray,
    epsilon0: float | FloatArray,
    randomizer: BoundedRandomizer,
    *,
    estimator: str = "unbiased",
    confidence: float = 0.95,
) -> Estimate:
    """Estimate the users' mean from their reports.

    Parameters
    ----------
    reports : float array, shape (n,)
        Reports of n users, as `randomizer.randomize` returns them.
    epsilon0 : float or float array of shape (n,), nats
        Local budgets, in the order of the reports.
    randomizer : BoundedRandomizer
        What made the reports.
    estimator : str, default "unbiased"
        "unbiased": the plain average, unbiased whatever the budgets have to do with the data.
        "published": for laplace the same, Algorithm 1 of Chen, Cao, Ge 2024 (GSPA); for duchi
        weights tanh(epsilon0/2), as in Algorithm 2, for which the signs of the reports are enough.
        "inverse-variance": weights 1/variance (for duchi the largest one): far more precise with
        uneven budgets. Unequal weights are unbiased only if budgets are independent of the data.
    confidence : float, in (0, 1), default 0.95
        Level of the interval.

    Returns
    -------
    Estimate
        Entries of shape (1,). The interval covers the mean of these users' values. It uses the
        known noise variance. What depends on the unknown data is bounded from above: duchi's report
        variance, and the spread of the data that unequal weights let in (at most
        (high - m)(m - low), Bhatia and Davis 2000).

    Raises
    ------
    InvalidValueError
        If reports are not finite numbers, or budgets do not fit them.

    See Also
    --------
    expected_mean_error : The standard error before any report.
    fl_shuffle.private_mean : All steps in one call.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import BoundedRandomizer, estimate_mean
    >>> kind = BoundedRandomizer("laplace", 0.0, 1.0)
    >>> reports = kind.randomize(np.full(1_000, 0.25), 1.0, np.random.default_rng(1))
    >>> found = estimate_mean(reports, 1.0, kind)
    >>> bool(found.low[0] <= 0.25 <= found.high[0]), found.unbiased
    (True, 'always')
    """
    values = np.asarray(reports, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not bool(np.isfinite(values).all()):
        raise InvalidValueError("reports", list(values.shape), "must be finite numbers, a vector")
    scales = randomizer.scales(require_budgets(epsilon0, values.size))
    weights = _mean_weights(randomizer, scales, estimator)
    value = float(weights @ values)
    inside = min(max(value, randomizer.low), randomizer.high)
    noise = float(np.square(weights) @ randomizer.variances(scales, mean=inside))
    spread = (randomizer.high - inside) * (inside - randomizer.low)
    variance = np.array([noise + spread * _excess(weights)])
    return _estimate(
        np.array([value]), variance, weights, estimator=estimator, confidence=confidence
    )


def _mean_weights(randomizer: BoundedRandomizer, scales: FloatArray, estimator: str) -> FloatArray:
    # duchi's reports are middle +- scale: weights 1/scale leave the sum of their signs.
    signal = np.ones_like(scales) if randomizer.name == "laplace" else scales.min() / scales
    return _weights(estimator, signal, randomizer.variances(scales))


def expected_frequency_error(
    epsilon0: FloatArray,
    randomizer: FrequencyOracle,
    *,
    estimator: str = "unbiased",
    share: float | None = None,
) -> float:
    """Return the standard error of an estimated share, before any report.

    Parameters
    ----------
    epsilon0 : float array, shape (n,), nats
        Local budget of each user.
    randomizer : FrequencyOracle
        Local randomizer of all users.
    estimator : str, default "unbiased"
        As in `estimate_frequency`.
    share : float, in [0, 1], optional
        The category's share of the users. Left out: the share with the largest error.

    Returns
    -------
    float
        Root mean squared error, over reports and over the assignment of budgets to users. For many
        users the mean absolute error is sqrt(2/pi) = 0.798 times it.

    Raises
    ------
    InvalidValueError
        If a budget, the estimator, or the share is not allowed.

    Examples
    --------
    With 4 times the users, the error is half:

    >>> import numpy as np
    >>> from fl_shuffle.estimators import KaryRandomizedResponse, expected_frequency_error
    >>> oracle = KaryRandomizedResponse(4)
    >>> few, many = (expected_frequency_error(np.full(n, 1.0), oracle) for n in (1_000, 4_000))
    >>> round(few / many, 6)
    2.0
    """
    budgets = require_budgets(epsilon0, require_users(epsilon0))
    plan = frequency_plan(budgets, randomizer, estimator)
    # Given who has the category, the variance is base + sum of `squared_gain` over its users. With
    # budgets dealt at random each user has it with probability f, and the mean of the estimate
    # varies by f (1 - f) times the excess: V(f) = base + f gain + f (1 - f) excess.
    gain, excess = float(plan.squared_gain.sum()), _excess(plan.weights)
    if share is None:
        # V is a parabola that opens downwards, with its top at 1/2 + gain/(2 excess).
        ends = [0.0, 1.0]
        top = 0.5 + 0.5 * gain / excess if excess > 0.0 else 0.0
        candidates = [*ends, top] if 0.0 < top < 1.0 else ends
    else:
        candidates = [require_real("share", share, minimum=0.0, maximum=1.0)]
    return math.sqrt(max(plan.base + f * gain + f * (1.0 - f) * excess for f in candidates))


def expected_mean_error(
    epsilon0: FloatArray,
    randomizer: BoundedRandomizer,
    *,
    estimator: str = "unbiased",
    mean: float | None = None,
    spread: float | None = None,
) -> float:
    """Return the standard error of an estimated mean, before any report.

    Parameters
    ----------
    epsilon0 : float array, shape (n,), nats
        Local budget of each user.
    randomizer : BoundedRandomizer
        Local randomizer of all users.
    estimator : str, default "unbiased"
        As in `estimate_mean`.
    mean, spread : float, optional
        Mean of the users' values, and their mean squared deviation from it. Left out: those with
        the largest error.

    Returns
    -------
    float
        Root mean squared error, over reports and over the assignment of budgets to users. For many
        users the mean absolute error is sqrt(2/pi) = 0.798 times it.

    Raises
    ------
    InvalidValueError
        If a budget, the estimator, the mean, or the spread is not allowed.

    Examples
    --------
    The Laplace scale is (high - low)/epsilon0 = 1, so a report has variance 2:

    >>> import numpy as np
    >>> from fl_shuffle.estimators import BoundedRandomizer, expected_mean_error
    >>> kind = BoundedRandomizer("laplace", 0.0, 1.0)
    >>> bool(np.isclose(expected_mean_error(np.full(200, 1.0), kind), np.sqrt(2 / 200)))
    True
    """
    scales = randomizer.scales(require_budgets(epsilon0, require_users(epsilon0)))
    weights, (low, high) = _mean_weights(randomizer, scales, estimator), (
        randomizer.low, randomizer.high,
    )  # fmt: skip
    squares = np.square(weights)
    if mean is not None:
        mean = require_real("mean", mean, minimum=low, maximum=high)
    # Values in the range with this mean have at most this spread (Bhatia and Davis 2000).
    most = (0.5 * (high - low)) ** 2 if mean is None else (high - mean) * (mean - low)
    if spread is not None:
        spread = require_real("spread", spread, minimum=0.0, maximum=most)
    excess = _excess(weights)
    if randomizer.name == "laplace":
        noise = float(squares @ (2.0 * scales**2))
        return math.sqrt(noise + (most if spread is None else spread) * excess)
    # A duchi report varies by scale^2 - (x - middle)^2, and the average of (x - middle)^2 is the
    # spread plus the squared distance of the mean from the middle. Dealt at random,
    # V = sum w^2 scale^2 - offset sum w^2 + spread (excess - sum w^2), where the last factor is
    # (sum w^2 - 1)/(n - 1), never positive: no spread is the largest error.
    offset = 0.0 if mean is None else (mean - randomizer.middle) ** 2
    total, least = float(squares.sum()), 0.0 if spread is None else spread
    noise = float(squares @ scales**2)
    return math.sqrt(max(0.0, noise - offset * total + least * (excess - total)))


def require_users(epsilon0: float | NDArray[Any]) -> int:
    """Return the number of budgets; raise `InvalidValueError` unless they are a vector."""
    shape = np.shape(epsilon0)
    if len(shape) != 1 or shape[0] == 0:
        raise InvalidValueError(
            "epsilon0", list(shape), "must be a vector with one budget per user"
        )
    return int(shape[0])
