"""Waiting for nodes that are not in this process: one that is slow costs one timeout."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fl_shuffle.flower import grid as module
from fl_shuffle.flower.grid import LONGEST_POLL_SECONDS, adopt_task_identity, exchange, stamp
from fl_shuffle.flower.messages import Layout, TrainRequest

TIMEOUT = 30.0


class Grid:
    """Nodes that answer a second after they are asked, but for those that never do."""

    def __init__(self, now: list[float], never: set[int]) -> None:
        self.now, self.never = now, never
        self.waiting: dict[str, tuple[float, Message]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = {stamp(each).metadata.message_id: (self.now[0] + 1.0, each) for each in messages}
        # Who is still at work when nobody waits any more throws it away.
        assert all(message.metadata.ttl == TIMEOUT for _, message in pushed.values())
        self.waiting |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [self.waiting[name] for name in message_ids]
        return [
            Message(RecordDict(), reply_to=message)
            for due, message in asked
            if due <= self.now[0] and message.metadata.dst_node_id not in self.never
        ]


@pytest.mark.parametrize("slow", [set(), {3}, {2, 9}])
def test_slow_nodes_cost_one_timeout_and_nobody_else(
    slow: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock: Any = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    adopt_task_identity(1)
    grid = Grid(now, slow)
    taken: list[int] = []
    model = Layout.flat(1).record(np.zeros(1, np.float32))
    asked = [
        TrainRequest(1, np.array([node])).message(model, node, TIMEOUT) for node in range(1, 13)
    ]
    took: Any = lambda position, reply: taken.append(position + 1)  # noqa: E731
    exchange(grid, asked, took, window=4, timeout=TIMEOUT)  # type: ignore[arg-type]
    assert sorted(taken) == sorted(set(range(1, 13)) - slow)
    assert now[0] <= (TIMEOUT if slow else 6.0) + LONGEST_POLL_SECONDS
