"""The partial shuffle: the Gram order step by step, and whole, the swap, the bound from a local
profile; weakened versions must fail.

Source: docs/research/proofs, sections 11 to 13.

tests/golden/partial_shuffle.json holds 30-digit values. tests/verify/test_bounds.py compares the
numbers that are used with the theorem in ball arithmetic, by code that shares no line with this.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.special import logsumexp
from scipy.stats import binom

from fl_shuffle.accounting.bounds.partial_shuffle import gaussian_bound, gaussian_swap, profile
from fl_shuffle.accounting.bounds.partial_shuffle.branch_and_bound import SaysMore, kept_boxes
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import law_of_profile
from fl_shuffle.accounting.bounds.partial_shuffle.curve import least_delta
from fl_shuffle.accounting.bounds.partial_shuffle.dominating_law import (
    CellEdges,
    Grid,
    law,
    left_out,
)
from fl_shuffle.accounting.bounds.partial_shuffle.fourier_moduli import Frequencies, LogModuli, bulk
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import FINE, RoundGeometry
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_swap import Swap, node_weights
from fl_shuffle.accounting.bounds.partial_shuffle.gram import Cover, cover
from fl_shuffle.accounting.bounds.partial_shuffle.profile_bound import ProfileCurve, profile_delta
from fl_shuffle.accounting.bounds.partial_shuffle.weights import floor_of_sum, spread_atoms
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_profile
from tests import oracles
from tests.oracles import GW, G
from tests.repository import ROOT

# --- Lemmas 1 to 3 and the cover ----------------------------------------------------------------


def largest_violation(factor: float, count: int) -> float:
    """Of Lemma 1 on stop-losses, for random pairs with dX up to `factor` sqrt(dU dW)."""
    rng = np.random.default_rng(451)
    worst = 0.0
    for _ in range(count):
        root = rng.normal(size=(2, 2)) * rng.uniform(0.1, 1.0)
        low = root @ root.T
        du, dw = rng.uniform(0.0, 0.6, 2) * (rng.random(2) < 0.9)
        dx = factor * math.sqrt(du * dw) - (rng.random() < 0.5) * rng.uniform(0.0, 0.5)
        u, w, x = low[0, 0] + du, low[1, 1] + dw, low[0, 1] + dx
        if x * x > u * w:
            continue
        a = math.exp(rng.uniform(0.0, 1.5))
        t = rng.normal(1.0 - a, 2.0, 8)
        before = oracles.gram_stop_loss((low[0, 0], low[1, 1], low[0, 1]), a, t)
        after = oracles.gram_stop_loss((u, w, x), a, t)
        worst = max(worst, float(np.max((before - after) / (1.0 + np.abs(1.0 - a - t)))))
    return worst


def test_the_law_grows_with_the_gram_matrix() -> None:
    assert largest_violation(1.0, 120) <= 1e-7
    assert largest_violation(1.5, 60) > 1e-3


def admissible(
    rng: np.random.Generator, own: float, other: float, move: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means p, q, r at random, in extended precision: mostly on spheres, lines, right angles."""

    def unit(dimension: int) -> np.ndarray:
        x = rng.normal(size=dimension).astype(np.longdouble)
        return x / np.sqrt(x @ x)

    dimension = int(rng.integers(1, 5))
    while True:
        p, r = (unit(dimension) * each for each in (own, other))
        if rng.random() < 0.3:
            p, r = p * rng.random(), r * rng.random()
        if rng.random() < 0.3:
            r = np.longdouble(rng.choice([-1.0, 0.0, 1.0]) * other / own) * p
        way = unit(dimension)
        if rng.random() < 0.4:
            way = -p / max(np.sqrt(p @ p), 1e-9)
        elif dimension > 1 and rng.random() < 0.4:
            way = way - p * (way @ p) / max(p @ p, 1e-9)
            way = way / np.sqrt(way @ way)
        q = p + way * move * (1.0 if rng.random() < 0.7 else rng.random())
        if q @ q > own * own:
            q *= own / np.sqrt(q @ q)
        if (p - q) @ (p - q) <= move * move:
            return (p, q, r) if rng.random() < 0.5 else (q, p, r)


def uncovered(
    area: Cover, halvings: int, triples: list[tuple], a: float, one_order: bool = False
) -> int:
    """How many triples no box's corner is above, in Lemma 1's order; `one_order`: of boxes with
    U >= W alone."""
    boxes = area.start(8)
    for _ in range(halvings):
        boxes = area.halves(boxes)
    u2, w2, x2 = (x.astype(np.longdouble) for x in area.corner(boxes, a))
    used = (u2 >= w2) | (not one_order)
    missed = 0
    for p, q, r in triples:
        u, v = p - r, q - r
        du, dw, dx = u2 - u @ u, w2 - v @ v, x2 - u @ v
        root = np.sqrt(np.maximum(du, 0.0) * np.maximum(dw, 0.0))
        room = 1e-12 * (area.own + area.other) ** 2
        missed += not np.any(used & (du >= 0.0) & (dw >= 0.0) & (dx <= root + room))
    return missed


