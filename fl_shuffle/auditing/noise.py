"""Is every report's noise its own, and is pooled noise that of the reports it stands for?

The adversary knows all means, so a report minus its mean, over its noise scale, is bare noise:
symmetric, independent between coordinates, clients and rounds. Two exact tests see it if it is not.

* *Signs.* Products of the signs of neighbours in a chain of independent symmetric variates are
  independent fair coins: a two-sided binomial test. It sees a weak dependence that all share.
* *Equal values.* A value is within `width` of another that was drawn apart with probability at most
  2 width times the highest density, whatever that other is; a few values of one report that all
  have their equal in another, as many coordinates on, with the power of that. One such pair among
  millions is seen, as it is or turned around, by Bonferroni over all pairs, signs and distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.findings import Check

Vector = NDArray[np.float64]

TWO_CLIENTS = "two clients' reports of one round, subtracted"
TWO_ROUNDS = "reports of two rounds, subtracted"
TWO_COORDINATES = "two coordinates of one report, subtracted"
TWO_REPORTS = "noise of any two reports, at any of the same coordinates"
TWO_PLACES = "noise at any two places, the same distance apart"
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
"""Values at least that two reports must have in common."""
MOST_PLACES = 1 << 18
"""Values of which any two are compared, wherever they lie."""
MOST_EQUAL = 1 << 24
"""Pairs of equal values that are counted."""
HIGHEST_DENSITY = {"gaussian": 1.0 / math.sqrt(2.0 * math.pi), "laplace": 0.5}
"""Of one standard variate."""
APART = 1000.0
"""No two standard variates lie so far apart."""
WANTED_VALUES = 50_000
"""Coordinates of sums to compare: a scale wrong by 12% is then seen."""
MOST_DRAWN = 1 << 27
"""Variates of reports, all together."""
STEEPEST = 0.18
"""A law's distribution function moves by at least this times a small relative change of its scale:
max x f(x), 1/(2e) for Laplace noise, more for sums of it, 0.24 for Gaussian noise."""


@dataclass(frozen=True)
class Residuals:
    """Bare noise in units of its scale: `values` [rounds, n, c]; `rounding` is half a grid step of
    the coarsest in the same units; `noise` names the law."""

    values: Vector
    rounding: float
    noise: str

    @property
    def width(self) -> float:
        """How far two roundings of one value can lie apart."""
        return 2.0 * self.rounding + 2e-7

    @property
    def chance(self) -> float:
        """That a value, or its negative, is so near to one that was drawn apart."""
        return min(1.0, 4.0 * self.width * HIGHEST_DENSITY[self.noise])


def noise_checks(source: Canaries, level: float) -> list[Check]:
    """Tests, each at `level`: signs of two clients, two rounds, two coordinates of one report; and
    equal values of any two reports, at the same coordinates or at any two places."""
    few, whole = play_noise(source)
    equal = equal_values(few, level, moved=False), equal_values(whole, level, moved=True)
    return sign_checks(few, level) + [check for check in equal if check is not None]


def play_noise(source: Canaries) -> tuple[Residuals, Residuals]:
    """Bare noise of the first rounds' reports: a few coordinates of many clients', and all
    coordinates, side by side, of fewer."""
    scene, scales = source.scene, source.scene.scales
    # The first coordinate's mean lies off the grid, which spoils the symmetry a little.
    first = min(1, scene.dimension - 1)
    count = min(scene.dimension - first, MOST_COORDINATES)
    columns = np.linspace(first, scene.dimension - 1, count).astype(np.int64)
    rounds = max(2, min(ROUNDS, MOST_VALUES // (len(scales) * count)))
    whole = slice(first, first + MOST_PLACES // 2)
    length = min(scene.dimension - first, MOST_PLACES // 2)
    most = min(len(scales), max(2, MOST_PLACES // (2 * length)))
    clients = np.unique(np.linspace(0, len(scales) - 1, most).astype(np.int64))
    played, entire = list[Vector](), list[Vector]()
    for number in range(1, rounds + 1):
        rows = source.play(number)[0]
        values = rows[:, columns].double().numpy()
        if first == 0:
            values[:, 0] -= scene.means
        played.append(values / scales[:, None])
        if (len(entire) + 1) * len(clients) * length <= MOST_PLACES:
            entire.append(rows[clients, whole].double().numpy() / scales[clients, None])
    rounding = float(0.5 * (source.plan.step / scales).max())
    few, many = np.stack(played), np.stack(entire)
    return Residuals(few, rounding, scene.noise), Residuals(many, rounding, scene.noise)


def sign_checks(noise: Residuals, level: float) -> list[Check]:
    """Signs of neighbouring clients, rounds and coordinates."""
    found = []
    for game, axis in ((TWO_CLIENTS, 1), (TWO_ROUNDS, 0), (TWO_COORDINATES, 2)):
        if noise.values.shape[axis] > 1:
            p_value, products = sign_p_value(noise.values, axis)
            # Of Gaussian noise of correlation r signs agree with chance 1/2 + asin(r)/pi.
            spread = (float(stats.norm.isf(level / 2.0)) + POWER_SPREAD) / math.sqrt(products + 1)
            seen = math.sin(0.5 * math.pi * min(1.0, spread))
            method = f"signs of {products:,} products"
            power = f"would have caught a correlation of {seen:.2g}"
            found.append(Check(game, method, len(noise.values), p_value, level, power))
    return found


def sign_p_value(values: Vector, axis: int) -> tuple[float, int]:
    """Two-sided p-value of the sign products of neighbours along `axis`; how many there were.

    Exact zeros (the middle of the grid) have no sign and are left out.
    """
    signs = np.sign(np.moveaxis(values, axis, 0))
    products = signs[1:] * signs[:-1]
    agree, total = int((products > 0).sum()), int((products != 0).sum())
    tail = float(stats.binom.cdf(min(agree, total - agree), total, 0.5))
    return min(1.0, 2.0 * tail), total


def equal_values(noise: Residuals, level: float, *, moved: bool) -> Check | None:
    """Have any two reports equal noise in a few coordinates, wherever these lie; with `moved`, in
    one of them any number of coordinates further on? None for reports that are too short."""
    clients, length = noise.values.shape[1:]
    reports = len(noise.values) * clients
    # With itself a report is compared moved only.
    pairs = reports * (reports - 1) // 2 + moved * reports
    if length < AGREEING or not pairs:
        return None
    # Equal values are counted one by one: of very many reports fewer coordinates are looked at.
    most = MOST_EQUAL / noise.chance / pairs
    length = min(length, max(AGREEING, int(math.sqrt(most) if moved else most)))
    values = np.abs(noise.values[:, :, :length]) + (0.0 if moved else APART * np.arange(length))
    numbers = np.arange(AGREEING, length + 1)
    by_chance = pairs * stats.binom.sf(numbers - 1, length, noise.chance)
    by_chance *= 2 * length - 1 if moved else 1
    # Where not even all of them prove anything the fewest are counted, and refute nothing.
    first = int(np.argmax(by_chance <= level))
    keys, times = _agreeing(values.reshape(reports, length), noise.width)
    note, agree = "", int((times >= numbers[first]).sum())
    if agree:
        both, distance = divmod(int(keys[np.argmax(times)]), 2 * length)
        whose = [divmod(report, clients) for report in divmod(both, reports)]
        one, other = (f"round {number + 1}, client {client}" for number, client in whose)
        far = f", {distance - length:+d} on" if moved else ""
        note = f"{agree:,} pairs agree; {one}, and {other}, in {times.max()} coordinates{far}"
    power = "would have caught noise that occurs twice"
    if by_chance[first] > level:
        power = "none: so coarse a grid makes noise agree by chance"
    return Check(
        TWO_PLACES if moved else TWO_REPORTS,
        f"{numbers[first]} equal values of {length:,}, {pairs:,} pairs of reports",
        len(noise.values), min(1.0, float(by_chance[first])) if agree else 1.0, level, power, note,
    )  # fmt: skip


def _agreeing(values: Vector, width: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which two rows of `values` [reports, length] have equal values how many coordinates on, each
    as one number, and how many values these are."""
    reports, length = values.shape
    flat = values.reshape(-1)
    order = np.argsort(flat, kind="stable")
    ordered, found = flat[order], [np.empty(0, dtype=np.int64)]
    for apart in range(1, len(order)):
        near = np.flatnonzero(ordered[apart:] - ordered[:-apart] <= width)
        if not len(near):
            break
        pair = np.sort(np.stack([order[near], order[near + apart]]), axis=0)
        (one, other), (first, second) = np.divmod(pair, length)
        found.append((one * reports + other) * 2 * length + second - first + length)
    known, times = np.unique(np.concatenate(found), return_counts=True)
    return known, times


def one_law_check(source: Canaries, level: float) -> Check:
    """Kolmogorov-Smirnov test of two samples: sums of rounds with and without reports."""
    scene, clients = source.scene, len(source.plan)
    rounds = min(-(-WANTED_VALUES // scene.dimension), MOST_DRAWN // (clients * scene.dimension))
    rounds = max(2, rounds)
    samples: tuple[list[Vector], list[Vector]] = ([], [])
    for number in range(1, rounds + 1):
        reports = source.play(number)[0].sum(0).double().numpy()
        for sample, total in zip(samples, (reports, source.pooled(number, 0)), strict=True):
            total[0] -= scene.means.sum()
            sample.append(total)
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
