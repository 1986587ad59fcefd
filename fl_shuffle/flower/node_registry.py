"""Which node plays which clients.

In a deployment a client's records lie on one SuperNode, so every round must ask that node. A node
started with `--node-config "partition-id=I num-partitions=P"` holds the I-th of P consecutive parts
of the clients (one client, if there are as many partitions as clients); one started without it can
play any client, as the in-process engine's nodes do.

What a node says of itself is a claim. Flower signs every request of a SuperNode with its key and
ties its node id to that key, so the operator can say which key plays which part (`SuperNodeFile`);
nobody else is then asked for anything.
"""

from __future__ import annotations

import hashlib
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_shuffle.configuration.supernodes import SuperNodeFile
from fl_shuffle.errors import require_integer
from fl_shuffle.flower.exchange import exchange, wait_for_nodes
from fl_shuffle.flower.grid import CLIENT_APP_RAISED
from fl_shuffle.flower.messages import CLIENTS, REQUEST_RECORD, record_in

log = logging.getLogger("fl_shuffle.run.nodes")

Mask = NDArray[np.bool_]

PARTITION = "partition-id"
PARTITIONS = "num-partitions"
HOLDING_RECORD = "holding"
QUERY_SECONDS = 60.0
"""So long a node has to say what it holds: it starts its app for that, and computes nothing."""


def held_clients(node_config: Mapping[str, object], clients: int) -> range:
    """The clients, out of 0 .. `clients` - 1, that a node of this configuration plays.

    The parts differ by at most one client, the larger ones first. Raises `InvalidValueError` for a
    partition that is not a whole number below `num-partitions`, or without it.
    """
    if PARTITION not in node_config and PARTITIONS not in node_config:
        return range(clients)
    count = require_integer(PARTITIONS, node_config.get(PARTITIONS), minimum=1)
    part = require_integer(PARTITION, node_config.get(PARTITION), minimum=0, maximum=count - 1)
    return _part(part, count, clients)


def _part(part: int, count: int, clients: int) -> range:
    size, larger = divmod(clients, count)
    first = part * size + min(part, larger)
    return range(first, first + size + (part < larger))


def fingerprint(public_key: bytes) -> str | None:
    """That of a PEM public key, as `ssh-keygen -l` shows it, or None if there is no such key."""
    try:
        key = load_pem_public_key(public_key)
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return "SHA256:" + b64encode(digest).decode("ascii").rstrip("=")


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
    record = record_in(reply.content, HOLDING_RECORD, ConfigRecord)
    if record is None:
        return None
    first, count = record.get("first"), record.get("count")
    if not isinstance(first, int) or not isinstance(count, int) or min(first, count) < 0:
        return None
    return first, count


