"""How records are cut into clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Labels
from fl_shuffle.errors import DataError


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
    Dirichlet(alpha), and is dealt records of these classes. `dirichlet-by-class`: each class draws
    the clients' shares of its records from Dirichlet(alpha). `classes`: each client has records of
    exactly `classes_per_client` classes. `shards`: records sorted by label are cut into clients x
    shards_per_client runs dealt at random. `ordered`: client after client, as the source has them.
    `natural`: every record to its owner in `owners` [N], ids in ascending order, the first
    `clients` of them. Where the partition does not say how many records a client has, sizes are
    equal (a remainder stays unused), drawn log-normally (`unequal`), or shares from
    Dirichlet(sizes_alpha) (`dirichlet`); each client has at least one record. No partition but
    `ordered` and `natural` treats clients by their number: all are exchangeable.
    `classes` is the number that the source declares; a label outside of it is dealt as some other.
    Partitions by label look at private labels: guarantees are about the partition they give.
    Raises `DataError` for more clients than records, or than there are owners.
    """
    if section.partition == "natural":
        return _natural(section, owners)
    clients, total = section.clients, len(labels)
    if section.records_per_client:
        wanted = section.records_per_client * clients
        if wanted > total:
            raise DataError(
                f"data.clients = {clients} x data.records_per_client = "
                f"{section.records_per_client} needs {wanted} training records; the source has "
                f"{total}: lower one of them"
            )
        total = wanted
    if clients > total:
        raise DataError(
            f"data.clients = {clients}: more clients than the {total} training records; "
            "lower data.clients"
        )
    if section.dealt_by_label and not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"data.partition = {section.partition!r} deals records by class, but these are "
            "labelled with numbers; choose iid, ordered or natural"
        )
    rng = np.random.Generator(np.random.Philox(key=[section.seed, 0x504152]))
    inside = np.mod(labels, classes) if section.dealt_by_label else labels
    if section.partition in ("dirichlet-by-class", "classes"):
        deal = _by_class if section.partition == "dirichlet-by-class" else _few_classes
        held = deal(section, _pools(inside, classes, rng), rng)
        return _partition_of(held)
    sizes = _sizes(section, clients, total, rng)
    if section.partition == "shards":
        order = _shards(section, labels, sizes, rng)
    elif section.partition == "dirichlet":
        order = _dirichlet(section.dirichlet_alpha, _pools(inside, classes, rng), sizes, rng)
    elif section.partition == "ordered":
        order = np.arange(sizes.sum())
    else:
        order = rng.permutation(len(labels))[: sizes.sum()]
    return Partition(order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _natural(section: DataSection, owners: NDArray[Any] | None) -> Partition:
    if owners is None:
        raise DataError(
            f"data.partition = 'natural': data.source = {section.source!r} does not name the "
            "client of each record; have it return Records(..., train_clients=...), or choose "
            "another partition"
        )
    names, owner = np.unique(owners, return_inverse=True)
    if section.clients > len(names):
        raise DataError(
            f"data.clients = {section.clients}: the source has {len(names)} clients; set "
            f"data.clients = {len(names)}, or fewer to use the first clients only"
        )
    owner = owner.reshape(-1)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(names))[: section.clients]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Partition(order[: offsets[-1]].astype(np.int64), offsets)


def client_names(section: DataSection, owners: NDArray[Any] | None) -> list[str] | None:
    """Return the ids that the source gives the clients, in their order; None where a partition
    makes clients up. They are for reading the user's own files, never published."""
    if section.partition != "natural" or owners is None:
        return None
    return [str(name) for name in np.unique(owners)[: section.clients].tolist()]


