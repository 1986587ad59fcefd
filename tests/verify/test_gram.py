"""The Gram order in balls: laws, boxes, the line and the whole point, against brute force."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from flint import arb
from scipy.stats import norm

from fl_shuffle.certificates.gram_order import Setting, gaussian_delta, gram_point
from fl_shuffle.verify.gram import EXTRA, NOTHING, Gram, Others, Places, boxes, corner, law
from fl_shuffle.verify.reading import Fields, Refused, Work
from fl_shuffle.verify.shuffled import gram_delta
from tests.oracles import divergence_among_equals
from tests.verify.made import first_tree

PLENTY = 1e12
LETTERS = [chr(ord("a") + i) for i in range(len(EXTRA))]
PLACES = Places(
    Fields({"width": "0.1", "low": "-60", "top": "60", "bottom": "60"}, "the grid of the tests")
)


def matrix(gram: Gram) -> tuple[float, float, float]:
    d1, d2, b = float(gram.d1), float(gram.d2), float(gram.b)
    return d1 * d1 + b * b, d2 * d2 + b * b, b * b - d1 * d2


@pytest.mark.parametrize(
    ("d1", "d2", "b"),
    [(0.9, 0.1, 0.3), (0.1, 0.9, 1e-6), (0.5, 0.5, 0.7), (1.2, -0.3, 0.2), (-0.3, 1.1, 0.4)],
)
@pytest.mark.parametrize("a", [1.0, 1.5])
def test_a_law_lies_above_the_true_one(d1: float, d2: float, b: float, a: float) -> None:
    """Stop-losses of the finite law, what it leaves out added, against quadrature."""
    masses, left = law(Gram(arb(d1), arb(d2), arb(b)), arb(a), 8, PLACES)
    values = np.array([float(x) for x in PLACES.values])
    p = np.array([float(x) for x in masses])
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (p >= -1e-25).all()
    g = np.linspace(-9, 9, 1201)
    ell = np.exp(d1 * g - d1 * d1 / 2) - a * np.exp(-d2 * g - d2 * d2 / 2)
    factor = np.exp(b * g - b * b / 2)
    weight = norm.pdf(g) * (g[1] - g[0])
    true = np.multiply.outer(factor, ell)
    both = np.multiply.outer(weight, weight)
    looser = 0.0
    for t in np.quantile(true, [0.001, 0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999]):
        exact = float((both * np.maximum(true - t, 0)).sum())
        found = float(p @ np.maximum(values - t, 0)) + float(left)
        assert exact <= found * (1 + 1e-6) + 1e-7
        looser = max(looser, found / max(exact, 1e-3))
        lowered = float(p @ np.maximum(0.9 * values - t, 0))
        assert lowered < exact or abs(exact - lowered) < 0.2
    assert looser < 1.1


def above(found: Gram, u: float, w: float, x: float) -> float:
    """Lemma 1 between matrices: dU, dW >= 0; the room that dX <= sqrt(dU dW) leaves."""
    u2, w2, x2 = matrix(found)
    assert u2 - u >= -1e-12
    assert w2 - w >= -1e-12
    return math.sqrt(max(u2 - u, 0) * max(w2 - w, 0)) - (x2 - x)


def refused_empty(others: Others, place: tuple[int, int, int, int], letter: str) -> Gram:
    """The corner of this box, which may not be left out."""
    found = corner(others, (*place, letter))
    assert found
    with pytest.raises(Refused, match="may hold something"):
        corner(others, (*place, NOTHING))
    return found


def test_a_corner_is_above_every_configuration_of_its_box() -> None:
    draw = random.Random(1)
    tight = 0
    for _ in range(400):
        own, other = draw.uniform(0.1, 1), draw.uniform(0.05, 1)
        columns, rows = 1 << draw.randint(0, 5), 1 << draw.randint(0, 5)
        i, j = draw.randrange(columns), draw.randrange(rows)
        others = Others(arb(own), arb(other), arb(2 * own), 1)
        g1, g2 = (i + draw.random()) * math.pi / columns, (j + draw.random()) * math.pi / rows
        if g1 + g2 > math.pi:
            continue
        found = refused_empty(others, (i, j, columns, rows), draw.choice(LETTERS))
        u = own**2 + other**2 + 2 * own * other * math.cos(g1)
        w = own**2 + other**2 + 2 * own * other * math.cos(g2)
        x = other**2 + own * other * (math.cos(g1) + math.cos(g2)) + own**2 * math.cos(g1 + g2)
        room = above(found, u, w, x)
        assert room >= -1e-9
        tight += room < 0.02
    assert tight > 10


def test_in_the_record_unit_a_corner_is_above_every_three_means_of_its_box() -> None:
    """Random p, q, r in their balls, |p - q| at most the move: the box that holds them is kept."""
    rng = np.random.default_rng(3)
    tight = 0
    for _ in range(600):
        own, other = rng.uniform(0.1, 1), rng.uniform(0.05, 1)
        move, columns = own * rng.uniform(0.05, 1.9), 1 << int(rng.integers(0, 7))
        rows = 1 << int(rng.integers(0, 7))
        p, q, r = (v / max(np.linalg.norm(v), 1) for v in rng.normal(size=(3, 3)) * 0.9)
        p, q, r = own * p, own * q, other * r
        q = p + (q - p) * min(1, move / np.linalg.norm(q - p))
        u, w, x = ((p - r) @ (p - r), (q - r) @ (q - r), (p - r) @ (q - r))
        most, side = (own + other) ** 2, 2 * move * (own + other)
        i = min(int(u / most * columns), columns - 1)
        j = min(int(((u - w) / side + 1) / 2 * rows), rows - 1)
        others = Others(arb(own), arb(other), arb(move), 1)
        letter = LETTERS[int(rng.integers(len(LETTERS)))]
        room = above(refused_empty(others, (i, j, columns, rows), letter), u, w, x)
        assert room >= -1e-9
        tight += room < 0.02
    assert tight > 10


def test_boxes_cover_the_square_and_nothing_else_is_a_tree() -> None:
    draw = random.Random(2)
    others = Others(arb(1), arb(1), arb(2), 1)
    for tree in ("a", "xaa", "yxaaa", "xyaaya.", "xyaxaayaa", "yxxaaaxa."):
        leaves = list(boxes(tree))
        for _ in range(300):
            g1 = draw.random()
            g2 = draw.random() * (1 - g1)
            held = [
                (i, j)
                for i, j, columns, rows, letter in leaves
                if i <= g1 * columns <= i + 1
                and j <= g2 * rows <= j + 1
                and corner(others, (i, j, columns, rows, letter))
            ]
            assert held, (tree, g1, g2)
    for tree in ("", "x", "xa", "aa", "yaaa", "x" * 60, "y" * 60, "x" * 100_000):
        with pytest.raises(Refused, match="boxes"):
            list(boxes(tree))
    with pytest.raises(Refused, match="no letter"):
        corner(others, (0, 0, 1, 1, "z"))
    with pytest.raises(Refused, match="may hold something"):
        corner(others, (0, 0, 2, 2, NOTHING))


NAMES = ["m", "zeta", "alpha", "beta", "below", "above", "theta", "h", "smoothing", "exact", "last"]
NAMES += ["width", "low", "top", "bottom", "fine", "bulk from", "bulk to"]


@pytest.fixture(scope="module")
def cheap() -> tuple[Setting, dict[str, Any], float]:
    """A coarse point of 700 reports, and the exact divergence of one data set."""
    setting = Setting(1.0, 0.5, ((0.5, 700),))
    witness = gram_point(setting, 0.0, gaussian_delta(setting, 0.0))
    assert witness
    witness |= {"boxes": [first_tree()], "fine": "4"}
    exact = max(divergence_among_equals(1.0, at, 700, 0.0) for at in (-0.5, 0.5))
    return setting, witness, exact


def verified(setting: Setting, epsilon: float, witness: Any) -> float:
    own, move = arb(setting.own), arb(setting.move)
    groups = tuple(Others(own, arb(c), move, n) for c, n in setting.groups)
    return float(gram_delta(groups, arb(epsilon), Fields(witness, "point"), Work(PLENTY)))


@pytest.mark.parametrize(
    ("setting", "epsilon", "close"),
    [
        (Setting(1.0, 0.5, ((0.5, 700),)), 0.0, 0.01),
        (Setting(1.0, 0.5, ((0.5, 700),)), 0.1, 0.01),
        # One of two groups wider than the client, whose mean moves by less than its diameter.
        (Setting(0.5, 0.4, ((0.4, 500), (0.6, 300))), 0.05, 0.02),
        # Weak reports, whose weights are all about one.
        (Setting(0.06, 0.03, ((0.0293, 10), (0.05, 9))), 0.0, 0.03),
        (Setting(0.06, 0.03, ((0.0293, 10), (0.05, 9))), 0.05, 0.03),
    ],
)
def test_a_point_is_about_the_accountants_and_above_a_data_set(
    setting: Setting, epsilon: float, close: float
) -> None:
    delta = gaussian_delta(setting, epsilon)
    found = verified(setting, epsilon, gram_point(setting, epsilon, delta))
    assert found == pytest.approx(delta, rel=close)
    if len(setting.groups) == 1:
        assert found > max(divergence_among_equals(1.0, at, 700, epsilon) for at in (-0.5, 0.5))


@pytest.mark.slow
def test_no_witness_makes_a_point_smaller_than_a_data_set(
    cheap: tuple[Setting, dict[str, Any], float],
) -> None:
    """Every parameter at odd values: refused, or a bound all the same."""
    setting, witness, exact = cheap
    assert verified(setting, 0.0, witness) > exact
    tried = accepted = 0
    for name in NAMES:
        before = float(witness[name])
        for factor in (-1.0, 0.7, 8.0):
            changed = factor * before
            text = str(round(changed)) if "." not in str(witness[name]) else repr(changed)
            tried += 1
            try:
                found = verified(setting, 0.0, witness | {name: text})
            except (Refused, ArithmeticError, ValueError):
                continue
            accepted += 1
            assert found > exact, (name, text, found)
    assert tried == 3 * len(NAMES)
    assert accepted > 15
