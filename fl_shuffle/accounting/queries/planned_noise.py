"""Before a run: the noise that a target needs.

The search uses coarse curves; what is printed is what a run's own accounting says of the noise
found.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fl_shuffle.accounting.attacks.certain_loss import CertainLoss
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.participation import require_participation
from fl_shuffle.accounting.bounds.report_class import NOISES, ReportClass
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.engine.dominating_pairs import DominatingPair
from fl_shuffle.accounting.engine.monotone_search import (
    bisected,
    crossing_scale,
    falling_power,
    is_least,
    plausible_power,
)
from fl_shuffle.accounting.guarantee import proof_over_attack
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_ROUNDS
from fl_shuffle.accounting.rounds.equal_rounds import followed, shuffled_pair
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, RoundType
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import (
    NotApplicableError,
    require_choice,
    require_integer,
    require_open_unit,
    require_real,
)

UNITS = ("client", "record")


@dataclass(frozen=True)
class NoisePlan:
    """The noise that reaches a target, and what it means.

    `scale` is the noise of each coordinate of a report (Gaussian sigma or Laplace b); `deviation`
    its standard deviation; `average_deviation` that of the mean of all reports. `epsilon` is what
    the accountant will certify for the worst client over all rounds at `delta`; `local_epsilon` the
    same without a shuffler. `report_epsilon` is the local budget of one report at `report_delta`.
    `scale_without_shuffler` is what the same target would need if nobody shuffled (or, where only
    sums are released, if nobody added up). `reports` is the number of clients. `lower` is what an
    attack certainly reaches at `scale` (0: none that is known, or looked for).
    """

    noise: str
    scale: float
    deviation: float
    average_deviation: float
    epsilon: float
    delta: float
    local_epsilon: float
    report_epsilon: float
    report_delta: float
    scale_without_shuffler: float
    credit: bool
    reports: int
    release: str = "reports"
    lower: float = 0.0

    @property
    def proven_over_lower(self) -> float | None:
        """How much a better proof, or a better attack, could gain at most; None without attack."""
        return proof_over_attack(self.epsilon, self.lower)


def plan_noise(
    epsilon: float,
    delta: float,
    *,
    clients: int | Sequence[tuple[float, int]],
    rounds: int,
    noise: str = "gaussian",
    clip: float = 1.0,
    unit: str = "client",
    records: int = 1,
    report_delta: float = 1e-5,
    participation: float = 1.0,
) -> NoisePlan:
    """The smallest common noise found that gives every client (epsilon, delta).

    Its cost is within 2% of epsilon; or a little less noise (1%; 2.5% where rare losses make the
    cost jump) would, or is expected to, cost more; or it is the second that was accounted for.

    `clients` is their number, or (share of `clip`, count) classes when clients clip to different
    radii. One report moves by 2 clip when a client is replaced, by 2 clip / `records` when one of
    `records` separately clipped records is. Relation: replace-one of one `unit`. `participation`
    < 1: each client sends a report in each round with that probability, and who did stays secret.

    Raises `NotApplicableError` if the target cannot be reached by any noise.
    """
    target = require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True, maximum=1e4)
    require_open_unit("delta", delta)
    require_open_unit("report_delta", report_delta)
    require_integer("rounds", rounds, minimum=1, maximum=MAX_ROUNDS)
    require_choice("noise", noise, NOISES)
    require_choice("unit", unit, UNITS)
    require_real("clip", clip, minimum=0.0, exclusive_minimum=True, maximum=1e12)
    require_integer("records", records, minimum=1)
    require_participation(participation)
    shape = clip_shares(clients)
    step = 2.0 / (records if unit == "record" else 1)
    without = _local_scale(noise, step * max(share for share, _ in shape), rounds, target, delta)

    def curve(scale: float) -> VectorCurve:
        return VectorCurve(
            _worst_batch(noise, scale, shape, step),
            relative_error=TOLERANCES.plan_relative_error,
            concentrate=len(shape) > 1,
            participation=participation,
        )

    @cache
    def rough(scale: float) -> float:
        return _rough_epsilon(curve(scale), rounds, delta)

    @cache
    def accounted(scale: float) -> float:
        return _accounted(_worst_batch(noise, scale, shape, step), rounds, delta, participation)

    if rounds == 1:
        scale = _one_round_scale(curve, without, target, delta)
    else:
        scale = _smallest_scale(curve, rough, accounted, without, rounds, target, delta)
    worst = curve(scale)
    local = local_epsilon(noise, worst.own.ratio, rounds, delta)
    total = sum(count for _, count in shape)
    deviation = scale * clip * (1.0 if noise == "gaussian" else math.sqrt(2.0))
    certified, attacked = local, 0.0
    if scale < without:
        # One round was certified at the target itself.
        certified = min(local, target if rounds == 1 else accounted(scale))
    if participation == 1.0:
        attacked = _attacked(noise, scale, shape, step, rounds, delta, local)
    return NoisePlan(
        noise=noise,
        scale=scale * clip,
        deviation=deviation,
        average_deviation=deviation / math.sqrt(total * participation),
        epsilon=certified,
        delta=delta,
        local_epsilon=local,
        report_epsilon=local_epsilon(noise, worst.own.ratio, 1, report_delta)
        if noise == "gaussian"
        else worst.own.ratio,
        report_delta=report_delta if noise == "gaussian" else 0.0,
        scale_without_shuffler=without * clip,
        credit=scale < without,
        reports=total,
        lower=attacked,
    )


def _accounted(
    batch: Sequence[ReportClass], rounds: int, delta: float, participation: float
) -> float:
    """What a run's accounting says of several equal rounds of `batch` to its first client."""
    if participation == 1.0:
        return RoundLibrary().epsilon({RoundType.of(batch, 0): rounds}, delta)
    # Runs are not credited for secret check-in: the same points of such a curve.
    curve = VectorCurve(
        batch, relative_error=TOLERANCES.round_relative_error, participation=participation
    )
    return Composition([(shuffled_pair(curve), rounds)]).epsilon(delta)


