"""Each bound of the verifier against brute force, against a closed form, or against the accountant.

Lengths are in noise standard deviations.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, arb_mat, fmpq
from scipy.stats import norm

from fl_shuffle.certificates import convex_order
from fl_shuffle.certificates.gram_order import RoundGeometry, gaussian_delta, gram_point
from fl_shuffle.certificates.lines import line
from fl_shuffle.verify import balls
from fl_shuffle.verify.gaussian import Group, Round, hiding_variance
from fl_shuffle.verify.gram import EXTRA, NOTHING, Gram, Others, Places, boxes, corner, law
from fl_shuffle.verify.line import Contour
from fl_shuffle.verify.reading import Fields, Refused, Work
from fl_shuffle.verify.rounds import composed, kinks
from fl_shuffle.verify.shuffled import WAYS, by_chords, comparison, point_delta, setting_of
from tests import oracles

PLENTY = 1e12
LETTERS = [chr(ord("a") + i) for i in range(len(EXTRA))]
GRID = {"width": "0.1", "low": "-60", "top": "60", "bottom": "60"}
EQUAL = RoundGeometry(1.0, 0.5, ((0.5, 700),))
QUARTERS = "xyxyddyddxyddyd.yxyddyd.."
"""Of the square, the boxes of two halvings of either side."""
WEAK = RoundGeometry(0.06, 0.03, ((0.0293, 10), (0.05, 9)))


def verified(setting: RoundGeometry, epsilon: float, witness: Any) -> float:
    """What the verifier proves at this point of one round's curve."""
    own, move = arb(setting.own), arb(setting.move)
    groups = tuple(Others(own, arb(c), move, n) for c, n in setting.groups)
    point = Fields(witness, "point")
    return float(point_delta((move, groups), Work(PLENTY), WAYS, arb(epsilon), point))


# --- Facts about rounds ---------------------------------------------------------------------------


def test_colluders_are_those_in_the_smallest_balls_and_other_grids_hide_nobody() -> None:
    """A report on its own client's grid is told apart: what is left is its own noise."""

    def hiding(colluders: int, grid: int = 1) -> list[tuple[float, int]]:
        others = tuple(Group(1, r, 1, 2, n) for r, n in ((3, 2), (1, 4), (2, 1)))  # type: ignore[arg-type]
        each = Round(1, 3, grid, 1, 6, others, colluders)  # type: ignore[arg-type]
        return [(float(r), n) for r, n in each.hiding()]

    assert hiding(0) == [(1, 4), (2, 1), (3, 2)]
    assert hiding(4) == [(2, 1), (3, 2)]
    assert hiding(6) == [(3, 1)]
    assert hiding(7) == hiding(100) == hiding(0, grid=1024) == []


def test_a_sum_hides_by_the_least_that_its_honest_reports_have() -> None:
    """Section 14, c = 4, in whole numbers, against every choice of colluders; grids and scales lie
    about the limits from which on a report counts beside another."""
    draw, counted = np.random.default_rng(3), Counter[bool]()
    for _ in range(400):
        grids = [fmpq(2) ** int(draw.integers(-2, 3)) for _ in range(4)]
        scales = [
            grid * int(draw.choice([7, 8, 9, 11, 12, 23, 24, 45, 46, 90, 91])) for grid in grids
        ]
        counts = draw.integers(1, 3, 3).tolist()
        others = [
            Group(scale, fmpq(1), grid, fmpq(1), count)
            for scale, grid, count in zip(scales[1:], grids[1:], counts, strict=True)
        ]
        colluders = int(draw.integers(0, sum(counts) + 1))
        own = Round(scales[0], fmpq(1), grids[0], 1, fmpq(1), tuple(others), colluders)

        def variance(other: Group, own: Round = own) -> fmpq:
            bridged = min(own.scale / own.grid, other.scale / other.grid) >= 8
            if own.grid != other.grid:
                fine, coarse = sorted([own, other], key=lambda one: one.grid)
                bridged &= fine.scale**2 >= 32 * coarse.grid**2
            counted[bridged] += 1
            return other.scale**2 - 64 * other.grid**2 if bridged else fmpq(0)

        each = [variance(other) for other in others for _ in range(other.count)]
        kept = itertools.combinations(each, len(each) - colluders)
        least = own.scale**2 - 64 * own.grid**2 + min(sum(some, fmpq(0)) for some in kept)
        assert hiding_variance(own) == max(own.scale**2, least)
    assert min(counted.values()) > 100


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_rounds_of_one_type_are_bounded_by_the_worst_of_each_fact(order: tuple[int, ...]) -> None:
    """One has the largest ball, another the largest move, the third the fewest others."""

    def each(radius: int, move: int, others: int) -> Round:
        lengths = [fmpq(length) for length in (2, radius, 1)]
        alike = Group(*lengths, fmpq(move), others)
        return Round(*lengths, 1, fmpq(move), (alike,), 0)

    worst = each(3, 2, 9), each(2, 4, 8), each(1, 1, 7)
    rounds = [worst[place] for place in order]

    def groups(*found: tuple[str, str]) -> Fields:
        listed = [{"radius": radius, "count": count} for radius, count in found]
        return Fields({"groups": listed}, "type")

    move, (others,) = setting_of(rounds, groups(("3", "7")))
    assert (move, others.move, others.own, others.reach) == (2, 2, arb(1.5), arb(1.5))
    for too_many in ([("3", "8")], [("2", "1")], [("3", "7"), ("3", "1")]):
        with pytest.raises(Refused, match="more others than the facts state within a radius"):
            setting_of(rounds, groups(*too_many))
    coarser = dataclasses.replace(worst[0], scale=fmpq(4))
    with pytest.raises(Refused, match="rounds of different scales"):
        setting_of([*rounds, coarser], groups(("3", "7")))


