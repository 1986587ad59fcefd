"""Renyi divergence of the shuffled pair, against sums of its own definition; the conversion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import linprog

import fl_shuffle as fs
from fl_shuffle.accounting.bounds import renyi
from fl_shuffle.accounting.bounds.published import (
    girgis_lower_rdp,
    girgis_upper_rdp,
    reached_epsilon,
)
from fl_shuffle.accounting.bounds.renyi import CloneRenyi, best_order, rdp_delta, rdp_epsilon
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_delta
from tests.oracles import (
    hockey_stick,
    krr_matrix,
    rappor_matrix,
    shuffled_law,
    worst_curve,
    worst_of,
)

ORDERS = (2, 4, 16, 64)


Masses = dict[tuple[int, ...], Any]


def divergence(p: Masses, q: Masses, order: float) -> float:
    """D_order(p || q) with 40 digits."""
    with mp.workdps(40):
        terms = [mp.mpf(p[key]) ** order * mp.mpf(q[key]) ** (1 - mp.mpf(order)) for key in q]
        return float(mp.log(mp.fsum(terms)) / (order - 1))


def pair_of(epsilon0: float, clients: int) -> tuple[Masses, Masses]:
    """The distributions of (A + D, C - A + 1 - D) and of (A + 1 - D, C - A + D), term by term."""
    first: Masses = {}
    second: Masses = {}
    with mp.workdps(40):
        clone = mp.exp(-mp.mpf(epsilon0))
        high = 1 / (1 + clone)
        for c in range(clients):
            some = mp.binomial(clients - 1, c) * clone**c * (1 - clone) ** (clients - 1 - c)
            for a in range(c + 1):
                mass = some * mp.binomial(c, a) / 2**c
                for d, chance in ((1, high), (0, 1 - high)):
                    one, other = (a + d, c - a + 1 - d), (a + 1 - d, c - a + d)
                    first[one] = first.get(one, 0) + mass * chance
                    second[other] = second.get(other, 0) + mass * chance
    return first, second


@pytest.mark.parametrize("epsilon0", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("clients", [1, 2, 3, 30])
def test_divergence_of_few_clients_is_that_of_the_pair(epsilon0: float, clients: int) -> None:
    """Both directions, orders from near one to where epsilon0 is the limit."""
    first, second = pair_of(epsilon0, clients)
    ours = CloneRenyi(epsilon0, clients)
    for order in (1.001, 1.5, *ORDERS, 500.0):
        for p, q in ((first, second), (second, first)):
            exact = divergence(p, q, order)
            assert exact * (1.0 - 1e-13) <= ours.divergence(order) <= exact * (1.0 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon0", [0.5, 1.0, 2.0])
def test_divergence_of_many_clients_is_the_double_sum(epsilon0: float) -> None:
    """The double sum over C and A of the pair's own masses with 30 digits, n = 10,000."""
    n = 9_999
    with mp.workdps(30):
        p = mp.exp(-mp.mpf(epsilon0))
        high = 1 / (1 + p)
        mean, reach = float(n * p), 8.5 * math.sqrt(float(n * p * (1 - p)))
        moments = [mp.mpf(0)] * len(ORDERS)
        total = mp.mpf(0)
        for m in range(math.floor(mean - reach) + 1, math.ceil(mean + reach) + 1):
            # m = C + 1 reports, a of them 0: P = high Tri(a - 1, .) + (1 - high) Tri(a, .), and
            # the two trinomial masses are to each other as a to b = m - a.
            c = m - 1
            outer = mp.binomial(n, c) * p**c * (1 - p) ** (n - c) / mp.mpf(2) ** c
            far = 9.5 * math.sqrt(m) / 2
            a = math.floor(m / 2 - far)
            mass = outer * mp.binomial(c, a - 1)
            for a in range(a, math.ceil(m / 2 + far)):  # noqa: B020
                b = m - a
                other = mass * b / a
                first, second = high * mass + (1 - high) * other, (1 - high) * mass + high * other
                ratio, power = first / second, second
                total += second
                exponent = 0
                ratios = ratio
                for place, order in enumerate(ORDERS):
                    while exponent < order:
                        exponent = max(1, 2 * exponent)
                        ratios = ratio if exponent == 1 else ratios * ratios
                    moments[place] += power * ratios
                mass = other  # Tri(a, b - 1) is Tri(a' - 1, b') of the next a' = a + 1
        assert abs(total - 1) < 1e-15
        exact = [float(mp.log(x) / (o - 1)) for x, o in zip(moments, ORDERS, strict=True)]
    ours = [CloneRenyi(epsilon0, n + 1).divergence(order) for order in ORDERS]
    np.testing.assert_allclose(ours, exact, rtol=1e-9)
    assert all(mine >= true for mine, true in zip(ours, exact, strict=True))


