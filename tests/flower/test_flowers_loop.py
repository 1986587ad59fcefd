"""Flower's own loop would play rounds of which no ledger knows."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.serverapp.strategy import Strategy

from fl_shuffle.errors import RunError
from fl_shuffle.flower.messages import Layout
from tests.flower.small_rounds import small_strategy
from tests.one_node import nodes


def test_no_round_is_played_without_the_ledger() -> None:
    """Whoever drives the strategy, no client is asked and the model does not move."""

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
