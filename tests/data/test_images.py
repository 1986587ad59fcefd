"""Folders of pictures: classes, clients, sizes; and nothing private decides what is published."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.sources import load_records, stamps_of
from fl_shuffle.errors import FlShuffleError
from tests.small_federation import Launch

COLORS = {"blue": (0, 0, 200), "red": (200, 0, 0)}


def draw(path: Path, color: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)


def pictures(root: Path, clients: tuple[str, ...] = ("",)) -> Path:
    """Three training pictures of each class for each client, and one test picture of each class."""
    for name, color in COLORS.items():
        for client in clients:
            for number in range(3):
                draw(root / "train" / client / name / f"{number}.png", color)
        draw(root / "test" / name / "0.jpg", color)
    return root


def section(root: Path, partition: str = "iid", **options: Any) -> DataSection:
    return DataSection(source="images", root=str(root), partition=partition, source_options=options)


def test_classes_are_the_names_of_folders(tmp_path: Path) -> None:
    found = load_records(section(pictures(tmp_path), size=4))
    assert found.train_images.shape == (6, 3, 4, 4) and found.train_images.dtype == np.uint8
    assert found.classes == 2 and found.train_clients is None
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (found.train_images[0, :, 0, 0] == COLORS["blue"]).all()
    assert (found.train_images[5, :, 3, 3] == COLORS["red"]).all()
    assert found.test_labels.tolist() == [0, 1]


def test_gray_pictures_and_sizes_that_are_no_square(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "red" / "wide.png", (255, 255, 255), (40, 10))
    draw(tmp_path / "test" / "red" / "0.png", (0, 0, 0))
    found = load_records(section(tmp_path, size=[5, 9], mode="gray"))
    assert found.train_images.shape == (1, 5, 9)
    assert (found.train_images == 255).all() and not found.test_images.any()


def test_clients_are_the_outer_folders(tmp_path: Path) -> None:
    pictures(tmp_path, ("north", "south"))
    found = load_records(section(tmp_path, "natural", size=4))
    assert found.train_clients is not None
    assert found.train_clients.tolist() == ["north"] * 6 + ["south"] * 6
    assert found.train_labels.tolist() == [0, 0, 0, 1, 1, 1] * 2


def test_private_files_decide_nothing_that_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is no picture, a text in a picture's place, a folder that is no class, a size."""
    pictures(tmp_path)
    before = load_records(section(tmp_path, size=4))
    (tmp_path / "train" / "red" / "1.png").write_text("secret")
    (tmp_path / "train" / "green").mkdir()
    (tmp_path / "train" / "red" / "2.png").rename(tmp_path / "train" / "green" / "2.png")
    draw(tmp_path / "train" / "red" / "0.png", COLORS["red"], (300, 20))
    with caplog.at_level(logging.WARNING):
        after = load_records(section(tmp_path, size=4))
    assert after.classes == before.classes
    assert after.train_images.shape == before.train_images.shape
    assert sorted(after.train_labels.tolist()) == [-1, -1, 0, 0, 0, 1]
    assert [said.name for said in caplog.records] == ["fl_shuffle.client"]
    assert "1 of 6 training files are no pictures, and 1 lie" in caplog.text
    assert "secret" not in caplog.text


def test_names_of_classes_can_be_declared(tmp_path: Path) -> None:
    """In that order; then a run without a test folder holds private records out."""
    pictures(tmp_path)
    for file in (tmp_path / "test").rglob("*.jpg"):
        file.unlink()
    declared = section(tmp_path, size=4, class_names=["red", "blue"])
    found = load_records(DataSection(**{**vars(declared), "validation_fraction": 0.34}))
    assert found.classes == 2 and len(found.test_labels) == 2
    assert set(found.train_labels.tolist()) == {0, 1}


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    """The cache's key: each client's files, four folders deep."""
    pictures(tmp_path, ("north",))
    before = stamps_of(section(tmp_path))
    assert len(before) == 8
    draw(tmp_path / "train" / "north" / "red" / "1.png", (1, 2, 3), (9, 9))
    assert stamps_of(section(tmp_path)) != before


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ("none", {"size": 0}, "size = 0: must be a whole number from 1 to 1,024"),
        ("none", {"size": [3, 4, 5]}, "size"),
        ("none", {"size": True}, "size = True"),
        ("none", {"mode": "cmyk"}, "mode = 'cmyk'"),
        ("none", {"sise": 3}, "did you mean 'size'|takes no such option"),
        ("no test", {}, "needs class_names"),
        ("no train", {}, "needs a folder with train/CLASS/FILE"),
        ("empty", {}, "holds no pictures"),
        ("natural", {}, "has no folders of clients"),
        ("mixed", {}, "holds pictures and folders of pictures"),
        ("beside", {}, "folders of classes beside folders of clients"),
        ("bad test", {}, r"0.jpg is not a readable picture \(UnidentifiedImageError"),
        ("test class", {"class_names": ["red"]}, "'blue' is not one of the classes red"),
    ],
)
def test_what_does_not_fit_is_one_line(
    change: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    root = pictures(tmp_path / "pictures")
    if change == "no test":
        (root / "test").rename(tmp_path / "elsewhere")
    elif change == "no train":
        (root / "train").rename(tmp_path / "elsewhere")
    elif change == "empty":
        for file in (root / "train").rglob("*.png"):
            file.unlink()
    elif change == "mixed":
        draw(root / "train" / "red" / "deeper" / "0.png", (0, 0, 0))
    elif change == "beside":
        draw(root / "train" / "north" / "red" / "0.png", (0, 0, 0))
    elif change == "bad test":
        (root / "test" / "red" / "0.jpg").write_text("no picture")
    with pytest.raises(FlShuffleError, match=said) as caught:
        load_records(section(root, "natural" if change == "natural" else "iid", **options))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_run_on_pictures_by_client(launch: Launch, tmp_path: Path) -> None:
    clients = tuple(f"site-{number}" for number in range(6))
    root = pictures(tmp_path / "pictures", clients)
    settings = (
        "data.source=images", f"data.root={root}", "data.partition=natural", "data.clients=6",
        "data.records_per_client=0", "data.features=pixels", "data.source_options={size=8}",
        "model.kind=cnn",
        "run.rounds=1", "budgets.distribution=constant", "budgets.epsilon=0.5",
    )  # fmt: skip
    assert launch("run", *settings) == 0
    assert (tmp_path / "run" / "model.safetensors").is_file()
