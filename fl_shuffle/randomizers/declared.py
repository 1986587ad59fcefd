"""Training that is private already, as its client declares: no noise is added to what it sends."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.randomizers.base import LocalRandomizer, Noise

REACH = 1e3
"""An update is cut at this multiple of the clip, unless `privacy.client_clip_norm` is set: only
nonsense is."""


class Declared(LocalRandomizer):
    """The update as it is, to the nearest point of the public grid: post-processing of a mechanism
    that ran in the client's own training (`privacy.declared_sigma`, `declared_steps`)."""

    def bound(self) -> FloatArray:
        """Return the public length of an update."""
        return self.radius

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Return the update itself."""
        return means.astype(np.float64)


def declared_sensitivity(clip: float, steps: int) -> float:
    """Return how far one replaced record moves all that a client's steps add noise to, at most.

    A step adds noise of standard deviation sigma to a sum of gradients of length at most `clip`,
    which a replaced record moves by 2 clip; `steps` of them, each chosen after the last one, are as
    one Gaussian mechanism whose sensitivity is sqrt(steps) times that (Dong, Roth, Su 2022,
    Corollary 2). Which records a step draws is not counted on.
    """
    return 2.0 * clip * math.sqrt(steps)
