"""Against exact values: ball-arithmetic enumeration, good to 30 digits (tests/golden)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_delta
from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.amplification import AtomicLaw, Case
from fl_shuffle.accounting.laws.finite import KRandomizedResponse, Randomizer
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    OptimizedUnaryEncoding,
    Rappor,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "exact_delta.json"
RECORDS: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["records"]
ALLOWED = 3e-4
ROUND_OFF = 1e-13

RANDOMIZERS: dict[str, Callable[[float], Randomizer]] = {
    "10-RR": lambda e: KRandomizedResponse(e, 10),
    "2-RR": lambda e: KRandomizedResponse(e, 2),
    "BLH": BinaryLocalHashing,
    "OUE": OptimizedUnaryEncoding,
    "RAPPOR": Rappor,
}


def records(name: str) -> list[tuple[int, float, float, float]]:
    found = [(r["n"], r["eps0"], r["eps"], float(r["delta"])) for r in RECORDS if r["mech"] == name]
    assert found, name
    return found


@pytest.mark.parametrize("name", RANDOMIZERS)
def test_upper_bound_is_above_and_within_three_parts_in_ten_thousand(name: str) -> None:
    for n, epsilon0, epsilon, exact in records(name):
        bound = blanket_delta(RANDOMIZERS[name](epsilon0), n, epsilon)
        excess = bound.delta / exact - 1.0
        assert -ROUND_OFF <= excess <= ALLOWED, (name, n, epsilon0, epsilon, excess)
        assert bound.delta - bound.numerical_error <= exact * (1.0 + ROUND_OFF)


@pytest.mark.parametrize("name", ["10-RR", "2-RR"])
def test_lower_bound_is_below_and_within_five_parts_in_ten_thousand(name: str) -> None:
    for index, (n, epsilon0, epsilon, exact) in enumerate(records(f"{name}-lower")):
        randomizer = RANDOMIZERS[name](epsilon0)
        bound = lower_bound_delta(FirstWitness(randomizer), n, epsilon)
        shortfall = 1.0 - bound.delta / exact
        assert -ROUND_OFF <= shortfall <= 5e-4, (name, n, epsilon0, epsilon, shortfall)
        if index % 3 == 0:
            upper = blanket_delta(randomizer, n, epsilon).delta
            assert bound.delta <= lower_bound_delta(randomizer, n, epsilon).delta <= upper


class FirstWitness:
    """A randomizer whose lower bound tries one data set only, that of the golden numbers."""

    def __init__(self, randomizer: Randomizer) -> None:
        self._randomizer = randomizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._randomizer, name)

    def witness_cases(self) -> tuple[Case, ...]:
        return self._randomizer.witness_cases()[:1]


def test_engine_on_the_standard_clone_law() -> None:
    """The clone reduction is the engine at gamma = e^-eps0 with a two-valued law."""
    for n, epsilon0, epsilon, exact in records("clone"):
        high, a = math.exp(epsilon0), math.exp(epsilon)
        law = AtomicLaw.of(
            [2 * (high - a) / (1 + high), 2 * (1 - a * high) / (1 + high)], [0.5] * 2
        )
        bound = amplified_delta(law, [(1.0 / high, n - 1)])
        assert -ROUND_OFF <= bound.delta / exact - 1.0 <= 2e-4, (n, epsilon0, epsilon)