# --- One curve, and many rounds -------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("s", [1e-9, 0.3, 1.0, 2.0, 1e6])
def test_gaussian_excess_against_sixty_digits(mu: float, s: float) -> None:
    with mpmath.workdps(60):
        shift, half = mpmath.log(mpmath.mpf(s)) / mpmath.mpf(mu), mpmath.mpf(mu) / 2
        wanted = mpmath.ncdf(half - shift) - mpmath.mpf(s) * mpmath.ncdf(-half - shift)
        off = balls.excess(arb(s), arb(mu)) - arb(mpmath.nstr(wanted, 50))
    assert abs(float(off.mid())) <= 1e-30 + float(off.rad())


def test_kinks_lie_above_a_convex_function_and_drop_what_is_not_convex() -> None:
    places = [0.0, 1.0, 2.0, 3.0, 5.0]
    values = [4.0, 2.0, 1.9, 0.5, 0.0]  # the third spoils convexity
    nodes = [(i, arb(x), arb(y)) for i, (x, y) in enumerate(zip(places, values, strict=True))]
    found = kinks(nodes, arb(-3))
    assert [label for label, _, _ in found] == [0, 1, 3, 4]
    assert [float(jump) for _, _, jump in found] == pytest.approx([1, 1.25, 0.5, 0.25])
    steeper = kinks(nodes, arb("-1.9"))  # slopes from there on: the first node is in the way
    assert [label for label, _, _ in steeper] == [1, 3, 4]
    assert float(sum((jump for _, _, jump in steeper), arb(0))) == pytest.approx(1.9)


@pytest.mark.parametrize(("mu", "times"), [(0.05, 30), (0.3, 8)])
def test_composed_gaussian_rounds_lie_just_above_the_closed_form(mu: float, times: int) -> None:
    step = 2.0 ** math.floor(math.log2(mu / 10))
    points = [
        (i, balls.gaussian_delta(arb(step) * i, arb(mu)).upper()) for i in range(int(9 * mu / step))
    ]
    total = mu * math.sqrt(times)

    def delta(epsilon: float, times: int, tilt: float, cells: int) -> float:
        witness = Fields({"tilt": repr(tilt), "cells": str(cells)}, "witness")
        found = composed([(points, times)], arb(step), witness, Work(PLENTY))
        return float(found(arb(epsilon)))

    for epsilon in (0.2 * total, total, 3 * total):
        found = delta(epsilon, times, 2 / total, 4096)
        true = float(balls.gaussian_delta(arb(epsilon), arb(total)))
        assert true <= found <= 1.01 * true
        # Whatever the tilt and the window, what comes out lies above.
        for odd, few in ((0.1, 64), (30.0, 512)):
            assert delta(epsilon, times, odd, few) >= true
        assert delta(epsilon, times - 1, 2 / total, 4096) < true


