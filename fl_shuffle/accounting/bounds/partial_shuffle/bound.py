"""The sharper bound at one epsilon: every free parameter chosen, every cost added."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle import lognormal
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import Choice, ToppedLaw, collapse
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    GaussianLaw,
    gaussian_law,
    squared_tail,
)
from fl_shuffle.accounting.bounds.partial_shuffle.lifting import lifted
from fl_shuffle.accounting.bounds.partial_shuffle.prediction import predict
from fl_shuffle.accounting.bounds.partial_shuffle.second_order import squared_excess_of_sum
from fl_shuffle.accounting.bounds.partial_shuffle.swap import choose_swap
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
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


def third_order_delta(setting: Setting, epsilon: float) -> float:
    """The bound through the third-order comparison; infinite where no parameters are found."""
    local = float(gaussian_profile(epsilon, setting.move)) * (1.0 + 1e-12)
    if not local > TOLERANCES.third_order_negligible_delta:
        return math.inf
    variance = variance_bound(setting, epsilon)
    law = gaussian_law(epsilon, setting.move, setting.spread)
    cut, guess = predict(law, setting.count, variance)
    law = replace(law, upper=cut)
    best = math.inf
    for _ in range(TOLERANCES.third_order_passes):
        best = min(best, _with_goal(setting, epsilon, local, law, guess))
        if best <= TOLERANCES.third_order_close * guess or math.isinf(best):
            break
        guess = 0.5 * best
    return best


def _with_goal(
    setting: Setting, epsilon: float, local: float, law: GaussianLaw, guess: float
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
    try:
        left = float(law.stop_loss(np.array([law.upper]))[0])
        top = ToppedLaw(law, squared_tail(law, setting.spread), left)
        atoms, _, extra = round_up_convex(top, [(1.0, n - 1)], TOLERANCES.third_order_rounding)
    except PrecisionError:
        return math.inf
    tail = extra + left
    total = 0.0
    hint: Choice | None = None
    for loss, weight in zip(swap.losses.tolist(), swap.weights.tolist(), strict=True):
        terms = lifted(atoms, swap.gain, loss)
        mean = -(1.0 - loss) * drift + (swap.gain + loss) * local
        second = (1.0 + swap.gain) ** 2 * (variance + drift * drift)
        found = collapse(terms, second - mean * mean, mean, rate, hint)
        if found is None:
            return math.inf
        lower, hint = found
        total += weight * _main_term(lower, n)
    total = (total + n * (1.0 + swap.gain) * tail) / swap.smallest + swap.cost
    return total * (1.0 + 1e-12) if math.isfinite(total) else math.inf


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
    return min(ball, max(cases)) * (1.0 + 1e-9)


def _main_term(law: AtomicLaw, count: int) -> float:
    """An upper bound on E(sum)_+: min over q of E(q + sum)_+^2 / (4q)."""
    theta = tilt_at_saddle_point(law, [(1.0, count - 1)])
    offsets = OFFSETS / theta
    found = squared_excess_of_sum(law, count, theta, offsets)
    if found is None:
        return math.inf
    best = float(np.min(found.values / (4.0 * offsets)))
    return math.exp(found.log_scale) * best if found.log_scale < 600.0 else math.inf
