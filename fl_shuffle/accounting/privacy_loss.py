"""Laws of the amplification variable: what the stop-loss engine consumes.

For a pair of report laws P, Q of the differing client, a blanket law omega shared by everybody and
a central budget eps, the amplification variable is

    L = (P(W) - e^eps Q(W)) / omega(W),    W ~ omega,

so that E[L] = 1 - e^eps and E[(L)_+] is the local hockey-stick divergence of the pair. Note that
this is the variable of Balle, Bell, Gascon and Nissim 2019 (Section 5), not yet multiplied by the
indicator of "this client drew from the blanket": the engine does that with the blanket masses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle.errors import InvalidValueError

FloatArray = NDArray[np.float64]


@runtime_checkable
class AmplificationLaw(Protocol):
    """The law of L at one eps, known through its stop-loss transform.

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


LawFamily = Callable[[float], AmplificationLaw]
"""A pair of inputs and a blanket: eps (nats) -> law of L at that eps."""


@dataclass(frozen=True)
class AtomicLaw:
    """A law with finitely many values: sorted, distinct, each with positive probability.

    Build it with `AtomicLaw.of`, which sorts, merges equal values and drops empty ones.
    """

    values: FloatArray
    probabilities: FloatArray

    @classmethod
    def of(cls, values: ArrayLike, probabilities: ArrayLike) -> AtomicLaw:
        """The law of a table of (value, probability), in any order, with repetitions.

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
        """E[(L - t)_+]: a sum of nonnegative terms, so no cancellation."""
        thresholds = np.atleast_1d(np.asarray(t, dtype=np.float64))
        excess = np.maximum(self.values[None, :] - thresholds[:, None], 0.0)
        result: FloatArray = excess @ self.probabilities
        return result


def mixture(laws: Iterable[tuple[float, AtomicLaw]]) -> AtomicLaw:
    """The law that draws one of `laws` with the given weights (which must sum to one)."""
    pairs = list(laws)
    return AtomicLaw.of(
        np.concatenate([law.values for _, law in pairs]),
        np.concatenate([weight * law.probabilities for weight, law in pairs]),
    )
