"""The swap's end for Laplace reports: constants and costs.

Source: docs/research/proofs, section 18, Theorem 3.

omega is the noise around the center, so Z = omega/R_k <= e^(C_g) at every point. With zeta the
largest of these, w = Z: nothing is capped, and (B) of section 12 is zero. Z is below the ratio of
two densities C_g apart on one axis in the convex order, which bounds (A) and (C).
"""

from __future__ import annotations

import math

import numpy as np

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle import tripod
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    LAMBDA,
    LEAST_RADIUS,
    Groups,
    Swap,
)
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum
from fl_shuffle.accounting.round_off import LONG_SUM_ULPS, ROUND_OFF, ROUND_UP, UNIT

WEIGHT_CELLS = 96
"""Cells of the distribution of Z."""
LEAST_SHARE = 0.1
"""m is at least this share of N, or the swap is not worth it."""
RATES = np.geomspace(0.02, 80.0, 60)
"""Rates tried for (C), in units of one over the deviation of its sum."""
MOST_EXPONENT = 300.0
TANGENTS = np.linspace(1.0, 3.0, 60)
"""Where the function 1 - 1/v is replaced by its tangent."""

Weights = list[tuple[FloatArray, FloatArray, int]]
"""Values and masses of Z, and number of others, of each group."""


def weights_of(groups: Groups) -> Weights:
    """Return laws above Z of each group in the convex order."""
    laws = []
    for radius, count in groups:
        z, p = tripod.alone(np.array([max(radius, LEAST_RADIUS)]), WEIGHT_CELLS)
        laws.append((z[0], p[0], count))
    return laws


def choose_swap(groups: Groups, H: float, second: float, goal: float, share: float) -> Swap | None:
    """Return constants at which (A) and (C) cost about this share of `goal` each, or None.

    Parameters
    ----------
    groups : sequence of (float, int)
        (radius, number of others), radii in noise scales.
    H : float
        H_a(P, Q), the local delta.
    second : float
        E L^2 of the worst others; it decides alpha, of which any value is valid.
    goal : float
        The delta that is expected.
    share : float
        Of `goal`, for (A) and for (C).

    Returns
    -------
    Swap or None
        The constants, and what they cost.

    Notes
    -----
    Source: docs/research/proofs, section 18, Theorem 3. Every choice gives a bound: `cost` holds
    what was chosen. Direction of error: costs and weights are raised by 1e-9 and more.
    """
    laws = weights_of(groups)
    total = sum(n for _, _, n in laws)
    widest = max(max(radius, LEAST_RADIUS) for radius, _ in groups)
    # No weight is larger than this: (B) is zero.
    zeta = math.exp(widest) * (1.0 + ROUND_OFF)
    allowed = share * goal
    found = floor_of_sum(laws, math.log(min(allowed / H, 0.5)))
    if found is None:
        return None
    m, below = found
    # Theorem 2 of section 12 needs m >= zeta, or phi_w would not be nondecreasing.
    if not (m > LEAST_SHARE * total and zeta <= m):
        return None
    # This alpha minimizes alpha E(Z - 1)^2/2 + E L^2/(2 alpha), about what (C) and huber add.
    spread = sum(n * float(p @ (z - LAMBDA) ** 2) for z, p, n in laws) / total
    alpha = math.sqrt(second / spread)
    beta, above = drift_of_weights(laws, alpha / (2.0 * m), math.log(allowed * m))
    if not math.isfinite(beta):
        return None
    x = nodes_up_to(zeta)
    cost = (H * below + above / m) * (1.0 + 10.0 * ROUND_OFF)
    weights = tuple(node_weights(x, max(radius, LEAST_RADIUS)) for radius, _ in groups)
    return Swap(zeta, m, alpha, beta, x, weights, cost)


def nodes_up_to(zeta: float) -> FloatArray:
    """Return 0, lambda, .., zeta; any nodes in between are valid."""
    between = [zeta**0.33, zeta**0.67] if zeta > 8.0 else [math.sqrt(zeta)] if zeta > 2.0 else []
    return np.array([0.0, LAMBDA, *between, zeta])


