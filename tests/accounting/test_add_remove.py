"""The second relation of Gaussian sums, against exact laws: a unit taken out, its noise left."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.add_remove import add_remove_epsilon, add_remove_of
from fl_shuffle.accounting.bounds.sum_release.gaussian import sum_epsilon, sum_mu
from fl_shuffle.configuration.reading import parse_config
from tests.accounting.bounds.sum_release.test_gaussian_sums import divergence, law_of_sum

RADIUS = 1.0


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
def test_no_unit_taken_out_is_told_from_its_presence_better(delta: float) -> None:
    """The exact laws of three rounded reports, with a mean at the ball's edge and without it."""
    scales, grids = np.array([1.5, 0.8, 2.0]), np.array([0.01, 0.01, 0.02])
    shift, counts = np.full(3, 2.0 * RADIUS), np.ones(3, dtype=np.int64)
    mu = float(sum_mu(scales, shift, grids, counts)[0])
    removed = add_remove_epsilon(sum_epsilon(delta, mu), delta)
    others = np.array([0.3, -0.7])
    there = law_of_sum(np.array([RADIUS, *others]), scales, grids)
    gone = law_of_sum(np.array([0.0, *others]), scales, grids)
    for one, other in ((there, gone), (gone, there)):
        assert divergence(one, other, removed) <= delta
    assert divergence(there, gone, 0.97 * removed) > delta  # and nearly as well


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_half_the_gaussian_parameter_never_less(delta: float) -> None:
    for mu in np.geomspace(1e-3, 30.0, 40).tolist():
        exact = sum_epsilon(delta, 0.5 * mu)
        found = add_remove_epsilon(sum_epsilon(delta, mu), delta)
        assert found >= exact
        if sum_epsilon(delta, mu) > 0.0:
            assert found == pytest.approx(exact, rel=1e-6, abs=1e-12)
    assert add_remove_epsilon(math.inf, delta) is None


RECORD = {"unit": "record"}


@pytest.mark.parametrize(
    ("privacy", "applies"),
    [
        ({"unit": "client"}, True),
        (RECORD, True),
        ({**RECORD, "clip": "average"}, False),
        ({**RECORD, "client_clip": 0.1}, False),
        ({"unit": "client", "randomizer": "laplace"}, False),
        ({"unit": "client", "randomizer": "discrete-gaussian"}, False),
    ],
)
def test_where_taking_out_may_move_as_far_nothing_is_said(
    privacy: dict[str, object], applies: bool
) -> None:
    run = {"entropy": "system"} if "discrete" in str(privacy) else {}
    config = parse_config({"privacy": privacy, "run": run}).to_dict()
    found = add_remove_of(config, 1.0, 1e-5)
    assert (found == add_remove_epsilon(1.0, 1e-5)) if applies else found is None
    assert add_remove_of(config, None, 1e-5) is None
