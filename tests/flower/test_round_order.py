"""What one round does, in which order, and how many reports it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message
from flwr.serverapp.strategy import Strategy

from fl_shuffle.aggregation.optimizer import ServerOptimizer
from fl_shuffle.configuration.sections import ServerSection
from fl_shuffle.errors import PrivacyBudgetError, RunError
from fl_shuffle.flower.messages import Layout, TrainRequest, reply_with
from tests.flower.small_rounds import OpenLedger, small_strategy
from tests.one_node import nodes

CLIENTS, DIMENSION = 8, 5


class Round:
    """A round of which everything that happens is written down, in order."""

    def __init__(self, answering: int = CLIENTS, *, refusing: bool = False, **options: Any) -> None:
        ledger = OpenLedger(refusing=refusing)
        self.events, note = ledger.events, ledger.note

        def train(asked: Message, context: Context) -> Message:
            note("broadcast")
            request = TrainRequest.of(asked)
            if request.clients[0] >= answering:
                return Message(Error(code=1), reply_to=asked)
            rows = np.full((len(request.clients), DIMENSION), 0.5, dtype=np.float32)
            return reply_with(asked, reports=rows)

        class Optimizer(ServerOptimizer):
            def step(self, *arguments: Any) -> None:
                note("step")
                super().step(*arguments)

        self.optimizer = Optimizer(ServerSection(learning_rate=1.0), torch.ones(DIMENSION))
        self.strategy = small_strategy(
            CLIENTS, DIMENSION, ledger, least=5, optimizer=self.optimizer, **options
        )
        self._app, self._note = train, note

    def play(self) -> list[float]:
        start = Layout.flat(DIMENSION).record(np.ones(DIMENSION, np.float32))
        with nodes(self._app, CLIENTS) as grid:
            result = self.strategy.start(grid, start, num_rounds=1, evaluate_fn=self._evaluate)
        found: list[float] = result.arrays["parameters"].numpy().tolist()
        return found

    def _evaluate(self, number: int, arrays: ArrayRecord) -> None:
        self._note("evaluate")


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
    assert whole.play() == [0.5] * DIMENSION
    order = ["reserve", "broadcast", "commit", "step", "evaluate", "record"]
    assert whole.events == order


def test_what_the_ledger_refuses_leaves_no_trace_in_the_model() -> None:
    refused = Round(refusing=True)
    assert refused.play() == refused.optimizer.current().tolist() == [1.0] * DIMENSION
    assert refused.events == ["reserve", "broadcast", "commit"]


def test_no_round_is_played_without_the_ledger() -> None:
    """Flower's own loop would play rounds of which no ledger knows: whoever drives the strategy, no
    client is asked and the model does not move."""

    def asked(message: Message, context: Context) -> Message:
        raise AssertionError("nothing was reserved")

    start = Layout.flat(3).record(np.zeros(3, np.float32))
    strategy = small_strategy(2, 3)
    with nodes(asked, 2) as grid:
        for drive in (
            lambda: Strategy.start(strategy, grid, start, num_rounds=1),
            lambda: strategy.aggregate_train(1, []),
        ):
            with pytest.raises(RunError, match=r"plays its rounds itself.*call its start"):
                drive()
