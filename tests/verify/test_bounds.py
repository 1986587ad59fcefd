"""Each bound of the verifier against brute force, or against a closed form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from flint import arb, arb_mat
from scipy.stats import norm

from fl_shuffle.accounting.bounds.blanket import blanket_delta
from fl_shuffle.accounting.laws.finite import KRandomizedResponse
from fl_shuffle.certificates import convex_order, finite
from fl_shuffle.certificates.lines import line
from fl_shuffle.certificates.writing import proven
from fl_shuffle.verify.balls import excess, gaussian_delta
from fl_shuffle.verify.gram import Others
from fl_shuffle.verify.line import Line
from fl_shuffle.verify.reading import Fields, Work
from fl_shuffle.verify.rounds import composed, kinks
from fl_shuffle.verify.shuffled import by_chords, comparison, convex_order_delta
from tests.oracles import cells, divergence_among_equals, krr_matrix, shuffle_delta

PLENTY = 1e12


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("s", [1e-9, 0.3, 1.0, 2.0, 1e6])
def test_gaussian_excess_against_sixty_digits(mu: float, s: float) -> None:
    with mpmath.workdps(60):
        shift, half = mpmath.log(mpmath.mpf(s)) / mpmath.mpf(mu), mpmath.mpf(mu) / 2
        wanted = mpmath.ncdf(half - shift) - mpmath.mpf(s) * mpmath.ncdf(-half - shift)
        off = excess(arb(s), arb(mu)) - arb(mpmath.nstr(wanted, 50))
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
        (i, gaussian_delta(arb(step) * i, arb(mu)).upper()) for i in range(int(9 * mu / step))
    ]
    total = mu * math.sqrt(times)

    def delta(epsilon: float, times: int, tilt: float, cells: int) -> float:
        witness = Fields({"tilt": repr(tilt), "cells": str(cells)}, "witness")
        found = composed([(points, times)], arb(step), witness, Work(PLENTY))
        return float(found(arb(epsilon)))

    for epsilon in (0.2 * total, total, 3 * total):
        found = delta(epsilon, times, 2 / total, 4096)
        exact = float(gaussian_delta(arb(epsilon), arb(total)))
        assert exact <= found <= 1.01 * exact
        # Whatever the tilt and the window, what comes out lies above.
        for odd, few in ((0.1, 64), (30.0, 512)):
            assert delta(epsilon, times, odd, few) >= exact
        assert delta(epsilon, times - 1, 2 / total, 4096) < exact


@pytest.mark.parametrize(("k", "epsilon0"), [(2, 1.0), (3, 0.5), (4, 2.0)])
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_randomized_response_against_enumeration(k: int, epsilon0: float, clients: int) -> None:
    facts = {"randomizer": {"name": "krr", "k": str(k), "epsilon0": str(epsilon0)}}
    facts |= {"clients": str(clients), "times": "1"}
    for epsilon in (0.0, 0.2 * epsilon0, 0.7 * epsilon0):
        held = finite.point(k, epsilon0, max(clients, 2), epsilon, single=True)
        points = [{"index": "0", **held}]
        window = {"step": repr(epsilon or 0.1), "tilt": "40", "cells": "64"}
        if epsilon:
            points = [{"index": "0", "by": "local"}, {"index": "1", **held}]
        witness = {**window, "points": points}
        found = float(proven("finite", facts, witness)(arb(repr(epsilon)).mid()))
        blanket = blanket_delta(KRandomizedResponse(epsilon0, k), clients, epsilon).delta
        matrix = krr_matrix(epsilon0, k)
        exact = shuffle_delta(*matrix[:2], [matrix[0]] * (clients - 1), math.exp(epsilon))
        assert exact <= found
        assert (1 - 4e-4) * blanket <= found <= 1.02 * blanket + 1e-9


@pytest.mark.parametrize(
    ("function", "slope", "reach", "last"),
    [
        (lambda t: np.exp(-2.0 * t), 0.0, 0.5, 3.0),
        # Steep: values of 1e47 that are hardly ever taken, beside a mean of 1.2.
        (lambda t: np.exp(109.0 * (t - 1) ** 2), 43.6 * math.exp(109.0 * 0.04), 0.04, 1.2),
    ],
)
def test_chords_lie_just_above_quadrature_and_do_not_cancel(
    function: Callable[[Any], Any], slope: float, reach: float, last: float
) -> None:
    g = np.linspace(-12, 12, 200_001)
    z = np.exp(reach * g - reach**2 / 2)
    exact = float(np.trapezoid(function(np.minimum(z, last)) * norm.pdf(g), g))

    def in_balls(t: arb) -> arb:
        return (-2 * t).exp() if slope == 0.0 else (109 * (t - 1) ** 2).exp()

    found = float(by_chords(in_balls, arb(slope), arb(reach), arb(last)))
    assert exact <= found <= 1.001 * exact


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
@pytest.mark.parametrize("eta", [0.0, 0.2])
def test_the_comparison_lies_above_every_report_on_a_line(epsilon: float, eta: float) -> None:
    """P, Q and R normal with means anywhere within the allowed distances of one another."""
    a, move, spread = math.exp(epsilon), 0.8, 1.1
    nodes = Fields({"unit": "1", "below": "90", "above": "70", "beyond": "60"}, "nodes")
    law, cut = comparison(arb(a), arb(move), arb(spread), arb(eta), nodes)
    values = np.array([float(x) for _, x in law])
    masses = np.array([float(p) for p, _ in law])
    assert masses.sum() == pytest.approx(1)
    x = np.linspace(-14, 15, 60_001)
    touched = 0.0
    for r in np.linspace(-0.3, 1.1, 8):  # P at 0, Q at `move`
        ratio = (norm.pdf(x) - a * norm.pdf(x, move)) / norm.pdf(x, r)
        lifted = ratio + eta * np.abs(ratio)
        for t in (-2.0, -0.7, -0.2, 0.0, 0.2, 0.7, 2.0):
            exact = float(np.trapezoid(np.maximum(lifted - t, 0) * norm.pdf(x, r), x))
            found = float(masses @ np.maximum(values - t, 0)) + float(cut)
            assert exact <= found + 1e-8
            touched = max(touched, exact / found)
    assert touched > 0.85


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_sum_of_equal_terms_against_enumeration(count: int) -> None:
    law = [(0.3, -0.75), (0.45, 0.0), (0.2, 0.5), (0.05, 2.25)]
    exact = sum(
        math.prod(p for p, _ in drawn) * max(sum(x for _, x in drawn), 0.0)
        for drawn in itertools.product(law, repeat=count)
    )
    p, x = (np.array(each) for each in zip(*law, strict=True))
    balls = [(arb(mass), arb(value)) for mass, value in law]
    masses = arb_mat([[mass for mass, _ in balls]])
    for odd in ({}, {"theta": "3"}, {"last": "9"}, {"h": "1"}, {"smoothing": "2"}):
        rule = Line(Fields({"exact": "3"} | line(p, x, count, 0.01) | odd, "line"), count)
        found = float(rule.of_equals(balls, Work(PLENTY)))
        assert exact * (1 - 1e-12) <= found
        assert odd or found <= 1.02 * exact
        # Of many laws at once.
        (row,) = (masses * arb_mat([rule.columns(value, True) for _, value in balls])).tolist()
        assert exact * (1 - 1e-12) <= float(rule.bound(row, *rule.weights()))


def test_the_swap_lies_above_exact_shuffles_of_three() -> None:
    mu, count = 0.3, 2
    groups = (Others(arb(mu / 2), arb(mu / 2), arb(mu), count),)
    # Reports in cells, which is a step after the mechanism: no valid bound lies below.
    laws = [cells([mean], np.linspace(-2.5, 2.5, 17), "gaussian") for mean in (-mu / 2, 0, mu / 2)]
    nodes = {"unit": "0.3", "below": "60", "above": "60", "beyond": "9", "exact": "1"}
    for epsilon in (0.0, 0.1):
        worst = max(
            shuffle_delta(*pair, [laws[place] for place in others], math.exp(epsilon))
            for pair in itertools.permutations((laws[0], laws[2]))
            for others in itertools.combinations_with_replacement(range(3), count)
        )
        for m, zeta, rate, theta in ((1.4, 1.2, 3, 2), (1.8, 1.35, 9, 1), (1.5, 1.0, 2, 4)):
            witness = nodes | {"m": str(m), "zeta": str(zeta), "rate": str(rate)}
            witness |= {"theta": str(theta), "h": "0.2", "smoothing": "0.001", "last": "500"}
            chosen = Fields(witness, "point")
            assert convex_order_delta(groups, arb(epsilon), chosen, Work(PLENTY)) >= worst


@pytest.mark.parametrize(("epsilon", "share"), [(0.0, 0.55), (0.1, 0.18)])
def test_many_reports_against_the_exact_divergence_of_a_data_set(
    epsilon: float, share: float
) -> None:
    mu, count = 1.0, 700
    exact = max(divergence_among_equals(mu, at, count, epsilon) for at in (-mu / 2, mu / 2))
    shape = convex_order.Shape(count, mu, mu, mu / 2)
    witness = convex_order.point(shape, epsilon, 1.6 * exact)
    assert witness
    groups = (Others(arb(mu / 2), arb(mu / 2), arb(mu), count),)
    found = convex_order_delta(groups, arb(epsilon), Fields(witness, "point"), Work(PLENTY))
    assert exact <= found
    assert share * found < exact  # a bound that much smaller would be seen to be false