@pytest.mark.parametrize("halvings", [0, 1, 3])
def test_some_piece_dominates_every_admissible_pair_of_displacements(halvings: int) -> None:
    """Both units, unequal and vanishing radii; the order is transitive, so Lemma 2 is in it.

    Power: with radii and moves 2% too small, or with the pieces of one order alone (U >= W), more
    than one in ten, one in twenty are missed.
    """
    rng = np.random.default_rng([456, halvings])
    smaller = one_order = tried = 0
    for _ in range(24):
        own = math.exp(rng.uniform(-3.0, 0.5))
        other = own * float(rng.choice([1.0, 0.0, 0.2, 1.6, 8.0]))
        move = own * float(rng.choice([2.0, 2.0, 1.9, 1.0, 0.2, 0.01]))
        a = math.exp(rng.uniform(0.0, 1.0))
        triples = [admissible(rng, own, other, move) for _ in range(80)]
        area, less = (cover(*(x * each for each in (own, other, move))) for x in (1.0, 0.98))
        assert uncovered(area, halvings, triples, a) == 0
        tried += len(triples)
        smaller += uncovered(less, halvings, triples, a)
        one_order += uncovered(area, halvings, triples, a, one_order=True)
    assert smaller > 0.1 * tried
    assert one_order > 0.05 * tried


def test_branch_and_bound_finds_the_largest_value_or_says_that_there_is_none() -> None:
    def value(boxes: np.ndarray) -> np.ndarray:
        """Of a function of g_1 with its maximum inside: at its largest in each box."""
        nearest = np.clip(1.1, boxes[:, 0], boxes[:, 1])
        return np.exp(-np.abs(nearest - 1.1))

    def with_a_hole(boxes: np.ndarray, hole: float) -> np.ndarray:
        return np.where((boxes[:, 0] <= 1.0) & (boxes[:, 1] >= 1.0), hole, value(boxes))

    def largest(value: Callable[[np.ndarray], np.ndarray], tolerance: float) -> float:
        return float(kept_boxes(area, lambda b: value(b)[:, None], tolerance).max())

    area = cover(0.4, 0.4, 0.8)
    assert 1.0 <= largest(value, 0.01) <= 1.01
    for hole in (math.nan, math.inf):  # What is not a number is not passed over.
        assert largest(lambda b, hole=hole: with_a_hole(b, hole), 0.01) == math.inf
        assert largest(lambda b, hole=hole: np.full(len(b), hole), 0.1) == math.inf


def test_walk_ends_at_a_configuration_that_says_too_much() -> None:
    area = cover(0.4, 0.4, 0.8)

    def value(boxes: np.ndarray) -> np.ndarray:
        """Largest off the line, at the angles (1, 1)."""
        low1, high1, low2, high2 = boxes.T
        off = np.hypot(np.clip(1.0, low1, high1) - 1.0, np.clip(1.0, low2, high2) - 1.0)
        return np.exp(-off)[:, None]

    assert 0.9 < float(kept_boxes(area, value, 0.01, most=1.0).max()) <= 1.01
    with pytest.raises(SaysMore) as found:
        kept_boxes(area, value, 0.01, most=0.7)
    assert 0.7 < found.value.row[0] <= 1.0
    # What is known already makes boxes enough that say as much.
    assert len(kept_boxes(area, value, 0.01, known=1.0)) < len(kept_boxes(area, value, 0.01))


def test_kept_boxes_hold_everybody() -> None:
    """Each place of the square lies in one of them, whatever they say."""
    area = cover(0.4, 0.4, 0.8)

    def sides(boxes: np.ndarray) -> np.ndarray:
        return np.column_stack([np.exp(-np.abs(boxes[:, 0] - 1.1)), boxes])

    low1, high1, low2, high2 = kept_boxes(area, sides, 0.05)[:, 1:].T
    rng = np.random.default_rng(5)
    for g1, g2 in rng.uniform(0.0, math.pi, (300, 2)).tolist():
        held = (low1 <= g1) & (g1 <= high1) & (low2 <= g2) & (g2 <= high2)
        assert g1 + g2 > math.pi or np.any(held)


# --- Finite distributions
# --------------------------------------------------------------------------------

COARSE = CellEdges.of(24, 9)
SOME_OTHERS = cover(0.6, 0.6, 1.2).corner(cover(0.6, 0.6, 1.2).start(3), 1.5)
FITTED = CellEdges.fitted((24, 9), SOME_OTHERS, 1.5, lambda x: np.exp(np.minimum(x, 4.0)))


@pytest.mark.parametrize("nodes", [COARSE, FITTED, FINE])
def test_no_stop_loss_is_below_the_true_one(nodes: CellEdges) -> None:
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
        true = oracles.gram_stop_loss(one, a, t)
        assert np.all(true - mine <= 1e-6 * (1e-3 + true))
        power = max(power, float(np.max((true - 0.85 * mine) / (1e-3 + true))))
        # The grid is above the distribution once more, but for what it says it leaves out.
        grid = Grid.of(min(float(x.min()), -1.0), 0.5, 0.6 * float(x.max()) + 0.5, 60)
        masses, over = grid.spread(x, p)
        on_grid = np.maximum(grid.nodes - t[:, None], 0.0) @ masses[0] + over[0]
        exactly = np.maximum(x[0] - t[:, None], 0.0) @ p[0]
        assert np.all(exactly <= on_grid + 1e-12)
        assert float(masses.sum()) == pytest.approx(1.0, abs=1e-12)
    # Lowered by 15% they would be below; both kinds of turning points were met.
    assert power > 0.01
    assert np.all(kinds > 10)


