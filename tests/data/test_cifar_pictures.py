"""CIFAR-10 from pictures: a folder or a tar gives the same records; nothing private is told."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.data.sources import cifar_pictures, load_records, stamps_of
from fl_shuffle.errors import DataError

LAID_OUT = (
    ("train/bird/7.png", 20), ("train/airplane/1.png", 30), ("train/truck/2.png", 40),
    ("test/truck/1.png", 50), ("test/cat/1.png", 60),
)  # fmt: skip


def png(level: int, side: int = 32) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (level, level + 1, level + 2)).save(file, "png")
    return file.getvalue()


def folder(root: Path, more: dict[str, bytes] | None = None) -> Path:
    for name, content in [*((name, png(level)) for name, level in LAID_OUT), *(more or {}).items()]:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def packed(place: Path, root: Path) -> Path:
    with tarfile.open(place, "w:gz") as tar:
        tar.add(root, "cifar10")
    return place


def read(root: Path) -> Records:
    return load_records(DataSection(source="cifar10", root=str(root)))


def test_folder_and_tar_give_the_same_records_by_known_classes(tmp_path):
    root = folder(tmp_path / "pictures")
    tar = packed(tmp_path / "cifar10_png.tar.gz", root)
    for place in (root, tar, tmp_path):
        found = read(place)
        assert found.train_images.shape == (3, 3, 32, 32) and found.train_images.dtype == np.uint8
        assert found.train_labels.tolist() == [0, 2, 9] and found.test_labels.tolist() == [3, 9]
        assert found.train_images[1, :, 5, 6].tolist() == [20, 21, 22]
        assert found.classes == 10


def test_training_file_that_is_no_picture_counts_as_zero(tmp_path, caplog):
    wrong = {"train/bird/8.png": b"none", "train/bird/9.png": png(9, 16), "train/gnu/1.png": png(9)}
    found = read(folder(tmp_path, wrong))
    assert len(found.train_labels) == 6
    zero = ~found.train_images.reshape(6, -1).any(axis=1)
    assert zero.sum() == 3 and (found.train_labels[zero] < 0).all()
    (line,) = [each for each in caplog.records if each.name == "fl_shuffle.client"]
    assert "3 of 6 training files" in line.getMessage() and "gnu" not in line.getMessage()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("test/gnu/1.png", png(1), "'gnu' is not one of the classes"),
        ("test/cat/9.png", b"none", "test/cat/9.png is no picture"),
        ("test/cat/9.png", png(1, 31), "31 x 31 pixels"),
        ("test/cat/9.png", png(1) + bytes(1 << 20), "larger than"),
    ],
)
def test_wrong_test_file_is_refused_by_name(tmp_path, file, content, words):
    with pytest.raises(DataError, match=words) as refusal:
        read(folder(tmp_path, {file: content}))
    assert "\n" not in str(refusal.value)


def test_places_without_pictures_are_refused(tmp_path):
    (tmp_path / "empty.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match="cannot be read as a tar of pictures"):
        read(tmp_path / "empty.tar")
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="no pictures.*in train/CLASS"):
        read(tmp_path)
    root = folder(tmp_path / "pictures")
    (tmp_path / "two").mkdir()
    for name in ("cifar10_a.tar", "cifar10_b.tgz"):
        packed(tmp_path / "two" / name, root)
    with pytest.raises(DataError, match=r"several tars.*cifar10_a.tar, cifar10_b.tgz"):
        read(tmp_path / "two")


def test_a_changed_tar_is_read_anew(tmp_path):
    tar = packed(tmp_path / "cifar10.tar.gz", folder(tmp_path / "pictures"))
    section = DataSection(source="cifar10", root=str(tar))
    before = stamps_of(section)
    assert before and stamps_of(section) == before
    packed(tar, folder(tmp_path / "pictures", {"train/dog/1.png": png(3)}))
    assert stamps_of(section) != before


def test_torchvisions_own_file_is_no_tar_of_pictures(tmp_path):
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"")
    assert cifar_pictures.find(tmp_path) is None
