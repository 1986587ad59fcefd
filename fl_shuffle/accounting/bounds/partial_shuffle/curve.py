"""The sharper curve of one client in one batch of vector reports, Gaussian or Laplace."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, third_order_delta
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import LaplaceSplitLaw
from fl_shuffle.accounting.bounds.partial_shuffle.profile import laplace
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import convex_order_delta
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES


class PartialShuffleCurve:
    """Upper bounds on delta from partial shuffles; infinite where the theorem gives none.

    Everything in noise widths: `move` between the client's two means, its `radius`, the others'
    `radii` with their `counts`. The widest others are left out where that predicts less: a bound
    with fewer reports is a bound. `relative_error` says how much the number is worth: where it is
    small the others are told apart by their distance.
    """

    def __init__(
        self,
        move: float,
        radius: float,
        radii: FloatArray,
        counts: NDArray[np.int64],
        relative_error: float,
    ) -> None:
        self._in_rings = relative_error <= TOLERANCES.vector_relative_error
        self._setting: Setting | None = None
        for reach, count in zip(radii.tolist(), np.cumsum(counts).tolist(), strict=True):
            widest = max(radius, reach)
            spread = max(radius + reach, move)
            if (
                count < TOLERANCES.partial_shuffle_min_others
                or spread > TOLERANCES.partial_shuffle_max_spread
            ):
                continue
            if move > spread * (1.0 - TOLERANCES.partial_shuffle_round_off):
                move = spread  # larger is safe, and the profiles then coincide
            setting = Setting(count, move, spread, max(2.0 * widest, spread), reach, radius)
            known: Setting | None = self._setting
            if known is None or setting.predicted_mu < known.predicted_mu:
                self._setting = setting
        self._mu = math.inf if self._setting is None else self._setting.predicted_mu
        if self._setting is not None and not _gains(self._setting):
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
        return third_order_delta(self._setting, epsilon, in_rings=self._in_rings)


@lru_cache(maxsize=1 << 12)
def _gains(setting: Setting) -> bool:
    """Whether the theorem says more than the local curve; predictions of little gain are tried."""
    share = setting.predicted_mu / setting.move
    if share > TOLERANCES.partial_shuffle_max_share:
        return False
    if share <= TOLERANCES.partial_shuffle_sure_share:
        return True
    places = [sds * setting.predicted_mu for sds in TOLERANCES.partial_shuffle_tried_sds]
    return any(
        third_order_delta(setting, epsilon, in_rings=True)
        < TOLERANCES.partial_shuffle_max_share * float(gaussian_profile(epsilon, setting.move))
        for epsilon in places
    )


class LaplaceShuffleCurve:
    """The same for Laplace reports in any dimension, by convex order; l1 norms in noise scales."""

    def __init__(
        self, move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
    ) -> None:
        self._move = move
        self._best: tuple[int, float, float] | None = None
        self.predicted_mu = math.inf
        for reach, count in zip(radii.tolist(), np.cumsum(counts).tolist(), strict=True):
            spread = max(radius + reach, move)
            if (
                count < TOLERANCES.partial_shuffle_min_others
                or spread > TOLERANCES.partial_shuffle_max_laplace_spread
                or reach == 0.0
            ):
                continue
            # Two independent halves of the pair's variance against a report `spread` away.
            mu = 2.0 * math.exp(0.5 * spread) * -math.expm1(-0.5 * move) / math.sqrt(count)
            if mu < self.predicted_mu:
                self.predicted_mu, self._best = mu, (count, spread, reach)

    @property
    def credit(self) -> bool:
        """Whether the theorem is expected to say more than the local curve."""
        return (
            self._best is not None
            and self.predicted_mu < TOLERANCES.partial_shuffle_max_share * self._move
        )

    def delta(self, epsilon: float) -> float:
        """An upper bound on the divergence at `epsilon` >= 0, both directions; may be infinite."""
        if self._best is None or epsilon >= self._move:
            return math.inf
        return _convex_order(self._move, *self._best, epsilon)


@lru_cache(maxsize=1 << 14)
def _convex_order(move: float, count: int, spread: float, reach: float, epsilon: float) -> float:
    law = LaplaceSplitLaw(epsilon, move, spread)
    local = float(laplace_profile(epsilon, move)) * TOLERANCES.profile_inflation
    return convex_order_delta(law, None, local, laplace(reach), count)
