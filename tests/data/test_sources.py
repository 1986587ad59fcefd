"""Data sources by name and by file, in their own formats on disk, and what they may publish."""

from __future__ import annotations

import gzip
import inspect
import logging
import math
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fl_shuffle as fs
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.configuration.sections import TORCHVISION_SOURCES, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.evaluation import require_readable_held_out
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.data.sources import held_out, huggingface, image_sets, load_records
from fl_shuffle.data.sources.image_sets import import_torchvision_datasets
from fl_shuffle.data.sources.options import Target
from fl_shuffle.data.sources.tables import quoted_cells
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import DataError, FlShuffleError

DRAW = np.random.Generator(np.random.Philox(7))


def section(source: str, root: Path | str = "", **more: Any) -> DataSection:
    return parse_config({"data": {"source": source, "root": str(root), **more}}).data


def from_files(root: Path, options: dict[str, Any]) -> Records:
    return load_records(section("files", root, source_options=options))


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + bytes(values)


def images(count: int, *shape: int) -> np.ndarray:
    return DRAW.integers(0, 256, (count, *shape)).astype(np.uint8)


def test_digits_are_real_and_fixed() -> None:
    records = load_records(DataSection())
    assert records.train_images.max() == 16 and records.classes == 10
    assert records.fingerprint() == load_records(DataSection()).fingerprint()
    labels = np.concatenate([records.train_labels, records.test_labels])
    # The source's own count of each digit.
    counted = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(labels).tolist() == counted


def test_mnists_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is told of one that was cut off, where no other can be had; of a folder that is not
    there, which is not made."""
    raw, pixels, labels = tmp_path / "MNIST/raw", images(9, 28, 28), np.arange(9, dtype=np.uint8)
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    records = load_records(section("mnist", tmp_path))
    assert (records.train_images == pixels).all() and (records.test_images == pixels).all()
    assert records.train_labels.tolist() == labels.tolist()
    monkeypatch.setattr(import_torchvision_datasets().MNIST, "mirrors", ["file:///nowhere/"])
    told = "mnist cannot be read from .* could not be downloaded .* remove torchvision's files"
    for damaged, why in (
        (idx(pixels)[:-1], r"train-images-idx3-ubyte has 7,071 bytes instead of 7,072"),
        (b"", r"train-images-idx3-ubyte is not an IDX file"),
        (b"<html>no such file</html>", r"train-images-idx3-ubyte is not an IDX file"),
        (b"\0\0\x08\x03\0\0\x01", r"train-images-idx3-ubyte is not an IDX file"),
    ):
        (raw / "train-images-idx3-ubyte").write_bytes(damaged)
        with pytest.raises(DataError, match=told) as caught:
            load_records(section("mnist", tmp_path))
        assert re.search(why, str(caught.value)) and "\n" not in str(caught.value)
    with pytest.raises(DataError, match="--data DIR, .data. root, or the variable"):
        load_records(section("mnist", tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


KIN = [
    ("mnist", {}, "MNIST", ("train-{}", "t10k-{}")),
    ("fashion-mnist", {}, "FashionMNIST", ("train-{}", "t10k-{}")),
    (
        "emnist",
        {"split": "letters"},
        "EMNIST",
        ("emnist-letters-train-{}", "emnist-letters-test-{}"),
    ),
    ("qmnist", {}, "QMNIST", ("qmnist-train-{}", "qmnist-test-{}")),
]


def write_kin(folder: Path, parts: tuple[str, str], dotted: bool, packed: bool) -> np.ndarray:
    """Files of a set, under the names of other places; the pixels of its first part."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels, labels = images(9, 28, 28), np.arange(9)
    for part in parts:
        if "qmnist" in part:
            wide = np.stack([labels, 100 + labels], axis=1).astype(">i4")
            held = bytes([0, 0, 12, 2]) + np.array(wide.shape, ">u4").tobytes() + wide.tobytes()
            label_file = "labels-idx2-int"
        else:
            held, label_file = idx(labels.astype(np.uint8)), "labels-idx1-ubyte"
        for name, content in (("images-idx3-ubyte", idx(pixels)), (label_file, held)):
            plain = part.format(name.replace("-idx", ".idx") if dotted else name)
            written = gzip.compress(content, 1) if packed else content
            (folder / (plain + ".gz" * packed)).write_bytes(written)
    return pixels


