"""Which node plays which clients.

In a deployment a client's records lie on one SuperNode, so every round must ask that node. A node
started with `--node-config "partition-id=I num-partitions=P"` holds the I-th of P consecutive parts
of the clients (one client, if there are as many partitions as clients); one started without it can
play any client, as the in-process engine's nodes do.

What a node says of itself is a claim. Flower signs every request of a SuperNode with its key and
ties its node id to that key, so the operator can say which key plays which part (`SuperNodeFile`);
then no node is asked what it holds, and nobody else for anything.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_shuffle._internal.csv_files import read_table, whole_number
from fl_shuffle.errors import ConfigError, RunError, require_integer
from fl_shuffle.flower.grid import exchange
from fl_shuffle.flower.messages import record_in

log = logging.getLogger("fl_shuffle.run.nodes")

PARTITION = "partition-id"
PARTITIONS = "num-partitions"
HOLDING_RECORD = "holding"
QUERY_SECONDS = 60.0
"""So long a node has to say what it holds: it starts its app for that, and computes nothing."""
SETTLE_SECONDS = 1.0
"""Nodes have settled when none came or went for so long; the ServerApp starts before them."""
NOBODY = range(0)
SHARED = 0
"""In the place of an owner: node ids are positive."""
COLUMNS = ("supernode", "partition-id", "num-partitions")
LARGEST_NODE_ID = 2**64 - 1
"""Flower draws them from this many."""
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_NODE_ID = re.compile(r"[1-9][0-9]{0,19}")


class ClientOwners(NamedTuple):
    """Who plays which clients: `owner` [clients], a node id or `SHARED`, and whom to ask for the
    clients of each owner. Clients that no connected node holds have nobody in `nodes`."""

    owner: NDArray[np.uint64]
    nodes: Mapping[int, list[int]]


def held_clients(node_config: Mapping[str, object], clients: int) -> range:
    """Return the clients, out of 0 .. `clients` - 1, that a node of this configuration plays.

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
    """Return the fingerprint of a PEM public key, as `ssh-keygen -l` shows it, or None if there is
    no such key."""
    try:
        key = load_pem_public_key(public_key)
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    digest = hashlib.sha256(b64decode(line.split()[1])).digest()
    return "SHA256:" + b64encode(digest).decode("ascii").rstrip("=")


@dataclass(frozen=True)
class SuperNodeFile:
    """Name of a SuperNode -> its part, of `count` consecutive parts of the clients.

    A name is the fingerprint of a SuperNode's public key, as `ssh-keygen -lf KEY.pub` shows it, or
    its node id in decimal digits, as `flwr supernode register` does.
    """

    path: Path
    count: int
    parts: Mapping[str, int]

    def part_of(self, names: Iterable[str]) -> int | None:
        """Return the part of the node that has these names; None if the file gives it none, or
        two."""
        parts = {self.parts[name] for name in names if name in self.parts}
        return parts.pop() if len(parts) == 1 else None


def read_supernodes(path: str | Path, clients: int) -> SuperNodeFile:
    """Read `supernode,partition-id,num-partitions`, one line a SuperNode, in any order.

    Raises `ConfigError`, naming file and line, for a file that cannot be read, wrong columns, a
    name that is neither fingerprint nor node id, more parts than clients, and a SuperNode or part
    that stands there twice.
    """
    source = Path(path)
    parts: dict[str, int] = {}
    count = 0
    for where, row in read_table(source, "SuperNode file", COLUMNS)[1]:
        name, part, total = _row(where, row, clients)
        if count and total != count:
            raise ConfigError(
                f"{where}: num-partitions = {total}, and {count} above; it must be the same in all"
            )
        count = total
        if name in parts:
            raise ConfigError(
                f"{where}: {name} appears twice; a SuperNode holds one part, so keep one "
                "of the lines"
            )
        if part in parts.values():
            raise ConfigError(f"{where}: part {part} is given to two SuperNodes; keep one of them")
        parts[name] = part
    return SuperNodeFile(source, count, parts)


def _row(where: str, row: list[str], clients: int) -> tuple[str, int, int]:
    name = row[0].strip()
    is_id = _NODE_ID.fullmatch(name) is not None and int(name) <= LARGEST_NODE_ID
    if not is_id and not _FINGERPRINT.fullmatch(name):
        raise ConfigError(
            f"{where}: supernode = {name!r} must be a key's fingerprint (SHA256:..., as "
            "`ssh-keygen -lf KEY.pub` shows it) or a node id (as `flwr supernode register` does)"
        )
    part, total = whole_number(row[1]), whole_number(row[2])
    if total is None or not 1 <= total <= clients:
        raise ConfigError(
            f"{where}: num-partitions = {row[2].strip()!r} must be a whole number in [1, {clients}]"
            " (data.clients)"
        )
    if part is None or part >= total:
        raise ConfigError(
            f"{where}: partition-id = {row[1].strip()!r} must be a whole number in [0, {total - 1}]"
        )
    return name, part, total


def reply_with_holding(question: Message, context: Context, clients: int) -> Message:
    """Return a node's answer to the server's question which clients it holds, and nothing else."""
    held = held_clients(context.node_config, clients)
    record = ConfigRecord({"first": held.start, "count": len(held)})
    return Message(RecordDict({HOLDING_RECORD: record}), reply_to=question)


