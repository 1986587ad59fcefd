"""The sharper bound at one epsilon: every free parameter chosen, every cost added."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle import lognormal
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import (
    Choice,
    ToppedLaw,
    collapse,
    lifted,
)
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    GaussianLaw,
    deficit,
    gaussian_law,
    squared_tail,
)
from fl_shuffle.accounting.bounds.partial_shuffle.prediction import predict
from fl_shuffle.accounting.bounds.partial_shuffle.rings import rings
from fl_shuffle.accounting.bounds.partial_shuffle.sums.second_order import (
    log_excess_by_moduli,
    squared_excess_of_sum,
)
from fl_shuffle.accounting.bounds.partial_shuffle.sums.variance_cells import (
    Kind,
    Terms,
    excess_of_sum,
)
from fl_shuffle.accounting.bounds.partial_shuffle.swap import choose_swap
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.engine.fourier import TiltedLaw
from fl_shuffle.accounting.engine.saddle_points import tilt_at_saddle_point
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import PrecisionError

OFFSETS = np.geomspace(0.5, 1.6, 9)
"""Candidates for q in units of 1/theta: any q > 0 is valid, the best one lies near 1/theta."""


@dataclass(frozen=True)
class Setting:
    """What the theorem needs of a batch of Gaussian reports, in noise widths.

    `move`: client 1's two means lie at most this apart; `spread`: each of them lies at most this
    far from any other client's mean; `diameter` of a ball that holds them all; `reach`: others'
    means to omega's; `own`: client 1's to omega's. `count` others.
    """

    count: int
    move: float
    spread: float
    diameter: float
    reach: float
    own: float

    @property
    def predicted_mu(self) -> float:
        """A normal approximation of the curve: not a bound, only a scale."""
        return math.sqrt(variance_bound(self, 0.0) / self.count)


def third_order_delta(setting: Setting, epsilon: float, *, in_rings: bool = True) -> float:
    """The bound through the third-order comparison; infinite where no parameters are found.

    `in_rings`: the others are told apart by their distance, which takes three to ten times as long.
    """
    local = float(gaussian_profile(epsilon, setting.move)) * TOLERANCES.profile_inflation
    if not local > TOLERANCES.third_order_negligible_delta:
        return math.inf
    variance = variance_bound(setting, epsilon)
    law = gaussian_law(epsilon, setting.move, setting.spread)
    cut, guess = predict(law, setting.count, variance)
    law = replace(law, upper=cut)
    best, predicted = math.inf, guess
    for _ in range(TOLERANCES.third_order_passes):
        best = min(best, _with_goal(setting, epsilon, local, law, guess, in_rings))
        if best <= TOLERANCES.third_order_close * guess or math.isinf(best):
            break
        guess = 0.5 * best
    if in_rings and best > TOLERANCES.third_order_close * predicted:
        # Far in the tail the rings' common atoms may be too coarse: one law for all says more.
        best = min(best, third_order_delta(setting, epsilon, in_rings=False))
    return best


def _with_goal(
    setting: Setting,
    epsilon: float,
    local: float,
    law: GaussianLaw,
    guess: float,
    in_rings: bool,
) -> float:
    """The bound with costs that suit a result near `guess`."""
    n, drift = setting.count, math.expm1(epsilon)
    variance = variance_bound(setting, epsilon)
    rate = max(drift / variance, 1.0 / math.sqrt(n * variance))
    swap = choose_swap(
        count=n,
        reach=setting.reach,
        own=setting.own,
        epsilon=epsilon,
        local=local,
        goal=TOLERANCES.third_order_cost_share * guess,
        sensitivity=rate * n * (local + drift),
    )
    if swap is None:
        return math.inf

    left = float(law.stop_loss(np.array([law.upper]))[0])
    top = ToppedLaw(law, squared_tail(law, setting.spread), left)
    try:
        atoms, _, extra = round_up_convex(top, [(1.0, n - 1)], TOLERANCES.third_order_rounding)
    except PrecisionError:
        return math.inf
    missing = deficit(law, setting.spread)

    def total(
        parts: Sequence[tuple[AtomicLaw, float]], tail: float, known: float = math.inf
    ) -> float:
        """Of `parts` (L* as atoms, variance) whichever is the worst; `tail` is cut off of each.

        What can hardly come out below `known` is not computed.
        """
        mains = []
        hints: list[Choice | None] = [None] * len(parts)
        for loss in swap.losses.tolist():
            mean = -(1.0 - loss) * drift + (swap.gain + loss) * local
            kinds = []
            for index, (own, own_variance) in enumerate(parts):
                shaped = lifted(own, swap.gain, loss)
                second = (1.0 + swap.gain) ** 2 * (own_variance + drift * drift)
                lower, hints[index] = collapse(
                    shaped, second - mean * mean, mean, rate, hints[index]
                )
                kinds.append(Kind(shaped, lower, second))
            terms = Terms(n, kinds, -drift - tail, mean, *missing)
            mains.append(_main_term(terms, known * swap.smallest))
        main = math.fsum(w * each for w, each in zip(swap.weights.tolist(), mains, strict=True))
        whole = (main + n * (1.0 + swap.gain) * tail) / swap.smallest + swap.cost
        return whole * TOLERANCES.profile_inflation if math.isfinite(whole) else math.inf

    best = math.inf
    if (
        in_rings
        and isinstance(law, ConvexOrderLaw)
        and epsilon >= TOLERANCES.rings_from
        and setting.diameter <= setting.spread * (1.0 + TOLERANCES.partial_shuffle_round_off)
    ):
        told = rings(law, setting.diameter, left, atoms.values)
        parts = [(ring.atoms, min(ring.variance, variance)) for ring in told]
        best = total(parts, max(ring.tail for ring in told))
    return min(best, total([(atoms, variance)], left + extra, best))


def variance_bound(setting: Setting, epsilon: float) -> float:
    """Var L_k at most, for all means allowed by `setting`."""
    a, drift = math.exp(epsilon), math.expm1(epsilon)
    mu, d = setting.spread, min(setting.move, 2.0 * setting.spread)
    ball = a * a * lognormal.variance(setting.diameter)
    near, growth = math.exp(-mu * d), math.expm1(d * d)
    base, whole = -drift * drift, math.exp(mu * mu)
    cases = (
        drift * drift * math.expm1(mu * mu) - 2.0 * a * whole * math.expm1(-0.5 * d * d),
        base + whole * ((near - a) ** 2 + near * near * growth),
        base + whole * ((1.0 - a * near) ** 2 + a * a * near * near * growth),
    )
    return min(ball, max(cases)) * (1.0 + TOLERANCES.partial_shuffle_round_off)


def _main_term(terms: Terms, known: float) -> float:
    """An upper bound on E(sum)_+: by moments, and by the atoms where these say too little.

    Atoms are not asked where even an estimate of the sum is hardly below `known`.
    """
    found = excess_of_sum(terms)
    best = (
        math.exp(found.log_bound)
        if found.log_bound < TOLERANCES.partial_shuffle_max_exponent
        else math.inf
    )
    close = found.log_estimate + math.log(TOLERANCES.third_order_by_moments)
    if found.log_bound > close and not (
        close < TOLERANCES.partial_shuffle_max_exponent and math.exp(close) >= known
    ):
        laws = [kind.comparison for kind in terms.kinds]
        atomic = (
            _of_one(laws[0], terms.count) if len(laws) == 1 else _worst_mixture(laws, terms.count)
        )
        best = min(best, atomic)
    return best


def _of_one(law: AtomicLaw, count: int) -> float:
    """An upper bound on E(sum)_+ of one law: min over q of E(q + sum)_+^2 / (4q)."""
    theta = tilt_at_saddle_point(law, [(1.0, count - 1)])
    offsets = OFFSETS / theta
    found = squared_excess_of_sum(law, count, theta, offsets)
    if found is None:
        return math.inf
    best = float(np.min(found.values / (4.0 * offsets)))
    return best * _exponential(found.log_scale)


def _worst_mixture(laws: Sequence[AtomicLaw], count: int) -> float:
    """An upper bound on E(sum)_+ of `count` terms, each of one of `laws`.

    Any line will do. It is put where the largest of the laws' saddle-point estimates is about
    least, for the price of moments alone.
    """
    saddles = [tilt_at_saddle_point(law, [(1.0, count - 1)]) for law in laws]
    low, high = min(saddles), max(saddles)
    while high > TOLERANCES.rings_tilt_step * low:
        theta = math.sqrt(low * high)
        worst = int(np.argmax([_log_estimate(law, count, theta) for law in laws]))
        low, high = (theta, high) if saddles[worst] > theta else (low, theta)
    theta = math.sqrt(low * high)
    tilted = [TiltedLaw.of(law, theta) for law in laws]
    variance = max(each.second - each.mean**2 for each in tilted)
    period = TOLERANCES.cells_period_sds * math.sqrt(count * variance) + 8.0 / theta
    log = max(log_excess_by_moduli(law, count, theta, period) for law in laws)
    return _exponential(log)


def _log_estimate(law: AtomicLaw, count: int, theta: float) -> float:
    """log of M(theta)^count over the tilted deviation, one law against another."""
    if theta * law.values[-1] > TOLERANCES.partial_shuffle_max_exponent:
        return math.inf
    tilted = TiltedLaw.of(law, theta)
    variance = max(tilted.second - tilted.mean**2, TOLERANCES.partial_shuffle_tiny)
    return count * tilted.moment.log - 0.5 * math.log(variance)


def _exponential(log: float) -> float:
    return math.exp(log) if log < TOLERANCES.partial_shuffle_max_exponent else math.inf
