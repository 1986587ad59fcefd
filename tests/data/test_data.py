"""Records and how they are cut into clients."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import DataError

LABELS = np.repeat(np.arange(10), 100)


def test_digits_are_real_and_fixed() -> None:
    records = load_records(DataSection())
    assert len(records.train_labels) + len(records.test_labels) == 1797
    assert records.train_images.max() == 16 and records.classes == 10
    assert records.fingerprint() == load_records(DataSection()).fingerprint()
    labels = np.concatenate([records.train_labels, records.test_labels])
    # The source's own count of each digit.
    counted = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(labels).tolist() == counted
    first = [0, 0, 5, 13, 9, 1, 0, 0]
    assert records.train_images[0, 0].tolist() == first and records.train_labels[0] == 0


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_partitions_are_disjoint_equal_and_repeatable(partition: str) -> None:
    section = DataSection(clients=20, partition=partition)
    parts = make_partition(section, LABELS, 10)
    assert parts.sizes.tolist() == [50] * 20
    assert len(np.unique(parts.order)) == len(parts.order) == 1000
    assert (parts.order == make_partition(section, LABELS, 10).order).all()


def test_skew_is_skewed() -> None:
    def classes_per_client(partition: str, **options: object) -> float:
        section = DataSection(clients=20, partition=partition, **options)  # type: ignore[arg-type]
        parts = make_partition(section, LABELS, 10)
        labels = LABELS[parts.order]
        spans = zip(parts.offsets[:-1], parts.offsets[1:], strict=True)
        return float(np.mean([len(np.unique(labels[a:b])) for a, b in spans]))

    assert classes_per_client("shards") <= 4
    assert classes_per_client("dirichlet", alpha=0.05) < 6 < classes_per_client("iid")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 1001}, "more clients than the 1000"),
        ({"clients": 100, "records": 11}, "needs 1100"),
        ({"clients": 600, "partition": "shards"}, "shards_per_client"),
        ({"partition": "shards", "sizes": "unequal"}, "equal"),
    ],
)
def test_partitions_that_cannot_be(options: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_partition(DataSection(**options), LABELS, 10)  # type: ignore[arg-type]


MNIST = {
    "train-images-idx3-ubyte": (5, 28, 28),
    "train-labels-idx1-ubyte": (5,),
    "t10k-images-idx3-ubyte": (3, 28, 28),
    "t10k-labels-idx1-ubyte": (3,),
}


def mnist_of(folder: Path, cut: int = 0) -> Path:
    """A folder with made-up files of MNIST's names, the training images `cut` bytes too short."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, shape in MNIST.items():
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        body = bytes([9, 7]) + bytes(int(np.prod(shape)) - 2)
        short = cut if name.startswith("train-images") else 0
        (raw / name).write_bytes((header + body)[: len(header + body) - short])
    return folder


@pytest.mark.parametrize("cut", [1, 5 * 28 * 28, 5 * 28 * 28 + 16])
def test_mnist_that_is_cut_off(cut: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mnist cannot be read from .* remove torchvision's files"):
        load_records(DataSection(source="mnist", root=str(mnist_of(tmp_path, cut))))


def test_a_data_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    with pytest.raises(DataError, match="--data DIR, .data. root, or the variable"):
        load_records(DataSection(source="mnist", root=str(nowhere)))
    assert not nowhere.exists()


@pytest.mark.mnist
def test_the_real_mnist() -> None:
    root = os.environ.get("FL_SHUFFLE_DATA")
    if not root:
        pytest.skip("FL_SHUFFLE_DATA does not name a folder with MNIST")
    records = load_records(DataSection(source="mnist", root=root))
    assert records.train_images.shape == (60_000, 28, 28)
    assert np.bincount(records.test_labels)[:2].tolist() == [980, 1135]


def test_a_users_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data.py").write_text(
        "import numpy as np\n"
        "from fl_shuffle.data import Records\n"
        "def good(section):\n"
        "    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 4\n"
        "    return Records(x, y, x, y, classes=4)\n"
        "def bad(section): return 3\n"
        "def ragged(section):\n"
        "    x, y = np.zeros((40, 8, 8), np.uint8), np.arange(39) % 4\n"
        "    return Records(x, y, x, y, classes=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_records(DataSection(source="my_data:good")).classes == 4
    with pytest.raises(DataError, match="returned int"):
        load_records(DataSection(source="my_data:bad"))
    with pytest.raises(DataError, match="40 images and"):
        load_records(DataSection(source="my_data:ragged"))
