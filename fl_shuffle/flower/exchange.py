"""Cutting a round into requests, sending them, and taking in replies, on any engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, pairwise

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_shuffle.errors import RunError
from fl_shuffle.flower.grid import InProcessGrid, Take
from fl_shuffle.flower.messages import TrainRequest

Mask = NDArray[np.bool_]
Blocks = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Ascending client ids -> where blocks begin among them, and the end."""

POLL_SECONDS = 0.05
"""Pause between two questions for replies."""
SETTLE_SECONDS = 1.0
"""Nodes have settled when none came or went for so long; the ServerApp starts before them."""
# Polling costs the SuperLink work: after a long silence it is done more seldom.
LONGEST_POLL_SECONDS = 1.0
POLL_SHARE = 0.05


def wait_for_nodes(grid: Grid, timeout: float, known: Collection[int] = ()) -> list[int]:
    """Node ids once they have settled: a ServerApp starts before its nodes have registered.

    Nodes that are just the `known` ones have settled. Raises `RunError` if no node appears
    within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    seen = sorted(known)
    while time.monotonic() < deadline:
        now = sorted(grid.get_node_ids())
        if now and now == seen:
            return now
        seen = now
        time.sleep(SETTLE_SECONDS)
    raise RunError(f"no Flower node connected within {timeout:g} s; start the SuperNodes first")


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    take: Take,
    *,
    window: int,
    timeout: float,
) -> None:
    """Call take(position of the request, reply) as replies arrive, at most `window` under way.

    Requests that get no reply within `timeout` seconds are given up: nothing is taken for them. The
    in-process engine waits, and calls it on the threads that play the nodes, several at a time.
    """
    if isinstance(grid, InProcessGrid):
        grid.exchange(messages, take)
        return
    source = enumerate(messages)
    position_of: dict[str, int] = {}
    last = time.monotonic()
    deadline = last + timeout
    while True:
        batch = list(islice(source, window - len(position_of)))
        if batch:
            identifiers = grid.push_messages([message for _, message in batch])
            position_of.update(
                {key: position for key, (position, _) in zip(identifiers, batch, strict=True)}
            )
        if not position_of or time.monotonic() > deadline:
            return
        replies = list(grid.pull_messages(position_of))
        for reply in replies:
            position = position_of.pop(reply.metadata.reply_to_message_id, None)
            if position is not None:
                take(position, reply)
        if replies:
            last = time.monotonic()
        else:
            silence = time.monotonic() - last
            time.sleep(max(POLL_SECONDS, min(LONGEST_POLL_SECONDS, POLL_SHARE * silence)))


def every_client(clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """A `Blocks` in which each client is a block of its own."""
    return np.arange(len(clients) + 1)


def requests(
    number: int, allowed: Mask, most: int, nodes: int, blocks: Blocks
) -> Iterator[TrainRequest]:
    """Whole blocks of allowed clients in ascending order, about equally many clients a request:
    none above `most`, unless one block is, and each node as many as any other."""
    chosen = np.flatnonzero(allowed)
    if not len(chosen):
        return
    # Where the last turn is not shared by all nodes, some of them would only wait.
    turns = -(-len(chosen) // (most * nodes))
    starts = blocks(chosen)
    wanted = np.arange(turns * nodes + 1) * (len(chosen) / (turns * nodes))
    # The nearest block's start, and each of them once.
    after = np.searchsorted(starts, wanted).clip(1, len(starts) - 1)
    low, high = starts[after - 1], starts[after]
    for first, last in pairwise(np.unique(np.where(wanted - low < high - wanted, low, high))):
        yield TrainRequest.covering(number, chosen[first:last])
