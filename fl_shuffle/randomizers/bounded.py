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

from fl_shuffle.accounting.laws.gaussian_mechanism import analytic_sigma
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
