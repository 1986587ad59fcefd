"""What every guarantee assumes: a fresh random order, and noise that is used once.

**Order.** Does the order in which the analyzer gets the reports tell whose they are?

The guarantee credits a shuffler with a uniformly random order, fresh in every round. The run's own
shuffler releases rounds in which every report bears a secret mark, and which client lies at which
position is read off; where clients are asked one by one its schedule says it. Each round is
compared with REFERENCES permutations that really are uniform. Each statistic's rank among its
references is uniform if the round's order is (ties are broken at random), whatever the statistic:
an exact test. Rounds are independent, so their p-values combine by Fisher's method; Bonferroni over
the statistics.

**Noise.** Is every report's noise its own, and is pooled noise that of the reports it stands for?

The adversary knows all means, so a report minus its mean, over its noise scale, is bare noise:
symmetric, independent between coordinates, clients and rounds. Two exact tests see it if it is not.

* *Signs.* Products of the signs of neighbors in a chain of independent symmetric variates are
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

from fl_shuffle._internal.arrays import Ids, Vector
from fl_shuffle.auditing.canaries import Canaries
from fl_shuffle.auditing.findings import Check
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.local import LocalShuffler, Reports

REFERENCES = 19
"""Uniform permutations that each round is ranked among."""
MEMORY = 16
"""Number of earlier rounds that are searched for a repeated order."""
POWER = 0.95
"""Power: the probability with which a stated fault would be found."""
NODES = 2
"""The fewest with which who plays whom can show."""
ORDER_ROUNDS, FEWEST_ROUNDS, PLACES = 64, 8, 1 << 23
"""At most and at least; for very many clients, as many rounds as have these positions."""
# A mark is written in two coordinates, each of them small enough for float32.
DIGIT = 1 << 16


def play_orders(clients: int, schedule: str, seed: int) -> Ids:
    """Return the client at each position [rounds, n] of what the analyzer got in rounds of
    `schedule` in which everybody reports, of two clients or more; they arrive by ascending id.

    Every round gives the clients other marks, drawn apart from the run's own seeds, so that an
    order that depends on the reports alone is not mistaken for one that reveals their senders.
    """
    seeds, present = SeedTree(seed), np.ones(clients, dtype=bool)
    numbers = range(1, 1 + min(ORDER_ROUNDS, max(FEWEST_ROUNDS, PLACES // clients)))
    if schedule == "sequential":
        asked = Schedule(clients, seeds, sequential=True)
        return np.array([asked.order(number, present) for number in numbers])
    draw = SeedTree(seed).numpy_generator("audit", "marks")
    shuffler, orders = LocalShuffler(2, np.full(clients, np.inf), seeds), list[Ids]()
    for number in numbers:
        marks = draw.permutation(clients)
        batch = shuffler.open(number, present)
        for node, own in enumerate(np.array_split(np.arange(clients), NODES)):
            rows = np.stack(np.divmod(marks[own], DIGIT), axis=1).astype(np.float32)
            batch.add(Reports(rows), own, node)
        batch.close()
        reports = batch.release().reports
        assert reports is not None
        orders.append(np.argsort(marks)[reports.numpy().astype(np.int64) @ [DIGIT, 1]])
    return np.stack(orders)


def statistics(orders: Ids, earlier: Ids) -> dict[str, NDArray[np.float64]]:
    """Return for each order [k, n], with these `earlier` ones [m, n] (the order of arrival first,
    the round before last) and the clients' nodes, what is the larger, the more it tells."""
    # Where each client lay on arrival, and in the round before.
    steps = {
        "on arrival": orders,
        "in the round before": np.argsort(earlier[-1])[orders],
    }
    clients = orders.shape[1]
    centred, nodes = np.arange(clients) - 0.5 * (clients - 1), orders * NODES // clients
    found = {}
    for when, places in steps.items():
        # Spearman's correlation but for a constant; small steps count at every scale.
        found[f"positions follow those {when}"] = np.abs(places @ centred)
        found[f"neighbors {when} stay neighbors"] = -np.log(np.abs(np.diff(places))).sum(axis=1)
    same = [(earlier == order).sum(axis=1).max() for order in orders]
    found["positions of an earlier round come back"] = np.array(same, dtype=np.float64)
    found["reports of one node stay together"] = (np.diff(nodes) == 0).sum(axis=1) * 1.0
    return found


TARGET_STAYS = "the target stays where it was"
TESTS = 7
"""They share the error probability; the last one is about the target alone."""


def order_check(seen: Ids, target: int, level: float, generator: np.random.Generator) -> Check:
    """Return all statistics together, at `level`."""
    rounds, clients = seen.shape
    found = order_p_values(seen, target, generator)
    suspect = min(found, key=lambda name: found[name])
    need = rounds_to_catch(rounds, level)
    return Check(
        "the order in which the analyzer sees the reports",
        f"{TESTS} statistics, each round ranked among {REFERENCES} uniform permutations, Fisher",
        rounds,
        min(1.0, TESTS * found[suspect]),
        level,
        "none: too few rounds" if need is None else
        f"would have caught an order that tells its origin in {need} of {rounds} rounds",
        f"most telling: {suspect}; {clients:,} marked reports per round",
    )  # fmt: skip