@pytest.mark.parametrize(("once", "often"), [(1, 0), (1, 1), (1, 6), (3, 4)])
def test_composed_rounds_with_a_certain_loss_against_enumeration(once: int, often: int) -> None:
    """Randomized responses on the grid, and outcomes of which one side has none: of each kind of
    round, as often as there are such rounds."""
    step, kinds, pairs = 0.5, [], list[Any]()
    for index, certain, times in ((2, 1e-3, once), (1, 4e-3, often)):
        likely = (1.0 - certain) / (1.0 + math.exp(-step * index))
        rest = 1.0 - certain - likely
        points = [(0, arb(certain + likely - rest)), (index, arb(certain))]
        kinds += [(points, times)] * bool(times)
        pairs += [([math.inf, step * index, -step * index], [certain, likely, rest])] * times
    witness = Fields({"tilt": "2", "cells": "1024"}, "witness")
    found = composed(kinds, arb(step), witness, Work(PLENTY))
    for epsilon in (0.0, 0.7, 2.0, 5.5):
        true = oracles.composed(pairs, epsilon)
        # Two certain losses at once count twice.
        assert true * (1 - 1e-12) <= float(found(arb(epsilon))) <= 1.02 * true


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_sum_of_equal_terms_against_enumeration(count: int) -> None:
    terms = [(0.3, -0.75), (0.45, 0.0), (0.2, 0.5), (0.05, 2.25)]
    p, x = (np.array(each) for each in zip(*terms, strict=True))
    total, chance = oracles.independent_sum([(x, p)] * count)
    true = float(chance @ np.maximum(total, 0.0))
    in_balls = [(arb(mass), arb(value)) for mass, value in terms]
    masses = arb_mat([[mass for mass, _ in in_balls]])
    for odd in ({}, {"theta": "3"}, {"last": "9"}, {"h": "1"}, {"smoothing": "2"}):
        rule = Contour(Fields({"exact": "3"} | line(p, x, count, 0.01) | odd, "line"), count)
        found = float(rule.of_equals(in_balls, Work(PLENTY)))
        assert true * (1 - 1e-12) <= found
        assert odd or found <= 1.02 * true
        # Of many distributions at once.
        (row,) = (masses * arb_mat([rule.columns(value, True) for _, value in in_balls])).tolist()
        assert true * (1 - 1e-12) <= float(rule.bound(row, *rule.weights()))


# --- The swap and convex order --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "slope", "reach", "last"),
    [
        (lambda t, exp: exp(-2 * t), 0.0, 0.5, 3.0),
        # Steep: values of 1e47 that are hardly ever taken, beside a mean of 1.2.
        (lambda t, exp: exp(109 * (t - 1) ** 2), 43.6 * math.exp(109.0 * 0.04), 0.04, 1.2),
    ],
)
def test_chords_lie_just_above_quadrature_and_do_not_cancel(
    function: Callable[[Any, Any], Any], slope: float, reach: float, last: float
) -> None:
    z = np.exp(reach * oracles.G - reach**2 / 2)
    true = float(oracles.GW @ function(np.minimum(z, last), np.exp))
    found = by_chords(lambda t: function(t, arb.exp), arb(slope), arb(reach), arb(last))
    assert true <= float(found) <= 1.001 * true


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("eta", [0.0, 0.2])
def test_the_comparison_lies_above_every_report_on_a_line(epsilon: float, eta: float) -> None:
    """P, Q and R normal with means anywhere within the allowed distances of one another."""
    a, move, spread = math.exp(epsilon), 0.8, 1.1
    nodes = Fields({"unit": "1", "below": "90", "above": "70", "beyond": "60"}, "nodes")
    found, cut = comparison(arb(a), arb(move), arb(spread), arb(eta), nodes)
    masses, values = np.array([[float(p), float(x)] for p, x in found]).T
    assert masses.sum() == pytest.approx(1)
    x = np.linspace(-14, 15, 60_001)
    touched = 0.0
    for r in np.linspace(-0.3, 1.1, 8):  # P at 0, Q at `move`
        ratio = (norm.pdf(x) - a * norm.pdf(x, move)) / norm.pdf(x, r)
        lifted = ratio + eta * np.abs(ratio)
        for t in (-2.0, -0.7, -0.2, 0.0, 0.2, 0.7, 2.0):
            true = float(np.trapezoid(np.maximum(lifted - t, 0) * norm.pdf(x, r), x))
            bound = float(masses @ np.maximum(values - t, 0)) + float(cut)
            assert true <= bound + 1e-8
            touched = max(touched, true / bound)
    assert touched > 0.85


