"""What partial shuffles say of one client's vector reports (docs/proofs.md, section 13)."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.one_round import Theorem
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    law_of_laplace,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import Setting, gaussian_delta
from fl_shuffle.accounting.bounds.partial_shuffle.gram import worst_variance
from fl_shuffle.accounting.bounds.partial_shuffle.profile import laplace
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import (
    PARTIAL_SHUFFLE_MAX_SHARE,
    convex_order_delta,
)
from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_UP

MAX_SPREAD = 3.0
"""Others' means up to this far from the client's can hide it: beyond, ratios vary too much."""
LEAST_MOVE = 1e-6
"""A client that moves by less, in noise widths, needs nobody: its delta is below this alone."""
MIN_OTHERS = 4
"""Fewer others than this are not worth the search."""
MOST_GROUPS = 4
"""Others of so many radii are told apart; more radii are rounded up to so many."""
MAX_LAPLACE_SPREAD = 12.0
"""The largest spread for Laplace noise, whose likelihood ratios are bounded."""
SURE_SHARE = 0.5
"""Below this share the gain is certain; in between it is tried."""
TRIED_SDS = (1.0, 3.0)
"""Where it is tried, in predicted deviations."""


def gaussian_shuffle(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """The bound for Gaussian reports; None where it is not expected to gain.

    Everything in noise widths: `move` between the client's two means, its `radius`, the others'
    `radii` with their `counts`. The widest others are left out where that predicts less: a bound
    with fewer reports is a bound.
    """
    near = radii <= MAX_SPREAD - radius
    setting = best_setting(move, radius, radii[near], counts[near])
    if setting is None or not _gains(setting):
        return None
    return Theorem(partial(gaussian_delta, setting), setting.predicted_mu)


def best_setting(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Setting | None:
    """The nearest others for which the normal approximation predicts least; None if too few.

    `radii` increase. Radii are rounded up to `MOST_GROUPS` values at most.
    """
    whole = np.cumsum(counts)
    if whole.size == 0 or not LEAST_MOVE <= move <= MAX_SPREAD or whole[-1] < MIN_OTHERS:
        return None
    variances = np.array([worst_variance(radius, r, move, 1.0) for r in radii.tolist()])
    predicted = np.sqrt(np.cumsum(variances * counts)) / whole
    predicted[whole < MIN_OTHERS] = math.inf
    last = int(np.argmin(predicted)) + 1
    if last > MOST_GROUPS:
        edges = np.linspace(radii[0], radii[last - 1], MOST_GROUPS + 1)[1:-1]
        starts = np.unique(np.append(0, np.searchsorted(radii[:last], edges, side="right")))
        ends = np.append(starts[1:], last)
    else:
        starts = np.arange(last)
        ends = starts + 1
    groups = zip(
        radii[ends - 1].tolist(), np.add.reduceat(counts[:last], starts).tolist(), strict=True
    )
    return Setting(move, max(radius, 0.5 * move), tuple(groups))


def _gains(setting: Setting) -> bool:
    """Whether the theorem says more than the local curve; predictions of little gain are tried."""
    share = setting.predicted_mu / setting.move
    if share > PARTIAL_SHUFFLE_MAX_SHARE or share <= SURE_SHARE:
        return share <= SURE_SHARE
    places = [sds * setting.predicted_mu for sds in TRIED_SDS]
    return any(
        gaussian_delta(setting, epsilon)
        < PARTIAL_SHUFFLE_MAX_SHARE * float(gaussian_profile(epsilon, setting.move))
        for epsilon in places
    )


def laplace_shuffle(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """The same for Laplace reports in any dimension, by convex order; l1 norms in noise scales."""
    places = [
        # Two independent halves of the pair's variance against a report `spread` away.
        (2.0 * math.exp(0.5 * spread) * -math.expm1(-0.5 * move) / math.sqrt(count), count, reach)
        for reach, count in zip(radii.tolist(), np.cumsum(counts).tolist(), strict=True)
        if (spread := max(radius + reach, move)) <= MAX_LAPLACE_SPREAD
        and count >= MIN_OTHERS
        and reach > 0.0
    ]
    mu, others, widest = min(places, default=(math.inf, 0, 0.0))
    if not mu < PARTIAL_SHUFFLE_MAX_SHARE * move:
        return None
    hiding = laplace(widest)

    def delta(epsilon: float) -> float:
        if epsilon >= move:
            return math.inf
        law = law_of_laplace(epsilon, move, max(radius + widest, move))
        local = float(laplace_profile(epsilon, move)) * ROUND_UP
        return convex_order_delta(law, None, local, hiding, others)

    return Theorem(delta, mu)
