"""Gaussian reports of which only the sum leaves: everybody's noise hides everybody.

Against an attacker who sees sums of reports, client i's round is mu-GDP (Dong, Roth, Su 2022) with

    mu_i = shift_i / sqrt(sum over the honest j that arrived of scale_j^2),

`shift_i` being how far replacing one unit moves its mean (l2) and scales those of the terms of the
sum, weights included. Reports are rounded to public grids before they are added: a report of scale
s on a grid of step g then counts s^2 - (2 c g)^2 instead of s^2, c = `GRID_SMOOTHING`, and delta
grows by less than `SUM_LATTICE_LOSS` (docs/research/proofs, section 14). Relation: replace-one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_shuffle._internal.arrays import Counts, Vector
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_epsilons,
    gaussian_profile,
)
from fl_shuffle.accounting.report_grid import GRID_SMOOTHING
from fl_shuffle.accounting.round_off import ROUND_DOWN, ROUND_UP, UNIT

SUM_LATTICE_LOSS = 1e-90
"""Added to delta for all reports, coordinates and rounds together: up to 10^46 of them."""
SUM_DELTA_SHARE = ROUND_DOWN
"""Share of delta that is asked of the closed formula: the rest covers `SUM_LATTICE_LOSS` and the
formula's round-off, for every delta from 10^-78 on."""


def sum_mu(
    scale: Vector, shift: Vector, grid: Vector, present: Counts, honest: int | None = None
) -> Vector:
    """Return the Gaussian-DP parameter of one released sum, per class of clients.

    Parameters
    ----------
    scale : ndarray, shape (classes,)
        Noise standard deviation of a report in the sum, weights included.
    shift : ndarray, shape (classes,)
        How far replacing one unit moves a report's mean (l2).
    grid : ndarray, shape (classes,)
        Step of the public grid that a report is rounded to.
    present : ndarray of int, shape (classes,)
        Number of reports that arrived.
    honest : int, optional
        Number of reports, at least, from clients whose noise the adversary does not know. By
        default, all. Which ones is left open: the client's own counts, and the smallest of the
        others.

    Returns
    -------
    ndarray, shape (classes,)
        mu, never above the client's own shift / scale. Classes without a report get the latter.

    Notes
    -----
    Statement: mu = shift/sqrt(V). Source: docs/research/proofs, section 14. Neighbors: replace-one.
    Direction of error: rounded up.
    """
    mu: Vector = shift / np.sqrt(hiding_variance(scale, grid, present, honest))
    # Squares of up to 10^6 rounds are added up.
    return mu * ROUND_UP


def hiding_variance(
    scale: Vector, grid: Vector, present: Counts, honest: int | None = None
) -> Vector:
    """Return the variance per coordinate of the noise that provably hides a client of each class.

    Parameters
    ----------
    scale, grid, present, honest
        As for `sum_mu`.

    Returns
    -------
    ndarray, shape (classes,)
        V of section 14, at least the variance of the client's own noise. Rounded down.

    Notes
    -----
    A report counts beside another only if the noise of the one on the finer grid bridges the steps
    of the coarser grid (`_companies`); otherwise the finer one shows through the sum.
    """
    variance, effective, bridged = _counted(scale, grid)
    usable = (effective >= 0.0) & (present > 0)
    arrived = int(present.sum())
    others = (arrived if honest is None else min(honest, arrived)) - 1
    hidden = variance.copy()
    for members, company in _companies(variance, bridged, usable):
        counts = np.where(company, present, 0)
        # The worst honest set: the client, then the reports that do not count beside these, then
        # those of the smallest counted variance.
        most = others - (arrived - int(counts.sum()))
        found = _with_smallest(effective, counts, max(0, most))
        hidden[members] = np.maximum(found, variance)[members]
    return hidden


def drawn_variance(
    scale: Vector, grid: Vector, clients: Counts, participation: float, rare: float
) -> Vector:
    """Return `hiding_variance` where each of `clients` [classes] reports by its own public coin.

    A round has less with probability `rare` at most (Chernoff's bound).
    """
    variance, effective, bridged = _counted(scale, grid)
    hidden = variance.copy()
    companies = _companies(variance, bridged, (effective >= 0.0) & (clients > 0))
    for members, company in companies:
        values, counts = effective[company], clients[company]
        rates = np.geomspace(1e-3, 1e3, 61)[:, None] / float(values @ counts)
        # Chernoff: P(sum <= x) <= e^(rate x) prod (1 - q + q e^(-rate value)), which is the allowed
        # share of `rare` at x = (log of it - `absent`)/rate.
        absent = np.log1p(participation * np.expm1(-rates * values)) @ counts
        sure = float(np.max((math.log(rare / len(companies)) - absent) / rates[:, 0], initial=0.0))
        hidden[members] = np.maximum(sure * _rounded_down(values), variance)[members]
    return hidden


