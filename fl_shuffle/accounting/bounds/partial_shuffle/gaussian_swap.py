"""The swap's end for Gaussian reports: constants and costs.

Source: docs/research/proofs, section 12, Theorem 2.

Weights w = min(Z, zeta), Z = omega/R_k; any zeta > lambda > 0, m >= zeta, alpha > 0, beta >= 0:

    delta <= (1/m) e^(theta beta) prod_g (max_B sum_i p_gi D'(B; x_i))^(n_g/N) + cut
             + H E(1 - S/m)_+                                                          (A)
             + (1/m) sum_g n_g (H + a - 1) E(Z_g - zeta)_+                             (B)
             + (1/m) E((alpha/2m) sum_k (w_k - lambda)^2 - beta)_+,                    (C)

    phi_w(l) = l + ((lambda - w) l)_+/m + huber(l)/m,
    huber(l) = max over s in [-lambda, zeta - lambda] of s l - alpha s^2/2.

Z_g is lognormal with mean one and parameter C_g, the radius of group g.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import factor_law
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum
from fl_shuffle.accounting.round_off import LONG_SUM_ULPS, ROUND_OFF, ROUND_UP, UNIT

LAMBDA = 1.0
"""About the mean of the weights; at least one, which the nodes' weights rest on."""
COST_SHARE = 0.0015
"""Of the goal, for each of (A), (B), (C)."""
LEAST_RADIUS = 1e-6
"""Others nearer to the center than this, in noise standard deviations, count as this far: larger
is safe."""
LEAST_SHARE = 0.2
"""m is at least this share of N, or the swap is not worth it."""
TAUS_ABOVE = np.geomspace(0.02, 80.0, 40)
"""Rates tried for (C), in units of 1/((alpha/2m) (zeta - lambda)^2)."""
LOG_CAPS = np.linspace(0.01, 9.0, 400)
"""log zeta."""
Y = np.linspace(-12.0, 8.5, 500)
"""Nodes of the weights' distribution."""

Groups = Sequence[tuple[float, int]]
"""(radius, number of others)."""


@dataclass(frozen=True)
class Swap:
    """The constants for one epsilon and what (A), (B), (C) come to: `cost`."""

    zeta: float
    m: float
    alpha: float
    beta: float
    nodes: FloatArray
    """0, lambda, .., zeta: where w_k(h) is spread to."""
    weights: tuple[FloatArray, ...]
    """p_gi, for each group."""
    cost: float

    @property
    def slope(self) -> float:
        """phi_w rises by at most this, for every w."""
        return 1.0 + self.zeta / self.m

    def lift(self, x: FloatArray, w: float) -> FloatArray:
        """Return phi_w(x) of Theorem 2."""
        against = np.maximum((LAMBDA - w) * x, 0.0)
        result: FloatArray = x + (against + self.huber(x)) / self.m
        return result

    def huber(self, x: FloatArray) -> FloatArray:
        """Return max over s in [-lambda, zeta - lambda] of s x - alpha s^2/2."""
        # s x - alpha s^2/2 is concave in s with its top at x/alpha.
        s = np.clip(x / self.alpha, -LAMBDA, self.zeta - LAMBDA)
        result: FloatArray = s * x - 0.5 * self.alpha * s * s
        return result


def excess(t: FloatArray, c: float) -> FloatArray:
    """Return E(Z - t)_+ for t > 0, Z lognormal with mean one and parameter `c`; rounded up."""
    log = np.log(t) / c
    # E(Z - t)_+ = Phi(c/2 - ln(t)/c) - t Phi(-c/2 - ln(t)/c). The difference may cancel: some units
    # of its larger term are added.
    upper = ndtr(0.5 * c - log)
    result: FloatArray = np.maximum(upper - t * ndtr(-0.5 * c - log), 0.0) + 64.0 * UNIT * upper
    return result * ROUND_UP


@lru_cache(maxsize=1 << 10)
def _weights_law(c: float) -> tuple[FloatArray, FloatArray]:
    """Return atoms and masses above min(Z, last atom) in the convex order."""
    t, p = factor_law(np.array([c]), Y)
    return t[0], p[0]


def capped_weights(groups: Groups, zeta: float) -> list[tuple[FloatArray, FloatArray, int]]:
    """Return laws above min(Z_g, zeta) in the convex order, and how many of them there are."""
    laws = [(*_weights_law(c), n) for c, n in groups]
    return [(np.minimum(t, zeta), p, n) for t, p, n in laws]


