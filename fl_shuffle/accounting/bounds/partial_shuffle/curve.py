"""What partial shuffles say of one client's vector reports (docs/research/proofs, section 13)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.one_round import Theorem
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    law_of_laplace,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import (
    NEGLIGIBLE,
    RoundGeometry,
    gaussian_delta,
    predicted_delta,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gram import worst_variance
from fl_shuffle.accounting.bounds.partial_shuffle.laplace_bound import (
    LaplaceGeometry,
    laplace_delta,
)
from fl_shuffle.accounting.bounds.partial_shuffle.profile import laplace
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import (
    PARTIAL_SHUFFLE_MAX_SHARE,
    convex_order_delta,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.round_off import ROUND_UP

MAX_SPREAD = 3.0
"""Others' means up to this far from the client's can hide it: beyond, ratios vary too much."""
LEAST_MOVE = 1e-6
"""A client that moves by less, in noise standard deviations, needs no others: its local delta is
below this."""
MIN_OTHERS = 4
"""Fewer others than this are not worth the search."""
NEARLY = 1.5
"""The setting with the second-smallest prediction is also evaluated if it predicts at most this
many times the smallest: predictions err."""
MOST_PREFIXES = 6
"""Number of choices of the nearest others that are compared at each epsilon."""
MOST_GROUPS = 4
"""Largest number of distinct radii of others; more radii are rounded up to this number."""
MAX_LAPLACE_SPREAD = 12.0
"""The largest spread for Laplace noise, whose likelihood ratios are bounded."""
SURE_SHARE = 0.5
"""Below this share the gain is certain; in between it is tried."""
TRIED_SDS = (1.0, 3.0)
"""Where it is tried, in predicted deviations."""


def gaussian_shuffle(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """Return the bound for Gaussian reports; None where it is not expected to gain.

    Parameters
    ----------
    move : float
        Distance between the client's two means. All lengths are in noise standard deviations.
    radius : float
        Radius of the client's own ball.
    radii : ndarray, shape (groups,)
        Radii of the others' balls, increasing.
    counts : ndarray of int64, shape (groups,)
        How many others have which.

    Returns
    -------
    Theorem or None
        A curve, and a Gaussian parameter as its scale.

    Notes
    -----
    Statement: docs/research/proofs, section 12, Theorem 2, and section 13. Each prefix of the
    nearest others gives a valid bound: the attacker may be told every other report, and what is
    left is the shuffle of the prefix. The choice between prefixes is made at each epsilon.
    Neighbors: replace-one. Direction of error: all errors are added to delta.
    """
    near = radii <= MAX_SPREAD - radius
    settings = nearest_settings(move, radius, radii[near], counts[near])
    if not settings:
        return None
    mu = min(setting.predicted_mu for setting in settings)
    delta = partial(least_delta, settings)
    predicted = partial(_predicted, settings)
    return Theorem(delta, mu, predicted) if _gains(delta, mu, move) else None


def nearest_settings(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> tuple[RoundGeometry, ...]:
    """Return one setting for each choice of the nearest others; empty if there are too few.

    `radii` increase, and a choice is a prefix of them. If there are more than `MOST_PREFIXES`
    prefixes, evenly spaced ones are kept, and the one with the smallest normal approximation.
    Parameters are those of `gaussian_shuffle`.
    """
    whole = np.cumsum(counts)
    if whole.size == 0 or not LEAST_MOVE <= move <= MAX_SPREAD or whole[-1] < MIN_OTHERS:
        return ()
    lasts = 1 + np.flatnonzero(whole >= MIN_OTHERS)
    if lasts.size > MOST_PREFIXES:
        variances = np.array([worst_variance(radius, r, move, 1.0) for r in radii.tolist()])
        predicted = (np.sqrt(np.cumsum(variances * counts)) / whole)[lasts - 1]
        kept = np.linspace(0, lasts.size - 1, MOST_PREFIXES).round().astype(np.int64)
        lasts = lasts[np.unique(np.append(kept, np.argmin(predicted)))]
    return tuple(_setting(move, radius, radii[:last], counts[:last]) for last in lasts.tolist())


def _setting(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> RoundGeometry:
    """Return the setting of all these others, with at most `MOST_GROUPS` distinct radii.

    Radii are rounded up: a mean in a ball also lies in a larger ball with the same center.
    """
    return RoundGeometry(move, max(radius, 0.5 * move), _grouped(radii, counts))


def _grouped(radii: FloatArray, counts: NDArray[np.int64]) -> tuple[tuple[float, int], ...]:
    """Return radii and counts of at most `MOST_GROUPS` groups, radii rounded up."""
    starts = np.arange(radii.size)
    if radii.size > MOST_GROUPS:
        edges = np.linspace(radii[0], radii[-1], MOST_GROUPS + 1)[1:-1]
        starts = np.unique(np.append(0, np.searchsorted(radii, edges, side="right")))
    ends = np.append(starts[1:], radii.size)
    groups = zip(radii[ends - 1].tolist(), np.add.reduceat(counts, starts).tolist(), strict=True)
    return tuple(groups)


def _prefixes(radii: FloatArray, counts: NDArray[np.int64]) -> list[int]:
    """Return how many of the smallest radii are tried: at most `MOST_PREFIXES` numbers."""
    lasts = 1 + np.flatnonzero(np.cumsum(counts) >= MIN_OTHERS)
    if lasts.size > MOST_PREFIXES:
        lasts = lasts[np.linspace(0, lasts.size - 1, MOST_PREFIXES).round().astype(np.int64)]
    result: list[int] = lasts.tolist()
    return result


def least_delta(settings: tuple[RoundGeometry, ...], epsilon: float) -> float:
    """Return the smallest bound found at `epsilon`: every setting gives a valid one.

    A prediction costs a twentieth of a bound, so all settings are predicted, and at most two are
    evaluated. The predictions only choose.
    """
    local = float(gaussian_profile(epsilon, settings[0].move)) * ROUND_UP
    if len(settings) == 1 or local < NEGLIGIBLE:
        return _delta_of_any_move(settings[0], epsilon)
    first, second = sorted(settings, key=lambda each: predicted_delta(each, epsilon))[:2]
    found = _delta_of_any_move(first, epsilon)
    if predicted_delta(second, epsilon) <= NEARLY * predicted_delta(first, epsilon):
        found = min(found, _delta_of_any_move(second, epsilon))
    return found


def _predicted(settings: tuple[RoundGeometry, ...], epsilon: float) -> float:
    """Return about what `least_delta` gives."""
    return min(predicted_delta(setting, epsilon) for setting in settings)


def _delta_of_any_move(setting: RoundGeometry, epsilon: float) -> float:
    """Return the bound, or that for the largest move of the same ball where it is the smaller one.

    Both are bounds. The constants that are found for the larger move may be the better ones.
    """
    found, largest = gaussian_delta(setting, epsilon), setting.at_largest_move
    return found if largest is None else min(found, gaussian_delta(largest, epsilon))


def _gains(delta: Callable[[float], float], mu: float, move: float) -> bool:
    """Return whether the theorem improves the local curve; a small predicted gain is tried."""
    share = mu / move
    if share > PARTIAL_SHUFFLE_MAX_SHARE or share <= SURE_SHARE:
        return share <= SURE_SHARE
    return any(
        delta(sds * mu) < PARTIAL_SHUFFLE_MAX_SHARE * float(gaussian_profile(sds * mu, move))
        for sds in TRIED_SDS
    )


def laplace_shuffle(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """Return the bound for Laplace reports in any dimension; None without a gain.

    Parameters
    ----------
    move, radius, radii, counts
        As for `gaussian_shuffle`, but in l1 norms and noise scales.

    Returns
    -------
    Theorem or None
        A curve, and a Gaussian parameter as its scale.

    Notes
    -----
    Statement: the smaller one of docs/research/proofs, section 18 (the tripod order), and section
    13, from the profiles of section 12, which says more of few reports. Each for its own choice of
    the nearest others: every prefix of the radii gives a valid bound. Neighbors: replace-one.
    Direction of error: all errors are added to delta.
    """
    by_tripods = _by_tripods(move, radius, radii, counts)
    by_profiles = _by_profiles(move, radius, radii, counts)
    found = [each for each in (by_tripods, by_profiles) if each is not None]
    if len(found) < 2:
        return found[0] if found else None

    def delta(epsilon: float) -> float:
        return min(each.delta(epsilon) for each in found)

    return Theorem(delta, min(each.predicted_mu for each in found))


def _by_tripods(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """Return what the tripod order says of the nearest others, for the best of the prefixes."""
    near = np.maximum(radius + radii, move) <= MAX_LAPLACE_SPREAD
    lasts = _prefixes(radii[near], counts[near])
    if move < LEAST_MOVE or not lasts:
        return None
    groups = [_grouped(radii[:last], counts[:last]) for last in lasts]
    settings = [LaplaceGeometry(move, max(radius, 0.5 * move), each) for each in groups]
    best = min(settings, key=lambda each: each.predicted_mu)
    if not best.predicted_mu < PARTIAL_SHUFFLE_MAX_SHARE * move:
        return None
    return Theorem(partial(laplace_delta, best), best.predicted_mu)


def _by_profiles(
    move: float, radius: float, radii: FloatArray, counts: NDArray[np.int64]
) -> Theorem | None:
    """Return what profiles say of the nearest others, each of which counts as the furthest."""
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
