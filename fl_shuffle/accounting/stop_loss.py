"""The engine: the shuffled delta of a differing client hidden by blanket reports.

    delta(eps) <= E[ L_1 1{ L_1 + sum_{j>=2} B_j L_j > 0 } ],    B_j ~ Bernoulli(gamma_j)

with L_j iid copies of the amplification variable (Balle et al. 2019, Lemma 5.3; Su, Cheng and Wang
2025, Theorem 4, for equal gamma; the same argument with a common blanket law for unequal ones).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_shuffle.accounting.blanket_counts import TiltedCounts, tilted_counts
from fl_shuffle.accounting.convex_rounding import round_up_convex
from fl_shuffle.accounting.privacy_loss import AmplificationLaw, AtomicLaw
from fl_shuffle.accounting.saddle import saddle_point
from fl_shuffle.accounting.spectral import UNIT, TiltedLaw, trapezoid
from fl_shuffle.errors import PrecisionError, require_integer, require_real

MAX_NODES = 4_000_000
MAX_REPORTS = 10**12
NEGLIGIBLE_MASS = 1e-100
"""Blanket masses up to this are dropped, which can only raise delta."""
LOG_VANISHING = -640.0
"""Below e^-640 (1e-278) the Chernoff bound E(S)_+ <= E e^(theta S) / (e theta) is enough."""


@dataclass(frozen=True)
class DeltaBound:
    """A certified upper bound `delta`; the exact value lies in [delta - error, delta].

    For a law given by atoms the lower end is certified too; for a law given by its stop-loss
    transform the part of `error` due to convex-order rounding is a saddle-point estimate.
    """

    delta: float
    error: float

    @property
    def lower(self) -> float:
        """delta - error, not below zero."""
        return max(0.0, self.delta - self.error)


def amplified_delta(
    law: AmplificationLaw,
    blanket: Sequence[tuple[float, int]],
    *,
    relative_error: float = 1e-4,
) -> DeltaBound:
    """Upper bound on E[L_1 1{L_1 + sum_j B_j L_j > 0}], relative excess at most `relative_error`.

    `blanket` lists (gamma, count) for the *other* reports; gamma = 0 contributes nothing. All
    numerical errors are added to the result. The local value E[(L_1)_+] is never exceeded.

    Raises `PrecisionError`, naming the limiting term, if the accuracy cannot be had.
    """
    tolerance = require_real("relative_error", relative_error, minimum=1e-9, maximum=0.5)
    classes = _merged(blanket)
    local = float(law.stop_loss(np.zeros(1))[0]) * (1.0 + 16.0 * UNIT)
    if law.upper <= 0.0 or not classes or local <= 0.0:
        return DeltaBound(min(local, 1.0), min(local, 1.0) * 32.0 * UNIT)
    atoms, rounding, top = round_up_convex(law, classes, 0.3 * tolerance)
    result = _certified_sum(atoms, classes, tolerance - 0.3 * tolerance * (rounding > 0.0))
    delta = result.delta + top
    error = result.error + top + delta * rounding
    if delta >= local:
        return DeltaBound(min(local, 1.0), max(error - (delta - local), local * 32.0 * UNIT))
    return DeltaBound(min(delta, 1.0), error)


def _merged(blanket: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    merged: dict[float, int] = {}
    for gamma, count in blanket:
        mass = require_real("gamma", gamma, minimum=0.0, maximum=1.0)
        number = require_integer("count", count, minimum=0, maximum=MAX_REPORTS)
        if mass > NEGLIGIBLE_MASS and number > 0:
            merged[mass] = merged.get(mass, 0) + number
    return sorted(merged.items())


def _certified_sum(
    law: AtomicLaw, classes: Sequence[tuple[float, int]], tolerance: float
) -> DeltaBound:
    theta = saddle_point(law, classes)
    tilted = TiltedLaw.of(law, theta)
    counts = tilted_counts(classes, tilted.excess, tolerance)
    deviation = _deviation(tilted, classes)
    front = math.sqrt(2.0 * math.pi * (deviation**2 + 2.0 / theta**2)) * theta**2
    guess = counts.total / front
    chernoff = counts.log_scale + math.log(counts.total / theta) - 1.0
    if chernoff < LOG_VANISHING:
        vanishing = math.exp(LOG_VANISHING)
        return DeltaBound(vanishing, vanishing)
    ratio = math.sqrt(0.4 * tolerance)
    without: int | None = None
    last: dict[str, float] = {}
    for _ in range(12):
        period = _period(law, tilted, classes, counts, 0.02 * tolerance * guess)
        sd = ratio / theta
        cut = _cut(sd, theta, counts.total, 0.01 * tolerance * guess)
        if cut / sd * period > 2.0 * math.pi * MAX_NODES:
            break
        total = trapezoid(
            tilted,
            counts,
            deviation=deviation,
            period=period,
            smoothing_sd=sd,
            cut=cut,
            without=without,
        )
        piled = counts.zero_atom if without is None else 0.0
        atom = piled * sd / math.sqrt(2.0 * math.pi) * (1.0 - 128.0 * UNIT)
        scale_error = _scale_error(law, tilted, classes, counts.log_scale)
        missing = counts.missing / (math.e * theta)
        added = total.cut + total.skipped + total.roundoff + missing
        upper = (total.value - atom + added) * (1.0 + scale_error)
        smoothing = max(total.smoothing - atom, 0.0)
        error = smoothing + total.excess + 2.0 * added + 2.0 * scale_error * upper
        error += 0.02 * tolerance * guess
        if upper > 0.0 and error <= tolerance * upper:
            delta = math.exp(counts.log_scale) * upper
            return DeltaBound(max(delta, 5e-324), math.exp(counts.log_scale) * error)
        last = {
            "smoothing": smoothing,
            "rounding of the blanket-count weights": total.excess,
            "cut-off": total.cut,
            "skipped frequencies": total.skipped,
            "round-off": 2.0 * total.roundoff + 2.0 * scale_error * upper,
            "blanket-count tail": missing,
        }
        limiting = max(last, key=lambda name: last[name])
        if limiting in ("round-off", "blanket-count tail", "rounding of the blanket-count weights"):
            break
        if without is None and smoothing > 30.0 * tolerance * max(upper - smoothing, 0.0):
            without = tilted.quiet_atom()
        guess = min(guess, max(upper, guess * 1e-3))
        if smoothing > 0.3 * tolerance * upper:
            ratio *= min(0.5, max(0.02, 0.3 * tolerance * max(upper, 1e-3 * guess) / smoothing))
    limiting = max(last, key=lambda name: last[name]) if last else "smoothing"
    raise PrecisionError(
        f"relative error {tolerance:g} cannot be reached at delta near "
        f"{math.exp(counts.log_scale) * guess:.3g}: limited by {limiting}; "
        "ask for a larger relative_error, or a smaller epsilon"
    )


def _deviation(tilted: TiltedLaw, classes: Sequence[tuple[float, int]]) -> float:
    """Standard deviation of the tilted sum (the differing client counted at its largest)."""
    own = max(tilted.second - tilted.mean**2, 0.0)
    variance = 0.0
    for gamma, count in classes:
        mass = gamma * (1.0 + tilted.excess) / (1.0 + gamma * tilted.excess)
        each = max(mass * tilted.second - (mass * tilted.mean) ** 2, 0.0)
        variance += count * each
        own = max(own, each)
    variance += own
    return math.sqrt(variance) * (1.0 + 1e-9)


def _period(
    law: AtomicLaw,
    tilted: TiltedLaw,
    classes: Sequence[tuple[float, int]],
    counts: TiltedCounts,
    target: float,
) -> float:
    """A period whose aliased copies weigh at most `target` (relative to e^log_scale).

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
        excess = float(law.probabilities @ np.expm1(rate * law.values))
        log_mass = math.log1p(excess)
        for gamma, count in classes:
            log_mass += count * math.log1p(gamma * excess)
        above = min(above, (log_mass - 1.0 - math.log(rate) - goal) / (rate - theta))
    if not math.isfinite(above):
        reach = sum(count for _, count in classes) + 1
        above = float(reach * max(law.values[-1], 0.0))
    return 1.001 * max(below, above, 1.0 / theta)


def _cut(sd: float, theta: float, total: float, target: float) -> float:
    """How many smoothing deviations out the integrand must be summed."""
    for cut in np.arange(3.0, 9.0, 0.25):
        gauss = math.exp(-0.5 * cut * cut) / (math.pi * cut) * total
        tail = gauss * (sd / cut**2) * math.exp(0.5 * (sd * theta) ** 2)
        bump = gauss * sd
        if tail <= target and bump <= target:
            return float(cut)
    return 9.0


def _scale_error(
    law: AtomicLaw,
    tilted: TiltedLaw,
    classes: Sequence[tuple[float, int]],
    log_scale: float,
) -> float:
    """Relative round-off of e^log_scale, including half an ulp in every atom and probability."""
    exponent = tilted.theta * law.values
    moved = np.abs(np.expm1(exponent)) + np.abs(exponent) * np.exp(exponent)
    size = float(law.probabilities @ moved)
    share = 1.0 + sum(count * gamma / (1.0 + gamma * tilted.excess) for gamma, count in classes)
    return UNIT * ((law.values.size + 8.0) * share * size + 8.0 * abs(log_scale) + 16.0)
