"""Is every report's noise its own, and is pooled noise that of the reports it stands for?

The adversary knows all means, so a report minus its mean, over its noise scale, is bare noise:
symmetric, independent between coordinates, clients and rounds. Two exact tests see it if it is not.

* *Signs.* Products of the signs of neighbours in a chain of independent symmetric variates are
  independent fair coins: a two-sided binomial test. It sees a weak dependence that all share.
* *Equal values.* A value is within `width` of another that was drawn apart with probability at most
  2 width times the highest density, whatever that other is; a few values that all have their equal
  in another report, with the power of that. One such pair among millions is seen, as it is or
  turned around, by Bonferroni over all pairs and signs: at any coordinates that two reports have in
  common, and in neighbouring coordinates at any two places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import cKDTree

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.findings import Check
from fl_shuffle.seeds import SeedTree

Vector = NDArray[np.float64]

TWO_CLIENTS = "two clients' reports of one round, subtracted"
TWO_ROUNDS = "reports of two rounds, subtracted"
TWO_COORDINATES = "two coordinates of one report, subtracted"
TWO_REPORTS = "noise of any two reports, at any of the same coordinates"
TWO_PLACES = "noise at any two places, stretch by stretch"
ONE_LAW = "sums of rounds: pooled noise against that of reports"

ROUNDS = 8
"""Rounds whose noise is compared."""
MOST_COORDINATES = 64
"""Coordinates looked at, evenly spaced over a report."""
MOST_VALUES = 1 << 23
"""Numbers held at a time (64 MiB of float64): many clients play fewer rounds."""
POWER_SPREAD = 1.6449
"""The normal quantile of the power that is stated, 95%."""
AGREEING = 4
"""Coordinates at least in which two reports, or stretches of them, must have equal noise."""
MOST_PLACES = 1 << 18
"""Stretches held against one another; more would take longer than seconds."""
MOST_EQUAL = 1 << 24
"""Pairs of equal values that are counted, all coordinates together."""
HIGHEST_DENSITY = {"gaussian": 1.0 / math.sqrt(2.0 * math.pi), "laplace": 0.5}
"""Of one standard variate."""
WANTED_VALUES = 50_000
"""Coordinates of sums to compare: a scale wrong by 12% is then seen."""
MOST_DRAWN = 1 << 27
"""Variates of reports, all together."""
STEEPEST = 0.18
"""A law's distribution function moves by at least this times a small relative change of its scale:
max x f(x), 1/(2e) for Laplace noise, more for sums of it, 0.24 for Gaussian noise."""


@dataclass(frozen=True)
class Residuals:
    """Bare noise in units of its scale: `values` [rounds, n, c]; `rounding` [n] is half a grid step
    in the same units; `noise` names the law."""

    values: Vector
    rounding: Vector
    noise: str

    @property
    def width(self) -> float:
        """How far two roundings of one value can lie apart."""
        return 2.0 * float(self.rounding.max()) + 2e-7

    @property
    def chance(self) -> float:
        """That a value is so near to one that was drawn apart."""
        return min(1.0, 2.0 * self.width * HIGHEST_DENSITY[self.noise])

    def repeated(self, game: str, method: str, chance: float, level: float, found: str) -> Check:
        """The check for equal noise: what agrees, if anything does, and the `chance` that any does
        where all noise is drawn apart."""
        power = "would have caught noise that occurs twice"
        if chance > level:
            power = "none: so coarse a grid makes noise agree by chance"
        p_value = min(1.0, chance) if found else 1.0
        return Check(game, method, len(self.values), p_value, level, power, found)

    def place(self, report: int) -> str:
        """Whose report this is, counted round by round."""
        number, client = divmod(report, self.values.shape[1])
        return f"round {number + 1}, client {client}"


def play_noise(source: Canaries) -> tuple[Residuals, Residuals]:
    """Bare noise of the first rounds' reports: a few coordinates of many clients', and all
    coordinates, side by side, of fewer."""
    scene, scales = source.scene, source.scene.scales
    means = scene.others.copy()
    means[scene.target] = scene.zero
    # The first coordinate's mean lies off the grid, which spoils the symmetry a little.
    first = min(1, scene.dimension - 1)
    count = min(scene.dimension - first, MOST_COORDINATES)
    columns = np.linspace(first, scene.dimension - 1, count).astype(np.int64)
    rounds = max(2, min(ROUNDS, MOST_VALUES // (len(scales) * count)))
    whole = np.arange(first, min(scene.dimension, first + MOST_PLACES // 2))
    most = min(len(scales), max(2, MOST_PLACES // (2 * len(whole))))
    few = np.unique(np.linspace(0, len(scales) - 1, most).astype(np.int64))
    played, entire = list[Vector](), list[Vector]()
    for number in range(1, rounds + 1):
        rows = source.play(number)[0]
        values = rows[:, columns].double().numpy()
        if columns[0] == 0:
            values[:, 0] -= means
        played.append(values / scales[:, None])
        if (len(entire) + 1) * len(few) * len(whole) <= MOST_PLACES:
            entire.append(rows[few][:, whole].double().numpy() / scales[few, None])
    rounding = 0.5 * source.plan.step / scales
    return (
        Residuals(np.stack(played), rounding, scene.noise),
        Residuals(np.stack(entire), rounding[few], scene.noise),
    )


def noise_checks(source: Canaries, level: float) -> list[Check]:
    """Tests, each at `level`: signs of two clients, two rounds, two coordinates of one report; and
    equal values of any two reports, at the same coordinates or at any two places."""
    noise, whole = play_noise(source)
    checks = (reports_check(noise, level), stretches_check(whole, level))
    return sign_checks(noise, level) + [check for check in checks if check is not None]


def sign_checks(noise: Residuals, level: float) -> list[Check]:
    """Signs of neighbouring clients, rounds and coordinates."""
    found = []
    for game, axis in ((TWO_CLIENTS, 1), (TWO_ROUNDS, 0), (TWO_COORDINATES, 2)):
        if noise.values.shape[axis] > 1:
            p_value, products = sign_p_value(noise.values, axis)
            seen = detectable_correlation(products, level, POWER_SPREAD)
            method = f"signs of {products:,} products"
            power = f"would have caught a correlation of {seen:.2g}"
            found.append(Check(game, method, len(noise.values), p_value, level, power))
    return found


def reports_check(noise: Residuals, level: float) -> Check | None:
    """Do any two reports have the same noise in a few coordinates, wherever these lie? None for
    reports of fewer."""
    reports = noise.values.shape[0] * noise.values.shape[1]
    pairs = reports * (reports - 1) // 2
    # Of very many reports fewer coordinates, for equal values are counted one by one.
    most = max(AGREEING, int(MOST_EQUAL / (2.0 * noise.chance * max(1, pairs))))
    columns = np.abs(noise.values.reshape(reports, -1).T[:most])
    if len(columns) < AGREEING or not pairs:
        return None
    # Each value may be turned around.
    by_chance = [pairs * math.comb(len(columns), k) * (2.0 * noise.chance) ** k
                 for k in range(AGREEING, len(columns) + 1)]  # fmt: skip
    enough = next((k for k, chance in enumerate(by_chance) if chance <= level), 0)
    equal = [np.empty(0, dtype=np.int64)]
    for column in columns:
        order = np.argsort(column, kind="stable")
        for apart in range(1, reports):
            near = np.flatnonzero(column[order[apart:]] - column[order[:-apart]] <= noise.width)
            if not len(near):
                break
            both = np.sort(np.stack([order[near], order[near + apart]]), axis=0)
            equal.append(both[0] * reports + both[1])
    known, times = np.unique(np.concatenate(equal), return_counts=True)
    found, agree = "", int((times >= AGREEING + enough).sum())
    if agree:
        one, other = map(noise.place, divmod(int(known[np.argmax(times)]), reports))
        found = f"{agree:,} pairs agree; {one}, and {other}, in {times.max()} coordinates"
    method = f"{AGREEING + enough} equal values of {len(columns)}, {pairs:,} pairs of reports"
    return noise.repeated(TWO_REPORTS, method, by_chance[enough], level, found)


def stretches_check(noise: Residuals, level: float) -> Check | None:
    """Does any stretch of noise occur twice, at whatever coordinates? None for short reports."""
    rounds, clients, coordinates = noise.values.shape
    places = coordinates - AGREEING + 1
    if places < 1 or rounds * clients * places < 2:
        return None
    points = np.lib.stride_tricks.sliding_window_view(noise.values, AGREEING, axis=2)
    points = points.reshape(-1, AGREEING)
    points = np.where(points[:, :1] < 0.0, -points, points)
    apart, other = cKDTree(points).query(points, k=2, p=np.inf, distance_upper_bound=noise.width)
    # One of the two is the stretch itself, either where another is equal.
    close = np.flatnonzero(np.isfinite(apart[:, 1]))
    found = ""
    if len(close):
        second = int(other[close[0]][other[close[0]] != close[0]][0])
        (one, k), (two, m) = (divmod(place, places) for place in (int(close[0]), second))
        found = (
            f"{len(close):,} stretches occur again: {noise.place(one)}, coordinate {k}, and "
            f"{noise.place(two)}, coordinate {m} (of those compared)"
        )
    method = f"closest of {len(points):,} stretches of {AGREEING} coordinates"
    # All pairs, and turned around.
    chance = len(points) * (len(points) - 1) * noise.chance**AGREEING
    return noise.repeated(TWO_PLACES, method, chance, level, found)


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


def one_law_check(source: Canaries, level: float, seeds: SeedTree) -> Check:
    """Kolmogorov-Smirnov test of two samples: sums of rounds with and without reports."""
    scene, clients = source.scene, len(source.plan)
    rounds = min(-(-WANTED_VALUES // scene.dimension), MOST_DRAWN // (clients * scene.dimension))
    rounds = max(2, rounds)
    mean = float(scene.others[scene.hiding].sum()) + scene.zero
    samples: tuple[list[Vector], list[Vector]] = ([], [])
    for number in range(1, rounds + 1):
        reports = source.play(number)[0].sum(0).double().numpy()
        generator = seeds.numpy_generator(number, "one law")
        both = reports, source.pooled(generator, one=False)
        for sample, total in zip(samples, both, strict=True):
            sample.append(np.concatenate([total[:1] - mean, total[1:]]))
    left, right = (np.concatenate(sample) for sample in samples)
    distance = float(stats.ks_2samp(left, right, method="asymp").statistic)
    # The asymptotic tail bounds the exact one for equal sizes (Dvoretzky, Kiefer, Wolfowitz; Wei
    # and Dudley 2012 for two samples).
    p_value = min(1.0, 2.0 * math.exp(-len(left) * distance**2))
    seen = (math.sqrt(math.log(2.0 / level)) + POWER_SPREAD) / math.sqrt(len(left)) / STEEPEST
    return Check(
        ONE_LAW, f"Kolmogorov-Smirnov, {len(left):,} coordinates of sums each", rounds, p_value,
        level, f"would have caught noise of a scale wrong by {seen:.1%}",
    )  # fmt: skip