@pytest.mark.parametrize(("log_a", "d2"), [(6.0, 0.1176), (8.0, 0.12), (3.0, 0.3), (0.0, 0.5)])
def test_what_the_last_nodes_leave_out_is_told(log_a: float, d2: float) -> None:
    """In 40 digits; where ell is still negative at the last node Phi(d_1 - z_m) is too little."""
    with mp.workdps(40):
        a, z = mp.e ** mpf(log_a), mpf(float(FINE.z[-1]))
        top = 1 - a * mp.exp(-mpf(d2) * z - mpf(d2) ** 2 / 2)
        left = mp.ncdf(-z) - a * mp.ncdf(-mpf(d2) - z) - top * mp.ncdf(-z)
        # Of ell alone: the factor's own tail is put out of the way.
        said = left_out(np.zeros(1), np.full(1, -40.0), np.array([float(top)]), FINE)
        assert float(left) <= float(said[0]) * (1.0 + 1e-9)
        if log_a == 8.0:
            assert float(left / mp.ncdf(-z)) > 10.0


def test_fitted_cells_add_less() -> None:
    """To E e^(rate L) of others on and off the line, relative to cells that hardly add anything."""
    area, a, rate = cover(1.0, 1.0, 2.0), 1.2, 0.06
    gram = area.corner(area.middles(area.start(3)), a)

    def growth(x: np.ndarray) -> np.ndarray:
        return np.exp(rate * np.minimum(x, 60.0)) * (x < 60.0)

    def largest_excess(nodes: CellEdges) -> float:
        def moment(cells: CellEdges) -> np.ndarray:
            x, p, _ = law(gram, a, cells)
            return np.sum(np.exp(rate * np.minimum(x, 60.0)) * p, axis=1)

        return float(np.max(moment(nodes) / moment(CellEdges.of(400, 200)))) - 1.0

    usual, fitted = CellEdges.of(48, 20), CellEdges.fitted((48, 20), gram, a, growth)
    assert fitted.z.size == 48 and fitted.y.size == 20
    for ours, theirs in ((fitted.z, usual.z), (fitted.y, usual.y)):
        assert np.all(np.diff(ours) > 0.0)
        assert ours[[0, -1]] == pytest.approx(theirs[[0, -1]], rel=1e-12)
    assert 0.0 < largest_excess(fitted) < 0.5 * largest_excess(usual)
    # Nothing fitted: the usual ones, so no bound jumps where fitting begins.
    nothing = CellEdges.fitted((48, 20), gram, a, growth, 0.0)
    assert nothing.z == pytest.approx(usual.z, abs=0.01)
    assert nothing.y == pytest.approx(usual.y, abs=0.02)


def test_cells_of_wide_reports_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the usual ones a bound far out was a third larger."""
    wide = RoundGeometry(2.0, 1.0, ((1.0, 9_999),))
    assert wide.wide == 1.0 and RoundGeometry(1.0, 0.5, ((0.5, 9_999),)).wide == 0.0
    fitted = gaussian_bound.gaussian_delta.__wrapped__(wide, 0.6)
    monkeypatch.setattr(gaussian_bound, "WIDE_REACH", (9.0, 10.0))
    assert fitted < 0.9 * gaussian_bound.gaussian_delta.__wrapped__(wide, 0.6)


@pytest.mark.parametrize("clients", [20_000])
def test_no_epsilon_falls_where_fitting_begins(clients: int) -> None:
    """Less noise costs more, also from radii whose cells are the usual ones on."""
    radii = (0.5, 0.53, 0.6)
    kinds = [ShuffledRound("gaussian", 1.0, r, 2.0 * r, ((r, clients - 1),)) for r in radii]
    epsilons = [VectorCurve(kind).epsilon(1e-8) for kind in kinds]
    assert epsilons == sorted(epsilons)


# --- The line (Lemma 4) and the product of D ----------------------------------------------------


def test_no_modulus_between_exceeds_lemma_4() -> None:
    rng = np.random.default_rng(471)
    slack = at_first = bulk_alone = -9.0
    for _ in range(800):
        size = int(rng.integers(2, 40))
        heavy = rng.random() < 0.5
        x = np.sort(rng.standard_t(3, size) if heavy else rng.normal(size=size))
        q = rng.dirichlet(np.ones(size) * rng.uniform(0.2, 3.0))
        sd = math.sqrt(float(q @ (x - q @ x) ** 2))
        k1 = rng.uniform(0.05, 2.5) / sd
        k2 = k1 * rng.uniform(1.0, 4.0)
        line = Frequencies(1.0, 10, 0.1, np.ones(2), 0.0, 0.0, k1, k2, 0.0)
        inside = np.abs(x - q @ x) <= rng.choice([1.5, 2.0, 3.0, 50.0]) * sd
        share = float(q[inside].sum())
        centre = float(q[inside] @ x[inside]) / share
        s2 = float(q[inside] @ (x[inside] - centre) ** 2) / share
        mu4 = float(q[inside] @ (x[inside] - centre) ** 4) / share
        args = np.array(share), np.array(s2), np.array(mu4)
        said = float(line.modulus_between(*args))
        k = np.linspace(k1, k2, 60)
        true = float(np.abs(np.exp(1j * np.outer(k, x)) @ q).max())
        slack = max(slack, true - said)
        narrow = Frequencies(1.0, 10, 0.1, np.ones(2), 0.0, 0.0, k1, k1, 0.0)
        at_first = max(at_first, true - float(narrow.modulus_between(*args)))
        bulk_alone = max(bulk_alone, true - (said - (1.0 - share)))
    assert slack <= 1e-11
    # Asked at k_1 alone, or without what lies outside the bulk, it would be wrong.
    assert at_first > 1e-2
    assert bulk_alone > 1e-2


def log_d(x: np.ndarray, p: np.ndarray, theta: float, count: int, sd: float) -> float:
    """The product's log D of one distribution, its atoms taken as two grids around 0."""
    q = p * np.exp(theta * x)
    centre, radius, own = bulk(x, q / q.sum())
    line = Frequencies.of(theta, count, sd, max(own, 0.05 * sd))
    low, high = x < 0.0, x >= 0.0
    transform = LogModuli(line, [x[low]], [x[high]], [(0, 0)], centre, radius)
    masses = np.concatenate([p[low], p[high]])[None]
    return float(transform.log_d(masses, transform.prepared())[0, 0])


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_different_laws_stay_below_the_product(seed: int) -> None:
    rng = np.random.default_rng([472, seed])
    closest = 0.0
    for _ in range(60):
        count = int(rng.integers(2, 6))
        laws = [
            (rng.normal(0.0, 1.0, k), rng.dirichlet(np.ones(k))) for k in rng.integers(2, 4, count)
        ]
        total, chance = oracles.independent_sum(laws)
        true = float(chance @ np.maximum(total, 0.0))
        sd = math.sqrt(count * max(float(p @ x**2 - (p @ x) ** 2) for x, p in laws))
        for theta in (0.4 / sd, 1.0 / sd, 2.0 / sd):
            said = math.exp(sum(log_d(x, p, theta, count, sd) for x, p in laws) / count)
            assert true <= said * (1.0 + 1e-12)
            closest = max(closest, true / said)
    assert closest > 0.85


