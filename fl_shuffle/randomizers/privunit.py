"""PrivUnit and PrivUnitG: unbiased randomizers of directions that are exactly epsilon0-DP.

Base law: uniform on the sphere (PrivUnit; Bhowmick et al. 2018) or N(0, I) (PrivUnitG; Asi,
Feldman, Talwar 2022). For a unit input u the cap {v : <v, u> >= t} has base mass q. The report has
the base law given the cap with probability p = q e^eps / (1 + q (e^eps - 1)), and the base law
given its complement otherwise. So its density against the base law takes two values,
e^eps / (1 + q (e^eps - 1)) in the cap and 1 / (1 + q (e^eps - 1)) outside, whose ratio is e^eps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special

from fl_shuffle.errors import InvalidValueError, require_choice, require_integer, require_real
from fl_shuffle.randomizers.noise import NoiseStream, largest_variate
from fl_shuffle.randomizers.vector import LARGEST, SMALLEST, Clients, owners_of

FloatArray = NDArray[np.float64]
BASES = ("sphere", "gaussian")


@dataclass(frozen=True)
class PrivUnit:
    """Randomizes the direction of vectors in an l2 ball; delta0 = 0, any two inputs.

    A mean x with ||x|| <= radius is first turned into a random unit vector +-x/||x|| with mean
    x/radius (zero becomes +-e_1 with equal chance), then randomized. The report is the *unscaled*
    vector, the same space for every budget: an unscaled report does not show which budget made it.
    E[report] = `gain` * x / radius, so the server divides by the gain (by the average gain when
    budgets differ). `cap_mass` is q; None takes the q that makes the gain largest.

    Only CPU tensors. Reports are rounded to the grid `step`, a post-processing.
    """

    epsilon0: float
    dimension: int
    radius: float
    base: str = "sphere"
    cap_mass: float | None = None
    _mass: float = field(init=False, repr=False, compare=False, default=0.0)

    def __post_init__(self) -> None:
        require_real("epsilon0", self.epsilon0, minimum=0.0, exclusive_minimum=True, maximum=50.0)
        require_integer("dimension", self.dimension, minimum=2)
        require_real("radius", self.radius, minimum=SMALLEST, maximum=LARGEST)
        require_choice("base", self.base, BASES)
        mass = self.cap_mass
        if mass is None:
            mass = _best_mass(self.epsilon0, self.dimension, self.base)
        else:
            mass = require_real("cap_mass", mass, minimum=0.0, maximum=0.5, exclusive_minimum=True)
        object.__setattr__(self, "_mass", mass)

    @property
    def mass(self) -> float:
        """q, the base mass of the cap; at most 1/2."""
        return self._mass

    @property
    def cap_probability(self) -> float:
        """p, the chance that the report falls in the cap around the input."""
        weight = self._mass * math.exp(self.epsilon0)
        return weight / (1.0 - self._mass + weight)

    @property
    def gain(self) -> float:
        """m with E[report] = m u for a unit input u."""
        return _gain(self._mass, self.epsilon0, self.dimension, self.base)

    @property
    def largest_report(self) -> float:
        """No coordinate of a report can exceed this in absolute value."""
        if self.base == "sphere":
            return 1.0 + self.step
        # The smallest level is q 2^-54. A coordinate of g - <g, u> u is at most |g_j| + |<g, u>|,
        # and <g, u> at most the largest variate times sqrt(d).
        reach = float(-special.ndtri(self._mass * 2.0**-54))
        spread = largest_variate("normal") * (1.0 + math.sqrt(self.dimension))
        return reach + spread + self.step

    @property
    def step(self) -> float:
        """Grid of the reports, 2^-16 of a coordinate's typical size or finer."""
        if self.base == "gaussian":
            return 2.0**-16
        return 2.0 ** (-16 - math.ceil(0.5 * math.log2(self.dimension)))

    def randomize_(
        self, means: torch.Tensor, clients: Clients, stream: NoiseStream
    ) -> torch.Tensor:
        """In place: means (float32 [K, d], norms at most `radius`) become reports."""
        if means.shape[1] != self.dimension or stream.dimension != self.dimension:
            raise InvalidValueError("means", list(means.shape), f"must be [*, {self.dimension}]")
        ids = owners_of(means, clients)
        noise = stream.normal_rows(ids).double().numpy()
        uniforms = stream.uniform_rows(ids, 3)
        means.copy_(torch.from_numpy(self._reports(means.double().numpy(), noise, uniforms)))
        return means

    def _reports(self, means: FloatArray, noise: FloatArray, uniforms: FloatArray) -> FloatArray:
        unit = self._unit_vectors(means, uniforms[:, 0])
        in_cap = uniforms[:, 1] < self.cap_probability
        # The level of the inner product, in base mass counted from the top.
        level = np.where(
            in_cap, uniforms[:, 2] * self._mass, self._mass + uniforms[:, 2] * (1 - self._mass)
        )
        alpha = _upper_quantile(level, self.dimension, self.base)
        across = noise - np.einsum("ij,ij->i", noise, unit)[:, None] * unit
        if self.base == "sphere":
            across *= (np.sqrt(1.0 - alpha**2) / np.linalg.norm(across, axis=1))[:, None]
        report = alpha[:, None] * unit + across
        return np.asarray(np.rint(report / self.step) * self.step)

    def _unit_vectors(self, means: FloatArray, uniform: FloatArray) -> FloatArray:
        length = np.linalg.norm(means, axis=1)
        if not bool(np.all(length <= self.radius * (1.0 + 1e-6))):
            raise InvalidValueError(
                "norm of a mean", float(np.max(length)), f"must be at most {self.radius:g}"
            )
        unit = means / np.where(length > 0, length, 1.0)[:, None]
        unit[length == 0, 0] = 1.0
        sign = np.where(uniform < 0.5 + 0.5 * np.minimum(length / self.radius, 1.0), 1.0, -1.0)
        return np.asarray(sign[:, None] * unit)


