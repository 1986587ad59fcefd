"""Atoms that dominate a distribution in convex order, certified in floating point.

Moving each value of L to the two nodes around it without changing its conditional mean makes every
stop-loss transform larger, hence also that of any sum, hence delta. On nodes t_0 < ... < t_J the
new transform is the piecewise linear interpolation of g(t) = E(L - t)_+, so g alone is enough and
the spacing may follow the mass: no density, no quantile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.distributions.amplification import (
    AmplificationDistribution,
    AtomicDistribution,
    MixtureLaw,
)
from fl_shuffle.accounting.numerics.tilted_moments import TiltedMoments, tilt_at_saddle_point
from fl_shuffle.accounting.round_off import UNIT

ROUNDING_MAX_ATOMS = 30_000
"""A distribution rounded to more atoms than this would take the engine seconds."""
ROUNDING_LOG_NEGLIGIBLE = -645.0
"""The engine answers such bounds by Chernoff alone: no refinement is needed."""
ROUNDING_LARGE_LAW = 8_000
"""Atomic distributions larger than this are rounded too: the engine's time grows with their
size."""
ROUNDING_STEP = 1e-3
"""Each pass refines towards this share of the last one's inflation: coarse cells say little about
where fine ones are needed."""

_SHARES = np.geomspace(1e-6, 1.0, 100)
"""Of a distribution's reach: where the first nodes lie on both sides of zero."""


def round_up_convex(
    law: AmplificationDistribution, classes: Sequence[tuple[float, int]], tolerance: float
) -> tuple[AtomicDistribution, float, float]:
    """Return atoms that dominate a distribution in convex order.

    Parameters
    ----------
    law : AmplificationDistribution
        The distribution. One with at most `ROUNDING_LARGE_LAW` atoms is returned unchanged.
    classes : sequence of (float, int)
        (mass, count) of the other reports, for which the inflation is estimated.
    tolerance : float
        Relative inflation of delta that is aimed at.

    Returns
    -------
    tuple of AtomicDistribution, float, and float
        The atoms; the relative inflation of delta; and an amount to add to delta, E(L - upper)_+
        plus whatever floating point could not certify otherwise.

    Notes
    -----
    The inflation is estimated at the saddle point: its direction is certain, its size is not. Where
    so fine a rounding takes more than `ROUNDING_MAX_ATOMS`, the best one found is returned, with
    its larger inflation. Source: docs/research/proofs, section 7.
    """
    if isinstance(law, AtomicDistribution) and law.values.size <= ROUNDING_LARGE_LAW:
        return law, 0.0, 0.0
    nodes = _first_nodes(law)
    transform = law.stop_loss(nodes)
    atoms, extra = atoms_through(nodes, transform)
    best = atoms, math.inf, extra
    for _ in range(12):
        theta = tilt_at_saddle_point(atoms, classes)
        moments = TiltedMoments.of(atoms, theta)
        # log E e^(theta S) / theta: a Chernoff bound on delta.
        if moments.log_total(classes) - math.log(theta) < ROUNDING_LOG_NEGLIGIBLE:
            return atoms, 0.0, extra
        cells = _cell_inflation(law, nodes, atoms, theta, moments.share(classes), transform[-1])
        inflation = math.expm1(min(50.0, float(np.sum(cells))))
        if inflation <= best[1]:
            best = atoms, inflation, extra
        if inflation <= tolerance:
            break
        # Step by step: coarse cells say little about where the finest ones are needed.
        goal = 0.6 * max(tolerance, min(inflation, 1.0) * ROUNDING_STEP)
        # A cell in p pieces adds 1/p^2 of what it adds whole. For a given sum the fewest pieces
        # have p as the cube root of that, and this factor makes the sum `goal`.
        pieces = np.cbrt(cells) * math.sqrt(float(np.sum(np.cbrt(cells))) / goal)
        pieces = np.maximum(np.ceil(np.minimum(pieces, 4096.0)), 1.0)
        if float(np.sum(pieces)) > ROUNDING_MAX_ATOMS:
            break
        nodes = _divided(nodes, pieces.astype(np.int64))
        transform = law.stop_loss(nodes)
        atoms, extra = atoms_through(nodes, transform)
    return best


