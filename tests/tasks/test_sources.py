"""Data sources by name and by file, in their own formats on disk, and what they may publish."""

from __future__ import annotations

import bz2
import hashlib
import json
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import SOURCES, TORCHVISION_SOURCES, DataSection
from fl_shuffle.errors import DataError, FlShuffleError
from fl_shuffle.tasks.data import READERS, Records, load_records, make_partition
from fl_shuffle.tasks.sources import gapminder, huggingface, named_images
from fl_shuffle.tasks.sources.options import Target
from fl_shuffle.tasks.sources.torchvision_datasets import import_torchvision_datasets

DRAW = np.random.Generator(np.random.Philox(7))


def section(source: str, root: Path | None = None, **more: Any) -> DataSection:
    return parse_config({"data": {"source": source, "root": str(root or ""), **more}}).data


def idx(values: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
    )


def images(count: int, *shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, (count, *shape)).astype(np.uint8)


def test_every_name_has_its_reader() -> None:
    assert set(READERS) == set(SOURCES)
    assert set(named_images.SETS) == set(TORCHVISION_SOURCES)
    data_sets = import_torchvision_datasets()
    assert all(hasattr(data_sets, each.name) for each in named_images.SETS.values())


@pytest.mark.parametrize(
    ("source", "folder", "options", "classes"),
    [
        ("fashion-mnist", "FashionMNIST/raw", {}, 10),
        ("kmnist", "KMNIST/raw", {}, 10),
        ("emnist", "EMNIST/raw", {"split": "letters"}, 27),
    ],
)
def test_the_mnist_family(
    tmp_path: Path, source: str, folder: str, options: dict[str, str], classes: int
) -> None:
    raw = tmp_path / folder
    raw.mkdir(parents=True)
    kept = {}
    for part, torchs, count in (("train", "train", 9), ("t10k", "test", 4)):
        pixels, labels = images(count, 28, 28), (np.arange(count) % 5).astype(np.uint8)
        name = f"emnist-letters-{torchs}" if source == "emnist" else part
        (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
        kept[torchs] = pixels, labels
    records = load_records(section(source, tmp_path, source_options=options))
    assert records.classes == classes
    assert (records.train_images == kept["train"][0]).all()
    assert (records.test_images == kept["test"][0]).all()
    assert records.train_labels.tolist() == kept["train"][1].tolist()


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = import_torchvision_datasets().CIFAR10
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    listed: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    whole = {}
    for attribute, name in (("train_list", "data_batch_1"), ("test_list", "test_batch")):
        pixels = images(5, 3, 32, 32)
        body = pickle.dumps({"data": pixels.reshape(5, -1), "labels": [0, 1, 2, 9, 4]})
        (folder / name).write_bytes(body)
        listed[attribute].append([name, hashlib.md5(body).hexdigest()])
        whole[attribute] = pixels
    names = pickle.dumps({"label_names": [str(k) for k in range(10)]})
    (folder / "batches.meta").write_bytes(names)
    meta = {"filename": "batches.meta", "key": "label_names", "md5": hashlib.md5(names).hexdigest()}
    for name, value in {**listed, "meta": meta}.items():
        monkeypatch.setattr(kind, name, value)
    records = load_records(section("cifar10", tmp_path, features="pixels"))
    assert (records.train_images == whole["train_list"]).all()
    assert (records.test_images == whole["test_list"]).all()
    assert records.test_labels.tolist() == [0, 1, 2, 9, 4]


def test_usps_and_photographs_of_many_sizes(tmp_path: Path) -> None:
    lines = "".join(
        f"{label} " + " ".join(f"{k + 1}:{2 * ((k + label) % 2) - 1}" for k in range(256)) + "\n"
        for label in (1, 10, 3)
    )
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(lines.encode()))
    records = load_records(section("usps", tmp_path))
    assert records.train_images.shape == (3, 16, 16) and records.train_labels.tolist() == [0, 9, 2]

    from PIL import Image

    base = tmp_path / "imagenette2"
    for part in ("train", "val"):
        for place, wnid in enumerate(import_torchvision_datasets().Imagenette._WNID_TO_CLASS):
            (base / part / wnid).mkdir(parents=True)
            size = (20 + place, 30)
            Image.new("RGB", size, (10 * place, 0, 7)).save(base / part / wnid / "a.JPEG")
    with pytest.raises(DataError, match="size = 64"):
        load_records(section("imagenette", tmp_path))
    small = load_records(section("imagenette", tmp_path, source_options={"size": 8}))
    assert small.train_images.shape == (10, 3, 8, 8) and sorted(small.test_labels) == list(
        range(10)
    )


