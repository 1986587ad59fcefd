"""Records for a simulated federation: sources, and how they are cut into clients."""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.errors import DataError, require_integer
from fl_shuffle.plugins import load_attribute

Images = NDArray[np.generic]
Labels = NDArray[np.int64]

DATA_VARIABLE = "FL_SHUFFLE_DATA"
UNDECLARED = 0
MNIST_FILES = {
    "train-images-idx3-ubyte": 16 + 60_000 * 784,
    "train-labels-idx1-ubyte": 8 + 60_000,
    "t10k-images-idx3-ubyte": 16 + 10_000 * 784,
    "t10k-labels-idx1-ubyte": 8 + 10_000,
}
THREE_WAYS = (
    f"name a folder that holds MNIST/raw with --data DIR, [data] root, or the variable "
    f"{DATA_VARIABLE}"
)


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
        records = _digits()
    elif section.source == "mnist":
        records = _mnist(section.root)
    else:
        answer = load_attribute(section.source, field="data.source")(section)
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


def _digits() -> Records:
    """1,797 handwritten digits of 8 x 8 pixels (0 to 16), every fifth kept for testing.

    The file ships inside scikit-learn; it is read directly, because importing scikit-learn takes
    longer than the whole quickstart round.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("data.source = 'digits' needs scikit-learn; pip install scikit-learn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); reinstall scikit-learn") from None
    images, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64].astype(np.int64)
    test = np.arange(len(labels)) % 5 == 4
    return Records(images[~test], labels[~test], images[test], labels[test], classes=10)


def _mnist(configured: str) -> Records:
    root = Path(configured or os.environ.get(DATA_VARIABLE, "") or "data")
    explicit = bool(configured or os.environ.get(DATA_VARIABLE))
    if explicit and not root.is_dir():
        raise DataError(f"data folder {root} does not exist or is not a folder; {THREE_WAYS}")
    raw = root / "MNIST" / "raw"
    present = [name for name in MNIST_FILES if (raw / name).is_file()]
    from fl_shuffle.tasks.torchvision_compat import import_torchvision_datasets

    datasets = import_torchvision_datasets()
    if not present:
        try:
            datasets.MNIST(str(root), train=True, download=True)
        except Exception as error:  # any transport or filesystem failure has the same remedy
            raise DataError(
                f"MNIST is not in {root} and could not be downloaded "
                f"({type(error).__name__}: {error}); {THREE_WAYS}"
            ) from None
    for name, size in MNIST_FILES.items():
        path = raw / name
        if not path.is_file():
            raise DataError(f"{path} is missing; restore it or remove {raw} to download again")
        if path.stat().st_size != size:
            raise DataError(
                f"{path} has {path.stat().st_size} bytes instead of {size}: it is truncated or not "
                f"MNIST; remove {raw} to download again"
            )
    try:
        parts = [datasets.MNIST(str(root), train=train) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, KeyError, AssertionError) as error:
        # What torchvision raises for a header that is not MNIST's varies with the byte that is off.
        kind = type(error).__name__
        raise DataError(f"MNIST in {raw} cannot be read ({kind} {error}); {THREE_WAYS}") from None
    train, test = ((part.data.numpy(), part.targets.numpy().astype(np.int64)) for part in parts)
    return Records(*train, *test, classes=10)


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
