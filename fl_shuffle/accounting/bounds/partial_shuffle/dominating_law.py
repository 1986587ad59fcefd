"""Finite distributions above the distribution of L at a Gram matrix.

Source: docs/research/proofs, section 12, "Finite distributions".

L = Lambda ell(g): Lambda = e^(b g' - b^2/2), ell(g) = e^(d_1 g - d_1^2/2) - a e^(-d_2 g - d_2^2/2),
d^2 = U + W - 2X, d_1 = (U - X)/d, d_2 = (W - X)/d, b^2 = U - d_1^2. Each factor's distribution is
spread to nodes with its mean kept, cell by cell, then their product to a `Grid`; what lies below
the first node goes up to it, and what is cut off above is told. Every such step is upwards in the
increasing convex order, once what was cut off is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.partial_shuffle.gram import Gram
from fl_shuffle.accounting.round_off import UNIT

B_ROUND_OFF = 64.0 * UNIT
"""b^2 is raised by this share of U: more b is above in the order."""
SPREAD_ATOMS = 1 << 14
"""Atoms that are spread to a grid at a time: their arrays lie in the second-level cache."""
FIT_NODES = 97, 41
"""Where the error of cells is told when they are fitted: nodes of `z` and of `y`."""
FIT_SHARES = 0.85, 0.7
"""At most this share of the cells of `z`, of `y` is fitted; the others lie as `CellEdges.of` has
them, for matrices unlike those of the fit."""
LEAST_ERROR = 1e-280
"""Added to the error of cells, which may be zero everywhere."""


@dataclass(frozen=True)
class CellEdges:
    """Where ell's (`z`) and Lambda's (`y`) standard normal variables are cut into cells."""

    z: FloatArray
    y: FloatArray

    @classmethod
    def of(cls, z: int, y: int) -> CellEdges:
        """Return nodes of this number; denser in the middle."""
        return cls(_denser(z, -6.5, 8.5, 1.6), _denser(y, -6.0, 8.0, 1.9))

    @classmethod
    def fitted(
        cls,
        counts: tuple[int, int],
        gram: Gram,
        a: float,
        growth: Callable[[FloatArray], FloatArray],
        share: float = 1.0,
    ) -> CellEdges:
        """Return nodes of these numbers (`z`, `y`), dense where these matrices' cells add most.

        Any nodes are valid: that cells are fitted decides how close the distributions are. Spread
        to its ends, a cell of width h adds about h^2/12 times f''(L) L'^2 times its mass to E f(L).
        `growth` is f'' but for a factor. With n(z) nodes per unit, the sum of the errors is about
        the integral of e(z)/n(z)^2, e(z) = E[f''(L) L'^2 | z] times the normal density: least for
        n(z) in proportion to the cube root of e(z). `share`: of the cells that are fitted, times
        `FIT_SHARES`.
        """
        places = cls.of(*FIT_NODES)
        errors = _errors_of_cells(places, gram, a, growth)
        usual = cls.of(*counts)
        return cls(
            _where_needed(usual.z, places.z, errors[0], share * FIT_SHARES[0]),
            _where_needed(usual.y, places.y, errors[1], share * FIT_SHARES[1]),
        )


def _errors_of_cells(
    nodes: CellEdges, gram: Gram, a: float, growth: Callable[[FloatArray], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return e(z) and e(y) of `CellEdges.fitted`: at each node the largest of the matrices.

    Relative to E f''(L) of each, so that the largest values of one do not hide the others.
    """
    d1, d2, b = (each[:, None] for each in _directions(gram))
    z, y = nodes.z, nodes.y
    up, down = np.exp(d1 * z - 0.5 * d1 * d1), a * np.exp(-d2 * z - 0.5 * d2 * d2)
    scale = np.exp(b * y - 0.5 * b * b)[:, :, None]
    values = scale * (up - down)[:, None, :]
    weight = growth(values) * np.exp(-0.5 * (y[:, None] ** 2 + z**2))
    steps = np.gradient(y)[:, None] * np.gradient(z)
    whole = np.maximum((weight * steps).sum(axis=(1, 2)), LEAST_ERROR)[:, None]
    of_z = np.einsum("gyz,y->gz", weight * scale**2, np.gradient(y)) * (d1 * up + d2 * down) ** 2
    of_y = np.einsum("gyz,z->gy", weight * values**2, np.gradient(z)) * b**2
    return (of_z / whole).max(axis=0), (of_y / whole).max(axis=0)


def _where_needed(usual: FloatArray, at: FloatArray, error: FloatArray, share: float) -> FloatArray:
    """Return as many nodes as `usual` has, between the same ends.

    This share of them is as dense as the cube root of `error`, the others are as in `usual`.
    """
    density = np.cbrt(error + LEAST_ERROR)
    below = np.append(0.0, np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(at)))
    places = np.linspace(0.0, 1.0, usual.size)
    wanted = share * below / below[-1] + (1.0 - share) * np.interp(at, usual, places)
    result: FloatArray = np.interp(places, wanted, at)
    return result


