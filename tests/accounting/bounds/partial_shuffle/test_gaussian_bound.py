"""The whole theorem at its parameters, and exact small shuffles (docs/proofs.md, section 12).

tests/golden/partial_shuffle.json holds 30-digit values. tests/verify/test_gram.py compares the
numbers that are used with the theorem in ball arithmetic, by code that shares no line with this.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import (
    Ends,
    MainTerm,
    Setting,
    choose_cut,
    gaussian_delta,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import (
    Swap,
    choose_swap,
    node_weights,
)
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from tests.oracles import cells, hockey_stick, shuffled_law
from tests.repository import ROOT

GOLDEN = json.loads((ROOT / "tests/golden/partial_shuffle.json").read_text("utf-8"))["points"]
ABOVE = 0.1
"""Finite laws and Lemma 4 say at most this much more of log D than the integrals."""


def setting_of(point: dict[str, Any]) -> Setting:
    free = point["parameters"]
    return Setting(free["move"], free["own"], tuple((c, n) for c, n in free["groups"]))


def name_of(point: dict[str, Any]) -> str:
    return point["name"].replace(" ", "")


@pytest.mark.parametrize("point", [p for p in GOLDEN if "lower" in p], ids=name_of)
def test_not_below_an_exact_divergence(point: dict[str, Any]) -> None:
    found = gaussian_delta(setting_of(point), point["epsilon"])
    assert float(point["lower"]) <= found <= 3.2 * float(point["lower"])


@pytest.mark.parametrize("point", GOLDEN, ids=name_of)
def test_the_package_at_the_stored_parameters(point: dict[str, Any]) -> None:
    """Its values on the line are at least the theorem's in 30 digits, and hardly more."""
    free, setting = point["parameters"], setting_of(point)
    a = math.exp(point["epsilon"])
    ends = Ends.of(setting, a)
    nodes = np.array(free["nodes"])
    weights = tuple(node_weights(nodes, c) for c, _ in setting.groups)
    for stored, p in zip(point["weights"], weights, strict=True):
        assert np.all(p >= np.array([float(x) for x in stored]) * (1.0 - 1e-12) - 1e-15)
        assert p == pytest.approx([float(x) for x in stored], rel=1e-6, abs=1e-9)
    swap = Swap(free["zeta"], free["m"], free["alpha"], free["beta"], nodes, weights, 0.0)
    main = MainTerm(setting, a, ends, swap, (free["cut"], free["theta"]))
    mean_log = 0.0
    groups = zip(setting.groups, setting.covers, weights, point["log_main"], strict=True)
    for (_, count), area, p, stored in groups:
        found = float(main.value(area, p, area.ends)[0].max())
        assert float(stored) - 1e-9 <= found <= float(stored) + ABOVE
        mean_log += count / setting.count * float(stored)
    least = math.exp(mean_log + main.theta * free["beta"]) / free["m"]
    assert least <= main.delta(0.01)


def test_the_quadratic_part_counts() -> None:
    """beta larger by 1/theta is a main term e times as large."""
    setting, a = Setting(0.8, 0.4, ((0.4, 999),)), math.exp(0.05)
    ends = Ends.of(setting, a)
    swap = choose_swap(setting.groups, 0.25, a, ends.second, 1e-3)
    assert swap is not None
    chosen = choose_cut(ends, setting, swap)[:2]
    known = MainTerm(setting, a, ends, swap, chosen)
    larger = replace(swap, beta=swap.beta + 1.0 / chosen[1])
    both = [
        MainTerm(setting, a, ends, each, chosen).delta(1e-3) - swap.cost for each in (swap, larger)
    ]
    assert known.theta == chosen[1]
    assert both[1] == pytest.approx(math.e * both[0], rel=5e-3)


@pytest.mark.parametrize(
    ("own", "other", "move", "others"),
    [(0.3, 0.3, 0.6, 24), (0.2, 0.5, 0.4, 30), (0.5, 0.2, 1.0, 30), (0.4, 0.4, 0.2, 30)],
)
def test_small_shuffles_exactly(own: float, other: float, move: float, others: int) -> None:
    """Others at the ends, in the middle, mixed: both orders and both units.

    Reports are put into three cells of a line, which is a step after the mechanism: no valid bound
    is below what is left. Counts are enumerated.
    """
    setting, edges, closest = Setting(move, own, ((other, others),)), np.array([-0.6, 0.6]), 0.0
    bounds = {epsilon: gaussian_delta(setting, epsilon) for epsilon in (0.0, 0.05, 0.2)}
    for r in (
        [other] * others, [-other] * others, [0.0] * others,
        [other, -other] * (others // 2), [other] * 3 + [0.0] * (others - 3),
    ):  # fmt: skip
        rest = [cells([mean], edges, "gaussian") for mean in r]
        for p in {own, move - own}:
            laws = [shuffled_law([*rest, cells([x], edges, "gaussian")]) for x in (p, p - move)]
            for epsilon, bound in bounds.items():
                exact = max(hockey_stick(*pair, epsilon) for pair in (laws, laws[::-1]))
                assert exact <= bound
                closest = max(closest, exact / bound)
    assert closest > 0.3


@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 3.0, 40.0, 500.0])
@pytest.mark.parametrize(
    "setting",
    [
        Setting(1e-6, 5e-7, ((5e-7, 100),)), Setting(3.0, 1.5, ((1.5, 25),)),
        Setting(0.5, 2.0, ((1.0, 50), (0.0, 50))), Setting(0.2, 0.1, ((0.1, 10**8),)),
    ],
)  # fmt: skip
def test_extreme_settings_give_a_number(setting: Setting, epsilon: float) -> None:
    found = gaussian_delta(setting, epsilon)
    assert 0.0 <= found <= 1.0 + 1e-8
    assert found <= float(gaussian_profile(epsilon, setting.move)) * (1.0 + 1e-8)
