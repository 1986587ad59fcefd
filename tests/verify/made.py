"""Accepted certificates that are soon checked: few points, coarse laws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_shuffle.accounting.bounds.sum_release.gaussian import hiding_variance
from fl_shuffle.certificates import convex_order, finite
from fl_shuffle.certificates.gram_order import Setting, gaussian_delta, gram_point
from fl_shuffle.certificates.lines import LOCAL, single_curve
from fl_shuffle.certificates.writing import certificate, exact

KINDS = ("local", "sum", "finite", "krr", "convex", "gram")


def facts(
    times: int, scale: float, radius: float, others: list[tuple[float, int]]
) -> dict[str, Any]:
    grid = exact(2.0**-18)
    groups = [
        {"scale": exact(scale), "radius": exact(r), "grid": grid, "count": str(n)}
        for r, n in others
    ]
    own = {"times": str(times), "noise": "gaussian", "scale": exact(scale), "radius": exact(radius)}
    own |= {"sensitivity": exact(2 * radius), "grid": grid}
    return {"dimension": "650", "rounds": [{**own, "others": groups, "colluders": "0"}]}


def built(kind: str) -> dict[str, Any]:
    """The certificate of this kind."""
    stated: dict[str, Any]
    if kind in ("local", "sum"):
        stated = facts(3, 0.1, 0.05, [(0.04, 20), (0.05, 40)])
        more = facts(2, 0.1, 0.05, [(0.03, 9), (0.05, 30)])["rounds"]
        stated["rounds"] += more
        return certificate(kind, stated, {}, unit="client", client=3, delta=1e-5, start=1.0)
    if kind in ("finite", "krr"):
        times = 1 if kind == "finite" else 4
        stated = {"clients": "800", "times": str(times)}
        stated["randomizer"] = {"name": "krr", "k": "3", "epsilon0": "1"}
        if times == 1:
            held = finite.point(3, 1.0, 800, 0.12, single=False)
            points, window = single_curve("0.12", dict(held))
        else:
            window = {"step": "0.015625", "tilt": "20", "cells": "256"}
            places = (0, 3, 8, 16, 30)
            points = [
                {"index": str(i), **finite.point(3, 1.0, 800, i / 64, single=False)} for i in places
            ]
        witness = {**window, "points": points}
        return certificate(
            "finite", stated, witness, unit="client", client=None, delta=1e-4, start=0.2
        )
    if kind == "convex":
        stated = facts(2, 0.1, 0.05, [(0.04, 20), (0.05, 40)])
        shape = convex_order.Shape(60, 1.0, 1.0, 0.5)
        points = []
        for i, guess in ((0, 0.1), (24, 0.03), (64, 4e-3), (128, 3e-4)):
            points.append({"index": str(i), **(convex_order.point(shape, i / 64, guess) or LOCAL)})
        points.append({"index": "280", **LOCAL})
        groups = [
            {"radius": "0.0400000000001", "count": "20"},
            {"radius": "0.0500000001", "count": "40"},
        ]
        window = {"step": "0.015625", "tilt": "8", "cells": "600"}
        delta = 1e-2
    else:
        stated = facts(1, 0.1, 0.05, [(0.05, 300)])
        setting = Setting(1.0, 0.5, ((0.5, 300),))
        held = dict(gram_point(setting, 0.1, gaussian_delta(setting, 0.1)) or {})
        points, window = single_curve("0.1", held | {"boxes": [first_tree()], "fine": "4"})
        groups, delta = [{"radius": "0.0500000001", "count": "300"}], 5e-2
    witness = {**window, "types": [{"rounds": ["0"], "groups": groups, "points": points}]}
    return certificate("shuffled", stated, witness, unit="client", client=3, delta=delta, start=0.3)


def strings(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where anything stands in a certificate."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, held in value.items():
            yield from strings(held, (*path, key))
    elif isinstance(value, list):
        for i, held in enumerate(value):
            yield from strings(held, (*path, i))


def held(value: Any, path: tuple[str | int, ...]) -> Any:
    """What stands at this place of a certificate."""
    for step in path:
        value = value[step]
    return value


def first_tree() -> str:
    """Boxes of a quarter: a whole level of them."""

    def tree(i: int, j: int, depth: int) -> str:
        if i + j >= 1 << depth:
            return "."
        if depth == 2:
            return "d"
        parts = [[tree(2 * i + x, 2 * j + y, depth + 1) for y in (0, 1)] for x in (0, 1)]
        return "x" + "".join("y" + "".join(column) for column in parts)

    return tree(0, 0, 0)


def move_of(r: dict[str, Any]) -> float:
    return min(float(r["sensitivity"]), 2 * float(r["radius"]))


def mu_of(kind: str, facts: dict[str, Any]) -> float:
    """The Gaussian parameter of these rounds by the accountant: `local`, or that of their sums."""
    square = 0.0
    for r in facts["rounds"]:
        rows = [(r["scale"], r["grid"], 1)]
        rows += [(o["scale"], o["grid"], o["count"]) for o in r["others"]]
        scale, grid, count = (
            np.array([float(x) for x in each]) for each in zip(*rows, strict=True)
        )
        honest = max(1, int(count.sum()) - int(float(r["colluders"])))
        hiding = hiding_variance(scale, grid, count.astype(np.int64), honest)[0]
        square += float(r["times"]) * move_of(r) ** 2 / (hiding if kind == "sum" else scale[0] ** 2)
    return math.sqrt(square)
