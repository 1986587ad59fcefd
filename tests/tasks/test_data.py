"""Records and how they are cut into clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.errors import DataError
from fl_shuffle.tasks.data import load_records, make_partition
from fl_shuffle.tasks.sources import mnist

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


def test_validation_is_taken_from_the_training_part() -> None:
    whole, held = load_records(DataSection()), load_records(DataSection(validation=0.1))
    assert len(held.train_labels) + len(held.test_labels) == len(whole.train_labels)
    assert held.fingerprint() != whole.fingerprint()


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


def test_unequal_sizes_leave_nobody_empty() -> None:
    sizes = make_partition(DataSection(clients=100, sizes="unequal"), LABELS, 10).sizes
    assert sizes.min() >= 1 and sizes.max() > 3 * sizes.min() and sizes.sum() <= 1000


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


def test_mnist_that_is_missing_truncated_or_unreadable(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data DIR, .data. root, or the variable"):
        load_records(DataSection(source="mnist", root=str(tmp_path / "nowhere")))
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in mnist.SHAPES:
        (raw / name).write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="100 bytes instead of 47040016"):
        load_records(DataSection(source="mnist", root=str(tmp_path)))
    (raw / "t10k-labels-idx1-ubyte").unlink()
    (raw / "train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(DataError, match="train-images"):
        load_records(DataSection(source="mnist", root=str(tmp_path)))


def test_mnist_of_the_right_size_but_the_wrong_content(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, shape in mnist.SHAPES.items():
        with (raw / name).open("wb") as file:
            file.truncate(mnist.file_size(shape))
    with pytest.raises(DataError, match="cannot be read"):
        load_records(DataSection(source="mnist", root=str(tmp_path)))


def test_mnist_is_read_by_numpy_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)  # importing it would fail
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, shape in mnist.SHAPES.items():
        with (raw / name).open("wb") as file:
            file.write(mnist.header(shape))
            file.write(bytes([9, 7]))
            file.truncate(mnist.file_size(shape))
    # As the format's description has it: magic number 2051, 60000 images of 28 by 28.
    assert (raw / "train-images-idx3-ubyte").read_bytes()[:16].hex() == (
        "000008030000ea600000001c0000001c"
    )
    records = load_records(DataSection(source="mnist", root=str(tmp_path)))
    assert records.train_images[0, 0, :3].tolist() == [9, 7, 0]
    assert records.test_labels[:3].tolist() == [9, 7, 0]
    with pytest.raises(DataError, match="could not be downloaded"):
        load_records(DataSection(source="mnist", root=str(raw)))


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
        "from fl_shuffle.tasks.data import Records\n"
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
