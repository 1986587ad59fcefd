"""Cutting a round into requests, sending them, and taking in replies, on any engine."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, pairwise

import numpy as np
import torch
from flwr.app import Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_shuffle.aggregation.shuffler import PooledBatch, ReportBatch
from fl_shuffle.errors import RunError
from fl_shuffle.flower.grid import InProcessGrid, Take
from fl_shuffle.flower.records import TrainRequest, reports_of, sum_of, sum_of_reports

Mask = NDArray[np.bool_]
Cut = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Ascending client ids -> where blocks begin among them, and the end."""
Turns = list[tuple[TrainRequest, int]]
"""Requests, each with the node that is asked."""

BEYOND = "beyond what honest noise reaches"

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
    if isinstance(grid, InProcessGrid):
        return sorted(grid.get_node_ids())
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
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Call take(position of the request, reply) as replies arrive, at most `window` under way.

    The in-process engine calls it on the threads that play the nodes, several at a time. Requests
    that get no reply within `timeout` seconds are given up: nothing is taken for them. `meanwhile`
    is called once, when the first requests are under way.
    """
    if isinstance(grid, InProcessGrid):
        grid.exchange(messages, take, timeout=timeout, meanwhile=meanwhile)
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
        if meanwhile is not None:
            meanwhile()
            meanwhile = None
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


def ask(grid: Grid, message: Message, *, timeout: float) -> Message | None:
    """The reply to one message, or None if there is none within `timeout` seconds."""
    replies: dict[int, Message] = {}
    exchange(grid, [message], replies.__setitem__, window=1, timeout=timeout)
    return replies.get(0)


def taking_reports(
    turns: Turns,
    batch: ReportBatch,
    present: Mask,
    largest: NDArray[np.float64] | None,
    causes: Counter[str],
) -> Take:
    """Replies with reports go into the batch; who sent usable ones is noted in `present`, and in
    `causes` why others did not."""

    def take(position: int, reply: Message) -> None:
        clients = turns[position][0].clients
        reports = reports_of(reply, (len(clients), batch.dimension), causes)
        if reports is not None:
            most = None if largest is None else largest[clients]
            usable = batch.add(torch.from_numpy(reports), position, most)
            present[clients] = usable
            if not usable.all():
                causes[BEYOND] += int((~usable).sum())

    return take


def taking_partial_sums(
    turns: Turns,
    batch: ReportBatch,
    present: Mask,
    largest: NDArray[np.float64] | None,
    causes: Counter[str],
) -> Take:
    """The same for replies with sums of reports; an app that knows of none sends its reports."""
    reports = taking_reports(turns, batch, present, largest, causes)

    def take(position: int, reply: Message) -> None:
        clients = turns[position][0].clients
        found = sum_of_reports(reply, len(clients), batch.dimension)
        if found is None:
            reports(position, reply)
            return
        total, usable = found
        most = math.inf if largest is None else float(largest[clients][usable].sum())
        if not batch.add_sum(torch.from_numpy(total), int(usable.sum()), most):
            usable = np.zeros_like(usable)
        present[clients] = usable
        if not usable.all():
            causes[BEYOND] += int((~usable).sum())

    return take


def taking_sums(turns: Turns, batch: PooledBatch, present: Mask) -> Take:
    """The same for replies with sums, of a simulation that makes no reports."""

    def take(position: int, reply: Message) -> None:
        places, total = turns[position][0].places, sum_of(reply)
        if total is not None and len(total) == batch.dimension:
            clients = len(present[places])
            present[places] = batch.add(total, clients)

    return take


def every_client(clients: NDArray[np.int64]) -> NDArray[np.int64]:
    """A `Cut` in which each client is a block of its own."""
    return np.arange(len(clients) + 1)


def requests(number: int, allowed: Mask, most: int, nodes: int, cut: Cut) -> Iterator[TrainRequest]:
    """Whole blocks of allowed clients in ascending order, about equally many clients a request:
    none above `most`, unless one block is, and each node as many as any other."""
    chosen = np.flatnonzero(allowed)
    if not len(chosen):
        return
    # Where the last turn is not shared by all nodes, some of them would only wait.
    turns = -(-len(chosen) // (most * nodes))
    starts = cut(chosen)
    wanted = np.arange(turns * nodes + 1) * (len(chosen) / (turns * nodes))
    # The nearest block's start, and each of them once.
    after = np.searchsorted(starts, wanted).clip(1, len(starts) - 1)
    low, high = starts[after - 1], starts[after]
    for first, last in pairwise(np.unique(np.where(wanted - low < high - wanted, low, high))):
        yield TrainRequest.covering(number, chosen[first:last])