@pytest.mark.parametrize("place", [".", "{}", "{}/raw"])
@pytest.mark.parametrize(("dotted", "packed"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("source", "options", "name", "parts"), KIN)
def test_idx_files_under_other_names_are_read(
    source: str, options: dict, name: str, parts: tuple[str, str], dotted: bool, packed: bool,
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(import_torchvision_datasets().MNIST, "mirrors", [])
    pixels = write_kin(tmp_path / place.format(name), parts, dotted, packed)
    records = load_records(section(source, tmp_path, source_options=options))
    assert (records.train_images == pixels).all() and (records.test_images == pixels).all()
    assert records.train_labels.tolist() == list(range(9)) == records.test_labels.tolist()


def downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    module = import_torchvision_datasets().mnist
    monkeypatch.setattr(module, "download_and_extract_archive", refuse)


def test_idx_files_in_a_folder_of_many_sets_bear_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fashion-MNIST's files have MNIST's names: what lies in the common folder may be either."""
    downloads_nothing(monkeypatch)
    monkeypatch.setenv(image_sets.DATA_VARIABLE, str(tmp_path))
    write_kin(tmp_path, KIN[0][3], dotted=True, packed=False)
    with pytest.raises(DataError, match="could not be downloaded"):
        load_records(section("fashion-mnist"))
    pixels = write_kin(tmp_path / "FashionMNIST", KIN[1][3], dotted=True, packed=False)
    assert (load_records(section("fashion-mnist")).train_images == pixels).all()


def test_idx_files_that_are_not_whole_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads_nothing(monkeypatch)
    write_kin(tmp_path, KIN[0][3], dotted=True, packed=True)
    file = tmp_path / "train-images.idx3-ubyte.gz"
    whole = file.read_bytes()
    for damaged, why in (
        (whole[:-20], "is not a complete .gz file"),
        (b"<html>", "Not a gzipped file"),
        (gzip.compress(gzip.decompress(whole)[:-1]), "has 7,071 bytes instead of 7,072"),
        (gzip.compress(gzip.decompress(whole) + b"0"), "has more than the 7,056 bytes"),
        (gzip.compress(idx(images(8, 28, 28))), "has 8 records, and .*labels.* 9"),
        (gzip.compress(b"\0\0\x0d\x01" + bytes(8)), "is not an IDX file of bytes or whole numbers"),
        (None, r"there is no train-images-idx3-ubyte"),
    ):
        file.unlink(missing_ok=True)
        if damaged is not None:
            file.write_bytes(damaged)
        with pytest.raises(DataError, match="mnist cannot be read from") as caught:
            load_records(section("mnist", tmp_path))
        assert re.search(why, str(caught.value)) and "\n" not in str(caught.value), why


@pytest.mark.parametrize(
    ("source", "options", "classes"),
    [
        *((source, {}, image_sets.SETS[source].classes) for source in TORCHVISION_SOURCES),
        ("emnist", {"split": "letters"}, 27),
    ],
)
def test_image_sets_of_torchvision(
    source: str, options: dict, classes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its class calls them: images with channels first, labels, and its two parts."""
    data_sets, found = import_torchvision_datasets(), image_sets.SETS[source]
    takes = inspect.signature(getattr(data_sets, found.name))
    pixels = images(5, *found.shape)
    last = found.name in ("CIFAR10", "CIFAR100")

    class Stand:
        data = pixels.transpose(0, 2, 3, 1) if last else pixels

        def __init__(self, root: str, download: bool, **asked: Any) -> None:
            takes.bind(root, download=download, **asked)
            first = asked.get("train", asked.get("split") == "train")
            labels = np.array([0, 1, 2, 9, 4 * first])
            setattr(self, "labels" if found.by_split else "targets", labels)

    monkeypatch.setattr(data_sets, found.name, Stand)
    wanted = section(source, tmp_path, features="pixels", source_options=options)
    records = load_records(wanted)
    assert (records.train_images == pixels).all() and records.classes == classes
    assert [labels[-1] for labels in (records.train_labels, records.test_labels)] == [4, 0]


@pytest.mark.mnist
def test_the_real_mnist() -> None:
    root = os.environ.get("FL_SHUFFLE_DATA")
    if not root:
        pytest.skip("FL_SHUFFLE_DATA does not name a folder with MNIST")
    records = load_records(DataSection(source="mnist", root=root))
    assert records.train_images.shape == (60_000, 28, 28)
    assert np.bincount(records.test_labels)[:2].tolist() == [980, 1135]


TWO: dict[str, Any] = {"classes": 2}
X, Y = np.arange(24.0).reshape(8, 3).astype(np.float32), np.arange(8) % 2


def test_npz_files(tmp_path: Path) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], clients_train=Y)
    records = from_files(both, TWO)
    assert (records.train_images == X).all() and len(records.test_labels) == 2
    assert records.train_clients is not None and records.train_clients.tolist() == Y.tolist()
    # A file for each client.
    (tmp_path / "train").mkdir()
    for name, rows in (("south", slice(0, 5)), ("north", slice(5, 8))):
        np.savez(tmp_path / "train" / f"{name}.npz", x=X[rows], y=Y[rows] / 2)
    np.savez(tmp_path / "test.npz", x=X, y=Y / 2)
    records = from_files(tmp_path, {"outputs": 1})
    wanted = section("files", partition="natural", clients=2)
    parts = make_partition(wanted, records.train_labels, 1, records.train_clients)
    assert parts.sizes.tolist() == [3, 5]  # north, south
    assert (records.train_images[parts.order[:3]] == X[5:]).all()