def _attacked(
    noise: str,
    scale: float,
    shape: Sequence[tuple[float, int]],
    step: float,
    rounds: int,
    delta: float,
    local: float,
) -> float:
    """What an attack on the clients of the largest radius certainly reaches; 0 for nothing."""
    classes = [ClientClass(noise, scale, share, step * share, 0.0, 0.0, 1) for share, _ in shape]
    counts = np.array([count for _, count in shape], dtype=np.int64)
    worst = max(range(len(shape)), key=lambda index: shape[index][0])
    return CertainLoss(classes, counts, None, delta).epsilon(worst, rounds, local=local)


def _one_round_scale(
    curve: Callable[[float], VectorCurve], without: float, target: float, delta: float
) -> float:
    """A scale at which the one curve, evaluated at the target alone, does not exceed `delta`."""

    def spent(scale: float) -> float:
        view = curve(scale)
        return view.delta(target) if view.credit else 1.0

    low = TOLERANCES.plan_smallest_share * without
    return bisected(spent, delta, low, without, within=TOLERANCES.plan_one_round_scale)


def _smallest_scale(
    curve: Callable[[float], VectorCurve],
    rough: Callable[[float], float],
    accounted: Callable[[float], float],
    without: float,
    rounds: int,
    target: float,
    delta: float,
) -> float:
    """The smallest scale found at which a run's own accounting does not exceed the target.

    It is dear, and a fixed share of the `rough` cost to about a percent: that leads to where it is
    asked next. `without`, where nothing smaller was certified.
    """

    def predicted(scale: float) -> float:
        view = curve(scale)
        mu = math.sqrt(rounds) * view.predicted_mu
        return gaussian_epsilon(delta, mu) if view.credit else math.inf

    @cache
    def likely(scale: float) -> float:
        """Where tails are heavy one round of all decides, and the normal prediction is far off."""
        view = curve(scale).loosened(TOLERANCES.round_far_relative_error)
        if not view.credit:
            return rounds * view.local_delta(target)
        # On the way there the curve learns how it falls, which saves more than it costs.
        view.delta(0.5 * target)
        return rounds * view.delta(target)

    good, bad = without, TOLERANCES.plan_smallest_share * without
    share, power = TOLERANCES.plan_expected_gain, TOLERANCES.plan_first_power
    low = start = bisected(predicted, target / share, bad, good)
    while start < good and likely(start) > delta:
        low, start = start, min(1.3 * start, good)
    if start > low:
        start = bisected(likely, delta, low, start, within=1e-2)
        # The rarer the losses that decide, the steeper.
        rarity = target / max(predicted(start), sys.float_info.min)
        share, power = TOLERANCES.plan_rare_gain, plausible_power(3.0 * rarity)
    seen: dict[float, float] = {}
    known: dict[float, float] = {}
    aim = target * (1.0 - TOLERANCES.plan_aim)
    start = crossing_scale(rough, aim / share, start, bad, good, power, seen)
    for earlier in range(TOLERANCES.plan_max_accounted):
        if start >= good:
            break
        value = known[start] = max(accounted(start), sys.float_info.min)
        steep = falling_power(known, falling_power(seen, power))
        if value <= target:
            good = start
            gap = math.log(target / value)
            enough = max(TOLERANCES.plan_close, steep * math.log(TOLERANCES.plan_scale_close))
            if gap <= enough or is_least(seen, start, target):
                break
        else:
            bad = start
        if good <= bad * TOLERANCES.plan_scale_close or (earlier and good < without):
            break
        if abs(math.log(value / target)) <= TOLERANCES.plan_near:
            # So near, the power with which the cost falls leads there without the rough one.
            step = (value / aim) ** (1.0 / steep)
            if value > target:
                # What missed by little once, may again: each time from a little further off.
                step = max(step, 1.0 + TOLERANCES.plan_least_step * 2.0**earlier)
            start *= step
            if not bad < start < good:
                start = math.sqrt(bad * good)
            continue
        gain = value / seen.get(start, aim / share)
        if TOLERANCES.plan_most_gain < gain < math.inf:
            start *= TOLERANCES.plan_past_jump
            continue
        share = max(gain, 1.0 / TOLERANCES.plan_most_gain) if gain < math.inf else 1.2 * share
        start = crossing_scale(rough, aim / share, start, bad, good, power, seen)
    return good