# --- The swap (Theorem 2) -----------------------------------------------------------------------


def test_one_denominator_and_young_hold_pointwise() -> None:
    """sum L_k/max(D_k, m) <= (1/m)(sum phi(L_k) + quadratic part), and not without its parts; phi
    is convex, and rises by no more than the cut pays."""
    rng = np.random.default_rng(481)
    worst = without_lift = without_huber = -9.0
    for _ in range(8000):
        n = int(rng.integers(1, 6))
        zeta = math.exp(rng.uniform(0.05, 2.0))
        w, h = np.minimum(np.exp(rng.normal(0.0, 1.0, (2, n))), zeta)
        x = rng.standard_t(2, n)
        m = max(zeta, rng.uniform(0.1, 2.0 * n))
        alpha = rng.uniform(0.2, 5.0)
        swap = Swap(zeta, m, alpha, 0.0, np.array([0.0, 1.0, zeta]), (), 0.0)
        left = max(float(np.sum(x / np.maximum(h + w.sum() - w, m))), 0.0)
        square = float(np.sum(alpha / (2.0 * m) * (w - gaussian_swap.LAMBDA) ** 2))
        lifts = np.array([float(swap.lift(np.array(a), b)) for a, b in zip(x, h, strict=True)])
        hubers = swap.huber(x) / m
        plain = np.maximum((gaussian_swap.LAMBDA - h) * x, 0.0) / m

        def right(total: float, square: float = square, m: float = m) -> float:
            return max(total + square, 0.0) / m

        worst = max(worst, left - right(float(lifts.sum())))
        without_lift = max(without_lift, left - right(float((lifts - plain).sum())))
        without_huber = max(without_huber, left - right(float((lifts - hubers).sum())))
    assert worst <= 1e-12
    assert without_lift > 1e-3
    assert without_huber > 1e-3
    swap, x = Swap(4.0, 20.0, 2.0, 0.0, np.array([0.0]), (), 0.0), np.arange(-40.0, 60.0)
    slopes = np.array([np.diff(swap.lift(x, own)) for own in (0.0, 0.4, 1.0, 2.0, 4.0)])
    assert np.all(np.diff(slopes) >= -1e-9)
    assert 1.0 - swap.zeta / swap.m - 1e-9 <= slopes.min()
    assert 0.999 * swap.slope < slopes.max() <= swap.slope + 1e-9


def test_weights_of_the_nodes() -> None:
    """E D'(w_k(h)) at any distance up to the radius, by quadrature, for any nondecreasing D'."""
    rng = np.random.default_rng(482)
    closest = weakened = -9.0
    for _ in range(400):
        c = rng.uniform(0.02, 1.2)
        r = c if rng.random() < 0.4 else c * rng.random()
        zeta = math.exp(rng.uniform(0.02, 2.0))
        nodes = np.array([0.0, 1.0, math.sqrt(zeta), zeta])
        d = np.exp(rng.normal(0.0, 0.5, 4))
        d[0] = max(d[:2])
        d[1:] = np.maximum.accumulate(d[1:])
        w = np.minimum(np.exp(r * G + 0.5 * r * r), zeta)
        true = float(GW @ np.interp(w, nodes, d))
        p = node_weights(nodes, c)
        assert true <= float(p @ d) * (1.0 + 1e-6)
        closest = max(closest, true / float(p @ d))
        # With the mean of Z under omega taken for one:
        slope = np.append(-np.diff(gaussian_swap.excess(nodes[1:], c)) / np.diff(nodes[1:]), 0.0)
        low = float(gaussian_swap.excess(np.array(1.0), c))
        other = np.concatenate([[low, 1.0 - slope[0] - low], slope[:-1] - slope[1:]])
        weakened = max(weakened, true / float(other @ d))
    assert closest > 0.99
    assert weakened > 1.05


def chernoff(terms: list[tuple[np.ndarray, int]], above: float) -> float:
    """min over rates of E e^(rate (sum - above) - 1)/rate >= E(sum - above)_+, the sum of so many
    independent copies of each of these functions of G[::20]."""
    weights, logs = GW[::20] / GW[::20].sum(), []
    for rate in np.geomspace(1e-3, 1e4, 300).tolist():
        log = -rate * above - 1.0 - math.log(rate)
        for x, count in terms:
            top = rate * float(x.max())
            log += count * (top + math.log(weights @ np.exp(rate * x - top)))
        logs.append(log)
    return math.exp(min(logs))


