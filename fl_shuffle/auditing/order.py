"""Does the order in which the analyzer gets the reports tell whose they are?

The guarantee credits a shuffler with a uniformly random order, fresh in every round. The test plays
rounds in which every report bears a secret mark, reads off which client lies at which position, and
compares each round with REFERENCES permutations that really are uniform. Each statistic's rank
among its references is uniform if the round's order is (ties are broken at random), whatever the
statistic: an exact test. Rounds are independent, so their p-values combine by Fisher's method;
Bonferroni over the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_shuffle.auditing.findings import Check

Ids = NDArray[np.int64]
Order = NDArray[np.int64]

REFERENCES = 19
"""Uniform permutations that each round is ranked among."""
MEMORY = 16
"""So many earlier rounds are looked at for an order that comes back."""


@dataclass(frozen=True)
class SeenOrders:
    """What the analyzer got: `orders` [rounds, n], the client at each position; `nodes` [n], where
    each client's report was computed. Clients arrive by ascending id. `path` names what was played.
    """

    orders: Order
    nodes: Ids
    path: str


Statistic = Callable[[Order, Order, Ids], float]
"""(order, the orders before it with the order of arrival first, nodes) -> larger = more telling."""


def _along_arrival(order: Order, earlier: Order, nodes: Ids) -> float:
    """How far positions rise or fall with the order of arrival."""
    return _trend(order)


def _arrival_neighbours(order: Order, earlier: Order, nodes: Ids) -> float:
    """Whether reports that arrived together still lie together (rotations, shuffled blocks)."""
    return _closeness(order)


def _along_last_round(order: Order, earlier: Order, nodes: Ids) -> float:
    return _trend(np.argsort(earlier[-1])[order])


def _last_neighbours(order: Order, earlier: Order, nodes: Ids) -> float:
    return _closeness(np.argsort(earlier[-1])[order])


def _positions_kept(order: Order, earlier: Order, nodes: Ids) -> float:
    """How many clients lie where they lay in one earlier round, or arrived; the worst such."""
    return float((earlier == order).sum(axis=1).max())


def _node_neighbours(order: Order, earlier: Order, nodes: Ids) -> float:
    """How often two neighbours come from one node."""
    from_node = nodes[order]
    return float((from_node[1:] == from_node[:-1]).sum())


STATISTICS: Mapping[str, Statistic] = {
    "position follows the order of arrival": _along_arrival,
    "neighbours on arrival stay neighbours": _arrival_neighbours,
    "position follows the round before": _along_last_round,
    "neighbours of the round before stay neighbours": _last_neighbours,
    "positions of an earlier round come back": _positions_kept,
    "reports of one node stay together": _node_neighbours,
}
POWER = 0.95
"""The probability with which what is said to be found would be found."""
TARGET_STAYS = "the target stays where it was"
TESTS = len(STATISTICS) + 1
"""They share the error probability; the last one is about the target alone."""


def order_check(
    seen: SeenOrders, target: int, level: float, generator: np.random.Generator
) -> Check:
    """All statistics together, at `level`."""
    rounds, clients = seen.orders.shape
    found = order_p_values(seen, target, generator)
    suspect = min(found, key=lambda name: found[name])
    need = rounds_to_catch(rounds, level, POWER)
    power = "none: too few rounds"
    if need is not None:
        power = f"would have caught an order that tells its origin in {need} of {rounds} rounds"
    return Check(
        game=f"the order in which the analyzer sees the reports ({seen.path})",
        method=f"{TESTS} statistics, each round ranked among {REFERENCES} uniform permutations, "
        "Fisher",
        rounds=1,
        plays=rounds,
        p_value=min(1.0, TESTS * found[suspect]),
        level=level,
        power=power,
        note=f"most telling: {suspect}; {clients:,} marked reports per round",
    )


def order_p_values(
    seen: SeenOrders, target: int, generator: np.random.Generator
) -> dict[str, float]:
    """Every statistic's p-value under uniformly random orders; for all together multiply the
    smallest by TESTS. `generator` draws the references and breaks ties."""
    rounds, clients = seen.orders.shape
    ranked: dict[str, list[float]] = {name: [] for name in STATISTICS}
    known = np.arange(clients)[None, :]
    for number in range(rounds):
        # The order of arrival is an order to come back to as well.
        earlier = np.concatenate([known, seen.orders[max(0, number - MEMORY) : number]])
        references = [generator.permutation(clients) for _ in range(REFERENCES)]
        for name, statistic in STATISTICS.items():
            own = statistic(seen.orders[number], earlier, seen.nodes)
            others = np.array([statistic(order, earlier, seen.nodes) for order in references])
            # A uniform place among the equals, this round's own included.
            place = generator.random() * (1 + int((others == own).sum()))
            ranked[name].append((int((others > own).sum()) + place) / (REFERENCES + 1))
    found = {
        name: float(stats.chi2.sf(-2.0 * np.log(values).sum(), 2 * rounds))
        for name, values in ranked.items()
    }
    places = np.argmax(seen.orders == target, axis=1)
    kept = int((np.diff(places) == 0).sum())
    found[TARGET_STAYS] = float(stats.binom.sf(kept - 1, rounds - 1, 1.0 / clients))
    return found


def rounds_to_catch(rounds: int, level: float, power: float) -> int | None:
    """In how many of `rounds` rounds an order that beats every reference must come, for the test to
    reject at `level` with probability `power`; None if not even all of them suffice.

    Such a round's p-value is uniform below 1/(REFERENCES + 1): it adds the logarithm of that to
    Fisher's statistic, whose chi-square law is otherwise unchanged.
    """
    bar = float(stats.chi2.isf(level / TESTS, 2 * rounds))
    need = bar - float(stats.chi2.isf(power, 2 * rounds))
    count = int(np.ceil(need / (2.0 * np.log(REFERENCES + 1))))
    return count if count <= rounds else None


def _trend(order: Order) -> float:
    """|sum of centred position times centred value|: Spearman's correlation but for a constant."""
    centred = np.arange(len(order)) - 0.5 * (len(order) - 1)
    return abs(float(centred @ order))


def _closeness(order: Order) -> float:
    """Small steps from position to position count, at every scale."""
    return -float(np.log(np.abs(np.diff(order))).sum())