def _denser(count: int, low: float, high: float, bend: float) -> FloatArray:
    s = np.sinh(bend * np.linspace(-1.0, 1.0, count)) / math.sinh(bend)
    result: FloatArray = np.where(s < 0.0, -low * s, high * s)
    return result


def cells(z: FloatArray) -> FloatArray:
    """Return P(z_i < g < z_(i+1)) along the last axis, with relative accuracy in both tails."""
    # Right of zero both values of Phi are near one: P(z < g) = Phi(-z) keeps the digits of the
    # tail.
    side = np.where(z[..., :-1] > 0.0, -1.0, 1.0)
    result: FloatArray = side * (ndtr(side * z[..., 1:]) - ndtr(side * z[..., :-1]))
    return result


def to_nodes(t: FloatArray, mass: FloatArray, moment: FloatArray) -> FloatArray:
    """Split each cell's mass between its two ends t, mean kept; t may rise or fall."""
    step = np.diff(t, axis=-1)
    step = np.where(np.abs(step) > 1e-300, step, np.inf)
    # A mass m with first moment M, between the ends t_0 and t_1, keeps both if (M - m t_0)/(t_1 -
    # t_0) of it goes to t_1. Spreading with the mean kept is upwards in the convex order.
    right = np.clip((moment - mass * t[..., :-1]) / step, 0.0, mass)
    p = np.zeros((*mass.shape[:-1], mass.shape[-1] + 1))
    p[..., 1:] = right
    p[..., :-1] += mass - right
    return p


