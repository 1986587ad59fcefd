"""The tripod order: laws of L against exact configurations in one to three dimensions, the swap's
constants, and the whole bound against exact divergences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace as noise

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_profile
from fl_shuffle.accounting.bounds.partial_shuffle import laplace_bound, laplace_swap, tripod
from fl_shuffle.accounting.bounds.partial_shuffle.joined_law import (
    GridEnds,
    Half,
    TwoSided,
    ended,
    join,
)
from fl_shuffle.accounting.bounds.partial_shuffle.laplace_bound import (
    LaplaceGeometry,
    laplace_delta,
    laws_of,
)
from fl_shuffle.accounting.bounds.partial_shuffle.tripod import TripodCover
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.client_classes import ShuffledRound


def exact_ratios(
    p: FloatArray, q: FloatArray, r: FloatArray, cells: int = 160
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return x = P/R, y = Q/R, and R's masses of product cells of the space, from distribution
    functions alone: below the densities' ratios in the convex order, together."""
    x = y = w = np.ones(1)
    for means in zip(p, q, r, strict=True):
        # Outside of the means no ratio changes.
        edges = np.unique(np.concatenate([np.linspace(min(means), max(means), cells), means]))
        edges = np.concatenate([[-np.inf], edges, [np.inf]])
        middle = np.median(means)
        low, high = (
            noise.cdf(np.subtract.outer(edges, means)),
            noise.sf(np.subtract.outer(edges, means)),
        )
        each = np.where(edges[1:, None] < middle, np.diff(low, axis=0), -np.diff(high, axis=0))
        each = each[each.min(axis=1) > 0.0]
        x = np.multiply.outer(x, each[:, 0] / each[:, 2]).ravel()
        y = np.multiply.outer(y, each[:, 1] / each[:, 2]).ravel()
        w = np.multiply.outer(w, each[:, 2]).ravel()
    return x, y, w


