"""Gaussian DP below proven curves: from above, close, and infinite where nothing is enough."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from fl_shuffle.accounting import Accountant, ClientClass
from fl_shuffle.accounting.distributions.gaussian_cover import GaussianCover, smallest_cover
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.accounting.rounds.threat_model import ThreatModel


def exact_profile(epsilon: Any, mu: float) -> Any:
    """Balle and Wang's formula, by other means."""
    epsilon = np.asarray(epsilon, dtype=float)
    return norm.sf(epsilon / mu - mu / 2) - np.exp(epsilon) * norm.sf(epsilon / mu + mu / 2)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("rare", [1e-5, 1e-12])
def test_cover_of_a_gaussian_curve_is_that_curve(mu: float, rare: float) -> None:
    """Less what is given up: never above mu by more than the steps, and enough everywhere."""
    epsilon = gaussian_epsilon(rare, mu)
    found = smallest_cover(lambda at: gaussian_profile(at, mu), epsilon, rare)
    assert found.rare == rare and 0.9 * mu < found.mu <= mu * 1.002
    grid = np.linspace(0.0, 2.0 * epsilon, 4001)
    assert (exact_profile(grid, mu) <= exact_profile(grid, found.mu) + rare * (1 + 1e-9)).all()
    if rare == 1e-12 and mu >= 0.3:
        # Almost nothing is given up, so nothing smaller is enough.
        less = exact_profile(grid, 0.995 * mu) + rare
        assert (exact_profile(grid, mu) > less).any()
        assert found.mu > 0.995 * mu


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("rare", [1e-3, 1e-6])
def test_trade_off_of_laplace_noise_is_above_the_cover(scale: float, rare: float) -> None:
    """By the closed form of the trade-off function, and by hardly more than has to be."""
    move = 1.0 / scale

    def profile(epsilon: Any) -> Any:
        return np.maximum(0.0, -np.expm1((np.asarray(epsilon) - move) / 2.0))

    found = smallest_cover(profile, move, rare)
    errors = np.linspace(0.0, 1.0, 20001)[1:-1]
    low, high = math.exp(-move) / 2.0, 0.5
    exact = np.where(
        errors < low, 1.0 - math.exp(move) * errors,
        np.where(errors <= high, math.exp(-move) / (4.0 * errors), math.exp(-move) * (1 - errors)),
    )  # fmt: skip

    def gaussian(mu: float) -> Any:
        return norm.cdf(norm.isf(errors) - mu)

    assert (exact >= gaussian(found.mu) - rare - 1e-12).all()
    assert (
        profile(np.linspace(0, move, 4001))
        > exact_profile(np.linspace(0, move, 4001), 0.99 * found.mu) + rare
    ).any()


def test_nothing_and_everything() -> None:
    def profile(epsilon: Any) -> Any:
        return np.full(np.shape(epsilon), 1e-7)

    assert smallest_cover(profile, 0.0, 1e-5) == GaussianCover(0.0, 1e-5)
    assert smallest_cover(profile, math.inf, 1e-5) == GaussianCover(math.inf, 1e-5)
    # Certain almost up to epsilon = 3: only a mu with delta_mu = 1 - rare there is enough.
    certain = smallest_cover(lambda at: np.ones(np.shape(at)), 3.0, 1e-5)
    assert float(exact_profile(2.98, certain.mu)) >= 1.0 - 1e-5 - 1e-12
    assert math.isfinite(certain.mu)


def client(release: str, rounds: int = 4) -> tuple[Any, Accountant]:
    kind = ClientClass("gaussian", scale=4.0, radius=1.0, sensitivity=2.0)
    accountant = Accountant(
        [kind], np.zeros(400, dtype=np.int64), unit="client", schedule="aggregate", delta=1e-6,
        dimension=10, threat_model=ThreatModel(release=release),
    )  # fmt: skip
    accountant.count([(number, np.ones(400, dtype=bool)) for number in range(1, rounds + 1)])
    return accountant.of_client(3), accountant


def test_sums_of_gaussian_reports_have_an_exact_mu() -> None:
    spent, _ = client("sum")
    found = spent.gaussian_cover(1e-6)
    assert found.mu == pytest.approx(2.0 / (4.0 * math.sqrt(400)) * math.sqrt(4), rel=1e-6)
    assert found.rare == 1e-90


@pytest.mark.slow
def test_shuffled_reports_are_covered_at_every_epsilon() -> None:
    spent, accountant = client("reports")
    found = spent.gaussian_cover(1e-6)
    grid = np.linspace(0.0, 2.0 * spent.epsilon, 301)
    assert (spent.profile(grid) <= exact_profile(grid, found.mu) + 1e-6 * (1 + 1e-9)).all()
    # At delta, nothing is gained or lost by more than what is given up once more.
    assert gaussian_epsilon(2e-6, found.mu) <= 1.1 * spent.epsilon
    assert found.mu < 0.5 * math.sqrt(4)  # far below the client's own noise
    assert accountant.of_client(3) is not None