def test_what_is_not_there_and_cannot_be_had_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = import_torchvision_datasets().FashionMNIST
    monkeypatch.setattr(kind, "mirrors", ["file:///nowhere/"])
    with pytest.raises(DataError, match=r"fashion-mnist is not in .* could not be downloaded"):
        load_records(section("fashion-mnist", tmp_path))


X, Y = np.arange(24.0).reshape(8, 3).astype(np.float32), np.arange(8) % 2


def test_npz_files(tmp_path: Path) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], clients_train=Y)
    records = load_records(section("files", both, source_options={"classes": 2}))
    assert (records.train_images == X).all() and len(records.test_labels) == 2
    assert records.train_clients is not None and records.train_clients.tolist() == Y.tolist()
    folder = tmp_path / "silos"
    (folder / "train").mkdir(parents=True)
    for name, rows in (("south", slice(0, 5)), ("north", slice(5, 8))):
        np.savez(folder / "train" / f"{name}.npz", x=X[rows], y=Y[rows] / 2)
    np.savez(folder / "test.npz", x=X, y=Y / 2)
    records = load_records(section("files", folder, source_options={"outputs": 1}))
    parts = make_partition(
        DataSection(partition="natural", clients=2), records.train_labels, 1, records.train_clients
    )
    assert parts.sizes.tolist() == [3, 5]  # north, south
    assert (records.train_images[parts.order[:3]] == X[5:]).all()


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
        return
    lines = [",".join(rows[0])] + [",".join(str(v) for v in row.values()) for row in rows]
    path.write_text("\ufeff" + "\n".join(lines) + "\n\n", encoding="utf-8")


ROWS: list[dict[str, Any]] = [
    {"age": 20, "sex": "f", "kind": "cat", "ward": "b"},
    {"age": 150, "sex": "m", "kind": "dog", "ward": "a"},
    {"age": 50, "sex": "x", "kind": "cow", "ward": "b"},
]
OPTIONS = {
    "label": "kind", "client": "ward", "class_names": ["cat", "dog"],
    "categories": {"sex": ["f", "m"]}, "ranges": {"age": [0, 100]},
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    table(tmp_path / f"train{suffix}", ROWS)
    table(tmp_path / f"test{suffix}", ROWS[:2])
    records = load_records(section("files", tmp_path, source_options=OPTIONS))
    assert records.train_images.tolist() == [
        pytest.approx(row) for row in ([0.2, 1, 0], [1, 0, 1], [0.5, 0, 0])
    ]
    assert records.train_labels.tolist() == [0, 1, -1]  # a cow counts as zero
    assert records.train_clients is not None and records.train_clients.tolist() == ["b", "a", "b"]


def test_a_broken_private_cell_changes_nothing_but_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neighbouring files give the same shapes, names and errors (none); the log is the holder's."""
    rows = [{"age": age, "cost": cost} for age, cost in ((1, 2.5), (3, 4.5), (5, 6.5))]
    broken = [*rows[:2], {"age": "secret", "cost": "also"}]
    found = []
    for name, kept in (("a", rows), ("b", broken)):
        (tmp_path / name).mkdir()
        table(tmp_path / name / "train.csv", kept)
        table(tmp_path / name / "test.csv", rows)
        options = {"label": "cost", "outputs": 1}
        with caplog.at_level(logging.WARNING, "fl_shuffle.client"):
            found.append(load_records(section("files", tmp_path / name, source_options=options)))
    good, bad = found
    assert good.train_images.shape == bad.train_images.shape
    assert np.isnan(bad.train_images[2]).all() and np.isnan(bad.train_labels[2])
    assert (good.train_images[:2] == bad.train_images[:2]).all()
    assert [record.name for record in caplog.records] == ["fl_shuffle.client"]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "needs one of classes"),
        ({"classes": 2, "outputs": 1}, "needs one of classes"),
        ({"classes": 2, "clases": 3}, "did you mean 'classes'"),
        ({"classes": 0}, "must be a whole number >= 1"),
        ({"classes": 2, "label": "weight"}, "has no column 'weight'; it has age"),
        ({"classes": 2, "label": "kind", "ranges": {"age": [5, 5]}}, "the first below"),
        ({"classes": 2, "label": "kind", "categories": {"sex": "f"}}, "list of different texts"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    table(tmp_path / "train.csv", ROWS)
    with pytest.raises(FlShuffleError, match=re.escape(why)) as caught:
        load_records(section("files", tmp_path, source_options=options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"source": "digits", "source_options": {"a": 1}}, "takes none"),
        ({"source": "digits", "partition": "natural"}, "does not say whose"),
        ({"source": "gapminder", "partition": "natural", "clients": 500}, "data.clients = 114"),
        ({"source": "gapminder", "partition": "shards"}, "iid, ordered or natural"),
    ],
)
def test_settings_that_do_not_fit_the_source(data: dict[str, Any], why: str) -> None:
    wanted = parse_config({"data": data}).data
    with pytest.raises(FlShuffleError, match=why):
        records = load_records(wanted)
        make_partition(wanted, records.train_labels, records.size, records.train_clients)


