"""No randomizer: the report of a baseline without privacy is the client's update."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray, Ids
from fl_shuffle.randomizers.base import LocalRandomizer, Noise

REACH = 2.0**14
"""An update is cut at this length, so that sums of reports are exact. Training that has diverged
makes longer ones; no other does."""
FLOAT64 = 52
"""Bits of a double behind the first: sums of reports below 2^52 steps have no rounding error."""


class NoRandomizer(LocalRandomizer):
    """The update itself, on a grid that is as fine as exact sums of all clients' reports allow."""

    def bound(self) -> FloatArray:
        """Return the length at which updates are cut."""
        return self.radius

    def grid(self) -> FloatArray:
        """Return [clients]: one step for all, the smallest power of two of which n reports add up
        to less than 2^53."""
        # 2^ceil(log2 n) >= n, and one bit more for the margin in `largest`.
        reports = int(np.ceil(np.log2(len(self.radius)))) + 1
        return np.ldexp(self.radius, reports - FLOAT64)

    def randomize(self, means: NDArray[np.float32], clients: Ids, noise: Noise) -> FloatArray:
        """Return the update itself."""
        return means.astype(np.float64)
