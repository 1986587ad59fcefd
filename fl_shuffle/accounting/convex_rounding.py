"""Atoms that dominate a law in convex order, certified in floating point.

Moving each value of L to the two nodes around it without changing its conditional mean makes every
stop-loss transform larger, hence also that of any sum, hence delta. On nodes t_0 < ... < t_J the
new transform is the piecewise linear interpolation of g(t) = E(L - t)_+, so g alone is enough and
the spacing may follow the mass: no density, no quantile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_shuffle.accounting.privacy_loss import AmplificationLaw, AtomicLaw, FloatArray
from fl_shuffle.accounting.saddle import saddle_point
from fl_shuffle.errors import PrecisionError

UNIT = 2.0**-53
MAX_ATOMS = 60_000


def round_up_convex(
    law: AmplificationLaw, classes: Sequence[tuple[float, int]], tolerance: float
) -> tuple[AtomicLaw, float, float]:
    """Atoms dominating `law`; the relative inflation of delta; an amount to add to delta.

    The inflation is estimated at the saddle point (its direction is certain, its size is not). The
    amount to add is E(L - upper)_+ plus whatever floating point could not certify otherwise.
    A law that already has atoms is returned unchanged.
    """
    if isinstance(law, AtomicLaw):
        return law, 0.0, 0.0
    nodes = _first_nodes(law)
    inflation = math.inf
    for _ in range(6):
        atoms, extra = _atoms_on(law, nodes)
        theta = saddle_point(atoms, classes)
        inflation = _inflation(atoms, classes, theta)
        if inflation <= tolerance:
            return atoms, inflation, extra
        nodes = _refined(atoms, classes, theta, 0.5 * tolerance)
    raise PrecisionError(
        f"relative error {tolerance:g} cannot be reached: limited by rounding the law to "
        f"{nodes.size} atoms (inflation {inflation:.2g}); ask for a larger relative_error"
    )


def _first_nodes(law: AmplificationLaw) -> FloatArray:
    low, high = law.lower, law.upper
    reach = max(abs(low), abs(high))
    geometric = reach * np.geomspace(1e-6, 1.0, 160)
    grid = np.concatenate([np.linspace(low, high, 160), geometric, -geometric, [0.0]])
    return np.unique(np.concatenate([[low], grid[(grid > low) & (grid < high)], [high]]))


def _atoms_on(law: AmplificationLaw, nodes: FloatArray) -> tuple[AtomicLaw, float]:
    """Interpolate g on `nodes`; shift all atoms up by what certifies the floats."""
    transform = law.stop_loss(nodes)
    top = float(transform[-1])
    g = np.maximum.accumulate((transform - top)[::-1])[::-1]
    gaps = np.diff(nodes)
    tail = np.minimum(np.maximum.accumulate((-np.diff(g) / gaps)[::-1])[::-1], 1.0)
    weights = np.maximum(tail - np.append(tail[1:], 0.0), 0.0)
    probabilities = np.concatenate([[max(0.0, 1.0 - float(np.sum(weights)))], weights])
    tail = np.cumsum(weights[::-1])[::-1]
    interpolated = np.append(np.cumsum((tail * gaps)[::-1])[::-1], 0.0)
    slack = 4.0 * nodes.size * UNIT
    deficit = np.maximum(transform * (1.0 + 8.0 * UNIT) - top - interpolated * (1.0 - slack), 0.0)
    cell = np.maximum(deficit[:-1], deficit[1:])
    solid = tail > 1e-250
    shift = float(np.max(cell[solid] / tail[solid], initial=0.0))
    extra = top + float(np.max(cell[~solid], initial=0.0))
    keep = probabilities > 0.0
    return AtomicLaw(nodes[keep] + shift, probabilities[keep]), extra


def _blanket_share(
    atoms: AtomicLaw, classes: Sequence[tuple[float, int]], theta: float
) -> tuple[FloatArray, float]:
    tilted = atoms.probabilities * np.exp(theta * atoms.values)
    excess = float(atoms.probabilities @ np.expm1(theta * atoms.values))
    return tilted, 1.0 + sum(count * gamma / (1.0 + gamma * excess) for gamma, count in classes)


def _inflation(atoms: AtomicLaw, classes: Sequence[tuple[float, int]], theta: float) -> float:
    """E[e^(theta L)] grows by at most theta^2 l^2 / 8 per unit of tilted mass in a cell."""
    tilted, share = _blanket_share(atoms, classes, theta)
    gaps = np.diff(atoms.values)
    mass = np.maximum(tilted[:-1], tilted[1:])
    return math.expm1(min(50.0, share * theta**2 / 8.0 * float(mass @ gaps**2)))


def _refined(
    atoms: AtomicLaw, classes: Sequence[tuple[float, int]], theta: float, tolerance: float
) -> FloatArray:
    """Nodes with spacing proportional to (tilted density)^(-1/3): least error for their number."""
    tilted, share = _blanket_share(atoms, classes, theta)
    gaps = np.diff(atoms.values)
    mass = np.maximum(0.5 * (tilted[:-1] + tilted[1:]), 1e-12 * float(np.max(tilted)))
    spacing = np.cbrt(gaps / mass)
    scale = math.sqrt(8.0 * tolerance / (share * theta**2 * float(mass @ spacing**2)))
    pieces = np.maximum(np.ceil(gaps / (scale * spacing)), 1.0)
    if float(np.sum(pieces)) > MAX_ATOMS:
        pieces = np.maximum(np.floor(pieces * (MAX_ATOMS / float(np.sum(pieces)))), 1.0)
    whole = pieces.astype(np.int64)
    position = np.arange(int(whole.sum())) - np.repeat(np.cumsum(whole) - whole, whole)
    inner = np.repeat(atoms.values[:-1], whole) + position * np.repeat(gaps / pieces, whole)
    return np.unique(np.append(inner, atoms.values[-1]))
