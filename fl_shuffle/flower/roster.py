"""Which node plays which clients.

In a deployment a client's records lie on one SuperNode, so every round must ask that node. A node
started with `--node-config "partition-id=I num-partitions=P"` holds the I-th of P consecutive parts
of the clients (one client, if there are as many partitions as clients); one started without it can
play any client, as the in-process engine's nodes do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_shuffle.errors import InvalidValueError, require_integer
from fl_shuffle.flower.exchange import exchange, wait_for_nodes
from fl_shuffle.flower.grid import CLIENT_APP_RAISED, InProcessGrid
from fl_shuffle.flower.records import TrainRequest

log = logging.getLogger("fl_shuffle.run.nodes")

Mask = NDArray[np.bool_]

PARTITION = "partition-id"
PARTITIONS = "num-partitions"
HOLDING_RECORD = "holding"


def held_clients(node_config: Mapping[str, object], clients: int) -> range:
    """The clients, out of 0 .. `clients` - 1, that a node of this configuration plays.

    The parts differ by at most one client, the larger ones first. Raises `InvalidValueError` for a
    partition that is not a whole number below `num-partitions`, or without it.
    """
    if PARTITION not in node_config and PARTITIONS not in node_config:
        return range(clients)
    count = require_integer(PARTITIONS, node_config.get(PARTITIONS), minimum=1)
    part = require_integer(PARTITION, node_config.get(PARTITION), minimum=0, maximum=count - 1)
    size, larger = divmod(clients, count)
    first = part * size + min(part, larger)
    return range(first, first + size + (part < larger))


def require_held(request: TrainRequest, context: Context, clients: int) -> None:
    """Refuse to play clients whose records lie elsewhere; raises `InvalidValueError`."""
    held = held_clients(context.node_config, clients)
    last = request.first + request.span - 1
    if request.first < held.start or last >= held.stop:
        raise InvalidValueError(
            "requested clients",
            f"{request.first} to {last}",
            f"this node holds {_words(held)}",
        )


def reply_with_holding(question: Message, context: Context, clients: int) -> Message:
    """A node's answer to the server's question which clients it holds."""
    held = held_clients(context.node_config, clients)
    return reply_with_range(question, held.start, len(held))


def reply_with_range(question: Message, first: int, count: int) -> Message:
    """The answer that a node plays clients `first` .. `first` + `count` - 1, and nothing else."""
    record = ConfigRecord({"first": first, "count": count})
    return Message(RecordDict({HOLDING_RECORD: record}), reply_to=question)


def holding_in(reply: Message) -> tuple[int, int] | None:
    """(first, count) in a node's answer, or None if it names no range."""
    record = reply.content.config_records.get(HOLDING_RECORD)
    if record is None:
        return None
    first, count = record.get("first"), record.get("count")
    if not isinstance(first, int) or not isinstance(count, int) or min(first, count) < 0:
        return None
    return first, count


class Roster:
    """The connected nodes and the clients they hold; every node is asked once.

    A node whose ClientApp has no answer (a user's own app) can play any client. One that does not
    reply is left out and asked again in the next round. A client held by two nodes (its SuperNode
    was restarted, and the server has not missed the old one yet) is asked at the newer one.
    """

    def __init__(self, clients: int, timeout: float) -> None:
        self._clients = clients
        self._timeout = timeout
        self._held: dict[int, range] = {}
        self._pools: list[tuple[Mask | None, list[int]]] = []

    def pools(self, grid: Grid) -> list[tuple[Mask | None, list[int]]]:
        """(clients, nodes that can play them), disjoint in clients; None stands for all clients.

        Clients that no connected node holds are in no pool. Raises `RunError` if there is no node.
        """
        if isinstance(grid, InProcessGrid):
            return [(None, wait_for_nodes(grid, self._timeout))]
        nodes = wait_for_nodes(grid, self._timeout, known=self._held.keys())
        if set(nodes) != self._held.keys():
            self._held = {node: held for node, held in self._held.items() if node in nodes}
            self._held |= self._ask(grid, [node for node in nodes if node not in self._held])
            self._pools = self._sorted_out()
        return self._pools

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, range]:
        questions = [
            Message(RecordDict(), node, MessageType.QUERY, group_id="holdings") for node in nodes
        ]
        answers = {}

        def take(position: int, reply: Message) -> None:
            held = _holding_of(reply, self._clients)
            if held is not None:
                answers[nodes[position]] = held
                log.info("node %d plays %s", nodes[position], _words(held))
            else:
                log.warning("node %d does not say which clients it plays", nodes[position])

        exchange(grid, questions, take, window=len(nodes), timeout=self._timeout)
        return answers

    def _sorted_out(self) -> list[tuple[Mask | None, list[int]]]:
        owner = np.zeros(self._clients, dtype=np.uint64)  # node ids are positive
        everyone = range(self._clients)
        free = sorted(node for node, held in self._held.items() if held == everyone)
        for node, held in self._held.items():
            if held != everyone:
                owner[held.start : held.stop] = node
        if not owner.any():
            return [(None, free)] if free else []
        pools: list[tuple[Mask | None, list[int]]] = [
            (owner == node, [int(node)]) for node in np.unique(owner[owner > 0])
        ]
        rest = owner == 0
        if rest.any() and free:
            pools.append((rest, free))
        elif rest.any():
            log.warning("no connected node holds %d of the clients", int(rest.sum()))
        return pools


def _words(held: range) -> str:
    if len(held) <= 1:
        return f"client {held.start}" if held else "no client"
    return f"clients {held.start} to {held.stop - 1}"


def _holding_of(reply: Message, clients: int) -> range | None:
    """The clients a reply claims; all of them where the app has no answer; None: unusable."""
    if reply.has_error():
        return range(clients) if reply.error.code == CLIENT_APP_RAISED else None
    held = holding_in(reply)
    if held is None or sum(held) > clients:
        return None
    return range(held[0], sum(held))
