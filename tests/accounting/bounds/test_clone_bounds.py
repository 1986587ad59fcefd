"""The clone reductions against exact values, enumeration, and published code's failures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.clones import clone_curve, standard_clone
from fl_shuffle.accounting.bounds.worst_client import safe_groups
from fl_shuffle.accounting.queries.methods import bound
from fl_shuffle.accounting.queries.question import Question
from tests.oracles import clone_pair, pair_delta

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "exact_delta.json").read_text())
CLONE = [r for r in GOLDEN["records"] if r["mech"] == "clone"]


def test_standard_clone_matches_every_exact_record_from_above() -> None:
    assert len(CLONE) >= 60
    for record in CLONE:
        exact = float(record["delta"])
        ours = standard_clone(record["eps0"], record["n"], epsilon=record["eps"]).delta
        assert exact <= ours <= exact * (1 + 1e-3), record


@pytest.mark.parametrize(("epsilon0", "n"), [(0.5, 1), (1.0, 2), (3.0, 7), (2.0, 25)])
def test_small_n_against_the_pair_from_its_definition(epsilon0: float, n: int) -> None:
    pair = clone_pair(epsilon0, n)
    for epsilon in (0.0, 0.1 * epsilon0, 0.6 * epsilon0, 0.95 * epsilon0):
        exact = pair_delta(*pair, epsilon)
        ours = standard_clone(epsilon0, n, epsilon=epsilon).delta
        assert exact * (1 - 1e-12) <= ours <= exact * (1 + 1e-3)


def test_grouping_many_budgets_is_safe_and_tight() -> None:
    """The grouped curve is above the ungrouped one, by little."""
    rng = np.random.default_rng(5)
    masses = [(float(p), 1) for p in rng.uniform(0.2, 0.9, 200)]
    exact = clone_curve(1.0, masses)
    grouped = clone_curve(1.0, safe_groups(masses, 12))
    for epsilon in (0.0, 0.2, 0.4):
        assert exact(epsilon).lower <= grouped(epsilon).delta <= exact(epsilon).delta * 1.02


def test_variation_ratio_is_below_what_a_data_set_reaches() -> None:
    """n = 5, eps0 = 4, eps = 3, 10-RR: exact .37419 on a dataset, published .36876."""
    asked = {"randomizer": "krr", "k": 10, "epsilon0": 4.0, "clients": 5, "epsilon": 3.0}
    reached = bound(Question(**asked, method="lower")).delta
    assert 0.3741 <= reached <= bound(Question(**asked)).delta