@pytest.mark.parametrize(
    ("labels", "entropy", "refused"),
    [
        ([2] * 16 + [0] * 64, "seeded", True),
        ([2] + [0] * 79, "seeded", False),
        ([2] * 16 + [0] * 64, "system", False),
        # Of many classes few labels are the last one's.
        ([*range(1, 41)] * 2, "seeded", True),
        ([*range(1, 40)] * 2 + [40, 0], "seeded", False),
    ],
)
def test_labels_that_count_from_one_are_told_where_noise_is_seeded(
    labels: list[int], entropy: str, refused: bool, tmp_path: Path
) -> None:
    """One label of 80 is its holder's secret; sixteen are a mistake in the data, and so are labels
    of which none is 0 and the last class is one too many."""
    path, classes = tmp_path / "own.npz", max(labels)
    np.savez(path, x=np.ones((80, 3), np.float32), y=np.array(labels))
    data = {"source": "files", "root": str(path), "clients": 10, "features": "none"}
    data |= {"source_options": {"classes": classes}, "validation_fraction": 0.1}
    told = rf"labels are not in 0 \.\. {classes - 1}, for example {classes}"
    run_cache.forget()
    with pytest.raises(DataError, match=told) if refused else nullcontext():
        load_task(parse_config({"run": {"entropy": entropy}, "data": data}))


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path)
        return
    lines = [",".join(rows[0])] + [",".join(str(v) for v in row.values()) for row in rows]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")


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
    records = from_files(tmp_path, OPTIONS)
    assert records.train_images.tolist() == [
        pytest.approx(row) for row in ([0.2, 1, 0], [1, 0, 1], [0.5, 0, 0])
    ]
    assert records.train_labels.tolist() == [0, 1, -1]  # a cow counts as zero
    assert records.train_clients is not None and records.train_clients.tolist() == ["b", "a", "b"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_blanks_around_cells_do_not_count(tmp_path: Path, suffix: str) -> None:
    """Of numbers, categories and classes."""
    padded = [{**row, "sex": f" {row['sex']} ", "kind": f"{row['kind']} "} for row in ROWS]
    if suffix == ".csv":
        padded = [{**row, "age": f"  {row['age']} "} for row in padded]
    table(tmp_path / f"train{suffix}", padded)
    table(tmp_path / f"test{suffix}", ROWS[:2])
    records = from_files(tmp_path, OPTIONS)
    assert records.train_images[:, 1:].tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert records.train_images[:, 0].tolist() == pytest.approx([0.2, 1.0, 0.5])
    assert records.train_labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ('a,b', ["a", "b"]), ('"a","b"', ["a", "b"]), ('a,"b, c"', ["a", "b, c"]),
        ('"x ""y""",z', ['x "y"', "z"]), ('z,"x ""y"""', ["z", 'x "y"']), ("a,", ["a", ""]),
        ('"a"', ["a"]), (",,", ["", "", ""]), ('a,""', ["a", ""]),
    ],
)  # fmt: skip
def test_quotes_are_taken_off_every_cell(line: str, cells: list[str]) -> None:
    """The first one, the last one, and the only one; whatever separates them."""
    for separator in (",", ";", "\t"):
        if separator == "," or not any("," in cell for cell in cells):
            assert quoted_cells(line.replace(",", separator), separator) == cells


HEADER = b"ward,age,sex,kind"
LINES = [b"%c,%d,%s,%s" % (b"abc"[k % 3], k, b"fm"[k % 2 :][:1], b"cat" if k % 5 else b"dog")
         for k in range(12)]  # fmt: skip
PRIVATE = [
    *(b" , ,\t", b'"5,"f,"cat', b'5,"f,cat"', b"5,f\r31,m,cat", b"5,f,cat\r", b"\x005,f\x00,cat"),
    *(b"5," + b"x" * 140_000 + b",cat", b"1" * 200_000 + b",f,cat", b"5,f,cat" + b",9" * 50),
    *(b"5", b"5,f,\xe2\x82", "\u0665,f,cat".encode(), "5\u2028,f\x0b\x0c\x1c\x85,cat".encode()),
    *(number + b",f,cat" for number in (b"1_0", b"nan", b"1e999", b"1e300")),
]


def moved(line: bytes, place: int) -> bytes:
    """With the cell that says whose it is at another place."""
    owner, *cells = line.split(b",")
    return b",".join([*cells[:place], owner, *cells[place:]])


def read_lines(path: Path, lines: list[bytes], end: bytes = b"\n", place: int = 0) -> Records:
    """The records of a file of these lines, and of a public one to test on."""
    head, *rest = (moved(line, place) for line in (HEADER, LINES[0], *lines))
    (path / "test.csv").write_bytes(head + b"\n" + rest[0])
    (path / "train.csv").write_bytes(b"\n".join([head, *rest[1:]]) + end)
    return from_files(path, OPTIONS)


def require_neighbours(found: Records, whole: Records, record: int | list[int]) -> None:
    """They differ in the numbers of a record, and in nothing that is public."""
    assert found.train_images.shape == whole.train_images.shape
    assert found.train_images.dtype == whole.train_images.dtype
    assert np.array_equal(found.train_clients, whole.train_clients)
    for part in ("train_images", "train_labels"):
        a, b = (np.delete(getattr(one, part), record, axis=0) for one in (found, whole))
        assert np.array_equal(a, b)


@pytest.mark.parametrize("place", [0, 1000])
def test_whatever_bytes_a_records_cells_hold_nothing_else_changes(
    tmp_path: Path, place: int
) -> None:
    """What once went wrong, and bytes at random, those that mean something in a .csv often, in the
    cells of one record; the column that says whose it is stands first or last."""
    draw = np.random.default_rng(place)
    whole = read_lines(tmp_path, LINES, place=place)
    assert len(whole.train_labels) == 12
    common = np.frombuffer(b'"",,\r\x00 \xff1e.', np.uint8)
    tried = [*PRIVATE] if place == 0 else []
    for _ in range(200):
        cells = []
        for size in draw.choice([0, 1, 2, 5, 40], 3):
            mixed = np.where(
                draw.random(size) < 0.5, draw.choice(common, size), draw.integers(0, 256, size)
            )
            cells.append(mixed.astype(np.uint8).tobytes().replace(b"\n", b""))
        tried.append(b",".join(cells))
    for cells in tried:
        record = int(draw.integers(12))
        lines = [*LINES]
        lines[record] = LINES[record][:2] + cells
        require_neighbours(read_lines(tmp_path, lines, place=place), whole, record)


