"""The curve of each type of round, on a common grid, for shuffled Gaussian reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import partial
from typing import Any, NamedTuple

from flint import arb, fmpq

from fl_shuffle.accounting.bounds.partial_shuffle.curve import MAX_SPREAD, MIN_OTHERS
from fl_shuffle.certificates.convex_order import Shape, excess, point
from fl_shuffle.certificates.gram_order import RoundGeometry, gaussian_delta, gram_point
from fl_shuffle.certificates.lines import LOCAL, one_point
from fl_shuffle.verify.gaussian import Round
from fl_shuffle.verify.reading import Fields, Work
from fl_shuffle.verify.shuffled import (
    WAYS,
    GroupDistances,
    Groups,
    convex_order_delta,
    point_delta,
    setting_of,
)

Find = Callable[[float, float], tuple[float, dict[str, Any] | None]]
"""epsilon, a guess at delta -> about delta there, and a witness."""
STEPS = 20.0
"""Grid steps in a deviation of one round's loss."""


class Pace(NamedTuple):
    """The step in grid points up to a number of deviations; then every third step is longer."""

    stride: int
    until: float
    growth: float


SHORT, SPARSE = Pace(3, 3.0, 1.3), Pace(3, 3.0, 1.4)
"""Points by convex order cost a tenth of a second, by the Gram order one or two."""
ALIKE = 0.99
"""Rounds with this share of one another's others are one type ..."""
MOST_TYPES = 6
"""... or with less, where that leaves more types than this."""
GROUPS = 4
"""Number of radii of others that are told apart."""
MOST_SPAN = 1 << 13
"""Cells of the window, but for those that the tilt asks for."""
PLENTY = Work(math.inf)
ENOUGH = 3
"""After this number of points where the client's own noise proves more, it is used for all
others."""
NEGLIGIBLE = 3e-3
"""Of delta over all rounds, what may be left beyond the last point."""