def ell_law(
    d1: FloatArray, d2: FloatArray, a: float, z: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return atoms and masses above ell, but for what lies beyond the last node.

    Parameters
    ----------
    d1, d2 : ndarray, shape (matrices,)
        Parameters of ell: see the module.
    a : float
        e^epsilon, at least 1.
    z : ndarray, shape (nodes,)
        Nodes of its standard normal variable.

    Returns
    -------
    tuple of ndarray
        Atoms and masses, one row a matrix.

    Notes
    -----
    ell is monotone in every cell, because its turning point is a node. Below the first node it is
    at most its value there, 0, or its maximum. What lies beyond the last one: `left_out`.
    """
    d1, d2 = d1[:, None], d2[:, None]
    # At most one of d_1, d_2 is negative (their sum is d > 0). Then ell' has one zero, g* = ln(-a
    # d_2/d_1)/d + (d_1 - d_2)/2, which becomes a node: ell is monotone in every cell.
    bent = (d1 < 0.0) | (d2 < 0.0)
    with np.errstate(all="ignore"):
        turn = np.log(-a * d2 / d1) / (d1 + d2) + 0.5 * (d1 - d2)
    turn = np.nan_to_num(np.where(bent, turn, z[0]), nan=z[0])
    if np.any(bent):
        wide = np.broadcast_to(z, (len(d1), z.size))
        z = np.sort(np.concatenate([wide, np.clip(turn, z[0], z[-1])], axis=1), axis=1)
    t = np.exp(d1 * z - 0.5 * d1 * d1) - a * np.exp(-d2 * z - 0.5 * d2 * d2)
    p = to_nodes(t, np.broadcast_to(cells(z), (len(d1), z.shape[-1] - 1)), _moments(d1, d2, a, z))
    # Mass above the last node goes to t_m. What that leaves out is paid for (`left_out`).
    p[:, -1] += ndtr(-z[..., -1])
    first = np.minimum(turn, z[..., :1])
    peak = np.exp(np.minimum(d1 * first - 0.5 * d1 * d1, 600.0))
    # Mass below z_0 goes to a value above ell there: to its maximum, without the subtracted part,
    # where the turning point is further out; to max(t_0, 0) for d_2 < 0; to t_0 else.
    low = np.where((d1 < 0.0) & (turn < z[..., :1]), peak, t[:, :1])
    low = np.where(d2 < 0.0, np.maximum(t[:, :1], 0.0), low)
    below = np.broadcast_to(ndtr(z[..., :1]), low.shape)
    return np.concatenate([low, t], axis=1), np.concatenate([below, p], axis=1)


def _moments(d1: FloatArray, d2: FloatArray, a: float, z: FloatArray) -> FloatArray:
    """Return E ell 1{z_i < g < z_(i+1)}."""
    # E e^(d g - d^2/2) 1{z_i < g < z_(i+1)} = P(z_i - d < g < z_(i+1) - d): the factor moves g by
    # d.
    result: FloatArray = cells(z - d1) - a * cells(z + d2)
    return result


def factor_law(b: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return min(Lambda, its value at the last node) spread to 0 and the nodes, mean kept."""
    b = b[:, None]
    t = np.exp(b * y - 0.5 * b * b)
    p = to_nodes(t, np.broadcast_to(cells(y), (len(b), y.size - 1)), cells(y - b))
    low = ndtr(y[:1])
    # Below y_0 Lambda lies between 0 and t_0, with first moment Phi(y_0 - b): spread to these two.
    share = np.clip(ndtr(y[:1] - b) / t[:, :1], 0.0, low)
    p[:, :1] += share
    p[:, -1] += ndtr(-y[-1])
    return np.concatenate([np.zeros_like(b), t], axis=1), np.concatenate([low - share, p], axis=1)


def left_out(d1: FloatArray, b: FloatArray, top: FloatArray, nodes: CellEdges) -> FloatArray:
    """Return what lies beyond the last nodes, shape (matrices,).

    That is E(ell - t_m)_+ 1{g > z_m} + E(Lambda - lambda_last)_+, where `top` = t_m and
    (ell - t_m)_+ <= e^(d_1 g - d_1^2/2) + (-t_m)_+.
    """
    end = nodes.z[-1]
    ell = ndtr(d1 - end) + np.maximum(-top, 0.0) * ndtr(-end)
    result: FloatArray = ell + ndtr(b - nodes.y[-1])
    return result


class Factors(NamedTuple):
    """Distributions of Lambda and of ell, one row a matrix.

    Their independent product dominates L.
    """

    scales: FloatArray
    """Atoms of Lambda's distribution ..."""
    scale_masses: FloatArray
    values: FloatArray
    """... and of ell's."""
    masses: FloatArray
    missing: FloatArray
    """The mean of what they leave out."""


def _directions(gram: Gram) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return d_1, d_2, and b, which is rounded up."""
    u, w, x = gram
    d = np.sqrt(np.maximum(u + w - 2.0 * x, 1e-30))
    d1, d2 = (u - x) / d, (w - x) / d
    # b^2 = U - d_1^2 = W - d_2^2 is the part that u and v share: Lambda's parameter.
    return d1, d2, np.sqrt(np.maximum(u - d1 * d1, 0.0) + B_ROUND_OFF * u)


def factors(gram: Gram, a: float, nodes: CellEdges) -> Factors:
    """Return the two distributions of every matrix."""
    d1, d2, b = _directions(gram)
    t, p = ell_law(d1, d2, a, nodes.z)
    f, r = factor_law(b, nodes.y)
    return Factors(f, r, t, p, left_out(d1, b, t[:, -1], nodes))


def law(gram: Gram, a: float, nodes: CellEdges) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return finite distributions above L at Gram matrices.

    Parameters
    ----------
    gram : Gram
        U, W, X of many matrices, each shape (matrices,).
    a : float
        e^epsilon, at least 1.
    nodes : CellEdges
        Cells of both factors.

    Returns
    -------
    tuple of ndarray
        Atoms and masses, one row a matrix, and the mean of what they leave out, shape (matrices,).

    Notes
    -----
    Source: docs/research/proofs, section 12, "Finite distributions". Every step is upwards in the
    increasing convex order, once what is left out is paid for.
    """
    f, r, t, p, missing = factors(gram, a, nodes)
    rows = len(f)
    # Given one factor the product is linear in the other, so spreading either is upwards.
    values = (f[:, :, None] * t[:, None, :]).reshape(rows, -1)
    return values, (r[:, :, None] * p[:, None, :]).reshape(rows, -1), missing


@dataclass(frozen=True)
class Grid:
    """Values scale sinh(step i), i = -below .. above, of which one is 0.

    The grid is common to all distributions.
    """

    scale: float
    step: float
    below: int
    nodes: FloatArray
    """Increasing."""

    @classmethod
    def of(cls, low: float, scale: float, high: float, count: int) -> Grid:
        """Return a grid of about `count` nodes, densest near zero.

        It reaches from `low` < 0 to exactly `high` > 0.
        """
        up, down = math.asinh(high / scale), math.asinh(-low / scale)
        above = max(2, round(count * up / (up + down)))
        step = up / above
        # `high` is a node exactly: in a bound it is K, where values are cut. The first node may lie
        # below `low`.
        below = max(2, math.ceil(down / step))
        return cls(scale, step, below, scale * np.sinh(step * np.arange(-below, above + 1)))

    def spread(self, values: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return masses of the nodes, above min(values, last node); and E(values - last node)_+."""
        ones = np.ones((len(values), 1))
        return self.spread_products(Factors(ones, ones, values, masses, ones))

    def spread_products(self, of: Factors) -> tuple[FloatArray, FloatArray]:
        """Return the same for all products of a scale and a value.

        A few rows at a time: their products, and all that is computed from them, stay in the
        second-level cache, and in the same memory, which is not asked for again.
        """
        rows, size = len(of.values), self.nodes.size - 1
        shape = of.scales.shape[1], of.values.shape[1]
        at_once = max(1, min(SPREAD_ATOMS // (shape[0] * shape[1]), rows))
        products = np.empty((4, at_once, *shape))
        cell = np.empty((at_once, *shape), dtype=np.intp)
        over = np.zeros(rows)
        mass, moment = np.empty((2, rows, size))
        for start in range(0, rows, at_once):
            part = slice(start, start + at_once)
            f, r, t, p = (each[part] for each in of[:4])
            kept, weight, *spare = products[:, : len(f)]
            np.multiply(f[:, :, None], t[:, None, :], out=kept)
            np.multiply(r[:, :, None], p[:, None, :], out=weight)
            if float(kept.max()) > self.nodes[-1]:
                np.subtract(kept, self.nodes[-1], out=spare[0])
                np.maximum(spare[0], 0.0, out=spare[0])
                over[part] = np.einsum("ijk,ijk->i", weight, spare[0])
            # Values below the first node are raised to it, which is upwards. Those above K are cut
            # to K, and `over` = E(L - K)_+ is paid for.
            np.clip(kept, self.nodes[0], self.nodes[-1], out=kept)
            places = cell[: len(f)]
            self._place(kept, spare[0], spare[1], out=places)
            places += size * np.arange(len(f))[:, None, None]
            kept *= weight
            flat, cells = places.ravel(), size * len(f)
            mass[part] = np.bincount(flat, weight.ravel(), cells).reshape(-1, size)
            moment[part] = np.bincount(flat, kept.ravel(), cells).reshape(-1, size)
        return to_nodes(self.nodes, mass, moment), over

    def _place(
        self, kept: FloatArray, place: FloatArray, root: FloatArray, out: NDArray[np.intp]
    ) -> None:
        """Find the cell of each value between the first and the last node.

        `place` and `root` are arrays to work in.
        """
        # asinh |u| = log(|u| + sqrt(1 + u^2)), at a third of the time of NumPy's arcsinh.
        np.multiply(kept, 1.0 / self.scale, out=place)
        np.multiply(place, place, out=root)
        root += 1.0
        np.sqrt(root, out=root)
        root += np.abs(place, out=place)
        np.log(root, out=root)
        np.copysign(root, kept, out=place)
        place *= 1.0 / self.step
        place += self.below
        np.minimum(place, self.nodes.size - 1.5, out=place)
        np.copyto(out, place, casting="unsafe")
