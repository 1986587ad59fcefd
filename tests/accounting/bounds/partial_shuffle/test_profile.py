"""The bound from a local profile alone: numbers, never below exact divergences, input errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle import profile as profiles
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve, profile_delta
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from fl_shuffle.errors import InvalidValueError


def ask(**values: object) -> float:
    return bound(Question(delta=1e-6, **values)).epsilon  # type: ignore[arg-type]


def test_a_small_delta0_counts_once_not_once_a_client() -> None:
    pure = ProfileCurve(profiles.approximate(1.0), 10**4)
    impure = ProfileCurve(profiles.approximate(1.0, 1e-9), 10**4)
    for epsilon in (0.0, 0.01, 0.03, 0.05, 2.0):
        assert pure.delta(epsilon) <= impure.delta(epsilon) <= pure.delta(epsilon) * 1.001 + 4e-9


@pytest.mark.parametrize("value", ["1", "1:x", "a:b", "-1:0.1", "1:2", "gdp:x", "gdp:-1"])
def test_bad_profiles_are_refused(value: str) -> None:
    with pytest.raises(InvalidValueError):
        Question.from_mapping({"profile": value, "clients": 10, "delta": 1e-6})


def test_profiles_bound_what_they_stand_for() -> None:
    profile = profiles.approximate(1.0, 1e-3)
    gap = (math.exp(1.0) - math.exp(0.4)) / (1.0 + math.exp(1.0))
    assert profile.local_delta(0.4) == pytest.approx(1e-3 + (1.0 - 1e-3) * gap, rel=1e-9)
    assert profile.local_delta(3.0) == pytest.approx(1e-3, rel=1e-9)
    assert profile.local_epsilon(1e-4) == math.inf


def test_no_epsilon_is_a_bad_one() -> None:
    """Bends that were two for round-off once made some deltas a thousand times too large."""
    profile = profiles.approximate(1.0)
    deltas = [profile_delta(profile, 99, epsilon) for epsilon in np.linspace(0.55, 0.65, 30)]
    assert np.all(np.diff(deltas) < 0.0)