def shuffled_witness(
    rounds: Sequence[Round],
    delta: float,
    *,
    printed: float | None = None,
    short: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the step, tilt, window, and for each type of round its points.

    By the Gram order, or, if `short`, by convex order alone. `printed`: about what the accountant
    says of all rounds together; a single round then has a single point. `tell` gets what is being
    done, as progress lines.
    """
    types = [_as_one(rounds, places) for places in alike(rounds)]
    members = [[rounds[int(i)] for i in entry["rounds"]] for entry in types]
    times = [sum(each.times for each in some) for some in members]
    settings = [
        setting_of(some, Fields(entry, "type")) for some, entry in zip(members, types, strict=True)
    ]
    shapes = [_shape(setting) if short else _gram_setting(setting) for setting in settings]
    if printed is not None and sum(times) == 1 and len(types) == 1:
        only = partial(_only_point, shapes[0], settings[0], delta)
        points, window = one_point(only, printed, delta)
        return {**window, "types": [{**types[0], "points": points}]}
    deviations = [_deviation(shape) for shape in shapes]
    square = sum(n * d**2 for n, d in zip(times, deviations, strict=True))
    step = float(f"{min(deviations) / STEPS:.3g}")
    left = NEGLIGIBLE * delta / sum(times)
    rule = "convex" if short else "Gram"
    for number, (entry, shape, setting, deviation) in enumerate(
        zip(types, shapes, settings, deviations, strict=True), start=1
    ):
        kind = f"proof by the {rule} order, kind of round {number} of {len(types)}"
        if isinstance(shape, Shape):
            found, pace = partial(_by_convex_order, shape, setting[1]), SHORT
        else:
            found, pace = partial(_by_gram_order, shape), SPARSE
        found = partial(_told, found, tell, kind)
        entry["points"] = _points(found, float(setting[0]), step, deviation, left, pace)
    tilt = math.sqrt(2 * math.log(1 / delta) / square) / (1.2 if short else 1.0)
    # Rare large losses come round and count as smaller ones: the window holds them all, if it can.
    span = 2 * sum(n * int(t["points"][-1]["index"]) for n, t in zip(times, types, strict=True))
    cells = max(256, math.ceil(40 / tilt / step), min(span + 1, MOST_SPAN))
    return {
        "step": repr(step),
        "tilt": repr(tilt),
        "cells": str(min(cells, 1 << 16)),
        "types": types,
    }


def alike(rounds: Sequence[Round]) -> list[list[int]]:
    """Group rounds that are accounted as one type: with about as many others."""
    counts = [sum(n for _, n in each.hiding()) for each in rounds]
    order = sorted(range(len(rounds)), key=lambda place: counts[place])
    within = ALIKE
    while True:
        types: list[list[int]] = []
        for place in order:
            if types and counts[place] * within <= counts[types[-1][0]]:
                types[-1].append(place)
            else:
                types.append([place])
        if len(types) <= MOST_TYPES:
            return types
        within *= within


def _as_one(rounds: Sequence[Round], places: Sequence[int]) -> dict[str, Any]:
    """Return the groups of others that every one of these rounds has."""
    hiding = [rounds[place].hiding() for place in places]
    radii = sorted({radius for each in hiding for radius, _ in each})
    ends = (
        radii
        if len(radii) <= GROUPS
        else [radii[-1 - i * len(radii) // GROUPS] for i in reversed(range(GROUPS))]
    )
    groups, before = [], 0
    for end in ends:
        within = min(sum(n for radius, n in each if radius <= end) for each in hiding)
        if within > before:
            # Nobody lies at the very center: a ball may be taken larger.
            least = max(rounds[place].radius for place in places) / 10**6
            groups.append({"radius": written(max(end, least)), "count": str(within - before)})
            before = within
    return {"rounds": [str(place) for place in places], "groups": groups}


def written(value: fmpq) -> str:
    """Return the exact decimal expansion of a rational that has one."""
    with localcontext(prec=400):
        return format(Decimal(int(value.p)) / Decimal(int(value.q)), "f")


def _shape(setting: GroupDistances) -> Shape:
    move, groups = float(setting[0]), setting[1]
    if not groups:
        return Shape(0, move, move, 0.0)
    own, reach = float(groups[0].own), float(groups[-1].reach)
    return Shape(sum(each.count for each in groups), move, max(own + reach, move), reach)


def _gram_setting(setting: GroupDistances) -> RoundGeometry:
    move, groups = float(setting[0]), setting[1]
    own = float(groups[0].own) if groups else 0.5 * move
    return RoundGeometry(move, own, tuple((float(g.reach), g.count) for g in groups))


def _deviation(shape: Shape | RoundGeometry) -> float:
    """Return the deviation of one round's privacy loss, by a normal estimate; at most the local
    one."""
    if not shape.count:
        return shape.move
    if isinstance(shape, RoundGeometry):
        return min(shape.predicted_mu, shape.move)
    return min(math.sqrt(math.expm1(shape.spread**2) / shape.count), shape.move)


def _points(
    find: Find, move: float, step: float, deviation: float, left: float, pace: Pace
) -> list[dict[str, Any]]:
    """Return points upwards from epsilon = 0 until no more than `left` is left."""
    points: list[dict[str, Any]] = []
    index, stride, in_vain = 0, pace.stride, 0
    guess = float(excess(1.0, deviation))
    while True:
        epsilon = index * step
        local = float(excess(math.exp(epsilon), move))
        delta, witness = find(epsilon, guess) if in_vain < ENOUGH else (local, None)
        if witness is None or delta >= local:
            delta, witness, in_vain = local, LOCAL, in_vain + 1
        points.append({"index": str(index), **witness})
        if delta <= left or len(points) == 300:
            return points
        guess = delta
        if epsilon > pace.until * deviation and len(points) % 3 == 0:
            stride = max(stride + 1, round(pace.growth * stride))
        index += stride


def _told(
    find: Find, tell: Callable[[str], None], kind: str, epsilon: float, guess: float
) -> tuple[float, dict[str, Any] | None]:
    """Call `find`, of whose next point `tell` is told."""
    tell(f"{kind}: a point at epsilon {epsilon:.3g}")
    return find(epsilon, guess)


def _only_point(
    shape: Shape | RoundGeometry, setting: GroupDistances, delta: float, step: str
) -> tuple[dict[str, Any], float]:
    """Return a witness at the epsilon `step`, and what it proves there."""
    found, witness = math.inf, None
    if isinstance(shape, RoundGeometry):
        witness = _by_gram_order(shape, float(step), delta)[1]
    else:
        witness = _by_convex_order(shape, setting[1], float(step), delta)[1]
    if witness is not None:
        found = float(point_delta(setting, PLENTY, WAYS, arb(step).mid(), Fields(witness, "point")))
    local = float(point_delta(setting, PLENTY, WAYS, arb(step).mid(), Fields(LOCAL, "point")))
    return (LOCAL, local) if witness is None or local < found else (witness, found)


def _by_gram_order(
    shape: RoundGeometry, epsilon: float, guess: float
) -> tuple[float, dict[str, Any] | None]:
    if shape.count < MIN_OTHERS or shape.move > MAX_SPREAD:
        return math.inf, None
    delta = gaussian_delta(shape, epsilon)
    return delta, gram_point(shape, epsilon, delta)


def _by_convex_order(
    shape: Shape, groups: Groups, epsilon: float, guess: float
) -> tuple[float, dict[str, Any] | None]:
    """Return the witness made for `guess`, and once more where the guess was far off."""
    best: tuple[float, dict[str, Any] | None] = (math.inf, None)
    if not shape.count or not shape.reach:
        return best
    for _ in range(2):
        witness = point(shape, epsilon, guess)
        if witness is None:
            return best
        delta = float(convex_order_delta(groups, arb(epsilon), Fields(witness, "point"), PLENTY))
        best = min(best, (delta, witness), key=lambda found: found[0])
        if 0.6 < delta / guess < 1.5:
            return best
        guess = delta
    return best
