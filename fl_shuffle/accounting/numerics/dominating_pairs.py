"""Dominating pairs on finitely many privacy losses, built from one-round curves.

A pair (P, Q) dominates a mechanism if its hockey-stick divergence is at least the
mechanism's at every e^eps, negative eps included. Here P and Q live on finitely many
privacy losses ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle._internal.arrays import ComplexArray, FloatArray
from fl_shuffle.errors import InvalidValueError

LATTICE_RARE_MASS = 1e-60
"""Atoms below this become certain loss: large losses would only narrow the choice of tilts."""
LATTICE_MAX_LOSS = 600.0
"""Larger privacy losses count as certain: their exponentials overflow."""
LATTICE_SPECTRA = 6
"""Number of transforms of a pair that are kept, the last ones: a run's tilt changes slowly."""


@dataclass(frozen=True, eq=False)
class DominatingPair:
    """A symmetric pair of distributions through its privacy loss under P.

    It has atoms and a mass at infinity. `losses` increase and are symmetric about zero; `masses`
    are P's; Q's mass at loss l is e^-l times P's, and equals P's mass at -l. `infinite` is P's mass
    where Q has none.
    """

    losses: FloatArray
    masses: FloatArray
    infinite: float
    grid: float = 0.0
    """A step whose multiples all losses are, where one is known: no need to round them."""
    _tilts: dict[tuple[float, float, int], Any] = field(default_factory=dict, repr=False)
    """Results by (tilt, step): moments, and the last spectra by number of cells."""

    @classmethod
    def from_curve(
        cls, epsilons: ArrayLike, deltas: ArrayLike, *, grid: float = 0.0
    ) -> DominatingPair:
        """Return the least pair that dominates every mechanism whose curve is at most `deltas`.

        `epsilons` increase from 0 and `deltas` are upper bounds there, valid in *both* directions
        (data set D against D' and D' against D). Then u(-eps) = 1 - e^-eps + e^-eps u(eps) bounds
        the curve at negative eps. The true curve is convex in e^eps and below u at the nodes, hence
        below the lower convex envelope of the nodes and below the chords between them.

        `grid` may name a step of which all `epsilons` are multiples.

        Raises `InvalidValueError` unless `epsilons` starts at 0, increases, stays below 600, and
        `deltas` lie in [0, 1].
        """
        eps = np.asarray(epsilons, dtype=np.float64).ravel()
        u = np.asarray(deltas, dtype=np.float64).ravel()
        if eps.size == 0 or eps.size != u.size:
            raise InvalidValueError("deltas", u.size, f"needs one value per epsilon ({eps.size})")
        if not (eps[0] == 0.0 and np.all(np.diff(eps) > 0.0) and eps[-1] <= LATTICE_MAX_LOSS):
            raise InvalidValueError("epsilons", eps.tolist(), "must increase from 0 to at most 600")
        if not np.all((u >= 0.0) & (u <= 1.0)):
            raise InvalidValueError("deltas", u.tolist(), "must lie in [0, 1]")
        u = np.minimum.accumulate(u)
        # Nodes with the same e^eps in doubles are one; its first value bounds the others'.
        apart = np.append(True, np.diff(np.exp(eps)) > 0.0)
        eps, u = eps[apart], u[apart]
        kept = _envelope(eps, u)
        eps, u = eps[kept], u[kept]
        # Breakpoints of the piecewise linear curve carry the mass: p_i = alpha_i (s_i - s_{i-1}),
        # with s_i the slope in alpha = e^eps after node i, and slope 0 after the last.
        positive = eps[eps > 0.0]
        if positive.size == 0:
            return cls(np.zeros(1), np.array([1.0 - u[-1]]), float(u[-1]), grid)
        if eps[0] > 0.0:
            # Zero is not a vertex: the chord joins the two mirror images of the first vertex.
            before = (u[0] - 1.0) / (1.0 + math.exp(-eps[0]))
            steps = np.concatenate([[before], np.diff(u) / -np.expm1(-np.diff(eps))])
            forward = np.diff(u) / np.expm1(np.diff(eps))
        else:
            steps = np.diff(u) / -np.expm1(-np.diff(eps))
            forward = (np.diff(u) / np.expm1(np.diff(eps)))[1:]
        masses = np.maximum(np.append(forward, 0.0) - steps, 0.0)
        mirror = masses * np.exp(-positive)
        centre = max(0.0, 1.0 - float(u[-1]) - float(np.sum(masses)) - float(np.sum(mirror)))
        # Atoms too small to matter become certain loss (P's mass where Q has none): large losses
        # would only narrow the choice of tilts.
        rare = masses < LATTICE_RARE_MASS
        certain = float(u[-1]) + float(np.sum(masses[rare])) + float(np.sum(mirror[rare]))
        positive, masses, mirror = positive[~rare], masses[~rare], mirror[~rare]
        return cls(
            np.concatenate([-positive[::-1], [0.0], positive]),
            np.concatenate([mirror[::-1], [centre], masses]),
            certain,
            grid,
        )

    def delta(self, epsilon: float) -> float:
        """Return the pair's own hockey-stick divergence at `epsilon`."""
        gain = np.where(self.losses > epsilon, -np.expm1(epsilon - self.losses), 0.0)
        return min(1.0, float(self.masses @ gain) + self.infinite)

    def moments(self, tilt: float, step: float = 0.0) -> tuple[float, float, float]:
        """Return log E e^(tilt loss), and mean and variance of the loss tilted so.

        Of the finite part; results are kept. With a `step`, of the distribution on that grid.
        """
        if (tilt, step, 0) not in self._tilts:
            losses, exponent = self._tilted(tilt, step)
            top = float(np.max(exponent))
            found = -math.inf, 0.0, 0.0
            if top > -math.inf:  # else loss is certain: nothing is finite
                weights = np.exp(exponent - top)
                total = float(np.sum(weights))
                mean = float(weights @ losses) / total
                variance = float(weights @ (losses - mean) ** 2) / total
                found = top + math.log(total), mean, variance
            self._tilts[tilt, step, 0] = found
        known: tuple[float, float, float] = self._tilts[tilt, step, 0]
        return known

    def log_moments(self, tilts: FloatArray, step: float = 0.0) -> FloatArray:
        """Return the first of `moments` at each of the tilts [k]."""
        return np.array([self.moments(tilt, step)[0] for tilt in tilts.tolist()])

    def log_spectrum(self, step: float, size: int, tilt: float) -> ComplexArray:
        """Return the log of the Fourier transform of the tilted, normalized grid distribution.

        The last few are kept.
        """
        key = (tilt, step, size)
        if key not in self._tilts:
            losses, exponent = self._tilted(tilt, step)
            weights = np.exp(exponent - self.moments(tilt, step)[0])
            index = np.mod(np.rint(losses / step).astype(np.int64), size)
            transform = np.fft.rfft(np.bincount(index, weights, minlength=size))
            modulus = np.maximum(np.abs(transform), 1e-300)
            spectra = [each for each in self._tilts if each[-1]]
            for old in spectra[: 1 - LATTICE_SPECTRA]:
                del self._tilts[old]
            self._tilts[key] = np.log(modulus) + 1j * np.angle(transform)
        found: ComplexArray = self._tilts[key]
        return found

    def _tilted(self, tilt: float, step: float) -> tuple[FloatArray, FloatArray]:
        """Return losses, and the logarithms of mass times e^(tilt loss) there.

        Losses are those of the grid of this step (0: the distribution's own).
        """
        index, mass = self.on_lattice(step) if step else (self.losses, self.masses)
        losses = np.asarray((step or 1.0) * index, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return losses, np.log(mass) + tilt * losses

    def on_lattice(self, step: float) -> tuple[NDArray[np.int64], FloatArray]:
        """Split every atom between its grid neighbors, keeping both P's and Q's mass."""
        below = np.floor(self.losses / step)
        rest = np.clip(self.losses - below * step, 0.0, step)
        # Of Q's mass this share goes down, so that sums of P's and of Q's masses stay: share
        # e^-rest + (1 - share) e^(step - rest) = 1. The ratio P/Q is spread with its mean (under Q)
        # kept.
        share_of_q = np.expm1(rest - step) / math.expm1(-step)
        low = self.masses * share_of_q * np.exp(-rest)
        index = np.concatenate([below, below + 1.0]).astype(np.int64)
        return index, np.concatenate([low, np.maximum(self.masses - low, 0.0)])


def _envelope(eps: FloatArray, u: FloatArray) -> NDArray[np.int64]:
    """Return indices of the vertices of the lower convex envelope of the mirrored curve.

    Those with eps >= 0.
    """
    # Points (e^eps, curve) from 0 up. At negative eps: u(-eps) = 1 - e^-eps + e^-eps u(eps).
    alpha = np.concatenate([[0.0], np.exp(-eps[:0:-1]), np.exp(eps)])
    left = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * u[:0:-1]
    height = np.concatenate([[1.0], left, u])
    centre = eps.size
    hull: list[int] = []
    x, y = alpha.tolist(), height.tolist()
    for point in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            # A vertex stays where the slope rises (the monotone chain of a convex hull).
            before = (y[b] - y[a]) / (x[b] - x[a])
            after = (y[point] - y[b]) / (x[point] - x[b])
            if after > before:
                break
            hull.pop()
        hull.append(point)
    return np.array([index - centre for index in hull if index >= centre], dtype=np.int64)


def trade_off(
    type_one: ArrayLike, profile: Callable[[FloatArray], FloatArray], end: float, points: int
) -> FloatArray:
    """Return a lower bound on an attacker's type II error at each type I error, to plot (f-DP).

    Parameters
    ----------
    type_one : array_like
        Type I errors, in [0, 1].
    profile : callable
        Upper bounds on delta at epsilons >= 0.
    end : float
        Largest epsilon that is used, in nats.
    points : int
        Number of epsilons, from 0 to `end`.

    Returns
    -------
    ndarray
        f(a) = max over eps of max(0, 1 - delta - e^eps a, e^-eps (1 - delta - a)) (Dong, Roth, Su
        2022). Fewer points give a smaller number.

    Raises
    ------
    InvalidValueError
        For errors outside [0, 1].
    """
    errors = np.asarray(type_one, dtype=np.float64).ravel()
    if not np.all((errors >= 0.0) & (errors <= 1.0)):
        raise InvalidValueError("type_one", errors.tolist(), "must lie in [0, 1]")
    epsilons = np.linspace(0.0, min(end, 700.0), points)
    a = errors[:, None]
    growth = np.exp(epsilons)[None, :]
    rest = (1.0 - profile(epsilons))[None, :]
    lines = np.maximum(rest - growth * a, (rest - a) / growth)
    result: FloatArray = np.maximum(np.max(lines, axis=1), 0.0)
    return result