@pytest.mark.parametrize("groups", [((0.4, 500), (0.6, 300)), ((0.05, 40),)])
def test_what_the_swap_costs(groups: tuple[tuple[float, int], ...]) -> None:
    """(A), (B) and (C) by quadrature: never less, were any of them forgotten, and not twice."""
    local, a, g = 0.1, math.exp(0.05), G[::20]
    swap = gaussian_swap.choose_swap(groups, local, a, 1.5, 1e-5)
    assert swap is not None
    z = [(np.exp(c * g - 0.5 * c * c), n) for c, n in groups]
    w = [(np.minimum(each, swap.zeta), n) for each, n in z]
    over = [n * float(GW[::20] @ np.maximum(each - swap.zeta, 0.0)) for each, n in z]
    parts = [
        local * chernoff([(-each, n) for each, n in w], -swap.m),
        (local + a - 1.0) * sum(over) / float(GW[::20].sum()),
        chernoff([(swap.alpha / (2.0 * swap.m) * (x - 1.0) ** 2, n) for x, n in w], swap.beta),
    ]
    whole = sum(parts) / swap.m
    assert whole * (1.0 - 1e-3) <= swap.cost <= 2.0 * whole


# --- The whole theorem --------------------------------------------------------------------------

WIDE = RoundGeometry(1.872, 0.936, ((0.218, 59), (0.48, 4608), (0.73, 506)))
"""The worst of the widest others are far from the line through the client's two means."""


def test_weighted_means_are_above_the_product() -> None:
    """Whatever s_g are: S sum share_g D_g/s_g >= prod D_g^share_g, and the cuts are paid for."""
    a = math.exp(0.43)
    ends = gaussian_bound.Ends.of(WIDE, a)
    swap = gaussian_swap.choose_swap(WIDE.groups, 0.1, a, ends.second, 3e-6)
    assert swap is not None
    term = gaussian_bound.MainTerm(WIDE, a, ends, swap)
    rng = np.random.default_rng(3)
    logs, kappas = rng.normal(0.0, 2.0, (2, 3, 20))
    kappas = np.exp(kappas) * 1e-4
    best = np.argmax(logs, axis=1), np.argmax(kappas, axis=1)
    product = math.exp(float(WIDE.shares @ logs.max(axis=1)) + term.theta * swap.beta)
    cut = WIDE.count * float(WIDE.shares @ kappas[np.arange(3), best[0]])
    rows = [np.column_stack(each) for each in zip(logs, kappas, strict=True)]
    for _ in range(50):
        found, decisive = term._sum(rows, rng.normal(0.0, 2.0, 3))
        assert found >= (product + cut) * (1.0 - 1e-12)
        assert len(decisive) == 3
    found, _ = term._sum(rows, logs.max(axis=1))
    assert found >= (product + cut) * (1.0 - 1e-12)
    assert found <= product + WIDE.count * float(WIDE.shares @ kappas.max(axis=1)) * (1.0 + 1e-12)


