"""The partial-shuffle bound for Gaussian reports, client unit, without certified error terms.

Independent of the product: closed forms through scipy's normal distribution, the dominating law's
moment generating function by Gauss-Legendre quadrature, the sum by a contour integral. Every free
parameter is an argument. Units: noise widths. mu = 2C/sigma, c = mu/2, X = e^(mu W - mu^2/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, roots_legendre


def excess(s, mu):
    """E(X - s)_+ = H_s of the pair mu apart, s > 0."""
    s = np.maximum(np.asarray(s, dtype=float), 1e-300)
    v = np.log(s) / mu
    return ndtr(mu / 2 - v) - s * ndtr(-mu / 2 - v)


def squared_excess(s, mu):
    """E(X - s)_+^2, s > 0."""
    s = np.maximum(np.asarray(s, dtype=float), 1e-300)
    v = np.log(s) / mu
    return (
        np.exp(mu * mu) * ndtr(1.5 * mu - v)
        - 2 * s * ndtr(0.5 * mu - v)
        + s * s * ndtr(-0.5 * mu - v)
    )


def squared_excess_any(s, mu):
    """E(X - s)_+^2 for every real s."""
    s = np.asarray(s, dtype=float)
    whole = np.expm1(mu * mu) + (1 - s) ** 2
    return np.where(s > 0, squared_excess(np.maximum(s, 1e-300), mu), whole)


def convex_order_curve(t, a, mu):
    """B1(t): twice the integral from t of the dominating stop-loss transform."""
    t = np.asarray(t, dtype=float)
    d = np.maximum(-t, 0.0)
    below = (
        squared_excess(a, mu)
        + 2 * (1 - a) * d
        + d * d
        + a * a * (squared_excess(1 / a, mu) - squared_excess((1 + d) / a, mu))
    )
    return np.where(t >= 0, squared_excess(a + np.maximum(t, 0.0), mu), below)


def variance_curve(t, a, mu):
    """B2(t) = a^2 V + (1 - a - t)^2."""
    return a * a * np.expm1(mu * mu) + (1 - a - np.asarray(t, dtype=float)) ** 2


@dataclass(frozen=True)
class Law:
    """1 - a + a kappa (X - 1), {X < x1} collapsed; above `cut` the root mean square (inf: none)."""

    mu: float
    a: float
    kappa: float
    x1: float
    cut: float

    @property
    def scale(self) -> float:
        return self.a * self.kappa

    @property
    def kept(self) -> float:
        return float(ndtr(-(np.log(self.x1) / self.mu + self.mu / 2)))

    @property
    def floor(self) -> float:
        end = np.log(self.x1) / self.mu
        collapsed = float(ndtr(end - self.mu / 2) / ndtr(end + self.mu / 2))
        return 1 - self.a + self.scale * (collapsed - 1)

    def uncut_squared(self, t):
        """E(L' - t)_+^2 before the cut."""
        t = np.asarray(t, dtype=float)
        s = 1 + (t - 1 + self.a) / self.scale
        low = (1 - self.kept) * np.maximum(self.floor - t, 0.0) ** 2
        at = np.maximum(s, self.x1)
        first, second = excess(self.x1, self.mu), squared_excess(self.x1, self.mu)
        gap = self.x1 - s
        inside = second + 2 * gap * first + gap**2 * self.kept
        high = np.where(s >= self.x1, squared_excess(at, self.mu), inside)
        return low + self.scale**2 * high

    def certificate(self, points: int = 4000) -> float:
        """The least E(L' - t)_+^2 / min(B1, B2) on a grid of t; at least one if L' dominates."""
        reach = 6 * np.sqrt(np.expm1(self.mu**2)) * self.a
        t = np.concatenate(
            [np.linspace(self.floor - reach, 0, points), np.linspace(0, 2 * reach, points // 4)]
        )
        least = np.minimum(
            convex_order_curve(t, self.a, self.mu), variance_curve(t, self.a, self.mu)
        )
        return float((self.uncut_squared(t) / least).min())

    def atoms(self, order: int = 160) -> tuple[np.ndarray, np.ndarray]:
        """Quadrature nodes and masses of the cut law (the two atoms are exact)."""
        mu = self.mu
        start = np.log(self.x1) / mu + mu / 2
        top = 1 + (self.cut - 1 + self.a) / self.scale
        end = np.log(top) / mu + mu / 2
        x, w = roots_legendre(order)
        z = start + (end - start) * (x + 1) / 2
        mass = w * (end - start) / 2 * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        values = 1 - self.a + self.scale * (np.exp(mu * z - mu * mu / 2) - 1)
        above = float(ndtr(-end))
        jump = self.scale * np.sqrt(float(squared_excess(top, mu)) / above)
        return (
            np.concatenate([[self.floor], values, [self.cut + jump]]),
            np.concatenate([[1 - self.kept], mass, [above]]),
        )


def squared_sum(values, masses, count: int, q: float, theta: float | None = None) -> float:
    """E(q + S)_+^2 by (1/2 pi) int 2 e^(sq) M(s)^count / s^3 along Re s = theta."""
    if theta is None:
        theta = saddle_point(values, masses, count)
    log_m = np.log(masses @ np.exp(theta * values))
    tilted = masses * np.exp(theta * values)
    tilted = tilted / tilted.sum()
    sd = np.sqrt(max(tilted @ values**2 - (tilted @ values) ** 2, 1e-300) * count)
    period = 2 * np.pi / (40 / theta + 24 * sd + q)
    top = min(9 / sd, 4000 / theta) if sd * theta < 60 else 9 / sd
    k = np.arange(0, int(np.ceil(max(top, 12 * theta) / period)) + 1) * period
    total = np.zeros(k.size, dtype=complex)
    for start in range(0, k.size, 2000):
        part = k[start : start + 2000]
        total[start : start + 2000] = np.log(np.exp(1j * np.multiply.outer(part, values)) @ tilted)
    s = theta + 1j * k
    terms = (2 * np.exp(count * total + 1j * k * q) / s**3).real
    terms[0] *= 0.5
    return float(np.exp(count * log_m + theta * q) * period / np.pi * terms.sum())


def saddle_point(values, masses, count: int) -> float:
    """The minimiser of count log M(theta) - 2 log theta, by bisection."""
    low, high = 1e-6, 600.0 / max(values[-1], 1e-9)
    for _ in range(100):
        theta = np.sqrt(low * high)
        tilted = masses * np.exp(theta * values)
        slope = count * (tilted @ values) / tilted.sum() - 2 / theta
        low, high = (theta, high) if slope < 0 else (low, theta)
    return float(np.sqrt(low * high))


@dataclass(frozen=True)
class Swap:
    """m, the caps zeta and zeta_t, the Chernoff rate, a head weight between 1 and zeta."""

    m: float
    zeta: float
    zeta_t: float
    rate: float
    middle: float


def floor_probability(mu: float, count: int, swap: Swap, order: int = 400) -> float:
    """E(1 - S/m)_+ <= e^(rate m - 1)/(rate m) E e^(-rate S), all others at distance c = mu/2."""
    c = mu / 2
    x, w = roots_legendre(order)
    end = np.log(swap.zeta) / c + c / 2
    low = -12.0
    z = low + (end - low) * (x + 1) / 2
    mass = w * (end - low) / 2 * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    log_moment = np.log(
        mass @ np.exp(-swap.rate * np.exp(c * z - c * c / 2))
        + float(ndtr(-end)) * np.exp(-swap.rate * swap.zeta)
    )
    scaled = swap.rate * swap.m
    return float(np.exp(scaled - 1 + count * log_moment) / scaled)


def swap_costs(mu: float, count: int, a: float, swap: Swap) -> float:
    """Everything added to the main term, but for the cut."""
    c = mu / 2
    local = float(excess(a, mu))
    cost = local * floor_probability(mu, count, swap)
    cost += count / swap.m * (local + a - 1) * float(excess(swap.zeta, c))
    grown = np.exp(2 * c * c)
    slot = grown * float(excess(swap.zeta_t / grown, c))
    return cost + count / swap.m**2 * slot


def bent(values, eta: float, eta_h: float, b: float):
    """phi(x) = (1 - eta_h) x + (eta_t + eta_h)(x + b)_+^2 / (4b)."""
    return (1 - eta_h) * values + (eta + eta_h) * np.maximum(values + b, 0.0) ** 2 / (4 * b)


def head_weights(mu: float, swap: Swap) -> tuple[np.ndarray, np.ndarray]:
    """min(zeta, max(1, e^(cg + c^2/2))), spread to (1, middle, zeta) with its mean kept."""
    c = mu / 2
    grown = np.exp(c * c)
    nodes = np.array([1.0, swap.middle, swap.zeta])
    transform = grown * excess(nodes / grown, c)
    transform = transform - transform[-1]
    tail = -np.diff(transform) / np.diff(nodes)
    return nodes, np.append(1.0, tail) - np.append(tail, 0.0)


def delta_bound(
    mu: float, count: int, epsilon: float, swap: Swap, law: Law, q: float, b: float
) -> float:
    """The theorem's right-hand side at these parameters."""
    a = float(np.exp(epsilon))
    values, masses = law.atoms()
    main = 0.0
    for head, weight in zip(*head_weights(mu, swap), strict=True):
        shaped = bent(values, swap.zeta_t / swap.m, head / swap.m, b)
        main += weight * squared_sum(shaped, masses, count, q) / (4 * q)
    cut = (1 + swap.zeta_t / swap.m) * float(excess(a + law.cut, mu))
    return main / swap.m + count / swap.m * cut + swap_costs(mu, count, a, swap)
