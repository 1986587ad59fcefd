"""How a call's records are cut into blocks that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Segment:
    """`count` clients from row `client` on, `size` records each, from row `row` of the block.

    Each client's mean is over `total` records: more than `size` where this is one tile of a large
    client. `add`: the gradient joins what an earlier tile wrote.
    """

    client: int
    count: int
    size: int
    row: int
    total: int
    add: bool


@dataclass(frozen=True)
class Block:
    """Records [start, stop) of the call."""

    start: int
    stop: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Sorted:
    """Clients by size: their `order` [K], their records' `index` [N], their `bounds` [K+1]."""

    order: NDArray[np.int64]
    index: NDArray[np.int64]
    bounds: NDArray[np.int64]


def sorted_records(bounds: NDArray[np.int64]) -> Sorted | None:
    """Clients sorted by size, so that equal ones sit together; None if they already are."""
    sizes = bounds[1:] - bounds[:-1]
    if bool((sizes[1:] >= sizes[:-1]).all()):
        return None
    order = np.argsort(sizes, kind="stable")
    ordered = np.concatenate([[0], np.cumsum(sizes[order])])
    shift = np.repeat(bounds[:-1][order] - ordered[:-1], sizes[order])
    return Sorted(order, np.arange(bounds[-1]) + shift, ordered)


def equal_runs(bounds: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """(first, last + 1, size) of each run of neighbouring clients of equal size."""
    sizes = bounds[1:] - bounds[:-1]
    changes = np.flatnonzero(sizes[1:] != sizes[:-1]) + 1
    cuts = [0, *changes.tolist(), len(sizes)]
    for first, last in pairwise(cuts):
        yield first, last, int(sizes[first])


def blocks(
    bounds: NDArray[np.int64], rows: int, clients: int | None = None, grain: int = 1
) -> Iterator[Block]:
    """Cut clients into blocks of at most `rows` records and `clients` clients, in order.

    A client of more than `rows` records is cut, by its size alone, into tiles of about equal
    length, multiples of `grain` but for the last, one block each. Other blocks hold whole clients.
    `rows` must be a multiple of `grain`.
    """
    pending: list[Segment] = []
    origin, filled, held = 0, 0, 0
    most = rows if clients is None else clients
    for first, last, size in equal_runs(bounds):
        client = first
        while client < last:
            room = min((rows - filled) // size, most - held)
            if room >= 1:
                count = min(room, last - client)
                pending.append(Segment(client, count, size, filled, size, add=False))
                client, filled, held = client + count, filled + count * size, held + count
                continue
            if pending:
                yield Block(origin, origin + filled, tuple(pending))
                pending, origin, filled, held = [], origin + filled, 0, 0
                continue
            step = grain * -(-size // (-(-size // rows) * grain))
            for low, high in pairwise([*range(0, size, step), size]):
                segment = Segment(client, 1, high - low, 0, size, add=low > 0)
                yield Block(origin + low, origin + high, (segment,))
            client, origin = client + 1, origin + size
    if pending:
        yield Block(origin, origin + filled, tuple(pending))
