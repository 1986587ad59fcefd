"""Distributions of the amplification variable: what the stop-loss engine consumes.

For a pair of report distributions P, Q of the differing client, a blanket distribution omega shared
by everybody and a central budget eps, the amplification variable is

    L = (P(W) - e^eps Q(W)) / omega(W),    W ~ omega,

so that E[L] = 1 - e^eps and E[(L)_+] is the local hockey-stick divergence of the pair. Note that
this is the variable of Balle, Bell, Gascon and Nissim 2019 (Section 5), not yet multiplied by the
indicator of "this client drew from the blanket": the engine does that with the blanket masses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import InvalidValueError


@runtime_checkable
class AmplificationDistribution(Protocol):
    """The distribution of L at one eps, known through its stop-loss transform.

    `lower` and `upper` are finite. Mass below `lower` may be moved up to it and is; mass above
    `upper` is allowed if `stop_loss(upper)` accounts for it (the engine adds that to delta).
    `stop_loss(t)` returns E[(L - t)_+] elementwise: not below the truth by more than a few units in
    the last place of its own value, with no cancellation as t approaches `upper`.
    """

    @property
    def lower(self) -> float: ...

    @property
    def upper(self) -> float: ...

    @property
    def mean(self) -> float: ...

    def stop_loss(self, t: FloatArray) -> FloatArray: ...


LawFamily = Callable[[float], AmplificationDistribution]
"""A pair of inputs and a blanket: eps (nats) -> distribution of L at that eps."""


@dataclass(frozen=True)
class AtomicDistribution:
    """A distribution with finitely many values: sorted, distinct, each with positive probability.

    Build it with `AtomicDistribution.of`, which sorts, merges equal values and drops empty ones.
    """

    values: FloatArray
    probabilities: FloatArray

    @classmethod
    def of(cls, values: ArrayLike, probabilities: ArrayLike) -> AtomicDistribution:
        """Return the distribution of a table of (value, probability), in any order, with
        repetitions.

        Raises `InvalidValueError` unless every entry is finite, no probability is negative, and
        they sum to one within 1e-9.
        """
        v = np.asarray(values, dtype=np.float64).ravel()
        p = np.asarray(probabilities, dtype=np.float64).ravel()
        if v.size != p.size or v.size == 0:
            raise InvalidValueError("values", v.size, f"needs one probability each, got {p.size}")
        if not np.all(np.isfinite(v)):
            raise InvalidValueError("values", float(v[~np.isfinite(v)][0]), "must be finite")
        if not np.all(p >= 0.0):
            raise InvalidValueError("probabilities", p.tolist(), "must all be >= 0")
        total = math.fsum(p.tolist())
        if not abs(total - 1.0) <= 1e-9:
            raise InvalidValueError("probabilities", total, "must sum to one within 1e-9")
        # An atom of probability zero would widen [lower, upper], and with it the engine's grid.
        keep = p > 0.0
        distinct, inverse = np.unique(v[keep], return_inverse=True)
        merged = np.bincount(inverse, weights=p[keep], minlength=distinct.size)
        return cls(distinct, merged.astype(np.float64))

    @property
    def lower(self) -> float:
        return float(self.values[0])

    @property
    def upper(self) -> float:
        return float(self.values[-1])

    @property
    def mean(self) -> float:
        return math.fsum((self.values * self.probabilities).tolist())

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """Return E[(L - t)_+]: sums of nonnegative terms only, so no cancellation."""
        thresholds = np.atleast_1d(np.asarray(t, dtype=np.float64))
        # E(L - v_i)_+ is the sum of P(L >= v_j) (v_j - v_(j-1)) over j > i; between values it is
        # linear.
        tail = np.cumsum(self.probabilities[::-1])[::-1]
        at_values = np.append(np.cumsum((tail[1:] * np.diff(self.values))[::-1])[::-1], 0.0)
        # The first value at or above t: the slope of the stop-loss to the left of it is -P(L >=
        # that value).
        following = np.searchsorted(self.values, thresholds, side="left")
        inside = np.minimum(following, self.values.size - 1)
        linear = at_values[inside] + (self.values[inside] - thresholds) * tail[inside]
        result: FloatArray = np.where(following < self.values.size, linear, 0.0)
        return result


@dataclass(frozen=True)
class MixtureLaw:
    """Draws part i with probability `weight`, then multiplies its value by `scale`.

    `parts` lists (weight, scale > 0, distribution). Weights sum to one.
    """

    parts: tuple[tuple[float, float, AmplificationDistribution], ...]

    @property
    def lower(self) -> float:
        # Scales are positive, so a part's ends stay ends.
        return min(scale * law.lower for _, scale, law in self.parts)

    @property
    def upper(self) -> float:
        return max(scale * law.upper for _, scale, law in self.parts)

    @property
    def mean(self) -> float:
        return math.fsum(weight * scale * law.mean for weight, scale, law in self.parts)

    def stop_loss(self, t: FloatArray) -> FloatArray:
        """Return the weighted sum of the parts' transforms at t / scale."""
        thresholds = np.atleast_1d(np.asarray(t, dtype=np.float64))
        total = np.zeros(thresholds.shape)
        for weight, scale, law in self.parts:
            # E(sX - t)_+ = s E(X - t/s)_+ for s > 0, and a mixture's stop-loss is the mixture of
            # those of its parts.
            total += weight * scale * law.stop_loss(thresholds / scale)
        return total


@dataclass(frozen=True)
class Case:
    """One candidate for the worst pair of inputs: blanket mass, distribution of L, and what is not
    hidden.

    `law(eps)` is None when nothing is hidden. `exposed(eps)` is the divergence of the reports that
    lie outside the blanket; it is added to the engine's result as it stands.
    """

    blanket_mass: float
    law: Callable[[float], AmplificationDistribution | None]
    exposed: Callable[[float], float]

    def local_delta(self, epsilon: float) -> float:
        """Return the divergence without any shuffling."""
        law = self.law(epsilon)
        # E(L)_+ is the integral of (P - e^eps Q)_+ where the blanket has mass; `exposed` is the
        # rest.
        hidden = 0.0 if law is None else float(law.stop_loss(np.zeros(1))[0])
        return min(1.0, hidden + self.exposed(epsilon))