def test_csv_client_column_in_the_middle_is_refused(tmp_path: Path) -> None:
    """There a comma in another cell's text would move it: `x,north,3` for `x north,3`."""
    with pytest.raises(DataError, match=r"'ward' is column 2 of 4.*first or last.*file by client"):
        read_lines(tmp_path, LINES, place=1)


@pytest.mark.parametrize("place", [0, 1000])
@pytest.mark.parametrize("short", [b"5,f,cat", b"5,f", b"5", b"", b'"5,f,cat', b'5,f,cat"'])
def test_csv_owner_cell_alone_says_whose_a_line_is(
    tmp_path: Path, place: int, short: bytes
) -> None:
    """Quoted names, and lines with too few cells, or with quotes without an end."""
    lines = [b'"' + line[:1] + b'"' + line[1:] for line in LINES]
    whole = read_lines(tmp_path, LINES, place=place)
    lines[4] = lines[4][:4] + short
    found = read_lines(tmp_path, lines, place=place)
    require_neighbours(found, whole, 4)


@pytest.mark.parametrize("place", [0, 1000])
@pytest.mark.parametrize("name", [b'"a', b'a"', b'"a""b"', b'"Doe; Ann'])
def test_csv_owner_with_stray_quotes_is_refused(tmp_path: Path, place: int, name: bytes) -> None:
    """Whether it ends in its own cell or in another one would hang on that other cell."""
    lines = [*LINES]
    lines[4] = name + lines[4][1:]
    with pytest.raises(
        DataError, match=r"line 6: a client's name must not contain a comma or a quote"
    ):
        read_lines(tmp_path, lines, place=place)


def test_where_lines_end(tmp_path: Path) -> None:
    """At line feeds: a file of another system's ends counts the same, a last line may have none,
    and a blank line is a record, where somebody is named whose it is."""
    whole = read_lines(tmp_path, LINES)
    for end, lines in ((b"", LINES), (b"\r\n", [line + b"\r" for line in LINES[:-1]] + LINES[-1:])):
        found = read_lines(tmp_path, lines, end)
        assert found.fingerprint() == whole.fingerprint()
    with pytest.raises(DataError, match=r"line 14 has no client.*also a blank one"):
        read_lines(tmp_path, LINES, b"\n\n")
    nobody = {key: value for key, value in OPTIONS.items() if key != "client"}
    nobody["columns"] = ["age", "sex"]
    (tmp_path / "train.csv").write_bytes(b"\n".join([HEADER, *LINES, b"", b",,,"]) + b"\n")
    found = from_files(tmp_path, nobody)
    assert len(found.train_labels) == 14 and found.train_labels[12:].tolist() == [-1, -1]