def _worst_batch(
    noise: str, scale: float, shape: Sequence[tuple[float, int]], step: float
) -> list[ReportClass]:
    """A batch above every client's view, the client first: largest ball, best hider left out."""
    ordered = sorted(shape)
    (smallest, count), *rest = ordered
    largest = ordered[-1][0]
    own = ReportClass(noise, scale, largest, step * largest, 1)
    others = [ReportClass(noise, scale, smallest, 0.0, count - 1)]
    others += [ReportClass(noise, scale, share, 0.0, number) for share, number in rest]
    return [own, *others]


def _rough_epsilon(curve: VectorCurve, rounds: int, delta: float) -> float:
    """About the composed epsilon, from few points of the curve: to compare scales with.

    Chords add the square of their length: half the points say how much, and that is taken off.
    """
    if not curve.credit:
        return math.inf
    epsilons, deltas, grid = followed(
        curve,
        per_sd=TOLERANCES.plan_nodes,
        near=TOLERANCES.plan_dense_sds,
        dense=TOLERANCES.plan_dense_sds,
        floor=TOLERANCES.plan_floor_share * delta / rounds,
        thin_after=TOLERANCES.plan_thin_after,
    )

    def composed(kept: list[int]) -> float:
        pair = DominatingPair.from_curve(
            [epsilons[index] for index in kept], [deltas[index] for index in kept], grid=grid
        )
        return Composition([(pair, rounds)]).epsilon(delta)

    last = len(epsilons) - 1
    fine = composed(list(range(last + 1)))
    coarse = composed([*range(0, last, 2), last])
    return fine - (coarse - fine) / 3.0 if coarse < 2.0 * fine else fine


def local_epsilon(noise: str, ratio: float, rounds: int, delta: float) -> float:
    """Epsilon of so many reports of one client, seen by themselves; `ratio` is its exposure."""
    if noise == "gaussian":
        return gaussian_epsilon(delta, ratio * math.sqrt(rounds))
    return laplace_epsilon(delta, ratio, rounds)


def _local_scale(
    noise: str, sensitivity: float, rounds: int, epsilon: float, delta: float
) -> float:
    """The noise that reaches the target without any shuffler, rounded up."""
    if noise == "gaussian":
        return sensitivity * math.sqrt(rounds) / gaussian_mu(epsilon, delta) * (1.0 + 1e-9)

    def spent(scale: float) -> float:
        return laplace_epsilon(delta, sensitivity / scale, rounds)

    low, high = sensitivity / (2.0 * epsilon + 10.0) / rounds, sensitivity * rounds / epsilon
    return bisected(spent, epsilon, low, high, within=2e-3)


def clip_shares(clients: int | Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """The (share of the clip, clients) classes of a plan, checked."""
    if isinstance(clients, int):
        return [(1.0, require_integer("clients", clients, minimum=1, maximum=MAX_CLIENTS))]
    shape = []
    for share, count in clients:
        value = require_real("clip share", share, minimum=0.0, exclusive_minimum=True, maximum=1.0)
        number = require_integer("clients of a class", count, minimum=0, maximum=MAX_CLIENTS)
        if number:
            shape.append((value, number))
    if not shape:
        raise NotApplicableError("a plan needs at least one client")
    return shape