def order_p_values(seen: Ids, target: int, generator: np.random.Generator) -> dict[str, float]:
    """Return every statistic's p-value under uniformly random orders; for all together multiply the
    smallest by TESTS. `generator` draws the references and breaks ties."""
    rounds, clients = seen.shape
    ranked: dict[str, list[float]] = {}
    for number, order in enumerate(seen):
        # The order of arrival is an order to come back to as well.
        earlier = np.stack([np.arange(clients), *seen[max(0, number - MEMORY) : number]])
        drawn = [generator.permutation(clients) for _ in range(REFERENCES)]
        for name, (own, *rest) in statistics(np.stack([order, *drawn]), earlier).items():
            others = np.array(rest)
            # A uniform place among the equals, this round's own included.
            place = generator.random() * (1 + int((others == own).sum()))
            rank = (int((others > own).sum()) + place) / (REFERENCES + 1)
            ranked.setdefault(name, []).append(rank)
    found = {
        name: float(stats.chi2.sf(-2.0 * np.log(values).sum(), 2 * rounds))
        for name, values in ranked.items()
    }
    places = np.argmax(seen == target, axis=1)
    kept = int((np.diff(places) == 0).sum())
    found[TARGET_STAYS] = float(stats.binom.sf(kept - 1, rounds - 1, 1.0 / clients))
    return found


def rounds_to_catch(rounds: int, level: float) -> int | None:
    """Return in how many of `rounds` rounds an order that beats every reference must come, for the
    test to reject at `level` with probability POWER; None if not even all of them suffice.

    Such a round's p-value is uniform below 1/(REFERENCES + 1): it adds the logarithm of that to
    Fisher's statistic, whose chi-square distribution is otherwise unchanged.
    """
    bar = float(stats.chi2.isf(level / TESTS, 2 * rounds))
    need = bar - float(stats.chi2.isf(POWER, 2 * rounds))
    count = int(np.ceil(need / (2.0 * np.log(REFERENCES + 1))))
    return count if count <= rounds else None


TWO_CLIENTS = "two clients' reports of one round, subtracted"
TWO_ROUNDS = "reports of two rounds, subtracted"
TWO_COORDINATES = "two coordinates of one report, subtracted"
TWO_REPORTS = "noise of any two reports, at any of the same coordinates"
TWO_PLACES = "noise at any two places, the same distance apart"
ONE_LAW = "sums of rounds: pooled noise against that of reports"

NOISE_ROUNDS = 8
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
"""A distribution's distribution function moves by at least this times a small relative change of
its scale: max x f(x), 1/(2e) for Laplace noise, more for sums of it, 0.24 for Gaussian noise."""


@dataclass(frozen=True)
class Residuals:
    """Bare noise in units of its scale: `values` [rounds, n, c]; `rounding` is half a grid step of
    the coarsest in the same units; `noise` names the distribution."""

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
    """Return tests, each at `level`: signs of two clients, two rounds, two coordinates of one
    report; and equal values of any two reports, at the same coordinates or at any two places."""
    few, whole = play_noise(source)
    equal = equal_values(few, level, moved=False), equal_values(whole, level, moved=True)
    return sign_checks(few, level) + [check for check in equal if check is not None]


def play_noise(source: Canaries) -> tuple[Residuals, Residuals]:
    """Draw bare noise of the first rounds' reports: a few coordinates of many clients', and all
    coordinates, side by side, of fewer."""
    scene, scales = source.scene, source.scene.scales
    # The first coordinate's mean lies off the grid, which spoils the symmetry a little.
    first = min(1, scene.dimension - 1)
    count = min(scene.dimension - first, MOST_COORDINATES)
    columns = np.linspace(first, scene.dimension - 1, count).astype(np.int64)
    rounds = max(2, min(NOISE_ROUNDS, MOST_VALUES // (len(scales) * count)))
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
    """Return signs of neighboring clients, rounds and coordinates: two-sided, of their products.

    Exact zeros (the middle of the grid) have no sign and are left out.
    """
    found = []
    for game, axis in ((TWO_CLIENTS, 1), (TWO_ROUNDS, 0), (TWO_COORDINATES, 2)):
        signs = np.sign(np.moveaxis(noise.values, axis, 0))
        products = signs[1:] * signs[:-1]
        if products.size:
            agree, total = int((products > 0).sum()), int((products != 0).sum())
            tail = float(stats.binom.cdf(min(agree, total - agree), total, 0.5))
            # Of Gaussian noise of correlation r signs agree with chance 1/2 + asin(r)/pi.
            spread = (float(stats.norm.isf(level / 2.0)) + POWER_SPREAD) / math.sqrt(total + 1)
            seen = math.sin(0.5 * math.pi * min(1.0, spread))
            method = f"signs of {total:,} products"
            power = f"would have caught a correlation of {seen:.2g}"
            found.append(Check(game, method, len(noise.values), min(1.0, 2.0 * tail), level, power))
    return found


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
    """Return which two rows of `values` [reports, length] have equal values how many coordinates
    on, each as one number, and how many values these are."""
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
    """Compare two samples by a Kolmogorov-Smirnov test: sums of rounds with and without reports."""
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
