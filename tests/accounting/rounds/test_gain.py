"""Where the sharper bound says no more than the local curve it is not certified point by point."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.curve import PartialShuffleCurve
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType

RADII = np.array([0.165, 0.71, 1.35])


def test_a_small_batch_of_distant_reports_gives_no_credit() -> None:
    few = PartialShuffleCurve(0.142, 0.71, RADII, np.array([14, 10, 3]), 1e-3)
    assert few.predicted_mu < 0.9 * 0.142 and not few.credit and np.isinf(few.delta(0.1))
    near = PartialShuffleCurve(0.142, 0.71, RADII[:1], np.array([21]), 1e-3)
    assert near.credit and near.delta(0.05) < np.inf


def test_a_single_round_is_read_off_its_curve() -> None:
    """No dominating pair is made before rounds are composed; then it agrees."""
    library = RoundLibrary()
    kind = RoundType("gaussian", 5.0, 1.0, 2.0, ((1.0, 199),))
    once = library.epsilon({kind: 1}, 1e-5)
    assert not library._pairs
    composed = library.composition({kind: 1})
    assert composed is not None
    # The single number may take the rings that the composed curve does without.
    assert once <= composed.epsilon(1e-5) <= once * 1.1
    assert library.epsilon({kind: 2}, 1e-5) == pytest.approx(1.45 * once, rel=0.1)