def test_a_typed_cell_that_python_cannot_hold_ends_nobodys_run(tmp_path: Path) -> None:
    """A date beyond the year 9,999, bytes that are no text."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    no_text = pyarrow.array([b"a", b"\xff\xfe", b"c"]).buffers()
    for cells in (
        pyarrow.array([1, 10**17, 2], pyarrow.timestamp("ms")),
        pyarrow.Array.from_buffers(pyarrow.string(), 3, no_text),
    ):
        kinds = pyarrow.array(["cat", "dog", "cat"])
        table = pyarrow.table({"age": [1.0, 2.0, 3.0], "kind": kinds, "odd": cells})
        parquet.write_table(table, tmp_path / "train.parquet")
        readable = pyarrow.table({"age": [1.0], "kind": ["cat"], "odd": [1.0]})
        parquet.write_table(readable, tmp_path / "test.parquet")
        records = from_files(tmp_path, {"label": "kind", "class_names": ["cat", "dog"]})
        assert records.train_images.shape == (3, 2)
        assert records.train_labels.tolist() == [0, 1, 0]


def test_public_cells_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """File, line, column and value: test records are public."""
    head = "age,height,kind\n"
    for content, options, why in (
        ("30,1.8,cat\n40,nan,dog\n", {}, "line 3: column 'height' holds 'nan', as 1 of 2 test"),
        ("30,1.8,cat\n,1.7,dog\n", {}, "line 3: column 'age' holds ''"),
        ("30,1.8,cat\n40,1e99,dog\n", {}, "column 'height' holds '1e99'"),
        ("30,1.8,cat\n40,1.7,cow\n", {}, "line 3: column 'kind' holds 'cow'.*declared classes"),
        ('30,"1,8",cat\n', {}, r"column 'height' holds '1,8'.*source_options.decimal = ','"),
    ):
        (tmp_path / "train.csv").write_text(head + "1,2,cat\n3,4,dog\n")
        (tmp_path / "test.csv").write_text(head + content)
        with pytest.raises(DataError, match=rf"test\.csv: .*{why}"):
            from_files(tmp_path, {"label": "kind", "class_names": ["cat", "dog"], **options})
    x = X.astype(np.float32).copy()
    x[1] = np.inf
    np.savez(tmp_path / "both.npz", x_train=X, y_train=Y, x_test=x, y_test=Y)
    with pytest.raises(DataError, match=r"1 of .* test records have inputs .* test record 1"):
        from_files(tmp_path / "both.npz", TWO)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separator_and_decimal_mark_are_options(tmp_path: Path, separator: str) -> None:
    rows = [("a", "1,5", "cat"), ("b", "-2,25", "dog"), ("a", "1.5", "cat")]
    lines = [separator.join(row) for row in (("ward", "height", "kind"), *rows)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("\n".join(lines[:-1]) + "\n")
    told = {"label": "kind", "class_names": ["cat", "dog"], "client": "ward"}
    found = from_files(tmp_path, {**told, "separator": separator, "decimal": ","})
    # A dot is no decimal mark there: whoever wrote it meant thousands, or another file.
    assert found.train_images[:2].tolist() == [[1.5], [-2.25]] and np.isnan(found.train_images[2])
    assert found.train_clients is not None and found.train_clients.tolist() == ["a", "b", "a"]
    hint = f"set data.source_options.separator = {separator!r}"
    with pytest.raises(DataError, match=re.escape(hint)):
        from_files(tmp_path, told)
    for wrong in ({"separator": "::"}, {"decimal": "'"}, {"decimal": ","}):
        with pytest.raises(FlShuffleError, match=r"source_options\.(separator|decimal)"):
            from_files(tmp_path, {**told, **wrong})


def test_private_cells_that_cannot_be_read_are_counted_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By column, and with the marks that were read by; the values stay where they are."""
    lines = ["age,height,kind", *(f'{k},"1,{k}",cat' for k in range(9)), "x,1.5,dog"]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.csv").write_text("age,height,kind\n1,2,cat\n")
    with caplog.at_level(logging.WARNING, logger="fl_shuffle.client"):
        from_files(tmp_path, {"label": "kind", "class_names": ["cat", "dog"]})
    (said,) = caplog.messages
    assert "10 records" in said and "age 1, height 9" in said and "decimal mark '.'" in said
    assert "1,3" not in said
    caplog.clear()
    (tmp_path / "train.csv").write_text("\n".join([*lines[:-1], "1,,cow"]) + "\n")
    with caplog.at_level(logging.WARNING, logger="fl_shuffle.client"):
        from_files(tmp_path, {"label": "kind", "class_names": ["cat", "dog"]})
    few, whole = caplog.messages
    assert "height 10, kind 1" in few and "no cell of 'height' can be read" in whole
    assert "data.source_options.decimal" in whole and "1,3" not in whole


def tables_held_out(folder: Path, *cells: str, **options: Any) -> dict[str, Any]:
    """Settings of a run on these lines, a fifth of which it holds out."""
    (folder / "train.csv").write_text("age;height;kind\n" + "".join(f"{c}\n" for c in cells))
    told = {"label": "kind", "classes": 2, "separator": ";", **options}
    data = {
        "source": "files", "root": str(folder), "validation_fraction": 0.2, "clients": 4,
        "partition": "iid", "features": "none", "source_options": told,
    }  # fmt: skip
    run = {"entropy": "system", "rounds": 1, "out": str(folder / "runs")}
    return {"data": data, "run": run, "budgets": {"epsilon": 4.0}}


@pytest.mark.parametrize(
    ("cells", "options", "told"),
    [
        ([f"{k},5;1.5;{k % 2}" for k in range(40)], {}, "a finite number at input 0.*decimal"),
        ([f"{k};x;{k % 2}" for k in range(40)], {}, "a finite number at input 1"),
        ([f"{k};1.5;well" for k in range(40)], {}, "a label that can be read.*class_names"),
        ([f"{k};1.5;1,5" for k in range(40)], {"classes": None, "outputs": 1}, "a label that can"),
    ],
    ids=["decimal", "text", "label", "number"],
)
def test_column_of_held_out_records_unreadable_stops_a_run(
    cells: list[str], options: dict, told: str, tmp_path: Path
) -> None:
    """Before it pays, also where noise protects the others: no claim covers these records."""
    tables = tables_held_out(tmp_path, *cells, **options)
    kept = {k: v for k, v in tables["data"]["source_options"].items() if v is not None}
    tables["data"]["source_options"] = kept
    if "outputs" in kept:
        tables["model"] = {"loss": "squared-error"}
    with pytest.raises(DataError, match=rf"none of the 8 records .* holds out has {told}"):
        fs.simulate(parse_config(tables))
    assert not list((tmp_path / "runs").glob("*/ledger.sqlite"))


NAN = math.nan


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ([2, 7], "a label that can be read"),
        ([-1, -5], "a label that can be read"),
        ([2, 1], ""),
        ([0, -1], ""),
        ([2], ""),  # a single one: it would tell of that record
        ([[NAN], [math.inf]], "a label that can be read"),
        ([[NAN], [2.0]], ""),
    ],
)
def test_labels_of_held_out_records_are_read_if_one_is(labels: list, told: str) -> None:
    """Of two classes, 0 and 1, or numbers."""
    given: Any = SimpleNamespace(
        test_labels=torch.tensor(labels), test_inputs=torch.ones(len(labels), 3), classes=2,
        regression=isinstance(labels[0], list),
    )  # fmt: skip
    if not told:
        require_readable_held_out(given)
        given.test_inputs[1:, 2] = NAN
        require_readable_held_out(given)
        given.test_inputs[:, 2], told = NAN, "a finite number at input 2" * (len(labels) > 1)
    with pytest.raises(DataError, match=told) if told else nullcontext():
        require_readable_held_out(given)


