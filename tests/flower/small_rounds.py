"""A strategy over clients that need no data, and a ledger that lets everything pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.aggregation.robust import checked
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.flower.nodes import Nodes
from fl_shuffle.flower.strategy import Schedule, ShuffleStrategy
from fl_shuffle.runs.events import RoundOutcome
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.local import LocalShuffler, Shuffled


class OpenLedger:
    """Remembers what it was told; `refusing`: everything would exceed a budget."""

    first_round = 1

    def __init__(self, *, refusing: bool = False) -> None:
        self.reports: list[int] = []
        self.events: list[str] = []
        self.refusing = refusing

    def note(self, event: str) -> None:
        """What happens, in order, once."""
        if event not in self.events:
            self.events.append(event)

    def reserve(self, round_number: int, participants: np.ndarray) -> np.ndarray | None:
        self.note("reserve")
        return participants

    def commit(self, round_number: int, present: np.ndarray) -> Spend | None:
        self.note("commit")
        if self.refusing:
            return None
        self.reports.append(int(present.sum()))
        columns = {"proven": Column("proven", Status.PROVEN, "", {0: 1.0})}
        return Spend(round_number, int(present.sum()), 1e-5, None, None, columns)

    def record(self, outcome: RoundOutcome, state: dict[str, Any] | None) -> None:
        self.note("record")


def small_strategy(
    clients: int,
    dimension: int,
    ledger: Any = None,
    *,
    timeout: float = 60.0,
    largest: float = np.inf,
    least: int = 2,
    optimizer: ServerOptimizer | None = None,
    analyzer: Any = None,
    sequential: bool = False,
) -> ShuffleStrategy:
    """With the shuffler here; `analyzer` gets the permuted reports [n, d]."""
    seeds = SeedTree(1)

    keep = analyzer is not None
    bounds = np.full(clients, largest)
    section = ServerSection(learning_rate=1.0)
    return ShuffleStrategy(
        shuffler=LocalShuffler(dimension, bounds, seeds, min_reports=least, keep=keep),
        ledger=ledger or OpenLedger(),
        optimizer=optimizer or ServerOptimizer(section, torch.zeros(dimension)),
        schedule=Schedule(clients, seeds, sequential=sequential),
        nodes=Nodes(clients, timeout),
        analyzer=checked(analyzer) if keep else Shuffled.mean,
    )