def _upper_quantile(level: FloatArray, dimension: int, base: str) -> FloatArray:
    """t with base mass `level` above it, for the inner product of a base draw and a unit vector.

    On the sphere (1 + alpha)/2 is Beta((d-1)/2, (d-1)/2).
    """
    if base == "gaussian":
        return np.asarray(-special.ndtri(level))
    shape = 0.5 * (dimension - 1)
    return np.asarray(1.0 - 2.0 * special.betaincinv(shape, shape, level))


def _gain(mass: float, epsilon0: float, dimension: int, base: str) -> float:
    """E[alpha 1{alpha >= t}] (p/q - (1-p)/(1-q)), and p/q - (1-p)/(1-q) in closed form."""
    threshold = float(_upper_quantile(np.asarray(mass), dimension, base))
    if base == "gaussian":
        log_moment = -0.5 * threshold**2 - 0.5 * math.log(2 * math.pi)
    else:
        log_constant = special.gammaln(dimension / 2) - special.gammaln((dimension - 1) / 2)
        log_moment = (
            float(log_constant)
            - 0.5 * math.log(math.pi)
            + 0.5 * (dimension - 1) * math.log1p(-(threshold**2))
            - math.log(dimension - 1)
        )
    return math.exp(log_moment) * math.expm1(epsilon0) / (1.0 + mass * math.expm1(epsilon0))


@lru_cache(maxsize=4096)
def _best_mass(epsilon0: float, dimension: int, base: str) -> float:
    def objective(log_mass: float) -> float:
        return -_gain(math.exp(log_mass), epsilon0, dimension, base)

    low = min(-epsilon0 - 5.0, math.log(0.25))
    best = optimize.minimize_scalar(objective, bounds=(low, math.log(0.5)), method="bounded")
    return min(0.5, math.exp(float(best.x)))
