"""The canonical packing: which clients are computed together, whatever the engine.

Libraries round a product differently in another shape. So a round's clients are cut into blocks by
a rule that knows the list of clients, their numbers of records and the model, and nothing of
engines, nodes, threads or memory; a block is always computed as one unit, in arrays that start at
aligned addresses. Requests are made of whole blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_shuffle.gradients.networks.graph import Network, network_of
from fl_shuffle.gradients.structure import Layer, chain_of, saved_numbers
from fl_shuffle.gradients.tolerances import TOLERANCES

if TYPE_CHECKING:
    from fl_shuffle.compiled.row_clipping import RowClips


@dataclass(frozen=True)
class Packing:
    """At most `records` records and `clients` clients in a block; a larger client is one alone."""

    records: int
    clients: int

    def starts(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each block begins, and the end: [blocks + 1] positions in a list of clients.

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


def packing_of(
    module: nn.Module, shape: tuple[int, ...] | None = None, *, rows: bool = True
) -> Packing:
    """The packing of a model's clients; `shape` of one record, if it is known.

    rows: False for sums alone (`GradientEngine.clipped_sum`): closed forms of chains then hold no
    client's row, and any number of clients fits into a block.
    """
    layers = chain_of(module)
    dimension = sum(parameter.numel() for parameter in module.parameters())
    if layers is None:
        network = None if shape is None else network_of(module, shape)
        if network is not None:
            return packing_of_network(network, dimension)
        saved = None if shape is None else saved_numbers(module, shape)
        most = TOLERANCES.written_records_unknown if saved is None else TOLERANCES.written_records
        records = min(most, TOLERANCES.written_numbers // (dimension + (saved or 0)))
    else:
        linear = len(layers) == 1
        most = TOLERANCES.linear_block_numbers if linear else TOLERANCES.block_numbers
        records = most // activations_of(layers)
        if not rows:
            records *= 1 if linear else TOLERANCES.sum_passes
            # No limit: a client has at least one record.
            return Packing(max(1, records), sys.maxsize)
    return Packing(max(1, records), _with_rows(dimension))


def packing_of_network(network: Network, dimension: int) -> Packing:
    """The packing of a network's clients."""
    records = max(1, TOLERANCES.network_numbers // network.numbers)
    return Packing(records, _with_rows(dimension))


def _with_rows(dimension: int) -> int:
    return max(1, TOLERANCES.row_numbers // dimension)


def activations_of(layers: tuple[Layer, ...]) -> int:
    """Numbers that one record takes on its way forth and back."""
    return layers[0].fan_in + 2 * sum(layer.fan_out for layer in layers)


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
        """The places of its clients start .. stop - 1."""
        if isinstance(self.clients, slice):
            return slice(self.clients.start + start, self.clients.start + stop)
        return self.clients[start:stop]


def segments_of(sizes: NDArray[np.int64]) -> tuple[list[Segment], NDArray[np.int64] | None]:
    """A block's clients by size, and the order [n] this puts its records in (None: as they are)."""
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


@dataclass(frozen=True)
class SumPlan:
    """The clients of a sum (`GradientEngine.plan_sum`): where their records begin [k + 1], how many
    they have [k], to what they are clipped (None: not at all), what each of them counts, where
    blocks begin [b + 1], the grid of their sums, and to what clients' means are clipped, if they
    are: then the shares are the means', and `pairs` [b] says in which blocks their lengths come
    from scalar products of pairs of records (None: in none)."""

    bounds: NDArray[np.int64]
    sizes: NDArray[np.int64]
    limits: Tensor | None
    shares: Tensor
    starts: NDArray[np.int64]
    grid: float
    mean_clips: RowClips | None = None
    pairs: NDArray[np.bool_] | None = None

    @cached_property
    def stretches(self) -> list[Stretch]:
        """The plan's blocks, as many at a time as are done in one way."""
        if self.pairs is None or len(np.unique(self.pairs)) < 2:
            return [Stretch(self, 0, len(self.sizes), 0, int(self.bounds[-1]))]
        changes = (np.flatnonzero(np.diff(self.pairs)) + 1).tolist()
        found = []
        for a, b in pairwise([0, *changes, len(self.pairs)]):
            clients = self.starts[[a, b]].tolist()
            found.append(Stretch(self._part(a, b), *clients, *self.bounds[clients].tolist()))
        return found

    @property
    def by_pairs(self) -> bool:
        """Whether the first block, of a stretch every one, goes by pairs."""
        return self.pairs is not None and bool(self.pairs[0])

    def _part(self, first: int, last: int) -> SumPlan:
        """The blocks first .. last - 1."""
        starts = self.starts[first : last + 1]
        some = slice(int(starts[0]), int(starts[-1]))
        bounds = self.bounds[some.start : some.stop + 1]
        clips = self.mean_clips
        return SumPlan(
            bounds - bounds[0],
            self.sizes[some],
            None if self.limits is None else self.limits[some],
            self.shares[some],
            starts - starts[0],
            self.grid,
            None if clips is None else clips._replace(radii=clips.radii[:, some]),
            None if self.pairs is None else self.pairs[first:last],
        )


class Stretch(NamedTuple):
    """Successive blocks of a sum that are done in one way: their plan, and which of the whole
    plan's they are: the clients first .. last - 1, whose records are start .. stop - 1."""

    plan: SumPlan
    first: int
    last: int
    start: int
    stop: int


def equal_pieces(size: int, most: int) -> Iterator[slice]:
    """`size` records in pieces of about equal length, `most` at most; depends on `size` alone."""
    step = -(-size // -(-size // most))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))
