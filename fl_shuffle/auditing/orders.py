"""Does the order in which the analyzer gets the reports tell whose they are?

The guarantee credits a shuffler with a uniformly random order, fresh in every round. The run's own
strategy, engine and shuffler play rounds in which every report bears a secret mark; which client
lies at which position is read off, and each round is compared with REFERENCES permutations that
really are uniform. Each statistic's rank among its references is uniform if the round's order is
(ties are broken at random), whatever the statistic: an exact test. Rounds are independent, so their
p-values combine by Fisher's method; Bonferroni over the statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.auditing.findings import Check
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import Layout, TrainRequest, reply_with_reports
from fl_shuffle.flower.nodes import Nodes
from fl_shuffle.flower.schedule import Schedule
from fl_shuffle.flower.strategy import ShuffleStrategy
from fl_shuffle.runs.outcome import RoundOutcome
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import LocalShuffler, Shuffled

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

REFERENCES = 19
"""Uniform permutations that each round is ranked among."""
MEMORY = 16
"""So many earlier rounds are looked at for an order that comes back."""
POWER = 0.95
"""The probability with which what is said to be found would be found."""
NODES = 2
"""The fewest with which who plays whom can show."""
ROUNDS, FEWEST_ROUNDS = 64, 8
"""At most and at least; between them as many as the time allows."""
# A sequential round asks the clients one by one.
REPORTS_A_SECOND = {"aggregate": 40_000, "sequential": 100}
# A mark is written in two coordinates, each of them small enough for float32.
DIGIT = 1 << 16
PATHS = {"aggregate": "a whole batch", "sequential": "one report at a time"}


@dataclass(frozen=True)
class SeenOrders:
    """What the analyzer got: `orders` [rounds, n], the client at each position; `nodes` [n], where
    each client's report was computed. Clients arrive by ascending id. `path` names what was played.
    """

    orders: Ids
    nodes: Ids
    path: str


class _Watcher(ServerOptimizer):
    """Keeps what it is asked to step along, in order, and leaves the model alone."""

    def __init__(self) -> None:
        super().__init__(ServerSection(), torch.zeros(2))
        self.steps: list[Tensor] = []

    def step(self, gradient: Tensor, round_number: int, rounds: int) -> None:
        self.steps.append(gradient.clone())


class _NoBudget:
    """A ledger that lets everybody take part and counts nothing."""

    first_round = 1

    def reserve(self, round_number: int, participants: Mask) -> Mask:
        return participants

    def commit(self, round_number: int, present: Mask, seconds: float) -> Spend:
        return Spend(round_number, int(present.sum()), 0.0, None, None, {})

    def record(self, outcome: RoundOutcome, state: dict[str, object] | None) -> None:
        """Nothing to resume."""


def play_orders(clients: int, schedule: str, seed: int, seconds: float) -> SeenOrders:
    """Rounds of `schedule` in which everybody reports, of two clients or more; so many as an audit
    of so many `seconds` has time for, whatever the machine, so that a seed decides what is found.

    Every round gives the clients other marks, drawn apart from the run's own seeds, so that an
    order that hangs on the reports alone is not mistaken for one that tells whose they are.
    """
    allowed = int(seconds * REPORTS_A_SECOND[schedule]) // clients
    rounds = min(ROUNDS, max(FEWEST_ROUNDS, allowed))
    draw = SeedTree(seed).numpy_generator("audit", "marks")
    marks = np.stack([draw.permutation(clients) for _ in range(rounds)])
    nodes = np.zeros(clients, dtype=np.int64)

    def answer(message: Message, context: Context) -> Message:
        request = TrainRequest.of(message)
        own = marks[request.round_number - 1][request.clients]
        nodes[request.clients] = context.node_id
        rows = np.stack([own // DIGIT, own % DIGIT], axis=1)
        return reply_with_reports(message, rows.astype(np.float32))

    app = ClientApp()
    app.train()(answer)
    watcher, batches, seeds = _Watcher(), list[Tensor](), SeedTree(seed)

    def analyze(shuffled: Shuffled) -> Tensor:
        assert shuffled.reports is not None
        batches.append(shuffled.reports.clone())
        return torch.zeros(2)

    one_by_one = schedule == "sequential"
    grid = InProcessGrid(app, {}, nodes=NODES)
    try:
        ShuffleStrategy(
            shuffler=LocalShuffler(2, np.full(clients, np.inf), seeds, keep=True),
            ledger=_NoBudget(),
            optimizer=watcher,
            schedule=Schedule(clients, seeds, sequential=one_by_one),
            nodes=Nodes(clients),
            analyzer=analyze,
        ).start(grid, Layout.flat(2).record(np.zeros(2, np.float32)), num_rounds=rounds)
    finally:
        grid.close()
    if one_by_one:
        batches = list(torch.stack(watcher.steps).reshape(rounds, clients, 2))
    owners = []
    for batch, mark in zip(batches, marks, strict=True):
        digits = batch.numpy().astype(np.int64)
        owners.append(np.argsort(mark)[digits[:, 0] * DIGIT + digits[:, 1]])
    return SeenOrders(np.stack(owners), nodes, PATHS[schedule])


def _trend(order: Ids) -> float:
    """|sum of centred position times centred value|: Spearman's correlation but for a constant."""
    centred = np.arange(len(order)) - 0.5 * (len(order) - 1)
    return abs(float(centred @ order))


def _closeness(order: Ids) -> float:
    """Small steps from position to position count, at every scale."""
    return -float(np.log(np.abs(np.diff(order))).sum())


STATISTICS: Mapping[str, Callable[[Ids, Ids, Ids], float]] = {
    "position follows the order of arrival": lambda order, earlier, nodes: _trend(order),
    "neighbours on arrival stay neighbours": lambda order, earlier, nodes: _closeness(order),
    "position follows the round before": lambda order, earlier, nodes: _trend(
        np.argsort(earlier[-1])[order]
    ),
    "neighbours of the round before stay neighbours": lambda order, earlier, nodes: _closeness(
        np.argsort(earlier[-1])[order]
    ),
    "positions of an earlier round come back": lambda order, earlier, nodes: float(
        (earlier == order).sum(axis=1).max()
    ),
    "reports of one node stay together": lambda order, earlier, nodes: float(
        (np.diff(nodes[order]) == 0).sum()
    ),
}
"""(order, the orders before it with the order of arrival first, nodes) -> larger = more telling."""
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
