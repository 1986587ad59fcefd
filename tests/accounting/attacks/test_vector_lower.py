"""Lower bounds of chosen datasets: below exact small cases' truth and below every upper bound."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.reports import ReportClass, RoundType
from tests.accounting.chosen_vector_datasets import vector_lower_delta, vector_lower_epsilon
from tests.accounting.vector_oracles import binned, divergences


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_lower_bound_is_the_truth_of_its_dataset(noise: str) -> None:
    """n = 3, fine cells: close to the exact divergence of the best of the same datasets."""
    c, epsilon = 0.3, 0.15
    classes = [ReportClass(noise, 1.0, c, 2 * c, 3)]
    found = vector_lower_delta(classes, 0, epsilon)
    assert found.status is Status.LOWER_BOUND
    edges = np.sort(np.concatenate([np.linspace(-3.2, 3.2, 41), [-c, c]]))
    truths = []
    for at in (-c, 0.0):
        laws = [binned(noise, np.array(x), edges) for x in ([-c], [c], [[at, at]])]
        truths.append(float(divergences(*laws, np.array([epsilon]))[0, 0]))
    assert found.delta == pytest.approx(max(truths), rel=0.02)
    assert found.delta >= 0.999 * max(truths)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sensitivity", [2.0, 0.3])
def test_lower_stays_below_upper(noise: str, sensitivity: float) -> None:
    classes = [
        ReportClass(noise, 6.0, 1.0, sensitivity, 200),
        ReportClass(noise, 6.0, 0.4, 0.8, 300),
    ]
    for delta in (1e-3, 1e-6):
        low = vector_lower_epsilon(classes, 0, delta).epsilon
        high = VectorCurve(RoundType.of(classes, 0)).epsilon(delta)
        assert 0.0 <= low <= high
