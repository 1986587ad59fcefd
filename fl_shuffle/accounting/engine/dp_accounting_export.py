"""Our laws of privacy losses as those of Google's dp-accounting, where that is installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import ConfigError, require_real

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


def to_dp_accounting(
    law: DominatingPair | Composition, *, discretization: float = 1e-4
) -> PrivacyLossDistribution:
    """A `PrivacyLossDistribution` that dominates `law`, to compose with other mechanisms there.

    `law` is one round (`DominatingPair`) or many (`Composition`), for replacing one unit; in
    dp-accounting's words the neighbouring relation is REPLACE_ONE, and everything it is composed
    with must be about the same replacement. The result is one law for both directions. Privacy
    losses, in nats, are multiples of `discretization`, which must be that of the other
    distributions.

    It stays an upper bound: an atom is split between its two neighbours on the lattice so that
    likelihood ratios keep their mean, a composed curve is joined by chords, and what lies beyond
    their end counts as certain loss. dp-accounting's own arithmetic has round-off that it does not
    bound (about 1e-15 in delta for every composition).

    Raises `InvalidValueError` for a discretization that is not in [1e-6, 1], and `ConfigError`
    where dp-accounting is not installed.
    """
    step = require_real("discretization", discretization, minimum=1e-6, maximum=1.0)
    require_dp_accounting()
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    pair = _pair_of(law, step) if isinstance(law, Composition) else law
    index, masses = pair.on_lattice(step)
    places, where = np.unique(index, return_inverse=True)
    summed = np.bincount(where, masses, minlength=places.size) * TOLERANCES.export_inflation
    kept = summed > 0.0
    certain = min(1.0, pair.infinite * TOLERANCES.export_inflation)
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


def _pair_of(composition: Composition, step: float) -> DominatingPair:
    """The composed curve at multiples of `step`, as one pair."""
    smallest = composition.infinite + TOLERANCES.export_smallest_delta
    end = composition.epsilon(smallest) if smallest < 1.0 else math.inf
    if not end <= TOLERANCES.lattice_max_loss:
        end = TOLERANCES.lattice_max_loss if smallest < 1.0 else 0.0
    last = math.floor(end / step) if end == TOLERANCES.lattice_max_loss else math.ceil(end / step)
    places = np.unique(np.round(np.linspace(0.0, last, min(last, TOLERANCES.export_nodes) + 1)))
    epsilons = places * step
    return DominatingPair.from_curve(epsilons, composition.profile(epsilons), grid=step)
