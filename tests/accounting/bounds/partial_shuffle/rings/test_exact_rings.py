"""A ring's upper tail against reports on a line, and the bound against mixed shuffles.

docs/proofs.md, section 12. Closed forms and permanents, nothing of the product but the bounds.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, third_order_delta
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    gaussian_law,
    split_excess,
)
from fl_shuffle.accounting.bounds.partial_shuffle.rings import rings


def stop_loss(p: float, q: float, a: float, t: float) -> float:
    """E(L - t)_+ for means p and q on a line, R's at zero: between the roots, in closed form."""

    def excess(z: float) -> float:
        return math.exp(p * z - p * p / 2) - a * math.exp(q * z - q * q / 2) - t

    z = np.linspace(-14.0, 14.0, 1001)
    sign = np.sign([excess(each) for each in z])
    places = np.flatnonzero(sign[1:] * sign[:-1] < 0)
    roots = [brentq(excess, z[i], z[i + 1], xtol=1e-14) for i in places]
    ends, total = [-60.0, *roots, 60.0], 0.0
    for low, high in pairwise(ends):
        if excess(0.5 * (max(low, -14.0) + min(high, 14.0))) > 0.0:
            shares = [ndtr(high - at) - ndtr(low - at) for at in (p, q, 0.0)]
            total += shares[0] - a * shares[1] - t * shares[2]
    return float(total)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.2])
@pytest.mark.parametrize("epsilon", [0.02, 0.3])
def test_upper_tail_is_attained_on_a_line(mu: float, epsilon: float) -> None:
    law = gaussian_law(epsilon, mu, mu)
    assert isinstance(law, ConvexOrderLaw)
    nodes = np.linspace(law.lower, law.upper, 200)
    for ring in rings(law, mu, 1e-9, nodes):
        far = ring.far
        for t in mu * np.array([-0.5, 0.05, 0.3, 1.0]):
            above = split_excess(epsilon, mu, np.array(far), np.array([t]))
            bound = float((above if t > 0.0 else law.stop_loss(np.array([t])))[0])
            exact = [stop_loss(far, q, math.exp(epsilon), t) for q in (far - mu, mu, 0.0)]
            assert max(exact) <= bound * (1 + 1e-9) + 1e-14
            assert max(exact) <= float(ring.atoms.stop_loss(np.array([t]))[0]) + ring.tail
            if t > 0.0 and bound > 1e-6 * mu:
                assert max(exact) >= 0.999 * bound, "P and Q at the ball's ends attain it"


def mixed_divergence(
    rng: np.random.Generator, means: tuple[float, float, float, float], first: int, n: int, a: float
) -> tuple[float, float]:
    """H_a of the shuffled reports and its standard error; means of P, Q, and two kinds of others.

    Densities of the multiset are permanents with three kinds of columns: coefficients of a
    product, one report after the other.
    """
    p, q, one, two = means
    z = rng.normal(size=(3000, n))
    z += np.concatenate([[p], np.full(first, one), np.full(n - 1 - first, two)])
    ratio = {m: np.exp((m - one) * z - (m * m - one * one) / 2) for m in (p, q, two)}
    size = n - first
    none, with_p, with_q = (np.zeros((len(z), size)) for _ in range(3))
    none[:, 0] = 1.0
    for i in range(n):
        other = ratio[two][:, i : i + 1]
        for table, mean in ((with_p, p), (with_q, q)):
            table[:, 1:] += table[:, :-1] * other
            table[:] += none * ratio[mean][:, i : i + 1]
        none[:, 1:] += none[:, :-1] * other
        scale = none.max(axis=1, keepdims=True)
        for table in (none, with_p, with_q):
            table[:] /= scale
    lost = np.maximum(1.0 - a * with_q[:, -1] / with_p[:, -1], 0.0)
    return float(lost.mean()), float(lost.std() / math.sqrt(len(z)))


@pytest.mark.parametrize(("n", "mu", "epsilon"), [(21, 0.1, 0.022), (60, 0.3, 0.03)])
def test_bound_holds_for_two_kinds_of_others(n: int, mu: float, epsilon: float) -> None:
    rng = np.random.default_rng([1643, n])
    bound = third_order_delta(Setting(n - 1, mu, mu, mu, mu / 2, mu / 2), epsilon)
    closest = 0.0
    for one, two in ((0.0, mu), (mu / 2, mu), (0.2 * mu, 0.7 * mu)):
        for p, q in ((0.0, mu), (mu, 0.0)):
            found, error = mixed_divergence(rng, (p, q, one, two), n // 2, n, math.exp(epsilon))
            assert found - 5 * error <= bound
            closest = max(closest, found / bound)
    assert closest > 0.4