def holding_in(reply: Message, clients: int) -> range | None:
    """Return the clients in a node's answer; None if it names no range of all clients."""
    record = None if reply.has_error() else record_in(reply.content, HOLDING_RECORD, ConfigRecord)
    if record is None:
        return None
    first, count = record.get("first"), record.get("count")
    if not isinstance(first, int) or not isinstance(count, int) or min(first, count) < 0:
        return None
    return range(first, first + count) if first + count <= clients else None


def holdings(
    grid: Grid, nodes: Sequence[int], clients: int, timeout: float
) -> dict[int, range | None]:
    """Ask nodes which of the run's `clients` they hold, and wait `timeout` seconds at most.

    None stands for a node that does not answer, or whose app does not understand the question.
    """
    answers: dict[int, range | None] = dict.fromkeys(nodes)
    questions = [
        Message(RecordDict(), node, MessageType.QUERY, ttl=timeout, group_id="holdings")
        for node in nodes
    ]

    def take(position: int, reply: Message) -> None:
        answers[nodes[position]] = holding_in(reply, clients)

    exchange(grid, questions, take, window=len(nodes), timeout=timeout)
    return answers


@dataclass
class NodeRegistry:
    """The connected nodes and the clients they hold; every node is asked once, and one that does
    not reply soon again later, each time after twice as long.

    Clients belong to the first node that claims them, for as long as it is connected: a later claim
    that overlaps is refused as a whole, until then, and logged. (A restarted SuperNode gets its
    clients back when the server has missed the old one.) Of claims that arrive together the smaller
    one comes first, so that nobody gains by claiming much.

    With `supernodes` a node plays the part that the operator's file gives its key or node id; one
    that is not in the file plays nobody, and is logged. A node whose own configuration gives it
    other clients refuses what it is asked for.
    """

    clients: int
    timeout: float
    supernodes: SuperNodeFile | None = None

    def __post_init__(self) -> None:
        self._held: dict[int, range] = {}  # in the order of arrival
        self._again: dict[int, tuple[float, float]] = {}  # who is silent: when, and after how long
        self._partition = ClientOwners(np.zeros(self.clients, np.uint64), {})

    def partition(self, grid: Grid) -> ClientOwners:
        """Return who plays which clients now. Raises `RunError` if there is no node."""
        nodes, now = wait_for_nodes(grid, self.timeout, known=self._held), time.monotonic()
        gone = self._held.keys() - nodes
        late = {node for node, (when, _) in self._again.items() if when <= now}
        new = [node for node in nodes if node not in self._held or node in late]
        for node in gone:
            del self._held[node]
            self._again.pop(node, None)
        if new:
            found = self._asked(grid, new) if self.supernodes is None else self._listed(grid, new)
            # Arrival decides; among those that came together, the smaller claim.
            for node, held in sorted(found, key=lambda claim: (len(claim[1]), claim[0])):
                self._held.pop(node, None)
                self._held[node] = held
                log.info("node %d plays %s", node, words_of(held))
        if new or gone:
            self._partition = self._sorted_out()
        return self._partition

    def _listed(self, grid: Grid, new: list[int]) -> Iterable[tuple[int, range]]:
        """Yield which part the file gives to each of these nodes."""
        listed = self.supernodes
        assert listed is not None
        keys = {info.node_id: fingerprint(info.public_key) for info in grid.get_nodes()}
        for node in new:
            key = keys.get(node)
            part = listed.part_of(name for name in (key, str(node)) if name is not None)
            if part is None:
                who = f"node {node} (key {key or 'unknown'})"
                log.warning(f"{who} has no line in {listed.path}: it holds no client")
            yield node, NOBODY if part is None else _part(part, listed.count, self.clients)

    def _asked(self, grid: Grid, new: list[int]) -> Iterable[tuple[int, range]]:
        """Return what each of these nodes says that it holds."""
        timeout = min(QUERY_SECONDS, self.timeout)
        said = holdings(grid, new, self.clients, timeout)
        answers = {node: NOBODY if held is None else held for node, held in said.items()}
        for node, held in answers.items():
            _, wait = self._again.pop(node, (0.0, 0.5 * QUERY_SECONDS))
            if not held:
                self._again[node] = time.monotonic() + 2.0 * wait, 2.0 * wait
                log.warning("node %d is asked again later", node)
        return answers.items()

    def _sorted_out(self) -> ClientOwners:
        owner, free = np.full(self.clients, SHARED, np.uint64), []
        for node, held in self._held.items():
            taken = owner[held.start : held.stop]
            if held == range(self.clients):
                free.append(node)
            elif taken.any():
                log.warning(
                    f"node {node} claims {words_of(held)}, of which node {taken[taken > 0][0]} "
                    "plays some: refused while that node is connected"
                )
            else:
                taken[:] = node
        nodes = {int(node): [int(node)] for node in np.unique(owner)}
        if SHARED in nodes:
            nodes[SHARED] = sorted(free)
            if not free:
                nobody = int((owner == SHARED).sum())
                log.warning("no connected node holds %d of the clients", nobody)
        return ClientOwners(owner, nodes)


def wait_for_nodes(grid: Grid, timeout: float, known: Collection[int] = ()) -> list[int]:
    """Return node ids once they have settled: a ServerApp starts before its nodes have registered.

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


def words_of(held: range) -> str:
    """Return these clients, in an error's or a log's line."""
    if len(held) <= 1:
        return f"client {held.start}" if held else "no client"
    return f"clients {held.start} to {held.stop - 1}"
