"""L = (P - aQ)/R for three Gaussian means in a plane, by quadrature; independent of the product.

`u`, `w`: means of P and Q seen from R's, in noise widths, shape [cases, 2]. Only the span of u and
w matters, so a plane is every dimension.
"""

from __future__ import annotations

import numpy as np


def grid(step: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in the plane and their standard normal masses."""
    axis = np.arange(-reach, reach + step / 2, step)
    nodes = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(-(nodes**2).sum(axis=1) / 2)
    kept = mass > 1e-12
    return nodes[kept], mass[kept] / mass.sum()


_NODES, _MASS = grid(0.3, 7.5)
_FINE = grid(0.05, 7.5)


def tail_moments(
    u: np.ndarray, w: np.ndarray, a: np.ndarray, t: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """E(L - t)_+ and E(L - t)_+^2, one t a case; the square to about three digits."""
    first = np.exp(u @ _NODES.T - (u**2).sum(axis=1)[:, None] / 2)
    second = np.exp(w @ _NODES.T - (w**2).sum(axis=1)[:, None] / 2)
    over = np.maximum(first - a[:, None] * second - t[:, None], 0.0)
    return over @ _MASS, over**2 @ _MASS


def shaped_square(
    u: np.ndarray,
    w: np.ndarray,
    a: float,
    t: np.ndarray,
    gain: float,
    loss: float,
    *,
    fine: bool = False,
) -> np.ndarray:
    """E(phi(L) - t)_+^2, phi(x) = x + gain x^+ + loss x^-."""
    nodes, mass = _FINE if fine else (_NODES, _MASS)
    first = np.exp(u @ nodes.T - (u**2).sum(axis=1)[:, None] / 2)
    second = np.exp(w @ nodes.T - (w**2).sum(axis=1)[:, None] / 2)
    values = first - a * second
    values = np.where(values > 0.0, (1 + gain) * values, (1 - loss) * values)
    return np.maximum(values - t[:, None], 0.0) ** 2 @ mass


def variance(u: np.ndarray, w: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Var L in closed form."""
    uu, ww, uw = (u * u).sum(axis=1), (w * w).sum(axis=1), (u * w).sum(axis=1)
    return np.expm1(uu) - 2 * a * np.expm1(uw) + a * a * np.expm1(ww)


def in_disc(rng: np.random.Generator, count: int, radius: float) -> np.ndarray:
    """Half of the points on the circle, half inside."""
    angle = rng.uniform(0, 2 * np.pi, count)
    length = radius * np.where(rng.random(count) < 0.5, 1.0, np.sqrt(rng.random(count)))
    return length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def client_triples(
    rng: np.random.Generator, count: int, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    """Three means in a disc of diameter mu: anywhere, collinear, or near the ends."""
    p, q, r = (in_disc(rng, count, mu / 2) for _ in range(3))
    third = count // 3
    for points in (p, q, r):
        points[:third, 1] = 0.0
    ends = np.array([[-mu / 2, 0.0], [mu / 2, 0.0]])
    for points in (p, q, r):
        points[third : 2 * third] = ends[rng.integers(0, 2, third)] * (
            1 - 0.1 * rng.random((third, 1)) ** 2
        )
    return p - r, q - r


def record_triples(
    rng: np.random.Generator, count: int, mu: float, move: float
) -> tuple[np.ndarray, np.ndarray]:
    """P and Q at most `move` apart, each at most mu from R."""
    u = in_disc(rng, 4 * count, mu)
    w = u + in_disc(rng, 4 * count, move)
    kept = np.flatnonzero((w * w).sum(axis=1) <= mu * mu)[:count]
    return u[kept], w[kept]