@pytest.mark.parametrize("epsilon0", [1.0, 3.0])
def test_cells_and_grid_only_add_and_little(
    monkeypatch: pytest.MonkeyPatch, epsilon0: float
) -> None:
    """Cells of m and a grid of t only raise the divergence, and by little."""
    exact = CloneRenyi(epsilon0, 5000)
    orders = (1.5, 2.0, 30.0, 60.0)
    expected = [exact.divergence(order) for order in orders]
    monkeypatch.setattr(renyi, "EXACT_ATOMS", 100)
    monkeypatch.setattr(renyi, "CELL_ATOMS", 20_000)
    coarse = CloneRenyi(epsilon0, 5000)
    found = [coarse.divergence(order) for order in orders]
    assert found != expected
    for rough, fine in zip(found, expected, strict=True):
        assert fine <= rough < fine * 1.1
    monkeypatch.setattr(renyi, "CELL_ATOMS", 10**9)
    fine_cells = CloneRenyi(epsilon0, 5000)
    for order, fine in zip(orders, expected, strict=True):
        assert fine < fine_cells.divergence(order) < fine * (1.0 + 1e-4)


@pytest.mark.parametrize("matrix", [krr_matrix(1.0, 2), krr_matrix(1.0, 3), rappor_matrix(1.0, 2)])
def test_no_data_set_exceeds_the_divergence(matrix: list[list[float]]) -> None:
    """Every pair of neighboring data sets of four clients, every order."""
    bound = CloneRenyi(1.0, 4)
    for others in itertools.combinations_with_replacement(matrix, 3):
        laws = [shuffled_law([own, *others]) for own in matrix]
        for p, q in itertools.permutations(laws, 2):
            for order in (1.25, 2.0, 16.0):
                assert divergence(p, q, order) <= bound.divergence(order) * (1.0 + 1e-12)