def choose_swap(groups: Groups, H: float, a: float, second: float, goal: float) -> Swap | None:
    """Return constants at which (A), (B), (C) cost about `COST_SHARE` of `goal` each, or None.

    Parameters
    ----------
    groups : sequence of (float, int)
        (radius, number of others), radii in noise standard deviations.
    H : float
        H_a(P, Q), the local delta.
    a : float
        e^epsilon, at least 1.
    second : float
        E L^2 of the worst others; it decides alpha, of which any value is valid.
    goal : float
        The delta that is expected.

    Returns
    -------
    Swap or None
        The constants, and what they cost.

    Notes
    -----
    Source: docs/research/proofs, section 12, Theorem 2. Every choice gives a bound: `cost` holds
    what was chosen. Direction of error: costs and weights are raised by 1e-9 and more.
    """
    groups = [(max(c, LEAST_RADIUS), n) for c, n in groups]
    total = sum(n for _, n in groups)
    allowed = COST_SHARE * goal
    # (B) times m at every cap zeta; it falls with zeta, so the first zeta that fits is the
    # smallest.
    over = np.sum([n * excess(np.exp(LOG_CAPS), c) for c, n in groups], axis=0) * (H + a - 1.0)
    # 1/m is not known yet; m >= .77 N is likely, and the cost is told as it comes out.
    fits = np.flatnonzero(over * 1.3 <= allowed * total)
    if fits.size == 0:
        return None
    zeta = math.exp(float(LOG_CAPS[fits[0]]))
    # (A): the largest m with H E(1 - S/m)_+ <= `allowed`.
    found = floor_of_sum(capped_weights(groups, zeta), math.log(min(allowed / H, 0.5)))
    if found is None:
        return None
    m, below = found
    # Theorem 2 needs m >= zeta, or phi_w would not be nondecreasing.
    if not (m > LEAST_SHARE * total and zeta <= m):
        return None
    # E(Z - lambda)^2 = e^(C^2) - 1 + (1 - lambda)^2. This alpha minimizes alpha E(Z - lambda)^2/2 +
    # E L^2/(2 alpha), about what (C) and huber add for a client.
    spread = sum(n * (math.expm1(c * c) + (1.0 - LAMBDA) ** 2) for c, n in groups) / total
    alpha = math.sqrt(second / spread)
    beta, above = drift_of_weights(groups, zeta, alpha / (2.0 * m), math.log(allowed * m))
    if not math.isfinite(beta):
        return None
    nodes = [0.0, LAMBDA, zeta]
    # A node in between follows D' more closely. Any nodes are valid.
    if zeta > 2.0 * LAMBDA:
        nodes.insert(2, math.sqrt(LAMBDA * zeta))
    x = np.array(nodes)
    # (A), (B), and (C).
    cost = H * below + float(over[fits[0]]) / m + above / m
    weights = tuple(node_weights(x, c) for c, _ in groups)
    return Swap(zeta, m, alpha, beta, x, weights, cost * (1.0 + 10.0 * ROUND_OFF))


def drift_of_weights(
    groups: Groups, zeta: float, kappa: float, log_goal: float
) -> tuple[float, float]:
    """Return beta and the bound on (C) that goes with it.

    Parameters
    ----------
    groups : sequence of (float, int)
        (radius, number of others).
    zeta : float
        Cap of the weights.
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
    The expectation is at most e^(-1 - tau beta)/tau prod_g (E hbar(Z_g))^(n_g), hbar(z) =
    e^(tau kappa (z - lambda)^2) up to zeta and its tangent beyond (docs/research/proofs, section
    12, Theorem 2, step 5).
    """
    reach = zeta - LAMBDA
    tau = TAUS_ABOVE / (kappa * reach * reach)
    tau = tau[tau * kappa * reach * reach <= 300.0]
    rate = tau[:, None] * kappa
    # e^(tau kappa (z - lambda)^2) and its slope at zeta: hbar continues with that tangent.
    top = np.exp(rate * reach * reach)
    steep = top * 2.0 * rate * reach
    log_moment = np.zeros_like(tau)
    for c, n in groups:
        t, p = _weights_law(c)
        with np.errstate(over="ignore"):
            near = np.exp(rate * (np.minimum(t, zeta) - LAMBDA) ** 2)
        hbar = near + steep * np.maximum(t - zeta, 0.0)
        # hbar is convex, so atoms above Z in the convex order bound its mean. Beyond the last atom
        # it rises with slope `steep`, and E(Z - last)_+ <= Phi(c - Y_last).
        log_moment += n * np.log(hbar @ p + steep[:, 0] * float(ndtr(c - Y[-1])))
    # x_+ <= e^(tau x - 1)/tau, and e^(log_moment - 1 - tau beta)/tau = e^log_goal gives beta.
    beta = np.maximum((log_moment - 1.0 - np.log(tau) - log_goal) / tau, 0.0)
    return float(np.min(beta, initial=math.inf)) * ROUND_UP + LONG_SUM_ULPS * UNIT, math.exp(
        log_goal
    )


def node_weights(x: FloatArray, c: float) -> FloatArray:
    """Return p_i of Theorem 2, step 4: weights of D' at the nodes.

    Parameters
    ----------
    x : ndarray, shape (nodes,)
        0, lambda, .., zeta.
    c : float
        Radius of the group, in noise standard deviations.

    Returns
    -------
    ndarray, shape (nodes,)
        Rounded up.

    Notes
    -----
    Under omega Z = e^(c^2) Z', Z' of mean one. Below lambda E_omega(lambda - Z)_+ is at most the
    same of Z'; above, E_i = E_omega(Z - x_i)_+ has the slopes of the nodes (docs/research/proofs,
    section 12).
    """
    # p(0) = E(lambda - Z')_+/lambda, and E(lambda - Z')_+ = E(Z' - lambda)_+ + lambda - 1.
    low = (float(excess(np.array(x[1]), c)) + x[1] - 1.0) / x[1]
    growth = math.exp(c * c)
    # E_i = e^(C^2) E(Z' - x_i e^(-C^2))_+ for x_i = lambda, .., zeta; sigma_i is minus its slope.
    above = growth * excess(x[1:] / growth, c)
    slope = np.append(-np.diff(above) / np.diff(x[1:]), 0.0)
    # p(lambda) = 1 - sigma_1 - p(0), p(x_(i+1)) = sigma_i - sigma_(i+1). Raising any of them is
    # safe: D' is positive.
    p = np.concatenate([[low, 1.0 - slope[0] - low], slope[:-1] - slope[1:]])
    result: FloatArray = np.maximum(p, 0.0) * ROUND_UP + 16.0 * UNIT
    return result