def drift_of_weights(laws: Weights, kappa: float, log_goal: float) -> tuple[float, float]:
    """Return beta and the bound on (C) times m that goes with it.

    Parameters
    ----------
    laws : list
        As `weights_of` returns them.
    kappa : float
        alpha/(2 m).
    log_goal : float
        Logarithm of what (C) times m may be.

    Returns
    -------
    tuple of float
        The least beta found with E(kappa sum (w_k - lambda)^2 - beta)_+ <= e^`log_goal`, and that
        number; beta is infinite where no rate serves.

    Notes
    -----
    x_+ <= e^(tau x - 1)/tau, and e^(tau kappa (z - lambda)^2) is convex in z: the laws, above Z in
    the convex order, bound its mean. No z is larger than e^(C_g), where they end.
    """
    squares = [(z - LAMBDA) ** 2 for z, _, _ in laws]
    fourth = sum(n * float(p @ s**2) for s, (_, p, n) in zip(squares, laws, strict=True))
    tau = RATES / (kappa * math.sqrt(fourth))
    widest = max(float(s.max()) for s in squares)
    tau = tau[tau * kappa * widest <= MOST_EXPONENT]
    log_moment = np.zeros_like(tau)
    for s, (_, p, n) in zip(squares, laws, strict=True):
        # About one: nothing cancels where weights hardly vary.
        each = np.log1p(np.expm1(np.multiply.outer(tau * kappa, s)) @ p)
        log_moment += n * (each * ROUND_UP + 16.0 * UNIT)
    beta = np.maximum((log_moment - 1.0 - np.log(tau) - log_goal) / tau, 0.0)
    return float(np.min(beta, initial=math.inf)) * ROUND_UP + LONG_SUM_ULPS * UNIT, math.exp(
        log_goal
    )


def node_weights(x: FloatArray, c: float) -> FloatArray:
    """Return p_i of Theorem 3: weights of D' at the nodes.

    Parameters
    ----------
    x : ndarray, shape (nodes,)
        0, lambda = 1, .., zeta.
    c : float
        Radius of the group, in noise scales.

    Returns
    -------
    ndarray, shape (nodes,)
        p(lambda) may be negative.

    Notes
    -----
    For D' with D'(0) >= D'(1), from 1 on nondecreasing and convex, and linear between the nodes,

        E_omega D'(Z) = D'(1) + (D'(0) - D'(1)) E(1 - Z)_+ + sum_i (s_i - s_(i-1)) E(Z - x_i)_+,

    s_i its slopes: bounds on these expectations may be put in. E_omega f(Z) = E_R Z f(Z), and
    z (z - x)_+ is convex: the ratio on one axis bounds it. There, Z > s for a noise below
    (c - ln s)/2, with probability 1 - e^(-c/2) sqrt(s)/2; its integral from x to e^c is E_i.
    With V = 1/Z, which has mean one under omega, (1 - 1/V)_+ lies below (V - (2 v - v^2))_+/v^2
    for every v >= 1, its tangent at v: again the ratio on one axis bounds that.
    """
    top, root = math.exp(c), math.exp(-0.5 * c)
    above = (top - x[1:]) - root * (math.exp(1.5 * c) - x[1:] ** 1.5) / 3.0
    # The two terms cancel where x is near e^c: some units of the first are added.
    above = np.maximum(above, 0.0) * ROUND_UP + 64.0 * UNIT * top
    # Z reaches no further than e^c, and zeta is at least that.
    above = np.where(x[1:] >= top, 0.0, above)
    slope = np.append(-np.diff(above) / np.diff(x[1:]), 0.0)
    low = min(float(excess(2.0 * v - v * v, c)) / (v * v) for v in TANGENTS.tolist()) * ROUND_UP
    # Summation by parts of the formula above.
    p = np.concatenate([[low, 1.0 - slope[0] - low], slope[:-1] - slope[1:]])
    p[2:] = np.maximum(p[2:], 0.0)
    result: FloatArray = p + 16.0 * UNIT
    return result


def excess(s: float, c: float) -> float:
    """Return E(V - s)_+ of the ratio of two Laplace densities at distance `c`; any s <= e^c."""
    if s <= math.exp(-c):
        return 1.0 - s
    return max(-math.expm1(0.5 * (math.log(s) - c)), 0.0)


def convex_from_one(d: FloatArray, x: FloatArray) -> FloatArray:
    """Return D' of Theorem 3: one row a law, one column a node 0, lambda, .., zeta.

    At 0 it is at least that at lambda; from lambda on it is raised until it is nondecreasing and
    convex.
    """
    result = d.copy()
    result[:, 0] = np.maximum(d[:, 0], d[:, 1])
    slope = np.zeros(len(d))
    for i in range(2, d.shape[1]):
        step = x[i] - x[i - 1]
        result[:, i] = np.maximum(d[:, i], result[:, i - 1] + slope * step)
        slope = (result[:, i] - result[:, i - 1]) / step
    return result