@pytest.mark.parametrize(("groups", "epsilon"), [(3, 0.43), (2, 0.5)])
def test_constants_fit_others_that_are_not_on_the_line(
    groups: int, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were chosen for the line alone, and the bound was up to five times the prediction.

    Cells that are fitted to wide reports leave no such others, so the others' cells are used.
    """
    monkeypatch.setattr(gaussian_bound, "WIDE_REACH", (10.0, 11.0))
    setting = replace(WIDE, groups=WIDE.groups[:groups])
    predicted = gaussian_bound.predicted_delta(setting, epsilon)
    assert gaussian_bound.gaussian_delta.__wrapped__(setting, epsilon) <= 1.3 * predicted


def walked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What every walk finds that went to its end."""
    found: list[float] = []
    walk = gaussian_bound.MainTerm.bound

    def kept(main: gaussian_bound.MainTerm, *of: Any, **more: Any) -> gaussian_bound.Bound:
        result = walk(main, *of, **more)
        found.append(result.delta)
        return result

    monkeypatch.setattr(gaussian_bound.MainTerm, "bound", kept)
    return found


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_a_bound_is_that_of_boxes_that_hold_everybody(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guides alone choose among constants: what they say is smaller, and no bound."""
    found = walked(monkeypatch)
    setting = RoundGeometry(2.0, 1.0, ((1.0, 199),))
    delta = gaussian_bound.gaussian_delta.__wrapped__(setting, epsilon)
    least = min(found)
    assert least <= delta <= least * (1.0 + 1e-7)


def test_others_off_the_line_do_not_end_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants for them would say more: the walk with the first ones goes on."""
    found = walked(monkeypatch)
    # With coarse cells these others say more than the guides.
    monkeypatch.setattr(gaussian_bound, "WIDE_REACH", (9.0, 10.0))
    setting = RoundGeometry(2.4, 1.2, ((1.2, 99_999),))
    a = math.exp(0.5)
    ends = gaussian_bound.Ends.of(setting, a)
    swap = gaussian_swap.choose_swap(setting.groups, 0.7, a, ends.second, 2e-4)
    assert swap is not None
    main = gaussian_bound.MainTerm(setting, a, ends, swap)
    with pytest.raises(gaussian_bound.OffLine) as off:
        main.bound(0.05, 1.2 * main.least)
    assert off.value.delta > 1.2 * main.least and not found
    # Constants that were made for these others, and say more of them.
    poor = SimpleNamespace(least=math.inf, ends=ends)
    monkeypatch.setattr(gaussian_bound.MainTerm, "beside", lambda main, worst: poor)
    delta, _ = gaussian_bound.guided_bound(main, 0.05)
    assert found and delta == found[-1] >= off.value.delta


@pytest.mark.parametrize("share", [0.8, 0.9, 0.97])
def test_a_smaller_move_has_no_larger_bound(share: float) -> None:
    largest = replace(WIDE, groups=WIDE.groups[1:2])
    smaller = replace(largest, move=share * largest.move)
    for epsilon in (0.1, 0.43):
        assert least_delta((smaller,), epsilon) <= least_delta((largest,), epsilon)


GOLDEN = json.loads((ROOT / "tests/golden/partial_shuffle.json").read_text("utf-8"))["points"]
ABOVE = 0.1
"""Finite distributions and Lemma 4 say at most this much more of log D than the integrals."""


@pytest.mark.parametrize("point", GOLDEN, ids=lambda point: point["name"].replace(" ", ""))
def test_the_package_at_the_stored_parameters(point: dict[str, Any]) -> None:
    """Its values on the line are at least the theorem's in 30 digits, and hardly more; what it says
    is not below an exact divergence, where one is stored."""
    free, epsilon = point["parameters"], point["epsilon"]
    setting = RoundGeometry(free["move"], free["own"], tuple((c, n) for c, n in free["groups"]))
    a = math.exp(epsilon)
    ends = gaussian_bound.Ends.of(setting, a)
    nodes = np.array(free["nodes"])
    weights = tuple(node_weights(nodes, c) for c, _ in setting.groups)
    for stored, p in zip(point["weights"], weights, strict=True):
        assert np.all(p >= np.array([float(x) for x in stored]) * (1.0 - 1e-12) - 1e-15)
        assert p == pytest.approx([float(x) for x in stored], rel=1e-6, abs=1e-9)
    swap = Swap(free["zeta"], free["m"], free["alpha"], free["beta"], nodes, weights, 0.0)
    chosen = free["cut"], free["theta"]
    main = gaussian_bound.MainTerm(setting, a, ends, swap, chosen)
    mean_log = 0.0
    groups = zip(setting.groups, setting.covers, weights, point["log_main"], strict=True)
    for (_, count), area, p, stored in groups:
        found = float(main.value(area, p, area.ends)[0].max())
        assert float(stored) - 1e-9 <= found <= float(stored) + ABOVE
        mean_log += count / setting.count * float(stored)
    # The quadratic part is in it: without beta the main term is up to 2% smaller ...
    least = math.exp(mean_log + main.theta * free["beta"]) / free["m"]
    assert least <= main.bound(0.01).delta
    # ... and all of beta is: larger by 1/theta it makes the main term e times as large.
    larger = replace(swap, beta=swap.beta + 1.0 / main.theta)
    more = gaussian_bound.MainTerm(setting, a, ends, larger, chosen).bound(0.01)
    assert more.delta == pytest.approx(math.e * main.bound(0.01).delta, rel=0.02)
    exact = float(point.get("lower", 0.0))
    assert exact <= gaussian_bound.gaussian_delta(setting, epsilon) <= (3.2 * exact or 1.0)


@pytest.mark.parametrize(
    ("own", "other", "move", "others"),
    [(0.3, 0.3, 0.6, 24), (0.2, 0.5, 0.4, 30), (0.5, 0.2, 1.0, 30), (0.4, 0.4, 0.2, 30)],
)
def test_small_shuffles_exactly(own: float, other: float, move: float, others: int) -> None:
    """Others at the ends, in the middle, mixed: both orders and both units.

    Reports are put into three cells of a line, which is a step after the mechanism: no valid bound
    is below what is left. Counts are enumerated.
    """
    setting, edges, closest = (
        RoundGeometry(move, own, ((other, others),)),
        np.array([-0.6, 0.6]),
        0.0,
    )
    bounds = {each: gaussian_bound.gaussian_delta(setting, each) for each in (0.0, 0.05, 0.2)}
    for r in (
        [other] * others, [-other] * others, [0.0] * others,
        [other, -other] * (others // 2), [other] * 3 + [0.0] * (others - 3),
    ):  # fmt: skip
        rest = [oracles.cells([mean], edges, "gaussian") for mean in r]
        for p in {own, move - own}:
            own_laws = [oracles.cells([x], edges, "gaussian") for x in (p, p - move)]
            exact = oracles.worst_of(own_laws, [rest])
            for epsilon, bound in bounds.items():
                assert exact(epsilon) <= bound
                closest = max(closest, exact(epsilon) / bound)
    assert closest > 0.3


@pytest.mark.parametrize(
    "setting",
    [
        RoundGeometry(1e-6, 5e-7, ((5e-7, 100),)), RoundGeometry(3.0, 1.5, ((1.5, 25),)),
        RoundGeometry(0.5, 2.0, ((1.0, 50), (0.0, 50))), RoundGeometry(0.2, 0.1, ((0.1, 10**8),)),
    ],
)  # fmt: skip
def test_extreme_settings_give_a_number(setting: RoundGeometry) -> None:
    for epsilon in (0.0, 1e-9, 3.0, 40.0, 500.0):
        found = gaussian_bound.gaussian_delta(setting, epsilon)
        local = float(gaussian_profile(epsilon, setting.move))
        assert 0.0 <= found <= min(1.0, local) * (1.0 + 1e-8)


# --- The swap by enumeration, and the bound from a local profile (sections 11 and 13) -------------


ROUND_OFF = 1e-11
LARGEST_COUNT = {2: 6, 3: 5, 4: 4}


def random_case(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(p, q, r, omega): client 1's pair; the others all different, at the pair's distributions, or
    all equal; any omega."""
    k = int(rng.integers(2, 5))
    others = int(rng.integers(2, LARGEST_COUNT[k] + 1))
    shape = rng.dirichlet(np.ones(k) * 3.0) + 0.02
    shape *= rng.choice([0.3, 1.0, 5.0, 50.0]) * k / shape.sum()

    def law() -> np.ndarray:
        masses = rng.dirichlet(shape) + 1e-3
        return masses / masses.sum()

    p, q = law(), law()
    style = rng.integers(3)
    if style == 0:
        r = np.array([law() for _ in range(others)])
    elif style == 1:
        r = np.array([(p, q, law())[rng.integers(3)] for _ in range(others)])
    else:
        r = np.array([law()] * others)
    return p, q, r, (law(), r.mean(axis=0), (p + q) / 2.0, p)[rng.integers(4)]


def stages(rng: np.random.Generator) -> list[float]:
    """Of one random case: the exact divergence, then the bounds of each stage in order."""
    p, q, r, omega = random_case(rng)
    a = float(np.exp(rng.choice([0.0, 1e-3, 0.02, 0.1, 0.3, 1.0])))
    zeta = max(float((omega / r).max() * rng.choice([1.0, 1.0, 0.7, 0.4])), 1.001)
    m = max(float(len(r) * rng.uniform(0.3, 1.1)), 0.01)
    alpha, beta = float(rng.choice([0.1, 0.5, 2.0, 10.0])), float(rng.choice([0.0, 0.05, 0.5]))
    g = np.minimum(omega / r, zeta)
    keep = g * r / omega
    # All tuples t of the others' reports, their chances, and L_k and w_k there.
    t = np.indices((r.shape[1],) * len(r)).reshape(len(r), -1).T
    rows = np.arange(len(r))
    chance, loss, w = r[rows, t].prod(axis=1), ((p - a * q) / r)[rows, t], g[rows, t]
    total = w.sum(axis=1)

    def mean(terms: np.ndarray) -> float:
        return float(chance @ np.maximum(terms, 0.0))

    local = float(np.maximum(p - a * q, 0.0).sum())
    floor_cost = local * mean(1.0 - total / m)
    cap_cost = (local + a - 1.0) * float(((1.0 - keep) * omega).sum()) / m
    s = np.clip(loss / alpha, -1.0, zeta - 1.0)
    huber = (s * loss - 0.5 * alpha * s * s) / m
    swapped = floored = one = 0.0
    young = mean(alpha / (2.0 * m) * ((w - 1.0) ** 2).sum(axis=1) - beta)
    for h, own in enumerate(omega.tolist()):
        denominator, kept = total[:, None] - w + g[:, h], keep[:, h] * loss
        swapped += own * mean((kept / denominator).sum(axis=1))
        floored += own * mean((kept / np.maximum(denominator, m)).sum(axis=1))
        one += own * mean((loss + np.maximum((w - g[:, h]) * loss, 0.0) / m).sum(axis=1))
        lift = np.maximum((1.0 - g[:, h]) * loss, 0.0) / m
        young += own * mean((loss + lift + huber).sum(axis=1) + beta)
    # Coarser: both weights only known to lie between 0 and the cap.
    crude = mean((loss + zeta / m * np.abs(loss)).sum(axis=1))
    assert crude >= one - ROUND_OFF * (1.0 + one)
    costs = floor_cost + cap_cost
    exact = oracles.shuffle_delta(p, q, r, a)
    return [exact, swapped, floored + floor_cost, one / m + costs, young / m + costs]


@pytest.mark.parametrize("seed", range(2))
def test_every_stage_bounds_the_one_before(seed: int) -> None:
    rng = np.random.default_rng([16, seed])
    table = np.array([stages(rng) for _ in range(150)])
    # Likelihood ratios up to a thousand occur: round-off is relative to the largest stage.
    room = ROUND_OFF * (1.0 + table.max(axis=1, keepdims=True))
    assert np.all(np.diff(table, axis=1) >= -room)
    kept = table[table[:, 0] > 1e-6]
    # Power: lowered by a tenth, each stage would fall below what it must bound.
    assert np.all((kept[:, :-1] / kept[:, 1:]).max(axis=0) > [0.99, 0.99, 0.95, 0.9])


def test_the_law_from_a_profile_is_above_that_of_every_triple() -> None:
    """E(L - t)_+ <= S(t) for any three distributions of a family, whose profile is what is known of
    it."""
    rng, closest = np.random.default_rng(1603), 0.0
    for _ in range(20):
        laws = rng.dirichlet(np.ones(3) * 4.0, size=4) + 0.03
        laws /= laws.sum(axis=1, keepdims=True)
        a = float(np.exp(rng.choice([0.0, 0.1, 0.4])))

        def family(s: np.ndarray, laws: np.ndarray = laws) -> np.ndarray:
            gains = laws[:, None, None] - np.multiply.outer(s, laws).transpose(1, 0, 2)
            return np.maximum(gains, 0.0).sum(axis=3).max(axis=(0, 1))

        t = np.linspace(1.0 - 3.0 * a, 3.0 - a, 121)
        said = law_of_profile(math.log(a), family, 50.0).stop_loss(t)
        assert np.all(np.diff(said, 2) >= -1e-12), "S is convex"
        for p, q, r in itertools.permutations(laws, 3):
            exact = np.maximum((p - a * q) / r - t[:, None], 0.0) @ r
            assert np.all(exact <= said + 1e-12)
            closest = max(closest, float(np.max(exact[60:] / np.maximum(said[60:], 1e-9))))
    assert closest > 0.9


# --- The bound from a local profile -------------------------------------------------------------


@pytest.mark.parametrize("epsilon0", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("others", [40, 200])
def test_pure_profile_against_every_binary_data_set(epsilon0: float, others: int) -> None:
    local, (zero, one) = profile.approximate(epsilon0), oracles.krr_matrix(epsilon0, 2)
    if math.exp(epsilon0) > 0.2 * others:
        assert math.isinf(profile_delta(local, others, 0.2 * epsilon0))
        return
    held = np.linspace(0, others, 9).astype(int).tolist()
    exact = oracles.worst_of(
        [zero, one], ([one] * ones + [zero] * (others - ones) for ones in held)
    )
    closest = 0.0
    for share in (0.02, 0.05, 0.15, 0.3):
        epsilon = share * epsilon0 * math.sqrt(40 / others)
        bound = profile_delta(local, others, epsilon)
        assert exact(epsilon) <= bound
        closest = max(closest, exact(epsilon) / bound)
    assert closest > 0.03


def test_pure_profile_stays_above_many_symbols() -> None:
    """k-ary response, n = 50, eps0 = 4: some data set reaches 3.806 at 1e-6.

    The profile knows nothing of k, so no bound from it may go below.
    """
    local = profile.approximate(4.0)
    assert min(profile_delta(local, 49, 3.806), local.local_delta(3.806)) >= 1e-6


def test_profiles_of_random_families() -> None:
    """A profile read off a finite family bounds every data set of it."""
    rng = np.random.default_rng(1620)
    for _ in range(8):
        laws = rng.dirichlet(np.full(3, 6.0), size=3) + 0.05
        laws /= laws.sum(axis=1, keepdims=True)

        def curve(epsilon: float, laws: np.ndarray = laws) -> float:
            a = math.exp(epsilon)
            return max(float(np.maximum(x - a * y, 0).sum()) for x in laws for y in laws)

        local = profile.points([(e, curve(e)) for e in np.linspace(0.0, 3.0, 400).tolist()])
        for others in (6, 12):
            exact = oracles.worst_of(laws.tolist(), [laws[rng.integers(0, 3, others)].tolist()])
            for epsilon in (0.0, 0.05, 0.2):
                bound = min(profile_delta(local, others, epsilon), curve(epsilon))
                assert exact(epsilon) <= bound + 1e-12


def test_a_small_delta0_counts_once_not_once_a_client() -> None:
    pure, impure = (ProfileCurve(profile.approximate(1.0, d), 10**4) for d in (0.0, 1e-9))
    for epsilon in (0.0, 0.01, 0.03, 0.05, 2.0):
        assert pure.delta(epsilon) <= impure.delta(epsilon) <= pure.delta(epsilon) * 1.001 + 4e-9


def test_profiles_bound_what_they_stand_for() -> None:
    local = profile.approximate(1.0, 1e-3)
    gap = (math.exp(1.0) - math.exp(0.4)) / (1.0 + math.exp(1.0))
    assert local.local_delta(0.4) == pytest.approx(1e-3 + (1.0 - 1e-3) * gap, rel=3e-9)
    assert local.local_delta(3.0) == pytest.approx(1e-3, rel=3e-9)
    assert local.local_epsilon(1e-4) == math.inf


def test_no_epsilon_is_a_bad_one() -> None:
    """Bends that were two for round-off once made some deltas a thousand times too large."""
    local = profile.approximate(1.0)
    deltas = [profile_delta(local, 99, epsilon) for epsilon in np.linspace(0.55, 0.65, 30)]
    assert np.all(np.diff(deltas) < 0.0)


@pytest.mark.parametrize("count", [3, 40, 400])
def test_the_floor_of_a_sum_of_two_valued_weights(count: int) -> None:
    low, high = 0.5, 2.0
    chance = (1.0 - low) / (high - low)
    weights, hits = (np.array([low, high]), np.array([1.0 - chance, chance])), np.arange(count + 1)
    for log_goal in (-3.0, -8.0):
        found = floor_of_sum([(*weights, count // 3), (*weights, count - count // 3)], log_goal)
        assert found is not None
        m, bound = found
        sums = count * low + hits * (high - low)
        exact = float(binom.pmf(hits, count, chance) @ np.maximum(1.0 - sums / m, 0.0))
        assert exact <= bound <= 1.01 * math.exp(log_goal)
        assert 0.0 < m <= 1.1 * count


@pytest.mark.parametrize(("reach", "sds"), [(0.02, 12.0), (1.0, 8.0)])
def test_small_weights_keep_the_mass_that_decides(reach: float, sds: float) -> None:
    """log E e^(-rate w) by fine sums of the normal density, where masses far below 2^-53 decide."""
    zeta = math.exp(5.0 * reach)
    inner = np.exp(reach * np.linspace(-37.0, 5.0, 841)[:-1])
    values = np.concatenate([[0.0], inner, [zeta]])
    tail = values[1:] * gaussian_profile(-np.log(values[1:]), reach)
    found, masses = spread_atoms(values, np.append(0.0, tail))
    rate = sds / reach
    g, step = np.linspace(-30.0, 20.0, 200_001, retstep=True)
    weights = np.minimum(np.exp(reach * g - 0.5 * reach**2), zeta)
    exact = logsumexp(-rate * weights - 0.5 * g**2) + math.log(step / math.sqrt(2.0 * math.pi))
    kept = masses > 0.0
    bound = logsumexp(-rate * found[kept], b=masses[kept])
    assert np.all(masses >= 0.0)
    assert exact - 1e-9 * abs(exact) <= bound <= exact + 0.1 * sds