@pytest.mark.slow
def test_training_column_unreadable_stops_no_protected_run(tmp_path: Path) -> None:
    """Whether it stops would tell of a single record, whose cell decides between none and one."""
    cells = [f"{k},5;1.5;{k % 2}" for k in range(40)]
    tables = tables_held_out(tmp_path, *cells)
    size: Any = SimpleNamespace(train_labels=np.zeros(40), train_clients=None)
    held = held_out(parse_config(tables).data, size)
    cells = [f"{k};1.5;{k % 2}" if held[k] else each for k, each in enumerate(cells)]
    found = fs.simulate(parse_config(tables_held_out(tmp_path, *cells)))
    assert not torch.isfinite(load_task(found.config).inputs[:, 0]).any()


def test_pandas_index_is_no_input(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = {"age": [1, 2], "label": [0, 1], "__index_level_0__": [70, 80]}
    for name in ("train", "test"):
        parquet.write_table(pyarrow.table(cells), tmp_path / f"{name}.parquet")
    assert from_files(tmp_path, TWO).train_images.tolist() == [[1], [2]]
    asked = {**TWO, "columns": ["__index_level_0__"]}
    assert from_files(tmp_path, asked).train_images.tolist() == [[70], [80]]


def test_inputs_that_are_no_numbers_stop_a_seeded_run(tmp_path: Path) -> None:
    """As a tenth of bad labels does; where noise protects somebody nobody is told."""
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    x[::3, 1] = np.nan
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(40) % 2)
    np.savez(tmp_path / "test.npz", x=np.ones((4, 2), np.float32), y=np.zeros(4, np.int64))
    data = {
        "source": "files", "root": str(tmp_path), "clients": 4, "features": "none",
        "source_options": TWO,
    }  # fmt: skip
    with pytest.raises(DataError, match=r"14 of 40 training records .* most of them at input 1"):
        load_task(parse_config({"data": data}))
    assert len(load_task(parse_config({"data": data, "run": {"entropy": "system"}})).labels) == 40


@pytest.mark.parametrize(
    ("train", "options", "why"),
    [
        (b"", OPTIONS, "line 1 must name the columns"),
        (b"a,a\n1,2", OPTIONS, "each with a different name"),
        (b"\xffa,b\n1,2", OPTIONS, "is not UTF-8 text"),
        ("a,b\n1,2\n".encode("utf-16-le"), OPTIONS, "is not text; save it as CSV"),
        (b"a,kind\r1,cat\r2,dog", OPTIONS, "a line feed after every record"),
        (ROWS, {}, "needs one of classes"),
        (ROWS, {"classes": 2, "clases": 3}, "did you mean 'classes'"),
        (ROWS, {"classes": 0}, "must be a whole number >= 1"),
        (ROWS, {**TWO, "label": "weight"}, "has no column 'weight'; it has age"),
        (ROWS, {**TWO, "label": "kind", "ranges": {"age": [5, 5]}}, "the first below"),
        (ROWS, {**TWO, "label": "kind", "categories": {"sex": "f"}}, "list of different texts"),
        ({"x_train": X, "y_train": Y, "clients": Y}, TWO, "is called clients_train here"),
        ({"x": X, "y": Y, "client": Y}, TWO, "has the unknown array client; did you mean"),
    ],
)
def test_files_and_options_that_do_not_fit_are_one_line(
    tmp_path: Path, train: Any, options: dict[str, Any], why: str
) -> None:
    if isinstance(train, dict):
        np.savez(tmp_path / "train.npz", **train)
    elif isinstance(train, bytes):
        (tmp_path / "train.csv").write_bytes(train)
    else:
        table(tmp_path / "train.csv", train)
    root = tmp_path / "train.npz" if isinstance(train, dict) else tmp_path
    with pytest.raises(FlShuffleError, match=re.escape(why)) as caught:
        from_files(root, options)
    assert "\n" not in str(caught.value)


NATURAL = {"source": "gapminder", "partition": "natural"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"source": "digits", "partition": "natural"}, "does not name the client"),
        ({**NATURAL, "clients": 500}, "data.clients = 114"),
        ({**NATURAL, "records_per_client": 3}, "changes nothing"),
        ({**NATURAL, "sizes": "unequal"}, "changes nothing"),
        ({"source": "gapminder", "partition": "shards"}, "iid, ordered or natural"),
        ({"clients": 1501}, "more clients than the 1438"),
        ({"clients": 100, "records_per_client": 15}, "needs 1500"),
        ({"clients": 1000, "partition": "shards"}, "shards_per_client"),
        ({"partition": "classes", "classes_per_client": 11}, "have 10 classes; lower it"),
        ({"clients": 1000, "partition": "classes"}, "clients would share a class of"),
        ({"partition": "shards", "sizes": "unequal"}, "equal"),
    ],
)
def test_settings_that_do_not_fit_the_source(data: dict[str, Any], why: str) -> None:
    with pytest.raises(FlShuffleError, match=why):
        wanted = parse_config({"data": data}).data
        records = load_records(wanted)
        make_partition(wanted, records.train_labels, records.size, records.train_clients)