@pytest.mark.parametrize("setting", [{"records": 3}, {"sizes": "unequal"}])
def test_settings_without_effect_on_natural_clients_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(FlShuffleError, match="changes nothing"):
        parse_config({"data": {"partition": "natural", **setting}})


def test_gapminder_is_what_its_file_says() -> None:
    records = gapminder.read(DataSection(source="gapminder"))
    held = json.loads(gapminder.FILE.read_text())
    assert records.train_images.shape == (114 * 12, 8) and len(records.test_labels) == 28 * 12
    assert records.train_images.min() >= 0.0 and records.train_images.max() <= 1.0
    assert records.train_clients is not None
    place = np.flatnonzero(records.train_clients == "Iceland")[-1]
    country = [name for name, _ in held["countries"]].index("Iceland")
    assert 20 * records.train_labels[place] + 60 == pytest.approx(81.757)
    assert held["life_expectancy"][country][-1] == 81.757
    assert records.train_images[place, 3:].tolist() == [0, 0, 0, 1, 0]  # Europe


def test_held_out_records_leave_every_natural_client_one() -> None:
    clients = np.repeat(np.arange(5), [1, 2, 3, 10, 40])
    whole = Records(
        np.arange(56.0)[:, None], np.zeros(56, np.int64), np.empty((0, 1)), np.empty(0, np.int64),
        classes=2, train_clients=clients,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(READERS, "files", lambda section: whole)
        kept = load_records(section("files", partition="natural", validation=0.3))
        with pytest.raises(DataError, match=r"data.validation = 0.1"):
            load_records(section("files", partition="natural"))
    assert kept.train_clients is not None
    assert np.bincount(kept.train_clients).tolist() == [1, 1, 2, 7, 28]
    both = np.concatenate([kept.train_images, kept.test_images])[:, 0]
    assert sorted(both.tolist()) == list(range(56))


class Rows(dict[str, list[Any]]):
    """Columns by name, as long as their records: what the adapter wants of a `Dataset`."""

    def __len__(self) -> int:
        return len(self["label"])


class Dealt:
    num_partitions = 2

    def load_partition(self, partition_id: int) -> Rows:
        count = 3 + partition_id
        return Rows(image=[images(1, 4, 4)[0]] * count, label=[partition_id] * count)


def test_partitions_of_the_hubs_data_are_clients() -> None:
    options = {"inputs": ["image"], "label": "label"}
    records = huggingface.records_of(
        Dealt(), Dealt().load_partition(1), options, Target(2, 0), dealt=True
    )
    assert records.train_images.shape == (7, 4, 4) and records.train_images.dtype == np.uint8
    assert records.train_clients is not None
    assert records.train_clients.tolist() == records.train_labels.tolist() == [0] * 3 + [1] * 4


def test_an_in_memory_data_set_dealt_by_a_real_partitioner() -> None:
    pytest.importorskip("flwr_datasets")
    from datasets import Dataset

    rows: dict[str, list[Any]] = {"a": [float(k) for k in range(12)], "b": [1.0] * 12}
    rows |= {"label": [k % 3 for k in range(12)], "who": [f"w{k % 4}" for k in range(12)]}
    options = {
        "inputs": ["a", "b"], "partitioner": "NaturalIdPartitioner",
        "partitioner_options": {"partition_by": "who"},
    }  # fmt: skip
    dealer = huggingface.partitioner_of(options)
    dealer.dataset = Dataset.from_dict(rows)
    test = Dataset.from_dict(rows)
    records = huggingface.records_of(dealer, test, options, Target(3, 0), dealt=True)
    assert records.train_images.shape == (12, 2) and records.train_clients is not None
    owners = {int(a) % 4 for a in records.train_images[records.train_clients == 0][:, 0]}
    assert len(owners) == 1