def random_means(
    rng: np.random.Generator, dimension: int, own: float, other: float, move: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return p, q in the l1 ball of radius `own`, at most `move` apart, and r in that of radius
    `other`; often on the axes."""
    points = rng.laplace(size=(3, dimension)) * (rng.random((3, dimension)) < 0.7)
    if rng.random() < 0.5:
        points = np.eye(dimension)[rng.integers(0, dimension, 3)] * rng.choice([-1.0, 1.0], (3, 1))
    length = np.abs(points).sum(axis=1, keepdims=True)
    points = points / np.maximum(length, 1e-9) * np.array([[own], [own], [other]])
    p, q, r = points * np.where(rng.random((3, 1)) < 0.3, rng.random((3, 1)), 1.0)
    apart = float(np.abs(p - q).sum())
    return p, p + (q - p) * min(1.0, move / max(apart, 1e-12)), r


def laws(
    own: float, other: float, move: float, a: float, boxes: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the nodes of a fine grid, and the laws of these boxes, or of the first ones."""
    setting = LaplaceGeometry(move, own, ((other, 10),))
    area = setting.covers[0]
    ends = GridEnds.of(move, area.to_other, a)
    grid = TwoSided.of(-ends.bottom, a * math.sqrt(max(setting.seconds)), ends.top, 600, ends)
    masses, over = laws_of(setting, grid, area, area.start() if boxes is None else boxes, a)
    assert np.all(over <= 1e-14)
    return grid.grid.nodes, masses


def halved(area: TripodCover, times: int, rng: np.random.Generator) -> FloatArray:
    """Return boxes that hold all others, a random half of them halved again and again."""
    boxes = area.start()
    for _ in range(times):
        chosen = rng.random(len(boxes)) < 0.6
        boxes = np.concatenate([boxes[~chosen], area.halves(boxes[chosen])])
    return boxes


CASES = [(0.5, 0.5, 1.0), (1.0, 1.0, 2.0), (2.0, 2.0, 4.0), (1.0, 1.0, 0.3), (0.6, 1.5, 1.2),
         (1.5, 0.4, 3.0), (1.0, 0.0, 2.0)]  # fmt: skip


def excesses(own: float, other: float, move: float, times: int, lower: float = 1.0) -> list[float]:
    """Return, for random others, the largest E f(L) / max over boxes of E f(T) over many convex f.

    `lower`: factor by which the values of T are made smaller.
    """
    rng = np.random.default_rng([int(100 * own), int(100 * other), int(100 * move), times])
    found = []
    area = TripodCover(move, own + max(other, laplace_swap.LEAST_RADIUS))
    boxes = halved(area, times, rng)
    for a in (1.0, math.exp(0.2 * move), math.exp(0.7 * move)):
        nodes, masses = laws(own, other, move, a, boxes)
        assert np.all(masses >= 0.0)
        assert np.allclose(masses.sum(axis=1), 1.0, atol=1e-12)
        assert np.allclose(masses @ nodes, 1.0 - a, atol=1e-11 * max(1.0, a))
        ends = GridEnds.of(move, area.to_other, a)
        above, below = ends.top * np.array([0, 0.1, 0.5]), ends.bottom * np.array([0.1, 0.4])
        tests = [lambda v, t=t: np.maximum(v - t, 0.0) for t in above]
        tests += [lambda v, t=t: np.maximum(-t - v, 0.0) for t in below]
        tests += [lambda v, k=k: np.exp(k * v) for k in (1.0 / ends.top, -1.0 / ends.bottom)]
        most = [float((masses @ f(nodes * lower)).max()) for f in tests]
        others = [random_means(rng, dimension, own, other, move) for dimension in (1, 2, 2)]
        others += worst_sets(own, other) if move == 2.0 * own else []
        for means in others:
            x, y, w = exact_ratios(*means)
            values = x - a * y
            assert values.max() <= ends.top * (1 + 1e-9) + 1e-9
            assert values.min() >= -ends.bottom * (1 + 1e-9)
            # Of a stop-loss near nothing the digits are lost.
            found += [
                float(w @ f(values)) / m
                for f, m in zip(tests, most, strict=True)
                if float(w @ f(values)) > 1e-9
            ]
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("times", [0, 3])
def test_boxes_hold_all_others(case: tuple[float, float, float], times: int) -> None:
    assert max(excesses(*case, times)) <= 1.0 + 1e-9


@pytest.mark.slow
def test_boxes_hold_all_others_but_not_by_much() -> None:
    """Values 5% smaller are noticed in most cases."""
    noticed = [max(excesses(*case, 3, lower=0.95)) > 1.0 for case in CASES if case[2] > 0.5]
    assert sum(noticed) >= 5


def test_ratios_have_mean_one() -> None:
    al, be, ga = (np.array([0.0, 0.3, 2.0]), np.array([1.0, 0.0, 3.0]), np.array([0.5, 1.5, 0.0]))
    for x, y, p in (tripod.opposite(al, be, 6), tripod.beyond(al, ga, 6)):
        for ratio in (np.ones_like(x), x, y):
            assert (ratio * p).sum(axis=1) == pytest.approx(np.ones(3), rel=1e-14)
    f, p = tripod.alone(ga, 6)
    assert (f * p).sum(axis=1) == pytest.approx(np.ones(3), rel=1e-14)


@pytest.mark.parametrize(("move", "to_other"), [(2.0, 2.0), (0.6, 1.5), (3.0, 1.9)])
def test_corners_have_the_largest_lengths_of_their_boxes(move: float, to_other: float) -> None:
    area, rng = TripodCover(move, to_other), np.random.default_rng(3)
    boxes = halved(area, 5, rng)
    corner = area.corner(boxes)
    for share in (0.0, 0.3, 0.5, 1.0):
        c = boxes[:, 1] + share * (boxes[:, 2] - boxes[:, 1])
        whole = boxes[:, 0] == tripod.WHOLE
        be = np.where(whole, move - c, c)
        for most, length in zip(corner, (c, be, to_other - np.maximum(c, be)), strict=True):
            assert np.all(length >= -1e-12)
            assert np.all(most >= length)
    # Boxes of each family and pair of kinds hold all c; those of both kinds 0 also all shares.
    low, high = max(0.0, move - to_other), min(move, to_other)
    for family, span in ((tripod.WHOLE, (low, high)), (tripod.EVEN, (0.0, 0.5 * move))):
        for i, j in itertools.product((0, 1), repeat=2):
            own = boxes[(boxes[:, 0] == family) & (boxes[:, 3] == i) & (boxes[:, 4] == j)]
            for c, v in rng.random((50, 2)):
                at = span[0] + c * (span[1] - span[0])
                inside = (own[:, 1] <= at) & (at <= own[:, 2])
                if i == j == 0:
                    inside &= (own[:, 5] <= v) & (v <= own[:, 6])
                assert inside.any()


@pytest.mark.parametrize("kind", [tripod.BEYOND, tripod.OPPOSITE])
def test_parts_are_those_of_the_configuration(kind: int) -> None:
    """Second moments of spread parts exceed those of the exact configuration by little."""
    al, be, ga = 0.9, 0.6, 0.7
    points = {
        tripod.OPPOSITE: ([al, 0.0, 0.0], [-be, 0.0, 0.0], [0.0, ga, 0.0]),
        tripod.BEYOND: ([al, 0.0, 0.0], [0.0, be, 0.0], [-0.5 * ga, 0.0, 0.5 * ga]),
    }[kind]
    x, y, w = exact_ratios(*(np.array(each) for each in points), cells=60)
    column = [np.array([each]) for each in (al, be, 0.5 * ga, 0.5 * ga, 0.0)]
    if kind == tripod.OPPOSITE:
        column[2:4] = [np.zeros(1), np.array([ga])]
    of = tripod.Lengths(*column)
    for a in (1.0, 1.3):
        for part, values in (
            (tripod.positive_part, np.maximum(x - a * y, 0.0)),
            (tripod.negative_part, np.maximum(a * x - y, 0.0)),
        ):
            f, r, t, p, _ = part(kind, of, a, 24)
            spread, mass = np.outer(f, t).ravel(), np.outer(r, p).ravel()
            for power in (1, 2):
                ratio = float(mass @ spread**power) / float(w @ values**power)
                assert 1.0 - 1e-4 <= ratio <= 1.01


def test_moved_others_say_more() -> None:
    """R moved by s: values e^s times, masses e^-s times, are above those of the true place."""
    for s in (-0.3, 0.2):
        x, y, w = exact_ratios(np.array([0.8]), np.array([-0.4]), np.array([s]))
        of = tripod.Lengths(*(np.array([v]) for v in (0.8, 0.4, 0.0, 0.0, abs(s))))
        f, r, t, p, _ = tripod.positive_part(tripod.OPPOSITE, of, 1.1, 24)
        spread, mass = np.outer(f, t).ravel(), np.outer(r, p).ravel()
        for at in (0.0, 0.3, 0.9):
            assert w @ np.maximum(x - 1.1 * y - at, 0.0) <= mass @ np.maximum(spread - at, 0.0)


def random_half(rng: np.random.Generator, nodes: FloatArray) -> Half:
    masses = rng.exponential(size=(4, nodes.size)) * (rng.random((4, nodes.size)) < 0.6)
    return Half(nodes, 0.45 * rng.random((4, 1)) * masses / masses.sum(1, keepdims=True),
                np.zeros(4))  # fmt: skip


def stop_loss(nodes: FloatArray, masses: FloatArray, at: FloatArray) -> FloatArray:
    result: FloatArray = masses @ np.maximum(nodes[:, None] - at, 0.0)
    return result


@pytest.mark.parametrize("seed", range(6))
def test_joined_laws_are_above_both_sides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    up, down = (np.cumsum(rng.exponential(size=12)) for _ in range(2))
    above, below = random_half(rng, up), random_half(rng, down)
    a = 1.0 + rng.random() * float(np.min(below.mean))
    positive, negative = join(above, below, a)
    possible = np.isfinite(positive).all(axis=1)
    assert possible.sum() >= 2
    positive, negative = positive[possible], negative[possible]
    assert np.all(positive.sum(1) + negative.sum(1) <= 1.0 + 1e-12)
    assert np.allclose(positive @ up - negative @ down, 1.0 - a, atol=1e-12)
    at = np.linspace(0.0, max(up[-1], down[-1]), 200)
    for new, old, nodes in ((positive, above, up), (negative, below, down)):
        wanted = stop_loss(nodes, old.masses[possible], at)
        assert np.all(stop_loss(nodes, new, at) >= wanted - 1e-12)


@pytest.mark.parametrize("share", [0.65, 0.8, 0.97])
def test_ended_laws_stay_above_laws_that_end_there(share: float) -> None:
    """Laws with values up to `end` that lie below: conditional means of the given ones."""
    rng = np.random.default_rng(int(100 * share))
    nodes = np.cumsum(rng.exponential(size=14))
    end, half = share * float(nodes[-1]), random_half(rng, nodes)
    found = ended(half, end)
    assert np.allclose(found.mean, half.mean)
    assert found.nodes[found.masses.any(axis=0)].max() <= max(
        end, nodes[min(int(np.searchsorted(nodes, end)), nodes.size - 1)]
    )
    at, compared = np.linspace(0.0, nodes[-1], 200), 0
    for row in range(4):
        mass = half.masses[row]
        for start in range(nodes.size):
            upper, whole = mass[start:], float(mass[start:].sum())
            middle = float(upper @ nodes[start:]) / max(whole, 1e-300)
            if 0.0 < middle <= end:
                # What lies from a node on, at its mean.
                below = np.append(mass[:start], whole), np.append(nodes[:start], middle)
                wanted = stop_loss(below[1], below[0][None], at)[0]
                new = stop_loss(found.nodes, found.masses[[row]], at)[0]
                assert np.all(new >= wanted - 1e-12)
                compared += 1
    assert compared > 0
    # And they are smaller than the laws that they come from.
    assert np.all(found.masses @ found.nodes**2 <= half.masses @ nodes**2 + 1e-9)


def node_functions() -> list[Callable[[FloatArray], FloatArray]]:
    """Return functions D': large at 0, convex and nondecreasing from 1 on."""
    return [
        lambda z: 1.0 + np.maximum(1.0 - z, 0.0),
        lambda z: 1.0 + np.maximum(z - 1.0, 0.0),
        lambda z: 1.0 + 3.0 * np.maximum(1.0 - z, 0.0) + np.maximum(z - 1.0, 0.0) ** 2,
    ]


@pytest.mark.parametrize("radius", [0.25, 1.0, 2.0, 4.0])
def test_weights_of_nodes_bound_every_place_of_the_others(radius: float) -> None:
    """Others on one axis and on two, at `radius` and nearer."""
    x = laplace_swap.nodes_up_to(math.exp(radius))
    p = laplace_swap.node_weights(x, radius)
    tight = 0.0
    for share, split in itertools.product((0.3, 1.0), (0.0, 0.5)):
        shifts = radius * share * np.array([1.0 - split, split])
        # omega's cells: z = omega/R.
        one, _, w = exact_ratios(np.zeros(2), np.zeros(2), shifts, cells=300)
        w = w * one
        for f in node_functions():
            d = laplace_swap.convex_from_one(f(x)[None], x)[0]
            true = float(w @ np.interp(one, x, d))
            assert true <= p @ d + 1e-9
            tight = max(tight, true / float(p @ d))
    assert tight > 0.8


def test_excess_and_second_moment_are_those_of_the_density() -> None:
    def ratio(z: float, c: float) -> float:
        return math.exp(abs(z) - abs(z - c))

    def beyond(z: float, c: float, s: float) -> float:
        return max(ratio(z, c) - s, 0.0) * float(noise.pdf(z))

    for c, s in ((0.5, 0.9), (1.5, -0.3), (1.5, 2.0), (1.5, 0.1)):
        at = sorted([-c, 0.0, c, 0.5 * (c + math.log(max(s, 1e-9)))])
        true = quad(beyond, -40, 40, args=(c, s), points=at)[0]
        assert laplace_swap.excess(s, c) == pytest.approx(true, abs=1e-7)
    second = quad(lambda z: math.exp(2 * (abs(z) - abs(z - 1.2))) * noise.pdf(z), -40, 40,
                  points=[0.0, 1.2])[0]  # fmt: skip
    assert math.exp(tripod.log_second_moment(np.array(1.2))) == pytest.approx(second, abs=1e-7)


def mean_of_sum(values: FloatArray, w: FloatArray, n: int, most: float) -> FloatArray:
    """Return masses of the sum of `n` copies of nonnegative values on 2^15 points up to `most`."""
    size = 1 << 15
    at = values / most * size
    low = np.floor(at).astype(int)
    law = np.bincount(low, w * (low + 1.0 - at), minlength=size)
    law += np.bincount(low + 1, w * (at - low), minlength=size)
    result: FloatArray = np.fft.irfft(np.fft.rfft(law) ** n, size)
    return result


@pytest.mark.parametrize("radius", [0.3, 1.0])
def test_costs_of_the_swap_cover_what_they_stand_for(radius: float) -> None:
    """(A) and (C) of equal others on one axis, by convolution, at a goal that can be computed."""
    n, h, goal = 200, 0.4, 0.05
    swap = laplace_swap.choose_swap(((radius, n),), h, 2.0, goal, 0.2)
    assert swap is not None
    assert swap.zeta >= math.exp(radius)
    assert swap.m >= swap.zeta
    z, _, w = exact_ratios(np.zeros(1), np.zeros(1), np.array([radius]), cells=500)
    most = 2.0 * n
    total = np.linspace(0.0, most, 1 << 15, endpoint=False)
    small = h * float(mean_of_sum(z, w, n, most) @ np.maximum(1.0 - total / swap.m, 0.0))
    squares = (z - 1.0) ** 2
    most = 4.0 * n * float(w @ squares) + 20.0 * float(squares.max())
    total = np.linspace(0.0, most, 1 << 15, endpoint=False) * swap.alpha / (2.0 * swap.m)
    drift = float(mean_of_sum(squares, w, n, most) @ np.maximum(total - swap.beta, 0.0)) / swap.m
    assert small > 1e-5
    assert drift > 1e-6
    assert small + drift <= swap.cost <= 40.0 * (small + drift)
    # What (C) may cost was said beforehand, and is counted whole.
    assert swap.cost >= small + 0.2 * goal
    assert small <= 0.2 * goal
    assert drift <= 0.2 * goal


def exact_delta(x: FloatArray, y: FloatArray, w: FloatArray, n: int, epsilon: float) -> float:
    """Return the divergence of `n` reports, the others' means equal: E(sum of n copies of L)_+/n.

    The lattice is fine; values are split between neighbors, mean kept.
    """
    values = x - math.exp(epsilon) * y
    sd = math.sqrt(n * float(w @ (values - w @ values) ** 2))
    size = 1 << 16
    step = (24.0 * sd + 4.0 * float(np.abs(values).max())) / size
    place = np.floor(values / step).astype(int)
    share = values / step - place
    law = np.zeros(size)
    np.add.at(law, place % size, w * (1.0 - share))
    np.add.at(law, (place + 1) % size, w * share)
    total = np.fft.irfft(np.fft.rfft(law) ** n, size)
    drift = round(n * float(w @ values) / step)
    at = np.arange(drift - size // 2, drift + size // 2)
    return float(total[at % size] @ np.maximum(at * step, 0.0)) / n


def worst_sets(own: float, other: float) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Return p, q, r of the data sets that are known to say most."""
    axes = np.eye(2)
    return [
        (own * axes[0], -own * axes[0], other * axes[1]),
        (own * axes[0], own * axes[1], -other * axes[0]),
        (own * axes[1], own * axes[0], -other * axes[0]),
        (own * axes[0], -own * axes[0], -other * axes[0]),
        (-own * axes[0], own * axes[0], -other * axes[0]),
    ]


POINTS = [(1.0, 200, 0.15, 0.5), (1.0, 1000, 0.1, 0.7), (1.0, 1000, 0.0, 0.9),
          (2.0, 1000, 0.2, 0.5), (4.0, 1000, 0.9, 0.1), (4.0, 5000, 0.3, 0.3),
          (0.5, 100, 0.05, 0.7), (1.0, 20000, 0.02, 0.88)]  # fmt: skip


@pytest.mark.parametrize(("local", "n", "epsilon", "share"), POINTS)
def test_no_data_set_exceeds_the_bound(local: float, n: int, epsilon: float, share: float) -> None:
    radius = 0.5 * local
    bound = laplace_delta(LaplaceGeometry(local, radius, ((radius, n - 1),)), epsilon)
    assert bound <= laplace_profile(epsilon, local) * (1 + 1e-8)
    true = max(
        exact_delta(*exact_ratios(*means, cells=120), n, epsilon)
        for means in worst_sets(radius, radius)
    )
    assert true <= bound * (1 + 1e-6)
    # A bound that is smaller by this share would be noticed.
    assert true > share * bound


@pytest.mark.slow
def test_radii_of_others_and_moves_between() -> None:
    """Others in smaller balls hide better; several groups lie between the two extremes."""
    n, epsilon = 1000, 0.1
    small, large, both = (
        laplace_delta(LaplaceGeometry(1.0, 0.5, groups), epsilon)
        for groups in (((0.25, n),), ((0.5, n),), ((0.25, n // 2), (0.5, n // 2)))
    )
    assert small < both < large
    # A record moves the mean by less than two radii.
    moves = [laplace_delta(LaplaceGeometry(m, 0.5, ((0.5, n),)), 0.05) for m in (0.3, 0.6, 1.0)]
    assert moves[0] < moves[1] < moves[2]
    for m, bound in zip((0.3, 0.6), moves, strict=False):
        p, q = np.array([0.5, 0.0]), np.array([0.5 - 0.5 * m, 0.5 * m])
        r = np.array([-0.5, 0.0])
        for means in ((p, q, r), (q, p, r), (p, np.array([0.5 - m, 0.0]), r)):
            assert exact_delta(*exact_ratios(*means), n + 1, 0.05) <= bound


def test_answers_do_not_depend_on_the_order_of_calls() -> None:
    setting = LaplaceGeometry(1.0, 0.5, ((0.5, 500),))
    epsilons = [0.05, 0.12, 0.3]
    first = [laplace_delta(setting, e) for e in epsilons]
    laplace_bound.laplace_delta.cache_clear()
    assert [laplace_delta(setting, e) for e in reversed(epsilons)] == first[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("move", "own", "groups"),
    [
        (1e-6, 1e-6, ((1e-6, 10**6),)),
        (1.0, 0.5, ((0.0, 300),)),
        (1.0, 0.5, ((3.0, 300),)),
        (3.0, 1.5, ((0.1, 50),)),
        (8.0, 4.0, ((4.0, 10),)),
        (1.0, 0.5, ((0.5, 10**9),)),
        (0.4, 5.0, ((5.0, 10**5),)),
    ],
)
def test_extreme_settings_give_a_number(
    move: float, own: float, groups: tuple[tuple[float, int], ...]
) -> None:
    setting = LaplaceGeometry(move, own, groups)
    for epsilon in (0.0, 0.3 * setting.predicted_mu, 4.0 * setting.predicted_mu, 0.99 * move):
        found = laplace_delta(setting, epsilon)
        assert 0.0 <= found <= float(laplace_profile(epsilon, move)) * (1 + 1e-8) + 1e-300


def test_the_curve_is_the_smaller_of_both_theorems() -> None:
    """The tripod order for many reports, profiles for few."""
    for n, local in ((300, 1.0), (30, 4.0)):
        batch = ShuffledRound("laplace", 1.0, 0.5 * local, local, ((0.5 * local, n - 1),))
        curve = VectorCurve(batch)
        setting = LaplaceGeometry(local, 0.5 * local, ((0.5 * local, n - 1),))
        for epsilon in (0.1, 0.3):
            assert curve.certified(epsilon) <= laplace_delta(setting, epsilon)


@pytest.mark.parametrize("share", [0.999, 1.0 - 1e-9, 1.0 - 1e-15])
def test_grids_stay_small_just_below_the_move(share: float) -> None:
    """There L hardly exceeds zero. Half a million nodes took all memory."""
    setting = LaplaceGeometry(2.0, 1.0, ((0.5, 4), (0.8, 3), (1.0, 4)))
    guides = laplace_bound.LaplaceGuides.of(setting, math.exp(share * setting.move))
    assert guides.wide.size < 8 * laplace_bound.WIDE_NODES
    epsilon = share * setting.move
    assert laplace_delta(setting, epsilon) <= 1.001 * laplace_profile(epsilon, setting.move)
