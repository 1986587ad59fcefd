"""Before a run: the noise a target needs, and what given reports will cost.

Both directions of the same question. Every answer is certified by the bounds that account for the
run itself; approximations only choose what to try next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.participation import require_participation
from fl_shuffle.accounting.bounds.report_class import NOISES, ReportClass
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.engine.composition import Composition
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.accounting.limits import MAX_CLIENTS, MAX_ROUNDS
from fl_shuffle.accounting.rounds.round_library import shuffled_pair
from fl_shuffle.accounting.tolerances import TOLERANCES
from fl_shuffle.errors import (
    InvalidValueError,
    NotApplicableError,
    require_choice,
    require_integer,
    require_real,
)

UNITS = ("client", "record")


@dataclass(frozen=True)
class ClassCost:
    """What a run costs the clients of one class, proven; `anonymity` counts reports like theirs.

    `epsilon` is the smaller of the shuffled and the local guarantee over all rounds, `local` the
    latter, both at the same delta. `credit` says whether the shuffler contributes at all.
    """

    index: int
    clients: int
    anonymity: int
    epsilon: float
    local: float
    credit: bool


@dataclass(frozen=True)
class NoisePlan:
    """The noise that reaches a target, and what it means.

    `scale` is the noise of each coordinate of a report (Gaussian sigma or Laplace b); `deviation`
    its standard deviation; `average_deviation` that of the mean of all reports. `epsilon` is what
    the accountant will certify for the worst client over all rounds at `delta`; `local_epsilon` the
    same without a shuffler. `report_epsilon` is the local budget of one report at `report_delta`.
    `scale_without_shuffler` is what the same target would need if nobody shuffled (or, where only
    sums are released, if nobody added up). `reports` is the number of clients.
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


def plan_cost(
    classes: Sequence[ReportClass], rounds: int, delta: float, *, colluders: int = 0
) -> list[ClassCost]:
    """The proven cost of `rounds` equal rounds for each class of a batch that arrives whole.

    So many `colluders`' reports hide nobody: for each client those that would hide it best. Classes
    with no clients are left out. Raises `InvalidValueError` if there is none.
    """
    require_integer("rounds", rounds, minimum=1, maximum=MAX_ROUNDS)
    require_target_delta(delta)
    cohorts: dict[tuple[str, float], list[int]] = {}
    for index, own in enumerate(classes):
        if own.count:
            cohorts.setdefault((own.noise, own.scale), []).append(index)
    if not cohorts:
        raise InvalidValueError("classes", len(classes), "must hold at least one client")
    costs = []
    for members in cohorts.values():
        for position, index in enumerate(members):
            cohort = _without([classes[i] for i in members], position, colluders)
            curve = VectorCurve(
                cohort,
                position,
                relative_error=TOLERANCES.plan_relative_error,
                concentrate=len(cohort) > 1,
            )
            own = classes[index]
            local = _local_epsilon(own.noise, own.ratio, rounds, delta)
            epsilon = min(
                local, _shuffled_epsilon(curve, rounds, delta, TOLERANCES.plan_coarse_nodes)
            )
            costs.append(ClassCost(index, own.count, curve.anonymity, epsilon, local, curve.credit))
    return sorted(costs, key=lambda cost: cost.index)