def own(section: DataSection) -> Records:
    """Five clients with 1, 2, 3, 10 and 40 records, and nothing to test on."""
    x, y, clients = np.arange(56.0)[:, None], np.arange(56) % 2, np.arange(5)
    owners = np.repeat(clients, [1, 2, 3, 10, 40])
    return Records(x, y, x[:0], y[:0], classes=2, train_clients=owners)


def ragged(section: DataSection) -> Records:
    whole = own(section)
    return replace(whole, train_labels=whole.train_labels[1:])


def none(section: DataSection) -> int:
    return 3


def test_a_users_own_source_and_what_is_held_out_of_it() -> None:
    """Every natural client is left a record."""
    kept = load_records(section(f"{__name__}:own", partition="natural", validation_fraction=0.3))
    assert kept.train_clients is not None and kept.classes == 2
    assert np.bincount(kept.train_clients).tolist() == [1, 1, 2, 7, 28]
    both = np.concatenate([kept.train_images, kept.test_images])[:, 0]
    assert sorted(both.tolist()) == list(range(56))
    for name, told in (
        ("own", "data.validation_fraction = 0.1"),
        ("none", "returned int"),
        ("ragged", "56 images and"),
    ):
        with pytest.raises(DataError, match=told):
            load_records(section(f"{__name__}:{name}", partition="natural"))


class Columns(dict[str, list[Any]]):
    """By name, as long as their records: what the adapter wants of a `Dataset`."""

    def __len__(self) -> int:
        return len(self["label"])


def dealt(cell: object) -> SimpleNamespace:
    """Two clients' columns, each one's first image being `cell`."""
    parts = [Columns(image=[cell, *[EVEN] * (2 + k)], label=[k] * (3 + k)) for k in range(2)]
    return SimpleNamespace(num_partitions=2, load_partition=parts.__getitem__)


EVEN = np.arange(16, dtype=np.uint8).reshape(4, 4)


@pytest.mark.parametrize(
    "cell", [np.zeros((5, 4), np.uint8), np.zeros((4, 4)), None, [[1], [2, 3]], "text", object()]
)
def test_a_record_of_another_shape_ends_nobodys_run(cell: object) -> None:
    """Shape and type are those of the public test records; what does not fit counts as zero."""
    options, test = {"inputs": ["image"], "label": "label"}, dealt(EVEN).load_partition(1)
    for outputs, nothing in ((0, -1), (1, np.nan)):
        found, whole = (
            huggingface.records_of(
                dealt(first), test, options, Target(2 - 2 * outputs, outputs), dealt=True
            )
            for first in (cell, EVEN)
        )
        require_neighbours(found, whole, [0, 3])
        assert np.array_equal(found.train_labels[[0, 3]], [nothing] * 2, equal_nan=True)


def test_an_in_memory_data_set_dealt_by_a_real_partitioner() -> None:
    pytest.importorskip("flwr_datasets")
    from datasets import Dataset

    owner = [k % 4 for k in range(12)]
    names, marks = [f"w{k}" for k in owner], [float(k) for k in owner]
    rows = Dataset.from_dict({"a": marks, "b": marks, "label": owner, "who": names})
    options = {"inputs": ["a", "b"], "partitioner": "NaturalIdPartitioner"}
    dealer = huggingface.partitioner_of({**options, "partitioner_options": {"partition_by": "who"}})
    dealer.dataset = rows
    records = huggingface.records_of(dealer, rows, options, Target(4, 0), dealt=True)
    assert records.train_images.shape == (12, 2) and records.train_clients is not None
    assert len(np.unique(records.train_images[records.train_clients == 0][:, 0])) == 1


LETTERS = "ab c"
ROLES = [["ab c", "bb  ", "ca b"], ["a  b", "cccc"]]
NEXT = [["a", " ", "c"], ["b", "a"]]
TEXT_OPTIONS: dict[str, Any] = {"inputs": ["x"], "label": "y", "characters": LETTERS, "length": 4}


class Lines(dict[str, list[Any]]):
    """A role's lines and the character after each, as columns by name."""

    def __len__(self) -> int:
        return len(self["y"])


def roles(first: object = "ab c", after: object = "a") -> SimpleNamespace:
    """Two roles, the first line of the first and what follows it being these."""
    parts = [
        Lines(x=[*lines], y=[*following]) for lines, following in zip(ROLES, NEXT, strict=True)
    ]
    parts[0]["x"][0], parts[0]["y"][0] = first, after
    return SimpleNamespace(num_partitions=2, load_partition=parts.__getitem__)


