"""How records are cut into clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.errors import DataError

Labels = NDArray[Any]


@dataclass(frozen=True)
class Partition:
    """Client i holds the records `order[offsets[i]:offsets[i + 1]]`."""

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def make_partition(
    section: DataSection, labels: Labels, classes: int, owners: NDArray[Any] | None = None
) -> Partition:
    """Cut the training records into `clients` parts; the same section gives the same parts.

    `iid`: a random order cut in pieces. `dirichlet`: each client draws class proportions from
    Dirichlet(alpha). `shards`: records sorted by label are cut into clients x shards_per_client
    runs dealt at random. `ordered`: client after client, as the source has them. `natural`: every
    record to its owner in `owners` [N], ids in ascending order, the first `clients` of them. Other
    sizes are equal (a remainder stays unused) or drawn log-normally (`unequal`, each client at
    least one record).
    `classes` is the number that the source declares; a label outside of it is dealt as some other.
    `dirichlet` and `shards` look at private labels: guarantees are about the partition they give.
    Raises `DataError` for more clients than records, or than there are owners.
    """
    if section.partition == "natural":
        return _natural(section, owners)
    clients, total = section.clients, len(labels)
    if section.records:
        wanted = section.records * clients
        if wanted > total:
            raise DataError(
                f"data.clients = {clients} x data.records = {section.records} needs {wanted} "
                f"training records; the source has {total}: lower one of them"
            )
        total = wanted
    if clients > total:
        raise DataError(
            f"data.clients = {clients}: more clients than the {total} training records; "
            "lower data.clients"
        )
    if section.dealt_by_label and not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"data.partition = {section.partition!r} deals records by their class, and these are "
            "labelled with numbers; choose iid, ordered or natural"
        )
    rng = np.random.Generator(np.random.Philox(key=[section.seed, 0x504152]))
    sizes = _sizes(section, clients, total, rng)
    if section.partition == "shards":
        order = _shards(section, labels, sizes, rng)
    elif section.partition == "dirichlet":
        order = _dirichlet(section.alpha, labels, classes, sizes, rng)
    elif section.partition == "ordered":
        order = np.arange(sizes.sum())
    else:
        order = rng.permutation(len(labels))[: sizes.sum()]
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _natural(section: DataSection, owners: NDArray[Any] | None) -> Partition:
    if owners is None:
        raise DataError(
            f"data.partition = 'natural': data.source = {section.source!r} does not say whose each "
            "record is; have it return Records(..., train_clients=...), or choose another partition"
        )
    names, owner = np.unique(owners, return_inverse=True)
    if section.clients > len(names):
        raise DataError(
            f"data.clients = {section.clients}: the source has {len(names)} clients; set "
            f"data.clients = {len(names)}, or less for the first ones"
        )
    owner = owner.reshape(-1)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(names))[: section.clients]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(order[: offsets[-1]].astype(np.int64), offsets)


def client_names(section: DataSection, owners: NDArray[Any] | None) -> list[str] | None:
    """The ids that the source gives the clients, in their order; None where a partition makes
    clients up. They are for reading the user's own files, never published."""
    if section.partition != "natural" or owners is None:
        return None
    return [str(name) for name in np.unique(owners)[: section.clients].tolist()]


def _sizes(
    section: DataSection, clients: int, total: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    if section.sizes == "equal":
        return np.full(clients, total // clients, dtype=np.int64)
    share = rng.lognormal(0.0, 1.0, clients)
    sizes = 1 + np.floor(share / share.sum() * (total - clients)).astype(np.int64)
    return np.asarray(sizes, dtype=np.int64)


def _shards(
    section: DataSection, labels: Labels, sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    if section.sizes != "equal":
        raise DataError("data.partition = 'shards' needs data.sizes = 'equal'")
    shards = section.clients * section.shards_per_client
    if shards > sizes.sum():
        raise DataError(
            f"data.shards_per_client = {section.shards_per_client}: {shards} shards of "
            f"{sizes.sum()} records; lower it"
        )
    by_label = np.argsort(labels, kind="stable")[: sizes.sum()]
    pieces = np.array_split(by_label, shards)
    return np.concatenate([pieces[index] for index in rng.permutation(shards)])


def _dirichlet(
    alpha: float,
    labels: Labels,
    classes: int,
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    inside = np.mod(labels, classes)
    pools = [list(rng.permutation(np.flatnonzero(inside == label))) for label in range(classes)]
    chosen: list[int] = []
    for size in sizes:
        share = rng.dirichlet(np.full(classes, alpha))
        for _ in range(int(size)):
            left = np.array([len(pool) for pool in pools]) > 0
            weight = np.where(left, share, 0.0)
            weight = weight / weight.sum() if weight.sum() > 0 else left / left.sum()
            chosen.append(int(pools[rng.choice(classes, p=weight)].pop()))
    return np.array(chosen, dtype=np.int64)
