"""Our distributions of privacy losses as those of Google's dp-accounting, if installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.numerics.dominating_pairs import LATTICE_MAX_LOSS, DominatingPair
from fl_shuffle.accounting.round_off import ROUND_UP
from fl_shuffle.errors import ConfigError, require_real

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

DeltaProfile = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Epsilons, increasing from 0 -> upper bounds on delta."""
EXPORT_SMALLEST_DELTA = 1e-16
"""A composed curve is followed down to here: the rest counts as certain loss."""
EXPORT_NODES = 1000
"""Points at which a composed curve is handed over: chords between them cost less than 1e-4."""


def to_dp_accounting(
    law: DominatingPair | DeltaProfile, *, discretization: float = 1e-4
) -> PrivacyLossDistribution:
    """Return a distribution of dp-accounting that dominates `law`, to compose it there.

    Parameters
    ----------
    law : DominatingPair or callable
        One round, or the curve of many: upper bounds on delta, in both directions, at epsilons that
        it is called with.
    discretization : float, default 1e-4
        Privacy losses, in nats, are multiples of it, 1e-6 to 1. It must be that of the other
        distributions.

    Returns
    -------
    PrivacyLossDistribution
        One distribution for both directions.

    Raises
    ------
    InvalidValueError
        For a discretization out of range.
    ConfigError
        If dp-accounting is not installed.

    Notes
    -----
    Neighbors: replace-one (REPLACE_ONE in dp-accounting); everything it is composed with must be
    about the same replacement. Direction of error: it stays an upper bound. An atom is split
    between its two neighbors on the grid so that likelihood ratios keep their mean, a composed
    curve is joined by chords, and what lies beyond their end counts as certain loss.
    dp-accounting's own arithmetic has round-off that it does not bound (about 1e-15 in delta for
    every composition).
    """
    step = require_real("discretization", discretization, minimum=1e-6, maximum=1.0)
    require_dp_accounting()
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    pair = law if isinstance(law, DominatingPair) else _pair_of(law, step)
    index, masses = pair.on_lattice(step)
    places, where = np.unique(index, return_inverse=True)
    # Rounded up: sums of atoms lose digits, and the total may exceed one a little, which is safe.
    summed = np.bincount(where, masses, minlength=places.size) * ROUND_UP
    kept = summed > 0.0
    certain = min(1.0, pair.infinite * ROUND_UP)
    probabilities = dict(zip(places[kept].tolist(), summed[kept].tolist(), strict=True))
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf(probabilities, step, certain, pessimistic_estimate=True)
    )


def require_dp_accounting() -> None:
    """Raise `ConfigError` unless dp-accounting can be imported."""
    if find_spec("dp_accounting") is None:
        raise ConfigError(
            "to_dp_accounting needs dp-accounting, which is not installed; "
            "pip install dp-accounting"
        )


def _pair_of(profile: DeltaProfile, step: float) -> DominatingPair:
    """Return the curve at multiples of `step`, as one pair."""
    last = math.floor(min(_end_of(profile) + step, LATTICE_MAX_LOSS) / step)
    places = np.unique(np.round(np.linspace(0.0, last, min(last, EXPORT_NODES) + 1)))
    return DominatingPair.from_curve(places * step, profile(places * step), grid=step)


def _end_of(profile: DeltaProfile) -> float:
    """Return where hardly anything is left of the curve but what never goes."""
    rest = float(profile(np.array([LATTICE_MAX_LOSS]))[0]) + EXPORT_SMALLEST_DELTA
    end = 2.0**-10
    while end < LATTICE_MAX_LOSS and float(profile(np.array([end]))[0]) > rest:
        end *= 1.25
    return min(end, LATTICE_MAX_LOSS)