def _without(cohort: list[ReportClass], own: int, colluders: int) -> list[ReportClass]:
    """The batch without so many others, those of the smallest balls first."""
    left, batch = colluders, list(cohort)
    for index in sorted(range(len(batch)), key=lambda i: batch[i].radius):
        gone = min(left, batch[index].count - (index == own))
        batch[index] = replace(batch[index], count=batch[index].count - gone)
        left -= gone
    return batch


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
    """The smallest common noise (within 1.5% of epsilon) that gives every client (epsilon, delta).

    `clients` is their number, or (share of `clip`, count) classes when clients clip to different
    radii. One report moves by 2 clip when a client is replaced, by 2 clip / `records` when one of
    `records` separately clipped records is. Relation: replace-one of one `unit`. `participation`
    < 1: each client sends a report in each round with that probability, and who did stays secret.

    Raises `NotApplicableError` if the target cannot be reached by any noise.
    """
    target = require_real("epsilon", epsilon, minimum=0.0, exclusive_minimum=True, maximum=1e4)
    require_target_delta(delta)
    require_target_delta(report_delta, "report_delta")
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
        return _worst_view(noise, scale, shape, step, participation)

    @cache
    def cost(scale: float) -> float:
        if rounds < TOLERANCES.plan_many_rounds:
            # The tail of each round's loss decides, and few points follow it.
            return _shuffled_epsilon(
                curve(scale),
                rounds,
                delta,
                TOLERANCES.plan_few_rounds_nodes,
                dense=TOLERANCES.plan_few_rounds_dense_sds,
                floor_share=TOLERANCES.plan_few_rounds_floor_share,
            )
        return _shuffled_epsilon(curve(scale), rounds, delta, TOLERANCES.plan_fine_nodes)

    if rounds == 1:
        scale, shuffled = _one_round_scale(curve, without, target, delta), target
    else:
        scale, shuffled = _smallest_scale(curve, cost, without, rounds, target, delta)
    worst = curve(scale)
    local = _local_epsilon(noise, worst.own.ratio, rounds, delta)
    total = sum(count for _, count in shape)
    deviation = scale * clip * (1.0 if noise == "gaussian" else math.sqrt(2.0))
    certified = min(local, shuffled) if scale < without else local
    return NoisePlan(
        noise=noise,
        scale=scale * clip,
        deviation=deviation,
        average_deviation=deviation / math.sqrt(total * participation),
        epsilon=certified,
        delta=delta,
        local_epsilon=local,
        report_epsilon=_local_epsilon(noise, worst.own.ratio, 1, report_delta)
        if noise == "gaussian"
        else worst.own.ratio,
        report_delta=report_delta if noise == "gaussian" else 0.0,
        scale_without_shuffler=without * clip,
        credit=scale < without,
        reports=total,
    )


def _one_round_scale(
    curve: Callable[[float], VectorCurve], without: float, target: float, delta: float
) -> float:
    """A scale at which the one curve, evaluated at the target alone, does not exceed `delta`."""

    def spent(scale: float) -> float:
        view = curve(scale)
        return view.delta(target) if view.credit else 1.0

    low = TOLERANCES.plan_smallest_share * without
    # Without credit the noise is known; bisection would end there, one evaluation later.
    return _solve(spent, delta, low, without, within=TOLERANCES.plan_one_round_scale)


def _smallest_scale(
    curve: Callable[[float], VectorCurve],
    cost: Callable[[float], float],
    without: float,
    rounds: int,
    target: float,
    delta: float,
) -> tuple[float, float]:
    """Secant search between the prediction and the certified cost: a scale and its cost.

    The scale is `without`, and its cost infinite, where nothing smaller was certified.
    """

    def predicted(scale: float) -> float:
        view = curve(scale)
        if not view.credit:
            return math.inf
        return gaussian_epsilon(delta, math.sqrt(rounds) * view.predicted_mu)

    def likely(scale: float) -> float:
        """Where tails are heavy one round of all decides, and the normal prediction is far off."""
        view = curve(scale)
        return rounds * (view.delta(target) if view.credit else view.local_delta(target))

    good, bad = without, TOLERANCES.plan_smallest_share * without
    first = _solve(likely, delta, bad, good, within=3e-3)
    few = rounds < TOLERANCES.plan_many_rounds
    close = TOLERANCES.plan_few_rounds_close if few else TOLERANCES.plan_close
    correction = 1.0
    seen: dict[float, float] = {}
    for _ in range(TOLERANCES.plan_max_trials):
        aim = target * (1.0 - 0.3 * close)
        if good in seen and math.isfinite(seen.get(bad, math.inf)):
            # Between two certified costs: a straight line in logarithms.
            rise = math.log(seen[good] / seen[bad])
            share = math.log(aim / seen[bad]) / rise if rise < 0.0 else 0.5
            scale = bad * (good / bad) ** min(max(share, 0.05), 0.95)
        else:
            scale = max(_solve(predicted, aim / correction, bad, good), first)
            first = bad
            if good in seen and few:
                # A heavy tail makes the cost steeper in the scale than the prediction.
                scale = good * (scale / good) ** TOLERANCES.plan_few_rounds_step
        if scale >= good:
            break
        value = seen[scale] = cost(scale)
        if value <= target:
            good = scale
            if value >= target * (1.0 - close):
                break
        else:
            bad = scale
        # Without a certified number, or without progress, ask for more noise than predicted.
        better = value / predicted(scale) if math.isfinite(value) else 0.0
        correction = better if better > 1.01 * correction or value <= target else 1.3 * correction
    return good, seen.get(good, math.inf)


