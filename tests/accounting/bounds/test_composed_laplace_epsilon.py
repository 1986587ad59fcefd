"""Epsilon of composed Laplace reports, against dp-accounting's bounds from both sides."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon

DELTA = 1e-5


def reference(ratio: float, rounds: int, *, pessimistic: bool) -> float:
    one = pld.from_laplace_mechanism(
        1.0 / ratio,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=ratio / 500.0,
    )
    return float(one.self_compose(rounds).get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize("ratio", [0.5, 2.0, 5.0])
@pytest.mark.parametrize("rounds", [6, 50])
def test_between_the_reference_bounds(ratio: float, rounds: int) -> None:
    epsilon = laplace_epsilon(DELTA, ratio, rounds)
    assert epsilon >= reference(ratio, rounds, pessimistic=False) * (1.0 - 1e-6)
    assert epsilon <= reference(ratio, rounds, pessimistic=True) * 1.02


@pytest.mark.parametrize("ratio", [0.5, 2.0, 30.0, 150.0])
def test_more_rounds_never_cost_less(ratio: float) -> None:
    """Large losses once made huge round-off masses far below the answer look like the answer."""
    epsilons = [laplace_epsilon(DELTA, ratio, rounds) for rounds in range(1, 52)]
    assert np.all(np.diff(epsilons) > 0.0)