# --- The Gram order -------------------------------------------------------------------------------


def matrix(gram: Gram) -> tuple[float, float, float]:
    """|P|^2, |Q|^2 and P.Q of the displacements."""
    d1, d2, b = float(gram.d1), float(gram.d2), float(gram.b)
    return d1 * d1 + b * b, d2 * d2 + b * b, b * b - d1 * d2


@pytest.mark.parametrize(
    ("d1", "d2", "b"),
    [(0.9, 0.1, 0.3), (0.1, 0.9, 1e-6), (0.5, 0.5, 0.7), (1.2, -0.3, 0.2), (-0.3, 1.1, 0.4)],
)
@pytest.mark.parametrize("a", [1.0, 1.5])
def test_a_law_lies_just_above_the_true_one(d1: float, d2: float, b: float, a: float) -> None:
    """Stop-losses of the finite distribution, what it leaves out added."""
    gram, places = Gram(arb(d1), arb(d2), arb(b)), Places(Fields(GRID, "the grid of the tests"))
    masses, left = law(gram, arb(a), 8, places)
    values, p = (np.array([float(x) for x in each]) for each in (places.values, masses))
    assert p.sum() == pytest.approx(1, abs=1e-12) and (p >= -1e-25).all()
    t = 1 - a + np.linspace(-2, 4, 13)
    true = oracles.gram_stop_loss(matrix(gram), a, t)
    found = np.maximum(values - t[:, None], 0) @ p + float(left)
    assert (true <= found * (1 + 1e-6) + 1e-7).all()
    assert (found < 1.1 * np.maximum(true, 1e-3)).all()


def client_unit(rng: np.random.Generator, own: float, other: float) -> tuple[Any, ...]:
    """The move and the means p, q and r on their spheres; the box of the angles of p and q with the
    point opposite r."""
    columns, rows = (1 << int(each) for each in rng.integers(0, 6, 2))
    first = rng.uniform(0, math.pi)
    second = rng.uniform(0, math.pi - first)
    box = int(first / math.pi * columns), int(second / math.pi * rows), columns, rows
    p, q = (own * np.array([-math.cos(g), math.sin(g)]) for g in (first, -second))
    return 2 * own, p, q, np.array([other, 0.0]), box


def record_unit(rng: np.random.Generator, own: float, other: float) -> tuple[Any, ...]:
    """Any means in their balls, p and q at most the move apart; the box of their distances to r."""
    move, unit = own * rng.uniform(0.05, 1.9), rng.normal(size=(3, 3)) * 0.9
    p, q, r = (v / max(np.linalg.norm(v), 1) for v in unit)
    p, q, r = own * p, own * q, other * r
    q = p + (q - p) * min(1, move / np.linalg.norm(q - p))
    columns, rows = (1 << int(each) for each in rng.integers(0, 7, 2))
    across = (p - r) @ (p - r) / (own + other) ** 2
    along = ((p - r) @ (p - r) - (q - r) @ (q - r)) / (2 * move * (own + other))
    i, j = int(across * columns), int((along + 1) / 2 * rows)
    return move, p, q, r, (min(i, columns - 1), min(j, rows - 1), columns, rows)


@pytest.mark.parametrize("drawn", [client_unit, record_unit])
def test_a_corner_is_above_every_configuration_of_its_box(
    drawn: Callable[..., tuple[Any, ...]],
) -> None:
    """Lemma 1 between matrices: dU, dW >= 0 and dX <= sqrt(dU dW). The box may not be left out."""
    rng, tight = np.random.default_rng(3), 0
    for _ in range(500):
        own, other = rng.uniform(0.1, 1), rng.uniform(0.05, 1)
        move, p, q, r, box = drawn(rng, own, other)
        others = Others(arb(own), arb(other), arb(move), 1)
        found = corner(others, (*box, LETTERS[int(rng.integers(len(LETTERS)))]))
        assert found
        with pytest.raises(Refused, match="may hold something"):
            corner(others, (*box, NOTHING))
        u, w, x = matrix(found)
        du, dw, dx = u - (p - r) @ (p - r), w - (q - r) @ (q - r), x - (p - r) @ (q - r)
        assert min(du, dw) >= -1e-12
        room = math.sqrt(max(du, 0) * max(dw, 0)) - dx
        assert room >= -1e-9
        tight += room < 0.02
    assert tight > 10