def test_texts_become_tokens_of_declared_characters() -> None:
    found = huggingface.records_of(
        roles(), roles().load_partition(1), TEXT_OPTIONS, Target(4, 0, tuple(LETTERS)), dealt=True
    )
    assert found.train_images.tolist()[:2] == [[0, 1, 2, 3], [1, 1, 2, 2]]
    assert found.train_labels.tolist() == [0, 2, 3, 1, 0]
    assert found.test_images.tolist() == [[0, 2, 2, 1], [3, 3, 3, 3]] and found.classes == 4
    assert found.train_clients is not None and found.train_clients.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("first", "after"),
    [("ab", "a"), ("abz ", "a"), (None, "a"), (7, "a"), ("ab c", "z"), ("ab c", ""), ("ab c", None),
     ("ab c", ["a"])],
)  # fmt: skip
def test_a_text_that_does_not_fit_counts_as_zero_alone(first: object, after: object) -> None:
    """The records of others, and all shapes, are those of the neighboring data set."""
    target = Target(4, 0, tuple(LETTERS))
    changed, whole = (
        huggingface.records_of(each, None, TEXT_OPTIONS, target, dealt=True)
        for each in (roles(first, after), roles())
    )
    assert changed.train_labels[0] == -1 and changed.train_images.shape == whole.train_images.shape
    assert (changed.train_images[1:] == whole.train_images[1:]).all()
    assert (changed.train_labels[1:] == whole.train_labels[1:]).all()


def test_a_public_text_that_does_not_fit_is_refused_by_its_place() -> None:
    test = Lines(x=["ab c", "abz "], y=["a", "a"])
    with pytest.raises(DataError, match="test record 1 is no text of 4 of the characters"):
        huggingface.records_of(
            roles(), test, TEXT_OPTIONS, Target(4, 0, tuple(LETTERS)), dealt=True
        )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"characters": "aa"}, "2 to 256 different characters"),
        ({"characters": "a"}, "2 to 256 different characters"),
        ({"length": 0}, r"length = 0"),
        ({"length": None}, r"length = None"),
        ({"classes": 4}, "each character is a class; leave classes out"),
        ({"test_split": ""}, r"validation_fraction = 0\.1"),
    ],
)
def test_options_of_texts_that_do_not_fit(options: dict[str, Any], why: str, hub: None) -> None:
    with pytest.raises(FlShuffleError, match=why):
        chosen = {"dataset": "lines", **TEXT_OPTIONS, **options}
        load_records(section("huggingface", source_options=chosen))


def test_a_length_without_characters_and_pictures_without_a_test_split(hub: None) -> None:
    for options, why in (
        ({"length": 4, "classes": 2}, "no effect without"),
        ({"classes": 2, "test_split": ""}, "the shape of a record is that of a public"),
    ):
        with pytest.raises(FlShuffleError, match=why):
            load_records(section("huggingface", source_options={"dataset": "lines", **options}))


class Hub:
    """Stands for flwr-datasets: roles' lines in memory, as long as those of the shipped
    configuration."""

    class NaturalIdPartitioner:
        """Deals them by role."""

        def __init__(self, partition_by: str) -> None:
            assert partition_by == "character_id"
            lines = "To be, or not to be: that is the question: "
            text = [(lines * 3)[k : k + 80] for k in range(12)]
            after = [(lines * 3)[k + 80] for k in range(12)]
            self.parts = [Lines(x=text, y=after), Lines(x=text[::-1], y=after[::-1])]
            self.num_partitions = len(self.parts)

        def load_partition(self, number: int) -> Lines:
            return self.parts[number]

    class FederatedDataset:
        """The data set, which has a training split alone."""

        def __init__(self, *, dataset: str, subset: str | None, partitioners: Any) -> None:
            self.partitioners = partitioners

        def load_partition(self, number: int, split: str) -> Lines:
            assert split == "train"
            return self.partitioners[split].load_partition(number)

        def load_split(self, split: str) -> Lines:
            raise ValueError(f"no split {split!r}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flwr_datasets")
    module.__spec__ = ModuleSpec("flwr_datasets", None)
    module.FederatedDataset = Hub.FederatedDataset  # type: ignore[attr-defined]
    partitioner = ModuleType("flwr_datasets.partitioner")
    partitioner.NaturalIdPartitioner = Hub.NaturalIdPartitioner  # type: ignore[attr-defined]
    module.partitioner = partitioner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr_datasets", module)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", partitioner)


@pytest.mark.slow
def test_shakespeares_configuration_trains_by_role(hub: None, tmp_path: Path) -> None:
    small = {
        "run.rounds": 1, "run.out": str(tmp_path), "data.clients": 2, "model.width": 8,
    }  # fmt: skip
    result = fs.simulate("shakespeare", overrides=small)
    assert result.metrics["num_reports"].tolist() == [2]
    assert result.summary["test_data"] != "public" and result.accuracy is not None
    assert result.model(torch.zeros(1, 80)).shape == (1, 80)


def color(section: DataSection) -> Records:
    """Records of the shape of CIFAR's, ten or a hundred classes."""
    classes = 100 if section.source_options.get("hundred") else 10
    labels = np.arange(12) % classes
    return Records(images(12, 3, 32, 32), labels, images(4, 3, 32, 32), labels[:4], classes=classes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_color_configurations_train_a_residual_network(
    name: str, classes: int, tmp_path: Path
) -> None:
    assert resolve_config(name).data.source == name
    small = {
        "run.rounds": 1, "run.out": str(tmp_path), "data.source": f"{__name__}:color",
        "data.source_options": {"hundred": classes == 100}, "data.clients": 4,
        "data.records_per_client": 3, "training.batch_size": 2,
    }  # fmt: skip
    result = fs.simulate(name, overrides=small)
    assert result.metrics["num_reports"].tolist() == [4]
    assert result.model(torch.zeros(1, 3, 32, 32)).shape == (1, classes)
