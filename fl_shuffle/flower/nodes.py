"""Whom the server asks for whose reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import cycle, pairwise, zip_longest
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from fl_shuffle._internal.arrays import Ids, Mask
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import CONFIG_RECORD, SERVER_ROUND, TrainRequest
from fl_shuffle.flower.node_registry import SHARED, ClientOwners, NodeRegistry, SuperNodeFile
from fl_shuffle.gradients.clipper import HELD_NUMBERS
from fl_shuffle.shuffler.levels import Levels

Blocks = Callable[[Ids], Ids]
"""Ascending client ids -> where blocks begin among them, and the end."""
Assignment = tuple[TrainRequest, int]
"""A request, and the node that is asked."""


def every_client(clients: Ids) -> Ids:
    """Return a `Blocks` in which each client is a block of its own."""
    return np.arange(len(clients) + 1)


@dataclass(frozen=True)
class Broadcast:
    """What every request of a run carries beside the model: `train_config`, which a user's own app
    finds beside the round's number, and the records `beside`. A request is given up after `timeout`
    seconds.
    """

    timeout: float
    train_config: Mapping[str, Any] | None = None
    beside: Mapping[str, ArrayRecord | ConfigRecord] = field(default_factory=dict)

    def messages(
        self, assignments: Sequence[Assignment], model: ArrayRecord, facts: Mapping[str, str]
    ) -> Iterator[Message]:
        """Yield the requests with their model, as they travel; `facts` are the shuffler's."""
        for request, node in assignments:
            beside = dict(self.beside)
            if self.train_config is not None:
                config = {**self.train_config, SERVER_ROUND: request.round_number}
                beside[CONFIG_RECORD] = ConfigRecord(config)
            yield request.message(model, node, self.timeout, beside, facts)


@dataclass(frozen=True)
class Nodes:
    """The connected nodes, and which of them is asked for whose reports.

    `blocks`: which clients are computed together; requests are made of whole blocks, so that bits
    do not depend on the number of nodes. `summed`: nodes (simulated ones) may answer with the sum
    of their clients' reports. `simulated`: what they say is wrong with their app is believed. A
    request is given up after `timeout` seconds, unless the strategy gets another number.
    `supernodes`: which node plays which part, as the operator says. `few_bits`: how nodes
    elsewhere pack their reports; None where all travel as float32.
    """

    clients: int
    timeout: float = 3600.0
    blocks: Blocks = every_client
    _: KW_ONLY
    summed: bool = False
    simulated: bool = False
    supernodes: SuperNodeFile | None = None
    few_bits: Levels | None = None

    @cached_property
    def _registry(self) -> NodeRegistry:
        return NodeRegistry(self.clients, self.timeout, self.supernodes)

    def assignments(
        self, grid: Grid, number: int, allowed: Mask, dimension: int
    ) -> list[Assignment]:
        """Return the round's requests, each with a node that can play its clients; nodes take
        turns."""
        # A sum is as long for many clients as for few; of reports, memory is bounded.
        most = self.clients if self.summed else max(1, HELD_NUMBERS // dimension)
        partition, queues = self._partition(grid), []
        for owner, nodes in partition.nodes.items():
            chosen = np.flatnonzero(allowed & (partition.owner == owner))
            if len(chosen) and nodes:
                parts = pieces(chosen, most, len(nodes), self.blocks)
                wanted = (TrainRequest(number, clients, self.summed) for clients in parts)
                queues.append(list(zip(wanted, cycle(nodes), strict=False)))
        return [turn for turns in zip_longest(*queues) for turn in turns if turn is not None]

    def one_by_one(self, grid: Grid, number: int, order: list[int]) -> Iterator[Assignment]:
        """Yield a request for each of the clients in this order; none for those that nobody can
        play."""
        partition = self._partition(grid)
        for place, client in enumerate(order):
            nodes = partition.nodes[int(partition.owner[client])]
            if nodes:
                yield TrainRequest(number, np.array([client])), nodes[place % len(nodes)]

    def _partition(self, grid: Grid) -> ClientOwners:
        """See `NodeRegistry.partition`; in one process every node can play every client."""
        if isinstance(grid, InProcessGrid):
            owner = np.full(self.clients, SHARED, np.uint64)
            return ClientOwners(owner, {SHARED: sorted(grid.get_node_ids())})
        return self._registry.partition(grid)


def pieces(chosen: Ids, most: int, nodes: int, blocks: Blocks) -> Iterator[Ids]:
    """Yield whole blocks of the chosen clients in ascending order, about equally many clients a
    request: none above `most`, unless one block is, and each node as many as any other."""
    # Where the last turn is not shared by all nodes, some of them would only wait.
    turns = -(-len(chosen) // (most * nodes))
    starts = blocks(chosen)
    wanted = np.arange(turns * nodes + 1) * (len(chosen) / (turns * nodes))
    # The nearest block's start, and each of them once.
    after = np.searchsorted(starts, wanted).clip(1, len(starts) - 1)
    low, high = starts[after - 1], starts[after]
    for first, last in pairwise(np.unique(np.where(wanted - low < high - wanted, low, high))):
        yield chosen[first:last]
