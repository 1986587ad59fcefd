"""What one round does, in which order, and how many reports it takes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fl_shuffle.accounting.guarantee import Status
from fl_shuffle.accounting.rounds.events import Column, Spend
from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import Layout, TrainRequest, reply_with
from fl_shuffle.runs.events import RoundOutcome
from tests.flower.small_rounds import small_strategy

CLIENTS, DIMENSION = 8, 5


class Round:
    """A round of which everything that happens is written down, in order."""

    first_round = 1

    def __init__(self, answering: int = CLIENTS, *, refused: bool = False, **options: Any) -> None:
        self.events: list[str] = []
        self.refused = refused
        app = ClientApp()

        @app.train()
        def train(asked: Message, context: Context) -> Message:
            self._note("broadcast")
            request = TrainRequest.of(asked)
            if request.first >= answering:
                return Message(Error(code=1), reply_to=asked)
            rows = np.full((len(request.clients), DIMENSION), 0.5, dtype=np.float32)
            return reply_with(asked, reports=rows)

        note = self._note

        class Optimizer(ServerOptimizer):
            def step(self, *arguments: Any) -> None:
                note("step")
                super().step(*arguments)

        self.optimizer = Optimizer(ServerSection(learning_rate=1.0), torch.ones(DIMENSION))
        self.strategy = small_strategy(
            CLIENTS, DIMENSION, self, least=5, optimizer=self.optimizer, **options
        )
        self._app = app

    def play(self) -> Tensor:
        start = Layout.flat(DIMENSION).record(np.ones(DIMENSION, np.float32))
        with closing(InProcessGrid(self._app, {}, nodes=CLIENTS)) as grid:
            result = self.strategy.start(grid, start, num_rounds=1, evaluate_fn=self._evaluate)
        return torch.from_numpy(result.arrays["parameters"].numpy())

    def _note(self, event: str) -> None:
        if event not in self.events:
            self.events.append(event)

    def _evaluate(self, number: int, arrays: ArrayRecord) -> dict[str, float]:
        if number:
            self._note("evaluate")
        return {}

    def reserve(self, round_number: int, participants: np.ndarray) -> np.ndarray:
        self._note("reserve")
        return participants

    def commit(self, round_number: int, present: np.ndarray) -> Spend | None:
        self._note("commit")
        if self.refused:
            return None
        count = int(present.sum())
        columns = {"proven": Column("proven", Status.PROVEN, "", {0: 1.0})}
        return Spend(round_number, count, 1e-5, None, None, columns)

    def record(self, outcome: RoundOutcome, state: dict[str, Any] | None) -> None:
        assert state is not None
        self._note("record")


@pytest.mark.parametrize("sequential", [False, True])
def test_a_round_takes_no_report_less_than_it_may(sequential: bool) -> None:
    few = Round(answering=4, sequential=sequential)
    with pytest.raises(PrivacyBudgetError, match="4 usable reports arrived"):
        few.play()
    assert "commit" not in few.events
    enough = Round(answering=5, sequential=sequential)
    enough.play()
    assert "commit" in enough.events and "record" in enough.events


def test_the_ledger_is_written_before_the_model_moves() -> None:
    whole = Round()
    assert whole.play().tolist() == [0.5] * DIMENSION
    order = ["reserve", "broadcast", "commit", "step", "evaluate", "record"]
    assert whole.events == order


def test_what_the_ledger_refuses_leaves_no_trace_in_the_model() -> None:
    refused = Round(refused=True)
    assert torch.equal(refused.play(), torch.ones(DIMENSION))
    assert torch.equal(refused.optimizer.current(), torch.ones(DIMENSION))
    assert refused.events == ["reserve", "broadcast", "commit"]
