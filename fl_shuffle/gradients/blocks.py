"""The canonical packing: which clients are computed together, whatever the engine.

Libraries round a product differently in another shape. So a round's clients are cut into blocks by
a rule that knows the list of clients, their numbers of records and the model, and nothing of
engines, nodes, threads or memory; a block is always computed as one unit, in arrays that start at
aligned addresses. Requests are made of whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.gradients.networks.chain import Network, network_of
from fl_shuffle.gradients.structure import saved_numbers

ROW_NUMBERS = 1 << 22
"""Numbers in one block's rows: they are one reply at least."""
NETWORK_NUMBERS = 1 << 23
"""Numbers in one block of a network: its layers' inputs as patches, results, and gradients by
both."""
LINEAR_NUMBERS = 1 << 19
"""Without hidden layers a block of that size would be a large part of a round, and cores would
wait."""
GENERAL_NUMBERS = 1 << 22
"""Gradients of single records held at once, and what autograd keeps: with fewer numbers the fixed
cost of vmap shows, more of them leave the caches."""
GENERAL_RECORDS = 512
"""Beyond this number of records in a block, the fixed cost is negligible."""


@dataclass(frozen=True)
class Packing:
    """At most `records` records and `clients` clients in a block; a larger client is one alone."""

    records: int
    clients: int

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each block begins, and the end: [blocks + 1] positions in a list of clients.

        sizes [K]: the clients' numbers of records, in the list's order. A block takes clients while
        they fit, so that a list that begins at a block's start is cut as the whole list is.
        """
        ends = np.cumsum(sizes)
        starts, filled, position = [0], 0, 0
        while position < len(sizes):
            fitting = int(np.searchsorted(ends, filled + self.records, side="right"))
            position = min(max(fitting, position + 1), position + self.clients)
            filled = int(ends[position - 1])
            starts.append(position)
        return np.array(starts, dtype=np.int64)


def packing_of(module: nn.Module, shape: tuple[int, ...]) -> Packing:
    """Return the packing of a model's clients; `shape` of one record."""
    return packing_of_network(module, shape, network_of(module, shape))


def packing_of_network(
    module: nn.Module, shape: tuple[int, ...], network: Network | None
) -> Packing:
    """Return the same for a module that was read already."""
    dimension = sum(parameter.numel() for parameter in module.parameters())
    if network is None:
        saved = saved_numbers(module, shape)
        records = min(GENERAL_RECORDS, GENERAL_NUMBERS // (dimension + saved))
    else:
        most = LINEAR_NUMBERS if network.linear else NETWORK_NUMBERS
        records = most // network.numbers
    return Packing(max(1, records), max(1, ROW_NUMBERS // dimension))


@dataclass(frozen=True)
class Segment:
    """`count` clients of `size` records each, from row `row` of the block's records on.

    `clients`: their places in the block.
    """

    clients: slice | Tensor
    count: int
    size: int
    row: int

    def places(self, start: int, stop: int) -> slice | Tensor:
        """Return the places of its clients start .. stop - 1."""
        if isinstance(self.clients, slice):
            return slice(self.clients.start + start, self.clients.start + stop)
        return self.clients[start:stop]


def segments_of(sizes: NDArray[np.int64]) -> tuple[list[Segment], NDArray[np.int64] | None]:
    """Return a block's clients by size, and the order [n] this puts its records in (None: as they
    are)."""
    if bool((sizes == sizes[0]).all()):
        return [Segment(slice(0, len(sizes)), len(sizes), int(sizes[0]), 0)], None
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    begins = np.cumsum(sizes) - sizes
    rows = np.cumsum(ordered) - ordered
    index = np.arange(int(sizes.sum())) + np.repeat(begins[order] - rows, ordered)
    changes = np.flatnonzero(np.diff(ordered)) + 1
    found = [
        Segment(torch.from_numpy(order[a:b]), b - a, int(ordered[a]), int(rows[a]))
        for a, b in pairwise([0, *changes.tolist(), len(sizes)])
    ]
    return found, index


def equal_pieces(size: int, most: int) -> Iterator[slice]:
    """Yield `size` records in pieces of about equal length, `most` at most; depends on `size`
    alone."""
    step = -(-size // -(-size // most))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
