"""Our laws as dp-accounting's distributions: upper bounds of what is exactly known, and close."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.engine.dp_accounting_export import to_dp_accounting
from fl_shuffle.accounting.laws.gaussian_mechanism import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.errors import ConfigError, InvalidValueError

GRID = np.linspace(0.0, 3.0, 61)


def gaussian_pair(mu: float) -> DominatingPair:
    epsilons = np.linspace(0.0, mu * (9.0 + 0.5 * mu), 400)
    return DominatingPair.from_curve(epsilons, gaussian_profile(epsilons, mu))


def test_without_dp_accounting_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = "^to_dp_accounting needs dp-accounting, which is not installed; pip install"
    with pytest.raises(ConfigError, match=message):
        to_dp_accounting(gaussian_pair(1.0))
    with pytest.raises(ConfigError, match=message):
        fs.to_dp_accounting(epsilon0=1.0, clients=100)


@pytest.mark.parametrize("discretization", [1e-3, 0.02])
@pytest.mark.parametrize("epsilon0", [0.013, 1.0])
def test_randomized_response_stays_an_upper_bound(epsilon0: float, discretization: float) -> None:
    pytest.importorskip("dp_accounting")
    # The losses lie off the lattice: +-epsilon0, and 1% of certain loss.
    half = math.expm1(epsilon0) / (1.0 + math.exp(epsilon0)) * 0.99
    pair = DominatingPair.from_curve([0.0, epsilon0], [half + 0.01, 0.01])
    law = to_dp_accounting(pair, discretization=discretization)
    ours = np.array([pair.delta(value) for value in GRID])
    theirs = np.array(law.get_delta_for_epsilon(GRID))
    assert np.all(theirs >= ours)
    assert law.get_delta_for_epsilon(GRID[-1]) == pytest.approx(0.01, rel=1e-9)
    # A split atom reaches at most one lattice step further than it lay.
    reach = [max(pair.delta(value - discretization), ours[0]) for value in GRID]
    assert np.all(theirs <= np.array(reach) * (1.0 + 1e-9))
    assert theirs[0] <= ours[0] + discretization**2


def test_composed_gaussian_rounds() -> None:
    pytest.importorskip("dp_accounting")
    law = to_dp_accounting(Composition([(gaussian_pair(0.3), 16)]).profile)
    for delta in (1e-3, 1e-6, 1e-10):
        exact = gaussian_epsilon(delta, 1.2)
        assert exact <= law.get_epsilon_for_delta(delta) <= 1.002 * exact
    exact_deltas = np.array([gaussian_delta(value, 1.2) for value in GRID])
    assert np.all(np.array(law.get_delta_for_epsilon(GRID)) >= exact_deltas)


def test_certain_loss_and_no_loss_at_all() -> None:
    pytest.importorskip("dp_accounting")
    nothing = Composition([(DominatingPair.from_curve([0.0], [0.0]), 5)]).profile
    assert to_dp_accounting(nothing).get_delta_for_epsilon(0.0) <= 1e-15
    certain = Composition([(DominatingPair.from_curve([0.0], [1.0]), 1)]).profile
    assert to_dp_accounting(certain).get_epsilon_for_delta(0.5) == math.inf
    with pytest.raises(InvalidValueError, match="discretization"):
        to_dp_accounting(nothing, discretization=0.0)
