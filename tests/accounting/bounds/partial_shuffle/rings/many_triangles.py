"""Gaussian triples against the certified laws, in any number: the slow form of `test_rings.py`.

`python -m tests.accounting.bounds.partial_shuffle.rings.many_triangles COUNT [SEED]` says how many
triples were compared, the largest E(phi(L) - t)_+^2 / E(L' - t)_+^2, and how many were above one
by more than the quadrature's error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fl_shuffle.accounting.bounds.partial_shuffle.bound import Setting, variance_bound
from fl_shuffle.accounting.bounds.partial_shuffle.collapsed_atoms import ToppedLaw, collapse, lifted
from fl_shuffle.accounting.bounds.partial_shuffle.convex_order_law import (
    ConvexOrderLaw,
    gaussian_law,
    squared_tail,
)
from fl_shuffle.accounting.bounds.partial_shuffle.rings import rings
from fl_shuffle.accounting.engine.convex_rounding import round_up_convex
from fl_shuffle.accounting.laws.amplification import AtomicLaw
from tests.accounting.bounds.partial_shuffle.oracles.gaussian_bound import excess
from tests.accounting.bounds.partial_shuffle.triangles import (
    client_triples,
    record_triples,
    shaped_square,
)

LIFTS = ((0.0, 0.0), (0.02, 0.1), (0.0, 0.01), (0.3, 0.0))
"""phi(x) = x + gain x^+ + loss x^-."""


PROGRESS = 20_000
"""The count so far is shown after so many triples."""


def certified_laws(
    setting: Setting, epsilon: float, gain: float, loss: float
) -> Iterator[tuple[float, float, AtomicLaw, float]]:
    """(near, far, L', least variance of L'): one law for all, then the rings'."""
    drift, local = math.expm1(epsilon), float(excess(math.exp(epsilon), setting.move))
    law = gaussian_law(epsilon, setting.move, setting.spread)
    places = np.geomspace(
        0.1 * setting.move, 50.0 * setting.spread * math.exp(6 * setting.spread), 400
    )
    cut = float(places[np.argmax(law.stop_loss(places) < 1e-7 * setting.move)])
    law = replace(law, upper=cut)
    left = float(law.stop_loss(np.array([cut]))[0])
    whole = variance_bound(setting, epsilon)
    topped = ToppedLaw(law, squared_tail(law, setting.spread, left), left)
    atoms, _, _ = round_up_convex(topped, [(1.0, setting.count - 1)], 3e-3)
    parts = [(setting.spread, atoms, whole)]
    if isinstance(law, ConvexOrderLaw):
        parts += [
            (ring.far, ring.atoms, min(ring.variance, whole))
            for ring in rings(law, setting.diameter, left, atoms.values)
        ]
    near = 0.0
    for place, (far, own, variance) in enumerate(parts):
        mean = -(1 - loss) * drift + (gain + loss) * local
        second = (1 + gain) ** 2 * (variance + drift * drift)
        rate = max(drift / variance, 1 / math.sqrt(setting.count * variance))
        found, _ = collapse(lifted(own, gain, loss), second - mean * mean, mean, rate)
        yield near if place > 1 else 0.0, far, found, variance
        near = far


def compare(rng: np.random.Generator, mu: float, share_of_move: float, cases: int) -> np.ndarray:
    """[compared, violations, largest ratio] for one client; about `cases` triples a law."""
    move = share_of_move * mu
    setting = Setting(1000, move, mu, mu, mu / 2, mu / 2)
    epsilon = float(rng.choice([0.003, 0.03, 0.1, 0.3, 0.8])) * move
    gain, loss = LIFTS[rng.integers(len(LIFTS))]
    a, total = math.exp(epsilon), np.zeros(3)
    for near, far, law, variance in certified_laws(setting, epsilon, gain, loss):
        width = math.sqrt(variance)
        if move < mu:
            u, w = record_triples(rng, cases, mu, move)
        else:
            u, w = client_triples(rng, cases, mu)
        distance = np.linalg.norm(u, axis=1)
        kept = (distance >= near) & (distance <= far)
        u, w = u[kept], w[kept]
        below = rng.uniform(min(law.values[0], 0) - 0.5 * width, 0, len(u))
        t = np.where(rng.random(len(u)) < 0.7, below, rng.uniform(0, 2.5 * width, len(u)))
        squares = shaped_square(u, w, a, t, gain, loss)
        have = np.maximum(law.values - t[:, None], 0.0) ** 2 @ law.probabilities
        # The coarse grid misjudges thin tails of nearly equal means by up to 2%.
        for case in np.flatnonzero(squares > 0.998 * have + 1e-4 * width * width):
            here = slice(case, case + 1)
            squares[here] = shaped_square(u[here], w[here], a, t[here], gain, loss, fine=True)
        wrong = squares > have * (1 + 1e-6) + 1e-4 * width * width
        big = have > 1e-2 * width * width
        ratio = float((squares[big] / have[big]).max(initial=0.0))
        total = np.array([total[0] + len(u), total[1] + wrong.sum(), max(total[2], ratio)])
    return total


def main(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    total = np.zeros(3)
    shown = 0.0
    while total[0] < count:
        if total[0] >= shown + PROGRESS:
            shown = total[0]
            show(total)
        mu = float(np.exp(rng.uniform(math.log(0.02), math.log(1.3))))
        share = float(rng.choice([1.0, 1.0, 0.3, 0.05]))
        found = compare(rng, mu, share, 3000)
        total = np.array([total[0] + found[0], total[1] + found[1], max(total[2], found[2])])
    show(total)


def show(total: np.ndarray) -> None:
    text = f"{total[0]:.0f} triples, {total[1]:.0f} violations, largest ratio {total[2]:.5f}"
    print(text, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
