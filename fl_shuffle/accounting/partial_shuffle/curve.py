"""The sharper curve of one client in one batch of Gaussian vector reports."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.partial_shuffle.bound import Setting, third_order_delta
from fl_shuffle.accounting.privacy_loss import FloatArray

MIN_OTHERS = 10
MAX_SPREAD = 3.0
"""Beyond this many noise widths likelihood ratios vary too much to hide anybody."""
MAX_SHARE = 0.98


class PartialShuffleCurve:
    """Upper bounds on delta from partial shuffles; infinite where the theorem gives none.

    Everything in noise widths: `move` between the client's two means, its `radius`, the others'
    `radii` with their `counts`. The widest others are left out where that predicts less: a bound with
    fewer reports is a bound.
    """

    def __init__(
        self, move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
    ) -> None:
        self._setting: Setting | None = None
        for reach, count in zip(radii.tolist(), np.cumsum(counts).tolist(), strict=True):
            widest = max(radius, reach)
            spread = max(radius + reach, move)
            if count < MIN_OTHERS or spread > MAX_SPREAD:
                continue
            setting = Setting(count, move, spread, max(2.0 * widest, spread), reach, radius)
            known = self._setting
            if known is None or setting.predicted_mu < known.predicted_mu:
                self._setting = setting
        self._mu = math.inf if self._setting is None else self._setting.predicted_mu
        if self._mu > MAX_SHARE * move:
            self._setting = None

    @property
    def credit(self) -> bool:
        """Whether the theorem is expected to say more than the local curve."""
        return self._setting is not None

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve: not a bound, only a scale."""
        return self._mu

    def delta(self, epsilon: float) -> float:
        """An upper bound on the divergence at `epsilon` >= 0, both directions; may be infinite."""
        if self._setting is None:
            return math.inf
        return third_order_delta(self._setting, epsilon)