def test_boxes_cover_the_square_and_nothing_else_is_a_tree() -> None:
    rng = np.random.default_rng(2)
    others = Others(arb(1), arb(1), arb(2), 1)
    for tree in ("a", "xaa", "yxaaa", "xyaaya.", "xyaxaayaa", "yxxaaaxa."):
        leaves = list(boxes(tree))
        for _ in range(300):
            x = rng.random()
            y = rng.random() * (1 - x)
            assert any(
                i <= x * columns <= i + 1
                and j <= y * rows <= j + 1
                and corner(others, (i, j, columns, rows, letter))
                for i, j, columns, rows, letter in leaves
            )
    for tree in ("", "x", "xa", "aa", "yaaa", "x" * 60, "y" * 60, "x" * 100_000):
        with pytest.raises(Refused, match="boxes"):
            list(boxes(tree))
    with pytest.raises(Refused, match="no letter"):
        corner(others, (0, 0, 1, 1, "z"))


def of_a_data_set(epsilon: float) -> float:
    """The exact divergence of `EQUAL` where all others are at an end of the client's own ball."""
    return max(oracles.divergence_among_equals(1.0, at, 700, epsilon) for at in (-0.5, 0.5))


def page_point(epsilon: float) -> Any:
    """A witness for `EQUAL` by convex order alone."""
    shape = convex_order.Shape(700, 1.0, 1.0, 0.5)
    return convex_order.point(shape, epsilon, 1.6 * of_a_data_set(epsilon))


@pytest.mark.parametrize(
    ("setting", "epsilon", "close"),
    [
        (EQUAL, 0.0, 0.01),
        (EQUAL, 0.1, 0.01),
        # One of two groups wider than the client, whose mean moves by less than its diameter.
        (RoundGeometry(0.5, 0.4, ((0.4, 200), (0.6, 100))), 0.05, 0.03),
        # Weak reports, whose weights are all about one.
        (WEAK, 0.0, 0.03),
        (WEAK, 0.05, 0.03),
    ],
)
def test_a_point_is_about_the_accountants(
    setting: RoundGeometry, epsilon: float, close: float
) -> None:
    delta = gaussian_delta(setting, epsilon)
    found = verified(setting, epsilon, gram_point(setting, epsilon, delta))
    assert found == pytest.approx(delta, rel=close)
    assert setting is not EQUAL or found > of_a_data_set(epsilon)


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.55), (0.1, 0.18)])
def test_convex_order_lies_above_the_exact_divergence_of_a_data_set(
    epsilon: float, share: float
) -> None:
    true, found = of_a_data_set(epsilon), verified(EQUAL, epsilon, page_point(epsilon))
    assert share * found < true <= found  # one that much smaller would be seen to be false


@pytest.mark.slow
@pytest.mark.parametrize("by", ["gram", "convex order"])
def test_no_witness_makes_a_point_smaller_than_a_data_set(by: str) -> None:
    """Every parameter at odd values: refused, or a bound all the same."""
    true, witness = of_a_data_set(0.0), page_point(0.0)
    if by == "gram":
        witness = gram_point(EQUAL, 0.0, gaussian_delta(EQUAL, 0.0))
        assert witness
        witness |= {"boxes": [QUARTERS], "fine": "4"}
    assert verified(EQUAL, 0.0, witness) > true
    names = [name for name in witness if name not in ("by", "nodes", "boxes")]
    accepted = 0
    for name, factor in itertools.product(names, (-1.0, 0.7, 8.0)):
        changed = factor * float(witness[name])
        text = str(round(changed)) if "." not in witness[name] else repr(changed)
        try:
            found = verified(EQUAL, 0.0, witness | {name: text})
        except (Refused, ArithmeticError, ValueError):
            continue
        accepted += 1
        assert found > true, (name, text, found)
    assert len(names) == (18 if by == "gram" else 12) and accepted > 12
