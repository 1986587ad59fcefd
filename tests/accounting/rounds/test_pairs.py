"""A round's curve as a dominating pair: never below exact compositions, and how far above."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_profile
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair


class Exact:
    """A curve known in closed form, in the place of a certified one; counts what it is asked."""

    def __init__(self, predicted_mu: float) -> None:
        self.predicted_mu = predicted_mu
        self.asked = 0

    def at(self, epsilon: float) -> float:
        raise NotImplementedError

    def delta(self, epsilon: float) -> float:
        self.asked += 1
        return self.at(epsilon)

    def local_delta(self, epsilon: float) -> float:
        return self.at(epsilon)


class Gaussian(Exact):
    def at(self, epsilon: float) -> float:
        return float(gaussian_profile(epsilon, self.predicted_mu))


class Finite(Exact):
    """The mechanism (P, its mirror image): a kink at every loss, none of them on the grid."""

    def __init__(self, p: np.ndarray) -> None:
        super().__init__(math.sqrt(float(p @ np.log(p / p[::-1]) ** 2)))
        self.p = p

    def at(self, epsilon: float) -> float:
        return float(np.maximum(self.p - math.exp(epsilon) * self.p[::-1], 0.0).sum())


def pair_of(curve: Any) -> Any:
    return shuffled_pair(curve)


# A power of two is the largest step, the float before it the smallest.
@pytest.mark.parametrize("mu", [0.01, 10 * 2.0**-7 - 1e-9, 10 * 2.0**-7, 0.3])
def test_rounds_of_a_gaussian_curve(mu: float) -> None:
    curve = Gaussian(mu)
    pair = pair_of(curve)
    assert curve.asked < 100
    for rounds, above in ((2, 2.5e-3), (10, 1.3e-3), (100, 1.3e-3), (1000, 1.5e-3)):
        truth = gaussian_epsilon(1e-6, mu * math.sqrt(rounds))
        found = Composition([(pair, rounds)]).epsilon(1e-6)
        assert truth * (1.0 - 1e-9) <= found <= truth * (1.0 + above)


@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_a_curve_with_kinks_against_enumeration(seed: int) -> None:
    """Three rounds of five outcomes: all 125 at every loss that occurs, and in between."""
    p = np.random.default_rng(seed).dirichlet(np.full(5, 4.0))
    pair = pair_of(Finite(p))
    loss = np.log(p / p[::-1])
    losses = np.array([sum(each) for each in product(loss, repeat=3)])
    masses = np.array([math.prod(each) for each in product(p, repeat=3)])
    whole = Composition([(pair, 3)])
    places = np.unique(losses[losses >= 0.0])
    for epsilon in (*places, *(0.5 * (places[1:] + places[:-1]))):
        truth = float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))
        assert truth <= whole.delta(float(epsilon)) * (1.0 + 1e-9) + 1e-13
