"""Lemmas 1 to 3 and the cover: docs/proofs.md, section 12. Weakened versions must fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.gram import Cover, cover
from tests.accounting.bounds.partial_shuffle.oracles.gram_theorem import stop_loss


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
        before = stop_loss((low[0, 0], low[1, 1], low[0, 1]), a, t)
        after = stop_loss((u, w, x), a, t)
        worst = max(worst, float(np.max((before - after) / (1.0 + np.abs(1.0 - a - t)))))
    return worst


def test_the_law_grows_with_the_gram_matrix() -> None:
    assert largest_violation(1.0, 200) <= 1e-7
    assert largest_violation(1.5, 100) > 1e-3


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


def uncovered(area: Cover, boxes: np.ndarray, triples: list[tuple], a: float, room: float) -> int:
    """How many triples no box's corner is above, in Lemma 1's order."""
    u2, w2, x2 = (x.astype(np.longdouble) for x in area.corner(boxes, a))
    missed = 0
    for p, q, r in triples:
        u, v = p - r, q - r
        du, dw, dx = u2 - u @ u, w2 - v @ v, x2 - u @ v
        root = np.sqrt(np.maximum(du, 0.0) * np.maximum(dw, 0.0))
        missed += not np.any((du >= 0.0) & (dw >= 0.0) & (dx <= root + room))
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
        area = cover(own, other, move)
        boxes = area.start(8)
        for _ in range(halvings):
            boxes = area.halves(boxes)
        triples = [admissible(rng, own, other, move) for _ in range(80)]
        room = 1e-12 * (own + other) ** 2
        assert uncovered(area, boxes, triples, a, room) == 0
        tried += len(triples)
        less = cover(*(0.98 * each for each in (own, other, move)))
        boxes_less = less.start(8)
        for _ in range(halvings):
            boxes_less = less.halves(boxes_less)
        smaller += uncovered(less, boxes_less, triples, a, room)
        u2, w2, _ = area.corner(boxes, a)
        one_order += uncovered(area, boxes[u2 >= w2], triples, a, room)
    assert smaller > 0.1 * tried
    assert one_order > 0.05 * tried
