"""Is every report's noise its own? Reports are subtracted: of two clients, and of two rounds.

The adversary knows all means, so a report minus its mean, over its noise scale, is bare noise:
symmetric, independent between coordinates, clients and rounds. Two exact tests see it if it is not.

* *Signs.* Products of the signs of neighbours in a chain of independent symmetric variates are
  independent fair coins: a two-sided binomial test. It sees a weak dependence that all share.
* *Closest pair.* Two independent variates lie within `width` of one another with probability at
  most 2 width times the largest density of their difference (Gaussian 1/(2 sqrt(pi)), Laplace 1/4).
  A pair of reports whose noise is the same, or the same turned around, agrees in all coordinates:
  one such pair among millions is seen. Bonferroni over all pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.auditing.findings import Check
from fl_shuffle.auditing.score import report_scales
from fl_shuffle.auditing.source import CanarySource

Vector = NDArray[np.float64]

TWO_CLIENTS = "two clients' reports of one round, subtracted"
TWO_ROUNDS = "reports of two rounds, subtracted"
TWO_COORDINATES = "two coordinates of one report, subtracted"

ROUNDS = 8
"""Rounds whose noise is compared."""
MOST_COORDINATES = 64
"""Coordinates looked at, evenly spaced over a report."""
MOST_VALUES = 1 << 23
"""Numbers held at a time (64 MiB of float64): many clients play fewer rounds."""
POWER_SPREAD = 1.6449
"""The normal quantile of the power that is stated, 95%."""

HIGHEST_DENSITY = {"gaussian": 0.5 / math.sqrt(math.pi), "laplace": 0.25}
"""Of the difference of two standard variates of a law."""


@dataclass(frozen=True)
class Residuals:
    """Bare noise in units of its scale: `values` [rounds, n, c]; `rounding` [n] is half a grid step
    in the same units; `noise` names the law."""

    values: Vector
    rounding: Vector
    noise: str


@dataclass(frozen=True)
class Pair:
    """Two reports, (round, client) each, that agree in `equal` coordinates of all those compared.

    `pairs` were compared; two independent reports agree in one coordinate with probability at most
    `single`.
    """

    first: tuple[int, int]
    second: tuple[int, int]
    equal: int
    coordinates: int
    pairs: int
    single: float

    @property
    def p_value(self) -> float:
        return self.chance(self.equal)

    def chance(self, equal: int) -> float:
        """At most so likely do any two of independent reports agree in `equal` coordinates."""
        tail = float(stats.binom.sf(equal - 1, self.coordinates, self.single))
        return min(1.0, 2.0 * self.pairs * tail)

    def text(self) -> str:
        """For the reader."""
        (a, i), (b, j) = self.first, self.second
        return (
            f"closest: client {i} in round {a + 1} and client {j} in round {b + 1}, equal in "
            f"{self.equal} of {self.coordinates} coordinates"
        )


def play_noise(source: CanarySource) -> Residuals:
    """Bare noise of the first rounds' reports, at a few coordinates of many clients' reports."""
    scales, scene = report_scales(source), source.scene
    means = scene.others.copy()
    means[scene.target] = scene.zero
    # The first coordinate's mean lies off the grid, which spoils the symmetry a little.
    first = min(1, source.dimension - 1)
    count = min(source.dimension - first, MOST_COORDINATES)
    columns = np.linspace(first, source.dimension - 1, count).astype(np.int64)
    rounds = max(2, min(ROUNDS, MOST_VALUES // (len(scales) * count)))
    played = []
    for number in range(1, rounds + 1):
        values = source.play(number)[0][:, columns].double().numpy()
        if columns[0] == 0:
            values[:, 0] -= means
        played.append(values / scales[:, None])
    rounding = 0.5 * source.plan.step / scales
    return Residuals(np.stack(played), rounding, source.plan.noise)


def noise_checks(noise: Residuals, level: float) -> list[Check]:
    """Three games, each at `level`: two clients, two rounds, and two coordinates of one report."""
    rounds, clients, coordinates = noise.values.shape
    same = ", or one pair of reports with the same noise"
    found = []
    for game, axis, count in (
        (TWO_CLIENTS, 1, clients),
        (TWO_ROUNDS, 0, rounds),
        (TWO_COORDINATES, 2, coordinates),
    ):
        if count < 2:
            continue
        p_value, products = sign_p_value(noise.values, axis)
        pair = None
        if axis < 2:
            pair = closest_pair(noise, same_round=axis == 1)
        tests = 1 if pair is None else 2
        smallest = p_value if pair is None else min(p_value, pair.p_value)
        seen = detectable_correlation(products, level / tests, POWER_SPREAD)
        found.append(
            Check(
                game=game,
                method=f"signs of {products:,} products"
                + ("" if pair is None else "; closest of all pairs"),
                rounds=1 if axis == 1 else rounds,
                plays=rounds,
                p_value=min(1.0, tests * smallest),
                level=level,
                power=f"would have caught a correlation of {seen:.2g}"
                + (same if pair is not None and pair.chance(coordinates) <= level / 2 else ""),
                note="" if pair is None or not pair.equal else pair.text(),
            )
        )
    return found


def sign_p_value(values: Vector, axis: int) -> tuple[float, int]:
    """Two-sided p-value of the sign products of neighbours along `axis`; how many there were.

    Exact zeros (the middle of the grid) have no sign and are left out.
    """
    signs = np.sign(np.moveaxis(values, axis, 0))
    products = signs[1:] * signs[:-1]
    agree, differ = int((products > 0).sum()), int((products < 0).sum())
    total = agree + differ
    if not total:
        return 1.0, 0
    tail = float(stats.binom.cdf(min(agree, differ), total, 0.5))
    return min(1.0, 2.0 * tail), total


def detectable_correlation(products: int, level: float, power_spread: float) -> float:
    """The smallest correlation r of Gaussian noise that `sign_p_value` sees at `level`, with the
    probability whose normal quantile is `power_spread`: signs agree with chance 1/2 + asin(r)/pi.
    """
    if not products:
        return math.inf
    excess = (float(stats.norm.isf(level / 2.0)) + power_spread) * 0.5 / math.sqrt(products)
    return math.sin(math.pi * excess) if excess < 0.5 else math.inf


def closest_pair(noise: Residuals, *, same_round: bool) -> Pair | None:
    """The two reports, of one round or of two different ones, that agree in most coordinates.

    Looked for among those next to one another in the size of their first coordinate, where equal
    noise (or noise turned around) must lie; the p-value pays for all pairs and both signs.
    """
    rounds, clients, _ = noise.values.shape
    pairs = rounds * clients * (clients - 1) // 2
    if not same_round:
        pairs = rounds * (rounds - 1) // 2 * clients**2
    if not pairs:
        return None
    found = [
        _closest(noise, np.full(clients, number), np.arange(clients), same_round)
        for number in (range(rounds) if same_round else ())
    ]
    if not same_round:
        number, client = (part.reshape(-1) for part in np.indices((rounds, clients)))
        found = [_closest(noise, number, client, same_round)]
    equal, first, second = max(found)
    width = 4.0 * float(noise.rounding.max()) + 1e-6
    single = min(1.0, 2.0 * width * HIGHEST_DENSITY[noise.noise])
    return Pair(first, second, equal, noise.values.shape[2], pairs, single)


def _closest(
    noise: Residuals, number: NDArray[np.int64], client: NDArray[np.int64], same_round: bool
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    values = noise.values[number, client]
    order = np.argsort(np.abs(values[:, 0]), kind="stable")
    left, right = order[:-1], order[1:]
    if not same_round:
        apart = number[left] != number[right]
        left, right = left[apart], right[apart]
        if not len(left):
            return 0, (0, 0), (0, 0)
    near = noise.rounding[client[left]] + noise.rounding[client[right]] + 1e-7
    signs = np.sign(values[left, 0] * values[right, 0])
    apart = np.abs(values[left] - signs[:, None] * values[right])
    equal = (apart <= near[:, None]).sum(axis=1)
    best = int(np.argmax(equal))
    a, b = int(left[best]), int(right[best])
    return (
        int(equal[best]),
        (int(number[a]), int(client[a])),
        (int(number[b]), int(client[b])),
    )
