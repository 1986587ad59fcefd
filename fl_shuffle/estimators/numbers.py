"""Local randomizers of one number in a public range, with personal budgets.

Both are exactly epsilon0-DP for their user (replace-one, delta0 = 0, nats), and every report is
unbiased for the user's number x:

| name    | report                                   | variance             |
|---------|------------------------------------------|----------------------|
| laplace | x + Laplace((high - low)/eps)            | 2 ((high-low)/eps)^2 |
| duchi   | middle +- half * (e^eps + 1)/(e^eps - 1) | depends on x         |

duchi (Duchi, Jordan, Wainwright 2018) rounds x at random to an end of the range and applies binary
randomized response, so it shuffles exactly as k-ary randomized response with k = 2 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.limits import MAX_EPSILON0
from fl_shuffle.errors import require_choice, require_real
from fl_shuffle.estimators.inputs import (
    COIN_EPSILON0,
    require_budgets,
    require_values,
)

BOUNDED = ("laplace", "duchi")


@dataclass(frozen=True)
class BoundedRandomizer:
    """A randomizer of numbers in [low, high].

    Parameters
    ----------
    name : str
        "laplace" or "duchi".
    low, high : float, in [-1e12, 1e12], low < high
        Public range of the values, chosen without looking at them.

    Raises
    ------
    InvalidValueError
        For another name or range.

    Examples
    --------
    >>> import numpy as np
    >>> from fl_shuffle.estimators import BoundedRandomizer
    >>> kind = BoundedRandomizer("duchi", 0.0, 1.0)
    >>> reports = kind.randomize(np.full(4, 0.5), 1.0, np.random.default_rng(1))
    >>> np.unique(np.abs(reports - kind.middle)).round(4)
    array([1.082])
    """

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
        """Return the Laplace scale, or half the distance of the two reports of duchi, of each user.

        duchi: with u in [-1, 1] the place of x in the range, the reported end is +1 with
        probability (1 + u tanh(eps/2))/2. Half the range over tanh(eps/2) makes it unbiased.
        """
        divisor = epsilon0 if self.name == "laplace" else 2.0 * np.tanh(epsilon0 / 2.0)
        return (self.high - self.low) / divisor

    def randomize(
        self, values: NDArray[Any], epsilon0: float | FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        """Return one report for each user.

        Parameters
        ----------
        values : numbers in [low, high], shape (n,)
            What the users hold.
        epsilon0 : float or float array of shape (n,), nats
            Local budget of all users, or of each: in (0, 20] for duchi, (0, 200] for laplace.
        generator : numpy.random.Generator
            Source of all randomness.

        Returns
        -------
        float array, shape (n,)
            Users stay in order. The shuffler permutes.

        Raises
        ------
        InvalidValueError
            If a value or budget is outside its range or not finite, or if their numbers differ.

        Examples
        --------
        >>> import numpy as np
        >>> from fl_shuffle.estimators import BoundedRandomizer
        >>> kind = BoundedRandomizer("laplace", 0.0, 1.0)
        >>> kind.randomize(np.full(3, 0.5), 1.0, np.random.default_rng(1)).shape
        (3,)
        """
        truth = require_values(values, "iuf", self.low, self.high)
        largest = MAX_EPSILON0 if self.name == "laplace" else COIN_EPSILON0
        scales = self.scales(require_budgets(epsilon0, truth.size, largest=largest))
        if self.name == "laplace":
            return np.asarray(truth + scales * generator.laplace(size=truth.size))
        chance = 0.5 + 0.5 * (truth - self.middle) / scales
        return self.middle + np.where(generator.random(truth.size) < chance, scales, -scales)

    def variances(self, scales: FloatArray, mean: float | None = None) -> FloatArray:
        """Return the variance of each report given its user's value, shape (n,).

        For duchi it is scale^2 - (x - middle)^2. The value x is unknown, so this returns the
        largest variance, scale^2, or, with an estimated `mean` of the data, scale^2 -
        (mean - middle)^2, which the average over users cannot exceed.
        """
        if self.name == "laplace":
            return 2.0 * scales**2
        inside = self.middle if mean is None else min(max(mean, self.low), self.high)
        return scales**2 - (inside - self.middle) ** 2