def _sizes(
    section: DataSection, clients: int, total: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    if section.sizes == "equal":
        return np.full(clients, total // clients, dtype=np.int64)
    if section.sizes == "dirichlet":
        log_share = _log_shares(section.sizes_alpha, (1, clients), rng)[0]
        share = np.exp(log_share - log_share.max())
    else:
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


def _pools(inside: Labels, classes: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Return the records of each class, in random order."""
    return [rng.permutation(np.flatnonzero(inside == label)) for label in range(classes)]


def _log_shares(
    alpha: float, shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return logarithms of Dirichlet(alpha) shares in each row, up to a constant of the row.

    A gamma variate of shape alpha is one of shape alpha + 1 times U^(1 / alpha) (Marsaglia and
    Tsang 2000, section 6). Its logarithm is finite however small alpha is: shares underflow.
    """
    gamma = rng.standard_gamma(alpha + 1.0, shape)
    uniform = 1.0 - rng.random(shape)  # in (0, 1]
    # No smaller alpha can be told from this one: the largest share is one either way.
    return np.asarray(np.log(gamma) + np.log(uniform) / max(alpha, 1e-300))


def _dirichlet(
    alpha: float,
    pools: list[NDArray[np.int64]],
    sizes: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Deal record after record, each to a random client that still lacks one.

    The client draws the class by its own shares among the classes that are left. A deal in the
    order of clients would leave the last ones whatever is left, whatever they have drawn.
    """
    log_share = _log_shares(alpha, (len(sizes), len(pools)), rng)
    left = np.array([len(pool) for pool in pools])
    slots = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    draws = rng.random(len(slots))
    chosen = np.empty(len(slots), dtype=np.int64)
    reach = _cumulated(log_share, left > 0)
    for place, (client, draw) in enumerate(zip(slots.tolist(), draws.tolist(), strict=True)):
        label = int(np.searchsorted(reach[client], draw, side="right"))
        left[label] -= 1
        chosen[place] = pools[label][left[label]]
        if not left[label] and place + 1 < len(slots):
            reach = _cumulated(log_share, left > 0)
    return chosen[np.argsort(slots, kind="stable")]


def _cumulated(log_share: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return each client's distribution function over the classes that are there; the last of them,
    and all behind it, reach 1."""
    logs = np.where(there, log_share, -np.inf)
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    reach = np.cumsum(weight, axis=1)
    reach /= reach[:, -1:]
    reach[:, np.flatnonzero(there)[-1] :] = 1.0
    return np.asarray(reach)


def _by_class(
    section: DataSection, pools: list[NDArray[np.int64]], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return each class's records among all clients, by shares from Dirichlet(alpha).

    A client that is left without a record gets one of the client that has the most.
    """
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(section.clients)]
    for pool in pools:
        log_share = _log_shares(section.dirichlet_alpha, (1, section.clients), rng)[0]
        reach = np.cumsum(np.exp(log_share - log_share.max()))
        ends = np.floor(reach / reach[-1] * len(pool)).astype(np.int64)
        for own, part in zip(held, np.split(pool, ends[:-1]), strict=True):
            own.append(part)
    found = [np.concatenate(parts) for parts in held]
    sizes = np.array([len(own) for own in found])
    for poor in np.flatnonzero(sizes == 0):
        rich = int(sizes.argmax())
        found[poor], found[rich] = found[rich][:1], found[rich][1:]
        sizes[poor], sizes[rich] = 1, sizes[rich] - 1
    return found


def _few_classes(
    section: DataSection, pools: list[NDArray[np.int64]], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return records of exactly this number of classes for each client; each class is divided among
    its clients."""
    each, there = section.classes_per_client, [pool for pool in pools if len(pool)]
    if each > len(there):
        raise DataError(
            f"data.classes_per_client = {each}: the training records have {len(there)} classes; "
            "lower it"
        )
    # Consecutive classes in a circle: each class has nearly the same number of clients.
    first = rng.permutation(section.clients) * each
    circle = rng.permutation(len(there))
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(section.clients)]
    for place, label in enumerate(circle.tolist()):
        members = np.flatnonzero((place - first) % len(there) < each)
        if len(members) > len(there[label]):
            raise DataError(
                f"data.partition = 'classes': {len(members)} clients would share a class of "
                f"{len(there[label])} records; lower data.clients or data.classes_per_client"
            )
        if not len(members):
            continue
        parts = np.array_split(there[label], len(members))
        for client, part in zip(rng.permutation(members).tolist(), parts, strict=True):
            held[client].append(part)
    return [np.concatenate(parts) for parts in held]


def _partition_of(held: list[NDArray[np.int64]]) -> Partition:
    """Return the partition of each client's records."""
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in held])]).astype(np.int64)
    return Partition(np.concatenate(held), offsets)