@pytest.mark.parametrize("clients", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("epsilon0", [1e-3, 1.0])
def test_divergence_falls_with_clients_and_grows_with_order(clients: int, epsilon0: float) -> None:
    """Close to 2 order tanh^2(eps0/2)/(n e^-eps0), to which it tends, and never below."""
    ours = CloneRenyi(epsilon0, clients)
    orders = (1.001, 2.0, 8.0)
    found = [ours.divergence(order) for order in orders]
    assert found == sorted(found)
    for order, value in zip(orders, found, strict=True):
        limit = 2.0 * order * math.tanh(0.5 * epsilon0) ** 2 * math.exp(epsilon0) / clients
        assert limit * (1.0 - 1e-7) < value < limit * (1.0 + 1e-3)


@pytest.mark.parametrize("epsilon0", [0.0, 1e-300, 1e-120, 1e-90, 1e-12, 60.0, 200.0])
@pytest.mark.parametrize("clients", [2, 1000, 10**7])
@pytest.mark.filterwarnings("error")
def test_divergence_at_the_ends_of_its_range(epsilon0: float, clients: int) -> None:
    ours = CloneRenyi(epsilon0, clients)
    found = [ours.divergence(order) for order in (math.nextafter(1.0, 2.0), 2.0, 1e4, 1e9)]
    assert found == sorted(found) and found[0] >= 0.0 and found[-1] <= epsilon0


def test_girgis_bounds_enclose_the_divergence() -> None:
    """Their lower bound holds for binary response, and their upper one exceeds the pair's."""
    for epsilon0, clients, order in itertools.product((0.5, 2.0), (100, 3000), ORDERS):
        exact = CloneRenyi(epsilon0, clients).divergence(order)
        assert girgis_lower_rdp(epsilon0, clients, order) <= exact
        assert exact <= girgis_upper_rdp(epsilon0, clients, order)


# --- Conversion ----------------------------------------------------------------------------------


def test_conversion_of_gaussian_noise_is_above_its_delta() -> None:
    """D = order mu^2/2: never below the exact delta, at the best order within a factor of 20."""
    mu, epsilon = 0.5, 1.5
    exact = gaussian_delta(epsilon, mu)
    deltas = [rdp_delta(order, 0.5 * order * mu**2, epsilon) for order in np.linspace(1.1, 40, 300)]
    assert exact <= min(deltas) < 20.0 * exact
    best = best_order(
        lambda order: rdp_delta(order, 0.5 * order * mu**2, epsilon), whole=False, largest=1e6
    )
    assert rdp_delta(best, 0.5 * best * mu**2, epsilon) < min(deltas) * 1.001


@pytest.mark.parametrize("order", [1.01, 2.0, 300.0])
def test_conversion_to_epsilon_inverts_that_to_delta(order: float) -> None:
    epsilon = rdp_epsilon(order, 0.3, 1e-6)
    assert rdp_delta(order, 0.3, epsilon) == pytest.approx(1e-6, rel=1e-9)


def test_reached_epsilon_is_below_what_binary_response_loses() -> None:
    """From the exact divergence of a shuffle of binary response: never above its exact epsilon."""
    delta, matrix = 1e-3, krr_matrix(2.0, 2)
    others = [matrix[0]] * 20
    p, q = shuffled_law([matrix[0], *others]), shuffled_law([matrix[1], *others])
    for order in (2.0, 4.0, 16.0):
        strength = max(divergence(p, q, order), divergence(q, p, order))
        found = reached_epsilon(2.0, order, strength, delta)
        assert max(hockey_stick(p, q, found), hockey_stick(q, p, found)) >= delta
        assert found > 0.1


@pytest.mark.parametrize(
    ("epsilon0", "epsilon", "delta", "order"),
    [(1.0, 0.3, 1e-3, 2), (1.0, 0.9, 1e-6, 8), (2.0, 0.05, 0.01, 4), (4.0, 1.5, 1e-4, 3)],
)
def test_four_outcomes_have_the_largest_divergence(
    epsilon0: float, epsilon: float, delta: float, order: int
) -> None:
    """Of all pairs within (epsilon, delta) and epsilon0, by a linear program over their losses: its
    divergence refutes every epsilon below, and no larger one."""
    losses = np.unique([*np.linspace(-epsilon0, epsilon0, 401), epsilon, -epsilon])
    ratio = np.exp(losses)
    within = [
        np.maximum(ratio - math.exp(epsilon), 0.0),
        np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0),
    ]
    found = linprog(
        -(ratio**order), A_ub=within, b_ub=[delta, delta], A_eq=[np.ones(losses.size), ratio],
        b_eq=[1.0, 1.0], method="highs-ds",
    )  # fmt: skip
    largest = math.log(-found.fun) / (order - 1)
    assert reached_epsilon(epsilon0, order, largest, delta) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize("clients", [2, 3, 7, 40])
def test_girgis_lower_epsilon_is_below_enumerated_binary_response(clients: int) -> None:
    """Every data set of two or three clients, and that of the derivation with more of them."""
    for epsilon0, delta in itertools.product((0.1, 1.0, 4.0, 12.0), (1e-2, 1e-6)):
        exact = two_values(epsilon0, clients)
        asked = {"epsilon0": epsilon0, "clients": clients, "delta": delta, "method": "girgis-lower"}
        found = fs.bound(**asked)  # type: ignore[arg-type]
        assert found.epsilon == 0.0 or exact(found.epsilon) >= delta * (1.0 - 1e-9)


def two_values(epsilon0: float, clients: int) -> Callable[[float], float]:
    if clients <= 3:
        return worst_curve(krr_matrix(epsilon0, 2), clients)
    return worst_of(krr_matrix(epsilon0, 2), [[krr_matrix(epsilon0, 2)[0]] * (clients - 1)])
