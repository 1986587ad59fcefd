"""Does the order in which the analyzer gets the reports tell whose they are?

The guarantee credits a shuffler with a uniformly random order, fresh in every round. The run's own
shuffler releases rounds in which every report bears a secret mark, and which client lies at which
position is read off; where clients are asked one by one its schedule says it. Each round is
compared with REFERENCES permutations that really are uniform. Each statistic's rank among its
references is uniform if the round's order is (ties are broken at random), whatever the statistic:
an exact test. Rounds are independent, so their p-values combine by Fisher's method; Bonferroni over
the statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.auditing.findings import Check
from fl_shuffle.flower.strategy import Schedule
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import LocalShuffler, Reports

Ids = NDArray[np.int64]

REFERENCES = 19
"""Uniform permutations that each round is ranked among."""
MEMORY = 16
"""So many earlier rounds are looked at for an order that comes back."""
POWER = 0.95
"""The probability with which what is said to be found would be found."""
NODES = 2
"""The fewest with which who plays whom can show."""
ROUNDS, FEWEST_ROUNDS, PLACES = 64, 8, 1 << 23
"""At most and at least; of very many clients so many rounds as have these positions."""
# A mark is written in two coordinates, each of them small enough for float32.
DIGIT = 1 << 16


@dataclass(frozen=True)
class SeenOrders:
    """What the analyzer got: `orders` [rounds, n], the client at each position; `nodes` [n], where
    each client's report was computed. Clients arrive by ascending id."""

    orders: Ids
    nodes: Ids


def play_orders(clients: int, schedule: str, seed: int) -> SeenOrders:
    """Rounds of `schedule` in which everybody reports, of two clients or more.

    Every round gives the clients other marks, drawn apart from the run's own seeds, so that an
    order that hangs on the reports alone is not mistaken for one that tells whose they are.
    """
    seeds, everyone = SeedTree(seed), np.arange(clients)
    present, nodes = np.ones(clients, dtype=bool), everyone * NODES // clients
    numbers = range(1, 1 + min(ROUNDS, max(FEWEST_ROUNDS, PLACES // clients)))
    if schedule == "sequential":
        asked = Schedule(clients, seeds, sequential=True)
        return SeenOrders(np.array([asked.order(number, present) for number in numbers]), nodes)
    draw = SeedTree(seed).numpy_generator("audit", "marks")
    shuffler, orders = LocalShuffler(2, np.full(clients, np.inf), seeds), list[Ids]()
    for number in numbers:
        marks = draw.permutation(clients)
        batch = shuffler.open(number, present)
        for node in range(NODES):
            own = everyone[nodes == node]
            rows = np.stack(np.divmod(marks[own], DIGIT), axis=1).astype(np.float32)
            batch.add(Reports(rows), own, node)
        batch.close()
        reports = batch.release().reports
        assert reports is not None
        orders.append(np.argsort(marks)[reports.numpy().astype(np.int64) @ [DIGIT, 1]])
    return SeenOrders(np.stack(orders), nodes)


def statistics(orders: Ids, earlier: Ids, nodes: Ids) -> dict[str, NDArray[np.float64]]:
    """Of each order [k, n], of these `earlier` ones [m, n] (the order of arrival first, the round
    before last) and the clients' `nodes` [n]: what is the larger, the more it tells."""
    # Where each client lay on arrival, and in the round before.
    steps = {
        "on arrival": orders,
        "in the round before": np.argsort(earlier[-1])[orders],
    }
    centred = np.arange(orders.shape[1]) - 0.5 * (orders.shape[1] - 1)
    found = {}
    for when, places in steps.items():
        # Spearman's correlation but for a constant; small steps count at every scale.
        found[f"positions follow those {when}"] = np.abs(places @ centred)
        found[f"neighbours {when} stay neighbours"] = -np.log(np.abs(np.diff(places))).sum(axis=1)
    same = [(earlier == order).sum(axis=1).max() for order in orders]
    found["positions of an earlier round come back"] = np.array(same, dtype=np.float64)
    found["reports of one node stay together"] = (np.diff(nodes[orders]) == 0).sum(axis=1) * 1.0
    return found


TARGET_STAYS = "the target stays where it was"
TESTS = 7
"""They share the error probability; the last one is about the target alone."""


def order_check(
    seen: SeenOrders, target: int, level: float, generator: np.random.Generator
) -> Check:
    """All statistics together, at `level`."""
    rounds, clients = seen.orders.shape
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


def order_p_values(
    seen: SeenOrders, target: int, generator: np.random.Generator
) -> dict[str, float]:
    """Every statistic's p-value under uniformly random orders; for all together multiply the
    smallest by TESTS. `generator` draws the references and breaks ties."""
    rounds, clients = seen.orders.shape
    ranked: dict[str, list[float]] = {}
    for number, order in enumerate(seen.orders):
        # The order of arrival is an order to come back to as well.
        earlier = np.stack([np.arange(clients), *seen.orders[max(0, number - MEMORY) : number]])
        drawn = [generator.permutation(clients) for _ in range(REFERENCES)]
        for name, (own, *rest) in statistics(
            np.stack([order, *drawn]), earlier, seen.nodes
        ).items():
            others = np.array(rest)
            # A uniform place among the equals, this round's own included.
            place = generator.random() * (1 + int((others == own).sum()))
            rank = (int((others > own).sum()) + place) / (REFERENCES + 1)
            ranked.setdefault(name, []).append(rank)
    found = {
        name: float(stats.chi2.sf(-2.0 * np.log(values).sum(), 2 * rounds))
        for name, values in ranked.items()
    }
    places = np.argmax(seen.orders == target, axis=1)
    kept = int((np.diff(places) == 0).sum())
    found[TARGET_STAYS] = float(stats.binom.sf(kept - 1, rounds - 1, 1.0 / clients))
    return found


def rounds_to_catch(rounds: int, level: float) -> int | None:
    """In how many of `rounds` rounds an order that beats every reference must come, for the test to
    reject at `level` with probability POWER; None if not even all of them suffice.

    Such a round's p-value is uniform below 1/(REFERENCES + 1): it adds the logarithm of that to
    Fisher's statistic, whose chi-square law is otherwise unchanged.
    """
    bar = float(stats.chi2.isf(level / TESTS, 2 * rounds))
    need = bar - float(stats.chi2.isf(POWER, 2 * rounds))
    count = int(np.ceil(need / (2.0 * np.log(REFERENCES + 1))))
    return count if count <= rounds else None