class NodeRegistry:
    """The connected nodes and the clients they hold; every node is asked once.

    A node whose ClientApp has no answer (a user's own app) can play any client. One that does not
    reply soon is left out and asked again later, each time after twice as long.

    Clients belong to the first node that claims them, for as long as it is connected: a later claim
    that overlaps is refused as a whole, until then, and logged. (A restarted SuperNode gets its
    clients back when the server has missed the old one.) Of claims that arrive together the smaller
    one comes first, so that nobody gains by claiming much.

    With `supernodes` a node plays the part that the operator's file gives its key or node id. One
    that claims something else plays nobody until it says so no more, and one that is not in the
    file is not asked at all; both are logged. A node that claims all clients is content with its
    part.
    """

    def __init__(
        self, clients: int, timeout: float, supernodes: SuperNodeFile | None = None
    ) -> None:
        self._clients = clients
        self._timeout = timeout
        self._supernodes = supernodes
        self._parts: dict[int, range] = {}
        self._strangers: set[int] = set()
        self._held: dict[int, range] = {}
        self._refused: set[int] = set()
        self._silent: dict[int, tuple[float, float]] = {}
        self._partitions: list[tuple[Mask | None, list[int]]] = []

    def partitions(self, grid: Grid) -> list[tuple[Mask | None, list[int]]]:
        """(clients, nodes that can play them), disjoint in clients; None stands for all clients.

        Clients that no connected node holds are in no pool. Raises `RunError` if there is no node.
        """
        known = self._held.keys() | self._silent.keys() | self._strangers
        nodes = wait_for_nodes(grid, self._timeout, known=known)
        gone = known - set(nodes)
        for node in gone:
            self._held.pop(node, None)
            self._silent.pop(node, None)
            self._strangers.discard(node)
        if self._supernodes is not None and not known.issuperset(nodes):
            self._identify(grid, self._supernodes, set(nodes) - known)
        now = time.monotonic()
        unknown = [
            node
            for node in nodes
            if node not in self._held
            and node not in self._strangers
            and self._silent.get(node, (now, 0.0))[0] <= now
        ]
        if unknown:
            found = self._ask(grid, unknown)
            # Arrival decides; among those that came together, the smaller claim.
            self._held |= dict(sorted(found.items(), key=lambda claim: (len(claim[1]), claim[0])))
            for node in unknown:
                if node in found:
                    self._silent.pop(node, None)
                else:
                    wait = 2.0 * self._silent.get(node, (0.0, 0.5 * QUERY_SECONDS))[1]
                    self._silent[node] = (time.monotonic() + wait, wait)
        if unknown or gone:
            self._partitions = self._sorted_out()
        return self._partitions

    def _identify(self, grid: Grid, supernodes: SuperNodeFile, arrived: set[int]) -> None:
        """Which part the file gives to each node that came; those without one are strangers."""
        for info in grid.get_nodes():
            node = info.node_id
            if node not in arrived:
                continue
            key = fingerprint(info.public_key)
            part = supernodes.part_of(name for name in (key, str(node)) if name is not None)
            if part is not None:
                self._parts[node] = _part(part, supernodes.count, self._clients)
                arrived.discard(node)
                continue
            log.warning(
                "node %d (key %s) has no part of its own in %s: it plays nobody",
                node,
                key or "unknown",
                supernodes.path,
            )
        self._strangers |= arrived

    def _accepted(self, node: int, claimed: range) -> range | None:
        """What the node plays, of what it claims; None: a claim of other nodes' clients."""
        if self._supernodes is None:
            return claimed
        part = self._parts[node]
        if claimed in (part, range(self._clients)):
            return part
        log.warning(
            "node %d claims %s, and %s gives it %s: refused",
            node,
            words_of(claimed),
            self._supernodes.path,
            words_of(part),
        )
        return None

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, range]:
        timeout = min(QUERY_SECONDS, self._timeout)
        questions = [
            Message(
                RecordDict({REQUEST_RECORD: ConfigRecord({CLIENTS: self._clients})}),
                node,
                MessageType.QUERY,
                ttl=timeout,
                group_id="holdings",
            )
            for node in nodes
        ]
        answers = {}

        def take(position: int, reply: Message) -> None:
            node, claimed = nodes[position], _holding_of(reply, self._clients)
            if claimed is None:
                log.warning("node %d does not say which clients it plays", node)
                return
            held = self._accepted(node, claimed)
            if held is not None:
                answers[node] = held
                log.info("node %d plays %s", node, words_of(held))

        exchange(grid, questions, take, window=len(nodes), timeout=timeout)
        for node in set(nodes) - answers.keys():
            log.warning("node %d is asked again later", node)
        return answers

    def _sorted_out(self) -> list[tuple[Mask | None, list[int]]]:
        owner = np.zeros(self._clients, dtype=np.uint64)  # node ids are positive
        everyone = range(self._clients)
        free = sorted(node for node, held in self._held.items() if held == everyone)
        refused = set()
        for node, held in self._held.items():
            if held == everyone:
                continue
            taken = owner[held.start : held.stop]
            if taken.any():
                refused.add(node)
                if node not in self._refused:
                    holder = int(taken[taken > 0][0])
                    log.warning(
                        "node %d claims %s, of which node %d plays some: refused while that node "
                        "is connected",
                        node,
                        words_of(held),
                        holder,
                    )
            else:
                owner[held.start : held.stop] = node
        self._refused = refused
        if not owner.any():
            return [(None, free)] if free else []
        partitions: list[tuple[Mask | None, list[int]]] = [
            (owner == node, [int(node)]) for node in np.unique(owner[owner > 0])
        ]
        rest = owner == 0
        if rest.any() and free:
            partitions.append((rest, free))
        elif rest.any():
            log.warning("no connected node holds %d of the clients", int(rest.sum()))
        return partitions


def words_of(held: range) -> str:
    """These clients, in an error's or a log's line."""
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
