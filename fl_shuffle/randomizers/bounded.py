"""Local randomizers of one number in a public range [low, high], with personal budgets.

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

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.gaussian import analytic_sigma
from fl_shuffle.errors import InvalidValueError, require_choice, require_real
from fl_shuffle.randomizers.categorical import require_budgets

FloatArray = NDArray[np.float64]
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


def _gaussian_sigmas(epsilon0: FloatArray, delta0: FloatArray) -> FloatArray:
    """Analytic sigma at sensitivity 1 for every budget, one calibration per distinct budget.

    With more than 1,024 distinct budgets each epsilon0 is first rounded *down* to the next power of
    2^(1/128): at most 0.6% more noise than necessary, never less.
    """
    distinct, inverse = _distinct(epsilon0, delta0)
    if len(distinct) > _FEW_BUDGETS:
        rounded = np.minimum(np.exp2(np.floor(np.log2(epsilon0) * 128) / 128), epsilon0)
        distinct, inverse = _distinct(rounded, delta0)
    sigma = np.array([_analytic_sigma(epsilon, delta) for epsilon, delta in distinct])
    return np.asarray(sigma[inverse], dtype=np.float64)


def _distinct(
    epsilon0: FloatArray, delta0: FloatArray
) -> tuple[list[tuple[float, float]], NDArray[np.intp]]:
    """The distinct (epsilon0, delta0) and each user's place among them."""
    if delta0.size == 1:
        values, inverse = np.unique(epsilon0, return_inverse=True)
        return [(float(value), float(delta0)) for value in values], inverse
    # A complex number carries both parts through a one-dimensional unique.
    pairs, inverse = np.unique(epsilon0 + 1j * delta0, return_inverse=True)
    return [(float(pair.real), float(pair.imag)) for pair in pairs], inverse


@lru_cache(maxsize=1 << 16)
def _analytic_sigma(epsilon0: float, delta0: float) -> float:
    return analytic_sigma(epsilon0, delta0, 1.0)
