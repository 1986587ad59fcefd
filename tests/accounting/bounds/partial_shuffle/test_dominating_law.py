"""Finite laws are above the law of L: stop-losses by quadrature, ends, the common grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import (
    Grid,
    Nodes,
    ell_law,
    law,
    left_out,
)
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import FINE
from tests.accounting.bounds.partial_shuffle.oracles.gram_theorem import GW, G, stop_loss

COARSE = Nodes.of(24, 9)


@pytest.mark.parametrize("nodes", [COARSE, FINE])
def test_no_stop_loss_is_below_the_true_one(nodes: Nodes) -> None:
    rng = np.random.default_rng(461)
    power, kinds = 0.0, np.zeros(2, int)
    for _ in range(120):
        u, v = rng.normal(size=(2, 2)) * rng.uniform(0.05, 0.8)
        if rng.random() < 0.4:
            v = u * rng.uniform(-2.0, 2.0)
        one = float(u @ u), float(v @ v), float(u @ v)
        kinds += one[2] > one[0], one[2] > one[1]
        a = math.exp(rng.uniform(0.0, 1.5))
        x, p, missing = law(tuple(np.array([g]) for g in one), a, nodes)
        t = rng.normal(1.0 - a, 1.0, 6)
        mine = np.maximum(x[0] - t[:, None], 0.0) @ p[0] + missing[0]
        true = stop_loss(one, a, t)
        assert np.all(true - mine <= 1e-6 * (1e-3 + true))
        power = max(power, float(np.max((true - 0.85 * mine) / (1e-3 + true))))
        # The grid is above the law once more, but for what it says it leaves out.
        grid = Grid.of(min(float(x.min()), -1.0), 0.5, 0.6 * float(x.max()) + 0.5, 60)
        masses, over = grid.spread(x, p)
        on_grid = np.maximum(grid.nodes - t[:, None], 0.0) @ masses[0] + over[0]
        exactly = np.maximum(x[0] - t[:, None], 0.0) @ p[0]
        assert np.all(exactly <= on_grid + 1e-12)
        assert float(masses.sum()) == pytest.approx(1.0, abs=1e-12)
    # Lowered by 15% they would be below; both kinds of turning points were met.
    assert power > 0.01
    assert np.all(kinds > 10)


def test_the_turning_point_is_a_node() -> None:
    """Stop-losses just below ell's maximum, with the coarsest nodes."""
    rng = np.random.default_rng(462)
    tried = 0
    for _ in range(150):
        d2 = rng.uniform(0.2, 1.6)
        d1 = -d2 * rng.uniform(0.3, 0.95)
        a = math.exp(rng.uniform(0.0, 1.0))
        turn = math.log(-a * d2 / d1) / (d1 + d2) + (d1 - d2) / 2.0
        if abs(turn) > 4.0:
            continue
        ell = np.exp(d1 * G - d1 * d1 / 2.0) - a * np.exp(-d2 * G - d2 * d2 / 2.0)
        t, p = ell_law(np.array([d1]), np.array([d2]), a, COARSE.z)
        for share in (1e-4, 1e-2):
            s = float(ell.max()) * (1.0 - share)
            assert float(p[0] @ np.maximum(t[0] - s, 0.0)) >= 0.999999 * float(
                GW @ np.maximum(ell - s, 0.0)
            )
        tried += 1
    assert tried > 30


@pytest.mark.parametrize(("log_a", "d2"), [(6.0, 0.1176), (8.0, 0.12), (3.0, 0.3), (0.0, 0.5)])
def test_what_the_last_nodes_leave_out_is_told(log_a: float, d2: float) -> None:
    """In 40 digits; where ell is still negative at the last node Phi(d_1 - z_m) is too little."""
    with mp.workdps(40):
        a, z = mp.e ** mpf(log_a), mpf(float(FINE.z[-1]))
        top = 1 - a * mp.exp(-mpf(d2) * z - mpf(d2) ** 2 / 2)
        left = mp.ncdf(-z) - a * mp.ncdf(-mpf(d2) - z) - top * mp.ncdf(-z)
        said = left_out(np.zeros(1), np.zeros(1), np.array([float(top)]), FINE)
        assert float(left) <= float(said[0]) * (1.0 + 1e-9)
        if log_a == 8.0:
            assert float(left / mp.ncdf(-z)) > 10.0