def _counted(scale: Vector, grid: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the variance of each class's noise, what of it counts, and what bridges its grid."""
    variance = scale * scale
    # A report counts s^2 - 4 c^2 g^2, and a grid is bridged by a variance of 2 c^2 g^2 (the claim
    # of section 14).
    bridged = 2.0 * (GRID_SMOOTHING * grid) ** 2
    return variance, variance - 2.0 * bridged, bridged


def attacked_variance(scale: Vector, present: Counts, honest: int | None = None) -> Vector:
    """Return the most noise per coordinate that can hide a client of each class [classes].

    It is what stands in the sum if the honest clients are those of the smallest noise.
    """
    arrived = int(present.sum())
    others = (arrived if honest is None else min(honest, arrived)) - 1
    rounded_down = _with_smallest(scale * scale, present, max(0, others))
    result: Vector = rounded_down / _rounded_down(scale) ** 3
    return result


def _companies(
    variance: Vector, bridged: Vector, usable: NDArray[np.bool_]
) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Return (classes, classes whose reports count beside theirs).

    Usually that is one pair, all of them.
    """
    if not usable.any():
        return []
    # Every report bridges every grid, so all count beside all.
    if variance[usable].min() >= bridged[usable].max():
        return [(usable, usable)]
    levels = np.unique(bridged[usable])
    # The coarsest grid that the noise of each class bridges: reports on coarser ones do not count.
    reach = levels[np.maximum(np.searchsorted(levels, variance, side="right") - 1, 0)]
    pairs = []
    for own, most in np.unique(np.stack([bridged, reach], axis=1)[usable], axis=0):
        members = usable & (bridged == own) & (reach == most)
        company = usable & (bridged <= most) & ((bridged > own) | (variance >= own))
        pairs.append((members, company))
    return pairs


def _with_smallest(values: Vector, counts: Counts, others: int) -> Vector:
    """Return each class's own value plus the `others` smallest values of other clients.

    `counts[c]` clients have `values[c]`. With fewer others than asked, all of theirs. Rounded down.
    """
    order = np.argsort(values, kind="stable")
    ordered, upto = values[order], np.cumsum(counts[order])
    others = min(others, int(upto[-1]) - 1)

    def smallest(number: int) -> tuple[float, float]:
        """Return the sum of the smallest `number` values, and the last of them."""
        if number == 0:
            return 0.0, -np.inf
        last = int(np.searchsorted(upto, number))
        before = int(upto[last - 1]) if last else 0
        whole = float(np.sum(ordered[:last] * counts[order[:last]]))
        return whole + (number - before) * float(ordered[last]), float(ordered[last])

    without, _ = smallest(others)
    with_own, bar = smallest(others + 1)
    # The client's own value counts always: it is among the smallest `others` + 1, or added to the
    # smallest `others`.
    total = np.where(values <= bar, with_own, without + values)
    result: Vector = total * _rounded_down(values)
    return result


def _rounded_down(values: Vector) -> float:
    """Return the factor of a sum over the classes that covers its round-off.

    It is below one by more than the relative round-off.
    """
    return 1.0 - (len(values) + 8) * 2.0 * UNIT


def sum_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon at `delta` of sums with parameter `mu`, rounded up."""
    return gaussian_epsilon(delta * SUM_DELTA_SHARE, mu)


def sum_epsilons(delta: float, mu: ArrayLike) -> Vector:
    """Return `sum_epsilon` of every mu, elementwise."""
    return gaussian_epsilons(delta * SUM_DELTA_SHARE, mu)


def sum_profile(epsilon: ArrayLike, mu: ArrayLike) -> Vector:
    """Return an upper bound on delta at each epsilon >= 0 of sums.

    Parameters
    ----------
    epsilon, mu : array_like
        In nats, and the Gaussian-DP parameter; broadcast.

    Returns
    -------
    ndarray
        At most 1. `SUM_LATTICE_LOSS` is added for the grid (docs/research/proofs, section 14).
    """
    delta = gaussian_profile(epsilon, mu) / SUM_DELTA_SHARE
    return np.minimum(1.0, delta + np.where(delta > 0.0, SUM_LATTICE_LOSS, 0.0))
