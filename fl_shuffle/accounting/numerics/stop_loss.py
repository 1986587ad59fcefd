"""The engine: the shuffled delta of a differing client hidden by blanket reports.

    delta(eps) <= E[ L_1 1{ L_1 + sum_{j>=2} B_j L_j > 0 } ],    B_j ~ Bernoulli(gamma_j)

with L_j iid copies of the amplification variable (Balle et al. 2019, Lemma 5.3; Su, Cheng and Wang
2025, Theorem 4, for equal gamma; the same argument with a common blanket distribution for unequal
ones).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.distributions.amplification import (
    AmplificationDistribution,
    AtomicDistribution,
)
from fl_shuffle.accounting.limits import MAX_CLIENTS
from fl_shuffle.accounting.numerics.blanket_counts import TiltedCounts, tilted_counts
from fl_shuffle.accounting.numerics.convex_rounding import ROUNDING_LARGE_LAW, round_up_convex
from fl_shuffle.accounting.numerics.fourier import Sum, TiltedDistribution, trapezoid
from fl_shuffle.accounting.numerics.tilted_moments import (
    TiltedMoments,
    class_arrays,
    tilt_at_saddle_point,
)
from fl_shuffle.accounting.round_off import ROUND_UP, UNIT
from fl_shuffle.errors import require_integer, require_real

NEGLIGIBLE_DELTA = 1e-140
"""No guarantee is asked this far out: finer is not computed."""
NEGLIGIBLE_BLANKET_MASS = 1e-100
"""Blanket masses up to this are dropped, which can only raise delta."""
LOG_VANISHING_DELTA = -640.0
"""Below e^-640 (1e-278) the Chernoff bound E(S)_+ <= E e^(theta S) / (e theta) is enough."""
STOP_LOSS_MAX_WORK = 1e8
"""Nodes times nanoseconds for each: a tenth of a second."""
REDUCIBLE = ("smoothing", "cut-off", "skipped")
"""Errors that a longer sum makes smaller."""
STOP_LOSS_ERROR = 1e-6
"""Allowed, unless told, to distributions given by atoms ..."""
STOP_LOSS_ROUNDED_ERROR = 2e-4
"""... and to those that must be rounded first: finer would be felt."""


@dataclass(frozen=True)
class DeltaBound:
    """A certified upper bound `delta`; the exact value lies in [delta - error, delta].

    For a distribution given by atoms the lower end is certified too; for a distribution given by
    its stop-loss transform the part of `error` due to convex-order rounding is a saddle-point
    estimate.
    """

    delta: float
    error: float

    @property
    def lower(self) -> float:
        """delta - error, not below zero."""
        return max(0.0, self.delta - self.error)


DeltaCurve = Callable[[float], DeltaBound]
"""delta at every epsilon >= 0 (nats), certified."""


def amplified_delta(
    law: AmplificationDistribution,
    blanket: Sequence[tuple[float, int]],
    *,
    relative_error: float | None = 1e-4,
) -> DeltaBound:
    """Return an upper bound on E[L_1 1{L_1 + sum_j B_j L_j > 0}].

    Parameters
    ----------
    law : AmplificationDistribution
        Distribution of L.
    blanket : sequence of (float, int)
        (gamma, count) of the *other* reports; gamma = 0 contributes nothing.
    relative_error : float or None, default 1e-4
        Relative excess that is allowed, 1e-9 to 0.5. None: `usual_error`.

    Returns
    -------
    DeltaBound
        `delta` never exceeds the local value E[(L_1)_+]. Where the accuracy cannot be had in a
        tenth of a second it is the best bound found: `error` says how far it may be off, at worst
        it is the local value.

    Notes
    -----
    Statement: see the module. Source: docs/research/proofs, sections 2 and 7. Direction of error:
    all numerical errors are added to the result.
    """
    if relative_error is None:
        relative_error = usual_error(law)
    tolerance = require_real("relative_error", relative_error, minimum=1e-9, maximum=0.5)
    classes = _merged(blanket)
    # E(L)_+, the divergence without any other report: no shuffle exceeds it.
    local = float(law.stop_loss(np.zeros(1))[0]) * (1.0 + 16.0 * UNIT)
    if law.upper <= 0.0 or not classes or local <= 0.0:
        return DeltaBound(min(local, 1.0), min(local, 1.0) * 32.0 * UNIT)
    if local < NEGLIGIBLE_DELTA:
        # Squares of such losses underflow; the local value is as good as any.
        return DeltaBound(local, local)
    # Three tenths of the tolerance for rounding L to atoms, and the rest for the sum over them.
    atoms, rounding, top = round_up_convex(law, classes, 0.3 * tolerance)
    rest = max(tolerance - 0.3 * tolerance * (rounding > 0.0), 0.3 * rounding)
    result = _certified_sum(atoms, classes, min(rest, 0.5))
    delta = result.delta + top
    error = result.error + top + delta * rounding
    if delta >= local:
        spread = max(error - (delta - local), local * 32.0 * UNIT)
        return DeltaBound(min(local, 1.0), min(spread, local))
    return DeltaBound(min(delta, 1.0), error)


def usual_error(law: AmplificationDistribution | None) -> float:
    """Return the relative error that costs nothing that is felt."""
    exact = law is None or (
        isinstance(law, AtomicDistribution) and law.values.size <= ROUNDING_LARGE_LAW
    )
    return STOP_LOSS_ERROR if exact else STOP_LOSS_ROUNDED_ERROR


def _merged(blanket: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    merged: dict[float, int] = {}
    for gamma, count in blanket:
        mass = require_real("gamma", gamma, minimum=0.0, maximum=1.0)
        number = require_integer("count", count, minimum=0, maximum=MAX_CLIENTS)
        if mass > NEGLIGIBLE_BLANKET_MASS and number > 0:
            merged[mass] = merged.get(mass, 0) + number
    return sorted(merged.items())


def _certified_sum(
    law: AtomicDistribution, classes: Sequence[tuple[float, int]], tolerance: float
) -> DeltaBound:
    """Return the bound on the line through the saddle point.

    Without any sum within reach it is Chernoff's: E(S)_+ <= E e^(theta S) / (e theta).
    """
    # Every theta > 0 gives a bound. At the saddle point the phase is stationary, and the terms of
    # the sum cancel least.
    theta = tilt_at_saddle_point(law, classes)
    tilted = TiltedDistribution.of(law, theta)
    counts = tilted_counts(classes, tilted.moment)
    deviation = _deviation(tilted, classes)
    # The saddle-point estimate of the integral is H/`front`: log H - 2 log theta has the second
    # derivative variance + 2/theta^2. It sets the accuracy that is asked for, and proves nothing.
    front = math.sqrt(2.0 * math.pi * (deviation**2 + 2.0 / theta**2)) * theta**2
    scale_error = tilted.moment.log_total_error(classes)
    scale_error += UNIT * (8.0 * abs(counts.log_scale) + 16.0)
    # x_+ <= e^(theta x - 1)/theta.
    tail = (counts.total * ROUND_UP + counts.missing) / (math.e * theta)
    chernoff = counts.log_scale + math.log(tail) + math.log1p(scale_error)
    whole = math.exp(min(max(chernoff, LOG_VANISHING_DELTA), 0.0))
    best = DeltaBound(whole, whole)
    if chernoff < LOG_VANISHING_DELTA:
        return best
    guess = counts.total / front
    ratio = math.sqrt(0.4 * tolerance)
    coarse = False
    for attempt in range(12):
        # The series is periodic; copies of the sum from beyond a period weigh no more than
        # `target`.
        period = _period(law, tilted, classes, counts, 0.02 * tolerance * guess)
        # The kernel's smoothing, by Jensen upwards: E(S + V)_+ >= E S_+ with V of deviation sd.
        # The excess is about theta^2 sd^2/2 of the sum, hence `ratio`.
        sd = ratio / theta
        cut = _cut(sd, theta, counts.total, 0.01 * tolerance * guess)
        nodes = cut / sd * period / (2.0 * math.pi)
        excess = nodes * (600.0 + 10.0 * counts.width + 0.3 * law.values.size)
        excess /= STOP_LOSS_MAX_WORK
        if excess > 1.0:
            if attempt or excess > 1e3:
                break
            # One sum that is within reach: a bound, if not as accurate as asked.
            ratio, sd, coarse = ratio * excess, sd * excess, True
        total = trapezoid(
            tilted, counts, deviation=deviation, period=period, smoothing_sd=sd, cut=cut
        )
        upper, errors = _with_errors(total, counts, theta, sd, scale_error)
        error = sum(errors.values()) + 0.02 * tolerance * guess
        if upper > 0.0:
            delta = max(math.exp(counts.log_scale) * upper, 5e-324)
            bound = DeltaBound(delta, min(math.exp(counts.log_scale) * error, delta))
            if error <= tolerance * upper:
                return bound
            best = min(best, bound, key=lambda each: each.delta)
        if coarse or max(errors, key=lambda name: errors[name]) not in REDUCIBLE:
            break
        guess = min(guess, max(upper, guess * 1e-3))
        smoothing = errors["smoothing"]
        if smoothing > 0.3 * tolerance * upper:
            ratio *= min(0.5, max(0.02, 0.3 * tolerance * max(upper, 1e-3 * guess) / smoothing))
    return best


def _with_errors(
    total: Sum, counts: TiltedCounts, theta: float, sd: float, scale_error: float
) -> tuple[float, dict[str, float]]:
    """Return an upper bound with all errors in it, and how much of it each of them may be."""
    # The fictitious atom at S = 0 has added E(V)_+ = sd/sqrt(2 pi) times its weight.
    atom = counts.zero_atom * sd / math.sqrt(2.0 * math.pi) * (1.0 - 128.0 * UNIT)
    missing = counts.missing / (math.e * theta)
    added = total.cut + total.skipped + total.roundoff + missing
    upper = (total.value - atom + added) * (1.0 + scale_error)
    return upper, {
        "smoothing": max(total.smoothing - atom, 0.0),
        "cut-off": 2.0 * total.cut,
        "skipped": 2.0 * total.skipped,
        "weights": total.excess,
        "round-off": 2.0 * total.roundoff + 2.0 * scale_error * upper,
        "tail": 2.0 * missing,
    }


def _deviation(tilted: TiltedDistribution, classes: Sequence[tuple[float, int]]) -> float:
    """Return the standard deviation of the tilted sum.

    The differing client is counted at its largest.
    """
    own = max(tilted.second - tilted.mean**2, 0.0)
    variance = 0.0
    gammas, counts = class_arrays(classes)
    masses = gammas * tilted.moment.value / tilted.moment.blend(gammas)
    for mass, count in zip(masses.tolist(), counts.tolist(), strict=True):
        each = max(mass * tilted.second - (mass * tilted.mean) ** 2, 0.0)
        variance += count * each
        own = max(own, each)
    variance += own
    return math.sqrt(variance) * ROUND_UP


def _period(
    law: AtomicDistribution,
    tilted: TiltedDistribution,
    classes: Sequence[tuple[float, int]],
    counts: TiltedCounts,
    target: float,
) -> float:
    """Return a period whose aliased copies weigh at most `target` (relative to e^log_scale).

    Copies from below: sum_j e^(-j theta T) E_nu(S + jT)_+. From above: for any lambda > theta
    sum_j e^(j theta T) E_nu(S - jT)_+ <= sum_j e^(K(lambda) - 1 - (lambda - theta) j T) / lambda.
    """
    theta = tilted.theta
    goal = math.log(target) + counts.log_scale - math.log(4.0)
    local = float(law.stop_loss(np.zeros(1))[0])
    mean_count = sum(gamma * count for gamma, count in classes)
    weight = min(1.0, (1.0 / mean_count if len(classes) == 1 else 1.0))
    below = 1.0 / theta
    for _ in range(6):
        below = max(1.0, math.log(weight * below + local) - goal) / theta
    deviation = max(_deviation(tilted, classes), 1e-3 / theta)
    above = math.inf
    for steps in (1.0, 2.0, 4.0, 6.0, 8.0, 11.0, 15.0):
        rate = theta + steps / deviation
        if rate * law.values[-1] > 600.0:
            break
        log_mass = TiltedMoments.of(law, rate).log_total(classes)
        above = min(above, (log_mass - 1.0 - math.log(rate) - goal) / (rate - theta))
    if not math.isfinite(above):
        reach = sum(count for _, count in classes) + 1
        above = float(reach * max(law.values[-1], 0.0))
    return 1.001 * max(below, above, 1.0 / theta)


def _cut(sd: float, theta: float, total: float, target: float) -> float:
    """Return how many smoothing deviations out the integrand must be summed."""
    for cut in np.arange(3.0, 9.0, 0.25):
        # As `trapezoid` bounds what it cuts off: the tail of the Gaussian weight at `cut`
        # deviations.
        gauss = math.exp(-0.5 * cut * cut) / (math.pi * cut) * total
        tail = gauss * (sd / cut**2) * math.exp(0.5 * (sd * theta) ** 2)
        bump = gauss * sd
        if tail <= target and bump <= target:
            return float(cut)
    return 9.0
