"""Independent slow oracles: direct enumeration of shuffled reports, and mpmath sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import mpmath as mp
import numpy as np

Histogram = dict[tuple[int, ...], float]


def shuffled_law(rows: Sequence[Sequence[float]]) -> Histogram:
    """Law of the histogram of independent reports; rows[j] is client j's report law."""
    law: Histogram = {(0,) * len(rows[0]): 1.0}
    for row in rows:
        following: Histogram = defaultdict(float)
        for counts, mass in law.items():
            for symbol, chance in enumerate(row):
                if chance > 0.0:
                    moved = (*counts[:symbol], counts[symbol] + 1, *counts[symbol + 1 :])
                    following[moved] += mass * chance
        law = following
    return law


def hockey_stick(p: Histogram, q: Histogram, epsilon: float) -> float:
    """sum over outcomes of (p - e^eps q)_+."""
    a = float(np.exp(epsilon))
    return sum(max(0.0, mass - a * q.get(key, 0.0)) for key, mass in p.items())


def worst_delta(matrices: Sequence[np.ndarray], epsilon: float) -> float:
    """Exact delta of the shuffle when client 0 changes: maximum over all inputs of everybody.

    matrices[j][x] is client j's report law at input x.
    """
    worst = 0.0
    inputs = range(len(matrices[0]))
    for others in product(inputs, repeat=len(matrices) - 1):
        rest = [matrices[j + 1][x] for j, x in enumerate(others)]
        laws = [shuffled_law([matrices[0][x], *rest]) for x in inputs]
        for a, b in product(inputs, repeat=2):
            if a != b:
                worst = max(worst, hockey_stick(laws[a], laws[b], epsilon))
    return worst


def randomized_response(epsilon0: float, k: int = 2) -> np.ndarray:
    high = np.exp(epsilon0)
    return (np.ones((k, k)) + (high - 1.0) * np.eye(k)) / (high + k - 1.0)


def clone_pair(epsilon0: float, n: int, clone: float | None = None, printed: bool = False):
    """The clone pair from its definition, in mpmath; `printed`: the pair of Chen et al. 2024."""
    p = mp.exp(-mp.mpf(epsilon0)) if clone is None else mp.mpf(clone)
    w = 1 / (1 + mp.exp(-mp.mpf(epsilon0)))
    first: dict = defaultdict(lambda: mp.mpf(0))
    second: dict = defaultdict(lambda: mp.mpf(0))
    for c in range(n):
        outer = mp.binomial(n - 1, c) * p**c * (1 - p) ** (n - 1 - c)
        for a in range(c + 1):
            mass = outer * mp.binomial(c, a) * mp.mpf(2) ** (-c)
            if printed:
                chance = mp.exp(-mp.mpf(epsilon0))
                for d, weight in ((1, chance), (0, 1 - chance)):
                    first[a, c - a + d] += mass * weight
                    second[a + d, c - a] += mass * weight
                continue
            for d, weight in ((1, w), (0, 1 - w)):
                first[a + d, c - a + 1 - d] += mass * weight
                second[a + 1 - d, c - a + d] += mass * weight
    return first, second


def pair_delta(first, second, epsilon: float) -> float:
    a = mp.exp(mp.mpf(epsilon))
    zero = mp.mpf(0)
    return float(sum(max(zero, m - a * second.get(key, zero)) for key, m in first.items()))


def pair_renyi(first, second, order: float) -> float:
    lam = mp.mpf(order)
    moment = sum(m**lam * second[key] ** (1 - lam) for key, m in first.items() if m > 0)
    return float(mp.log(moment) / (lam - 1))
