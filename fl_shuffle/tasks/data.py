"""Records for a simulated federation: sources, and how they are cut into clients."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.errors import DataError, require_integer
from fl_shuffle.plugins import load_function
from fl_shuffle.tasks.sources import digits, mnist

Images = NDArray[np.generic]
Labels = NDArray[np.int64]

UNDECLARED = 0
"""Stands for a number of classes that the source has not declared."""
SHIPPED = ("digits", "mnist")
"""Sources that read files of this machine; what is made of these may be kept on it."""


@dataclass(frozen=True)
class Records:
    """Train and test records: images [N, ...], labels [N] in 0 .. classes-1, and `classes`.

    `classes` is declared, never counted: it shapes the model that every client is sent, and must
    not hang on private labels. A training label outside of it is its holder's mistake: nobody is
    told, and the record counts as one without a finite gradient does. Test records are public.
    Raises `DataError` for shapes that do not fit and for a missing `classes`.
    """

    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int = UNDECLARED

    def __post_init__(self) -> None:
        if self.classes == UNDECLARED:
            raise DataError(
                "Records.classes is missing: declare how many classes the labels have, as "
                "Records(..., classes=10); it is published with the model's shape and is not read "
                "from the labels"
            )
        require_integer("Records.classes", self.classes, minimum=1)
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            for what, array in (("images", images), ("labels", labels)):
                if not isinstance(array, np.ndarray) or not array.ndim:
                    raise DataError(
                        f"Records.{part}_{what} is a {type(array).__name__}; it must be a NumPy "
                        "array with one row per record"
                    )
            if len(images) != len(labels) or labels.ndim != 1 or not len(labels):
                raise DataError(
                    f"{part} data: {len(images)} images and {labels.shape} labels; "
                    "there must be one label per image and at least one record"
                )
            if not np.issubdtype(labels.dtype, np.integer):
                raise DataError(f"{part} labels must be whole numbers, got {labels.dtype}")

    def fingerprint(self) -> str:
        """A digest of every byte of the data. Never publish it: see `fl_shuffle.runs.data_check`.

        Whoever knows all records but one finds that one by trying values.
        """
        digest = hashlib.blake2b(str(self.classes).encode(), digest_size=16)
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(str((array.shape, array.dtype)).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def load_records(section: DataSection) -> Records:
    """Records of the section's source, with `validation` of the training part held out as the test
    part when asked. Raises `DataError` with the remedy when they cannot be had."""
    if section.source == "digits":
        records = Records(*digits.read(), classes=10)
    elif section.source == "mnist":
        records = Records(*mnist.read(section.root), classes=10)
    else:
        answer = load_function(section.source, "section", field="data.source")(section)
        if not isinstance(answer, Records):
            raise DataError(
                f"data.source = {section.source!r} returned {type(answer).__name__}; "
                "it must return fl_shuffle.tasks.data.Records"
            )
        records = answer
    _require_test_labels(records)
    if not section.validation:
        return records
    order = np.random.Generator(np.random.Philox(key=[section.seed, 0x56414C])).permutation(
        len(records.train_labels)
    )
    held = max(1, round(section.validation * len(order)))
    keep, out = np.sort(order[held:]), np.sort(order[:held])
    return Records(
        records.train_images[keep],
        records.train_labels[keep],
        records.train_images[out],
        records.train_labels[out],
        records.classes,
    )


def _require_test_labels(records: Records) -> None:
    """Only the source's own test records: they are public, as an error about them is."""
    labels = records.test_labels
    outside = (labels < 0) | (labels >= records.classes)
    if outside.any():
        raise DataError(
            f"test label {labels[outside][0]} is not in 0 .. {records.classes - 1}; "
            "correct it, or Records.classes"
        )


@dataclass(frozen=True)
class Partition:
    """Client i holds the records `order[offsets[i]:offsets[i + 1]]`."""

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def make_partition(section: DataSection, labels: Labels, classes: int) -> Partition:
    """Cut the training records into `clients` parts; the same section gives the same parts.

    `iid`: a random order cut in pieces. `dirichlet`: each client draws class proportions from
    Dirichlet(alpha). `shards`: records sorted by label are cut into clients x shards_per_client
    runs dealt at random. `ordered`: client after client, as the source has them. Sizes are equal (a
    remainder stays unused) or drawn log-normally (`unequal`, each client at least one record).
    `classes` is the number that the source declares; a label outside of it is dealt as some other.
    `dirichlet` and `shards` look at private labels: guarantees are about the partition they give.
    Raises `DataError` for more clients than records.
    """
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
