"""The whole theorem at its parameters, against an implementation without finite laws or boxes.

docs/proofs.md, section 12. tests/golden/partial_shuffle.json holds 30-digit values;
gram_theorem.py is the same theorem in numpy.
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
from fl_shuffle.accounting.bounds.partial_shuffle.line import Line
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_profile
from tests.accounting.bounds.partial_shuffle import gram_theorem
from tests.accounting.bounds.partial_shuffle.gram_theorem import Parameters
from tests.oracles import cells, hockey_stick, shuffled_law
from tests.repository import ROOT

GOLDEN = json.loads((ROOT / "tests/golden/partial_shuffle.json").read_text("utf-8"))["points"]
ABOVE = 0.1
"""Finite laws and Lemma 4 say at most this much more of log D than the integrals."""


def setting_of(point: dict[str, Any]) -> Setting:
    free = point["parameters"]
    return Setting(free["move"], free["own"], tuple((c, n) for c, n in free["groups"]))


def free_of(point: dict[str, Any]) -> Parameters:
    free = dict(point["parameters"])
    free.pop("a")
    free["groups"] = tuple((c, n) for c, n in free["groups"])
    free["nodes"] = tuple(free["nodes"])
    return Parameters(epsilon=point["epsilon"], **free)


def mean_over(setting: Setting, logs: list[float]) -> float:
    """sum_g (n_g/N) of the groups' logs."""
    total = sum(n for _, n in setting.groups)
    return sum(n * log for log, (_, n) in zip(logs, setting.groups, strict=True)) / total


def name_of(point: dict[str, Any]) -> str:
    return point["name"].replace(" ", "")


@pytest.mark.parametrize("point", [p for p in GOLDEN if "lower" in p], ids=name_of)
def test_not_below_an_exact_divergence(point: dict[str, Any]) -> None:
    found = gaussian_delta(setting_of(point), point["epsilon"])
    assert float(point["lower"]) <= found <= 3.2 * float(point["lower"])


@pytest.mark.parametrize("point", GOLDEN[1::5], ids=name_of)
def test_two_oracles_agree(point: dict[str, Any]) -> None:
    """Numpy's sums and the stored 30-digit integrals, at the stored parameters."""
    free = free_of(point)
    for (c, _), log, weights in zip(free.groups, point["log_main"], point["weights"], strict=True):
        found = max(gram_theorem.log_main(free, c, end) for end in (0, 1))
        assert found == pytest.approx(float(log), abs=1e-6)
        stored = [float(p) for p in weights]
        assert gram_theorem.node_weights(free, c) == pytest.approx(stored, abs=1e-6)


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
    logs = []
    for area, p, stored in zip(setting.covers, weights, point["log_main"], strict=True):
        found = float(main.value(area, p, area.ends)[0].max())
        assert float(stored) - 1e-9 <= found <= float(stored) + ABOVE
        logs.append(float(stored))
    least = math.exp(mean_over(setting, logs) + main.theta * free["beta"]) / free["m"]
    assert least <= main.delta(0.01)


@pytest.mark.parametrize("point", GOLDEN[::3], ids=name_of)
def test_the_number_that_is_used_is_the_theorems(point: dict[str, Any]) -> None:
    """With the package's own choices: main term on the line, cut, (A), (B), (C)."""
    setting, epsilon = setting_of(point), point["epsilon"]
    a = math.exp(epsilon)
    ends = Ends.of(setting, a)
    goal = choose_cut(ends, setting)[2] / setting.count
    local = float(gaussian_profile(epsilon, setting.move))
    swap = choose_swap(setting.groups, local, a, ends.second, goal)
    assert swap is not None
    main = MainTerm(setting, a, ends, swap)
    line: Line = main.line
    free = Parameters(
        setting.own, setting.move, setting.groups, epsilon, main.cut, line.theta, line.step,
        (2.5 / line.k2) ** 2, round(line.k2 / line.step), swap.zeta, swap.m, swap.alpha,
        swap.beta, tuple(swap.nodes.tolist()),
    )  # fmt: skip
    assert gram_theorem.costs(free) * (1.0 - 1e-6) <= swap.cost <= 1.2 * gram_theorem.costs(free)
    logs = [max(gram_theorem.log_main(free, c, end) for end in (0, 1)) for c, _ in setting.groups]
    least = math.exp(mean_over(setting, logs) + line.theta * swap.beta) / swap.m
    whole = least + gram_theorem.costs(free)
    found = main.delta(1e-3)
    # More than the data sets on the line: those off it, and what finite laws and Lemma 4 add.
    assert whole * (1.0 - 1e-6) <= found <= 1.5 * whole


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