def _first_nodes(law: AmplificationDistribution) -> FloatArray:
    low, high = law.lower, law.upper
    reach = max(abs(low), abs(high))
    geometric = reach * _SHARES
    grid = np.concatenate([np.linspace(low, high, 100), geometric, -geometric, [0.0]])
    if isinstance(law, MixtureLaw):
        # An atom on a node costs nothing.
        atomic = [scale * part.values for _, scale, part in law.parts if _few(part)]
        grid = np.concatenate([grid, *atomic])
    return np.unique(np.concatenate([[low], grid[(grid > low) & (grid < high)], [high]]))


def _few(law: AmplificationDistribution) -> TypeGuard[AtomicDistribution]:
    return isinstance(law, AtomicDistribution) and law.values.size <= ROUNDING_LARGE_LAW


def atoms_on(law: AmplificationDistribution, nodes: FloatArray) -> tuple[AtomicDistribution, float]:
    """Interpolate g on `nodes`; shift all atoms up by what certifies the floats."""
    return atoms_through(nodes, law.stop_loss(nodes))


def atoms_through(nodes: FloatArray, transform: FloatArray) -> tuple[AtomicDistribution, float]:
    """Return `atoms_on` for a distribution whose g is at most `transform` at the nodes."""
    top = float(transform[-1])
    g = np.maximum.accumulate((transform - top)[::-1])[::-1]
    gaps = nodes[1:] - nodes[:-1]
    # g(t) = E(L - t)_+ has the slope -P(L > t): slopes of chords are the tail of the atoms, and the
    # differences of these their probabilities.
    tail = np.minimum(np.maximum.accumulate(((g[:-1] - g[1:]) / gaps)[::-1])[::-1], 1.0)
    weights = np.maximum(tail - np.append(tail[1:], 0.0), 0.0)
    probabilities = np.concatenate([[max(0.0, 1.0 - float(np.sum(weights)))], weights])
    tail = np.cumsum(weights[::-1])[::-1]
    interpolated = np.append(np.cumsum((tail * gaps)[::-1])[::-1], 0.0)
    slack = 4.0 * nodes.size * UNIT
    # Where the interpolation in floats may lie below g, all atoms move up: a shift by s raises the
    # transform by s times the tail.
    deficit = np.maximum(transform * (1.0 + 8.0 * UNIT) - top - interpolated * (1.0 - slack), 0.0)
    cell = np.maximum(deficit[:-1], deficit[1:])
    solid = tail > 1e-250
    shift = float(np.max(cell[solid] / tail[solid], initial=0.0))
    extra = top + float(np.max(cell[~solid], initial=0.0))
    keep = probabilities > 0.0
    return AtomicDistribution(nodes[keep] + shift, probabilities[keep]), extra


def _cell_inflation(
    law: AmplificationDistribution,
    nodes: FloatArray,
    atoms: AtomicDistribution,
    theta: float,
    share: float,
    top: float,
) -> FloatArray:
    """Return how much each cell adds to the log moment generating function of the sum at theta.

    E e^(theta L') - E e^(theta L) = theta^2 int e^(theta t) (g'(t) - g(t)) dt; g' - g is zero at
    the nodes, so Simpson's rule needs the midpoints alone. `share` is the derivative of the log
    moment with respect to E e^(theta L'), `top` is g at the last node.
    """
    middle = 0.5 * (nodes[:-1] + nodes[1:])
    rise = np.maximum(atoms.stop_loss(middle) - law.stop_loss(middle) + top, 0.0)
    gaps = nodes[1:] - nodes[:-1]
    # Simpson's rule with zeros at both ends: 4/6 of the middle's value.
    cells: FloatArray = share * theta**2 * np.exp(theta * middle) * rise * gaps / 1.5
    return cells


def _divided(nodes: FloatArray, pieces: NDArray[np.int64]) -> FloatArray:
    """Split cell i into pieces[i] equal ones."""
    position = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    inner = np.repeat(nodes[:-1], pieces) + position * np.repeat(np.diff(nodes) / pieces, pieces)
    return np.unique(np.append(inner, nodes[-1]))