def _solve(
    function: Callable[[float], float], goal: float, low: float, high: float, within: float = 1e-4
) -> float:
    """Smallest x (to `within`) with function(x) <= goal for a falling function, else high."""
    if function(high) > goal:
        return high
    while high > low * (1.0 + within):
        middle = math.sqrt(low * high)
        if function(middle) <= goal:
            high = middle
        else:
            low = middle
    return high


def _worst_view(
    noise: str,
    scale: float,
    shape: Sequence[tuple[float, int]],
    step: float,
    participation: float,
) -> VectorCurve:
    """A curve above every client's: the largest ball, the others without their best hider."""
    ordered = sorted(shape)
    (smallest, count), *rest = ordered
    largest = ordered[-1][0]
    own = ReportClass(noise, scale, largest, step * largest, 1)
    others = [ReportClass(noise, scale, smallest, 0.0, count - 1)]
    others += [ReportClass(noise, scale, share, 0.0, number) for share, number in rest]
    return VectorCurve(
        [own, *others],
        relative_error=TOLERANCES.plan_relative_error,
        concentrate=len(shape) > 1,
        participation=participation,
    )


def _shuffled_epsilon(
    curve: VectorCurve,
    rounds: int,
    delta: float,
    nodes: float,
    *,
    dense: float | None = None,
    floor_share: float = TOLERANCES.plan_floor_share,
) -> float:
    if not curve.credit:
        return math.inf
    if rounds == 1:
        return curve.epsilon(delta)
    if dense is None:
        # Over many rounds only the bulk of each round's loss matters.
        few = rounds < TOLERANCES.plan_many_rounds
        dense = TOLERANCES.round_dense_sds if few else TOLERANCES.plan_dense_sds
    pair = shuffled_pair(curve, per_sd=nodes, dense=dense, floor=floor_share * delta / rounds)
    return Composition([(pair, rounds)]).epsilon(delta)


def _local_epsilon(noise: str, ratio: float, rounds: int, delta: float) -> float:
    if noise == "gaussian":
        return gaussian_epsilon(delta, ratio * math.sqrt(rounds))
    return laplace_epsilon(delta, ratio, rounds)


def _local_scale(
    noise: str, sensitivity: float, rounds: int, epsilon: float, delta: float
) -> float:
    """The noise that reaches the target without any shuffler, rounded up."""
    if noise == "gaussian":
        return sensitivity * math.sqrt(rounds) / gaussian_mu(epsilon, delta) * (1.0 + 1e-9)
    good, bad = sensitivity * rounds / epsilon, sensitivity / (2.0 * epsilon + 10.0) / rounds
    while good > bad * 1.002:
        middle = math.sqrt(good * bad)
        if laplace_epsilon(delta, sensitivity / middle, rounds) <= epsilon:
            good = middle
        else:
            bad = middle
    return good


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


def require_target_delta(delta: float, name: str = "delta") -> None:
    """Raise `InvalidValueError` unless `delta` lies in (0, 1)."""
    require_real(
        name, delta, minimum=0.0, maximum=1.0, exclusive_minimum=True, exclusive_maximum=True
    )
