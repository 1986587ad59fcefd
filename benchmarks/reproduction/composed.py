"""Several answers in one report, or one of several randomizers (Su, Cheng, Wang 2025, 6 and 7).

No report of this framework is made like that; the paper's figures are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Literal

import numpy as np

from fl_shuffle.accounting.laws.amplification import FloatArray
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import FiniteRandomizer, Randomizer, distinct
from fl_shuffle.accounting.laws.outcome_pair import OutcomePair

LAPLACE_CELLS = (0, 400, 64, 20, 12, 8)
"""Cells per side of each Laplace part, by the number of such parts."""
MERGE_TOLERANCE = 1e-11
"""Losses and ratios this close count as the same outcome (see `merged`)."""
Direction = Literal["up", "down"]


@dataclass(frozen=True)
class JointComposition(FiniteRandomizer):
    """One report holds an independent answer of each part; neighbours may differ in all."""

    parts: tuple[Randomizer, ...]
    name = "joint"

    @property
    def local_epsilon(self) -> float:
        return math.fsum(part.local_epsilon for part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        return _products([upper for upper, _ in _tables(self.parts)], "up")

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return _products([lower[:1] for _, lower in _tables(self.parts)], "down")


@dataclass(frozen=True)
class ParallelComposition(FiniteRandomizer):
    """Each client uses one part, drawn with the public weights; the report says which."""

    parts: tuple[tuple[float, Randomizer], ...]
    name = "parallel"

    @property
    def local_epsilon(self) -> float:
        return max(part.local_epsilon for _, part in self.parts)

    def pairs(self) -> tuple[OutcomePair, ...]:
        return self._unions([_tables([part])[0][0] for _, part in self.parts], None)

    def witnesses(self) -> tuple[OutcomePair, ...]:
        return self._unions([_tables([part])[0][1][:1] for _, part in self.parts], 1.0)

    def _unions(
        self, options: Sequence[tuple[OutcomePair, ...]], mass: float | None
    ) -> tuple[OutcomePair, ...]:
        """Every choice of one pair a part."""

        def union(chosen: Sequence[OutcomePair]) -> OutcomePair:
            weighted = [
                (weight, pair) for (weight, _), pair in zip(self.parts, chosen, strict=True)
            ]
            return OutcomePair.of(
                np.concatenate([w * pair.p for w, pair in weighted]),
                np.concatenate([w * pair.q for w, pair in weighted]),
                np.concatenate([w * pair.blanket_mass * pair.omega for w, pair in weighted]),
                np.concatenate([pair.loss for pair in chosen]),
                blanket_mass=mass,
            )

        return distinct(union(chosen) for chosen in product(*options))


Pairs = tuple[OutcomePair, ...]


def _tables(parts: Sequence[Randomizer]) -> list[tuple[Pairs, Pairs]]:
    """(candidate pairs, witness pairs) of every part."""
    laplace = sum(isinstance(part, LaplaceRandomizer) for part in parts)
    cells = LAPLACE_CELLS[min(laplace, len(LAPLACE_CELLS) - 1)]
    tables: list[tuple[Pairs, Pairs]] = []
    for part in parts:
        if isinstance(part, LaplaceRandomizer):
            tables.append(((dominating_pair(part, cells),), (part.binned_witness(cells),)))
        else:
            assert isinstance(part, FiniteRandomizer)
            tables.append((part.pairs(), part.witnesses()))
    return tables


def _products(choices: Sequence[Pairs], direction: Direction) -> Pairs:
    return reduce(
        lambda current, options: distinct(
            merged(times(left, right), direction) for left, right in product(current, options)
        ),
        choices,
    )


def times(left: OutcomePair, right: OutcomePair) -> OutcomePair:
    """Both reports together, drawn independently."""

    def outer(a: FloatArray, b: FloatArray) -> FloatArray:
        return np.asarray(np.multiply.outer(a, b).ravel(), dtype=np.float64)

    with np.errstate(invalid="ignore"):
        loss = np.add.outer(left.loss, right.loss).ravel()
    p, q, omega = outer(left.p, right.p), outer(left.q, right.q), outer(left.omega, right.omega)
    used = (p > 0.0) | (q > 0.0) | (omega > 0.0)
    loss = np.where(np.isnan(loss), 0.0, loss)
    mass = left.blanket_mass * right.blanket_mass
    return OutcomePair(p[used], q[used], omega[used], loss[used], mass)


def merged(pair: OutcomePair, direction: Direction) -> OutcomePair:
    """Join outcomes whose loss and whose q/omega agree up to round-off; the loss that is kept is
    the largest of theirs ("up": an upper bound stays one) or the smallest ("down")."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(pair.q) - np.log(pair.omega)
    scaled = np.stack([pair.loss, np.where(np.isnan(ratio), np.inf, ratio)])
    key = np.where(np.isfinite(scaled), np.round(scaled / MERGE_TOLERANCE), scaled)
    _, group = np.unique(key, axis=1, return_inverse=True)
    group = group.reshape(-1)
    p, q, omega = (
        np.bincount(group, weights=x).astype(np.float64) for x in (pair.p, pair.q, pair.omega)
    )
    worst = np.maximum if direction == "up" else np.minimum
    loss = np.full(p.size, -np.inf if direction == "up" else np.inf)
    worst.at(loss, group, pair.loss)
    return OutcomePair(p, q, omega, loss, pair.blanket_mass)


def dominating_pair(randomizer: LaplaceRandomizer, cells: int) -> OutcomePair:
    """A finite pair whose (P/omega, Q/omega) spreads Laplace noise's with its mean kept."""
    c = 0.5 * randomizer.epsilon0
    if c == 0.0:
        return OutcomePair.of([1.0], [1.0], [1.0], [0.0])
    steps = np.arange(cells + 1)
    nodes = np.exp(2.0 * c * steps / cells - c)
    width = c / cells
    mass = np.exp(-width * steps[:-1]) * -math.expm1(-width)
    mean = np.exp(width * steps[:-1] - c) * math.expm1(width) / mass
    upper = np.clip((mean - nodes[:-1]) / np.diff(nodes), 0.0, 1.0)
    weights = np.zeros(cells + 1)
    weights[:-1] += mass * (1.0 - upper)
    weights[1:] += mass * upper
    weights[-1] += math.exp(-c)
    weights *= 0.5
    low = math.exp(-c)
    loss = 2.0 * c * steps / cells
    return OutcomePair.of(
        np.concatenate([weights * nodes, weights * low]),
        np.concatenate([weights * low, weights * nodes]),
        np.concatenate([weights, weights]) * low,
        np.concatenate([loss, -loss]),
        blanket_mass=low,
    )
