"""The run's own strategy with marked reports: which client does the analyzer see at which place?"""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor

from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.auditing.order import SeenOrders
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.records import TrainRequest, reply_with_reports
from fl_shuffle.flower.strategy import Schedule, ShuffleStrategy
from fl_shuffle.seeds import SeedTree

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]

NODES = 2
"""The fewest with which who plays whom can show."""
ROUNDS, FEWEST_ROUNDS = 64, 8
"""At most and at least; between them as many as `MOST_REPORTS` allows."""
# A sequential round asks the clients one by one.
MOST_REPORTS = {"aggregate": 4_000_000, "sequential": 10_000}
# A mark is written in two coordinates, each of them small enough for float32.
DIGIT = 1 << 16
PATHS = {"aggregate": "a whole batch", "sequential": "one report at a time"}


class _Watcher(ServerOptimizer):
    """Keeps what it is asked to step along, in order, and leaves the model alone."""

    def __init__(self) -> None:
        super().__init__(ServerSection(), torch.zeros(2))
        self.steps: list[Tensor] = []

    def step(self, gradient: Tensor, round_number: int, rounds: int) -> None:
        self.steps.append(gradient.clone())


class _NoBudget:
    """A book that lets everybody take part and counts nothing."""

    def reserve(self, round_number: int, participants: Mask) -> Mask:
        return participants

    def commit(self, round_number: int, present: Mask, seconds: float) -> Spend:
        return Spend(round_number, int(present.sum()), 0.0, None, None, {})

    def checkpoint(self, round_number: int, state: dict[str, object]) -> None:
        """Nothing to resume."""


def play_orders(clients: int, schedule: str, seed: int) -> SeenOrders | None:
    """Rounds of `schedule` in which everybody reports, through strategy, engine and shuffler.

    Every round gives the clients other marks, drawn apart from the run's own seeds, so that an
    order that hangs on the reports alone is not mistaken for one that tells whose they are.
    """
    if clients < 2:
        return None
    rounds = min(ROUNDS, max(FEWEST_ROUNDS, MOST_REPORTS[schedule] // clients))
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
    watcher = _Watcher()
    batches: list[Tensor] = []

    def analyze(batch: Tensor) -> Tensor:
        batches.append(batch.clone())
        return torch.zeros(2)

    one_by_one = schedule == "sequential"
    grid = InProcessGrid(app, {}, nodes=NODES)
    try:
        ShuffleStrategy(
            clients=clients,
            schedule=Schedule(rounds=rounds, sequential=one_by_one),
            optimizer=watcher,
            book=_NoBudget(),
            seeds=SeedTree(seed),
            analyzer=None if one_by_one else analyze,
        ).run(grid)
    finally:
        grid.close()
    if one_by_one:
        batches = list(torch.stack(watcher.steps).reshape(rounds, clients, 2))
    return SeenOrders(
        np.stack([_owners(batch, marks[number]) for number, batch in enumerate(batches)]),
        nodes,
        PATHS[schedule],
    )


def _owners(batch: Tensor, marks: Ids) -> Ids:
    """The client whose mark lies at each position."""
    digits = batch.numpy().astype(np.int64)
    return np.asarray(np.argsort(marks)[digits[:, 0] * DIGIT + digits[:, 1]])
