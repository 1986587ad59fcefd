"""What the tests of certificates share: accepted ones of each kind, and facts about rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np

from fl_shuffle.accounting.bounds.sum_release.gaussian import hiding_variance
from tests.repository import ROOT

KINDS = ("local", "sum", "finite", "krr", "convex", "gram")
ROUND = ("facts", "rounds", 0)


def golden(kind: str) -> dict[str, Any]:
    """The certificate of this kind that every version accepts: few points, coarse distributions."""
    path = ROOT / f"tests/golden/certificates/{kind}.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where anything stands in a certificate."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from places(inner, (*path, i))


def held(value: Any, path: tuple[str | int, ...]) -> Any:
    """What stands at this place of a certificate."""
    for step in path:
        value = value[step]
    return value


def replaced(written: dict[str, Any], path: tuple[str | int, ...], to: Any) -> dict[str, Any]:
    """A copy with something else at this place; with nothing there, if `to` is None."""
    copy = deepcopy(written)
    holder = held(copy, path[:-1])
    holder[path[-1]] = to
    if to is None:
        del holder[path[-1]]
    return copy


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
        move = min(float(r["sensitivity"]), 2 * float(r["radius"]))
        square += float(r["times"]) * move**2 / (hiding if kind == "sum" else scale[0] ** 2)
    return math.sqrt(square)
