"""Whose records are: the same rules for every source, and budgets that reach their owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli.ledger import client_number
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import BudgetsSection, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.owners import owner_names
from fl_shuffle.data.partitions import client_names, make_partition
from fl_shuffle.data.sources import load_records
from fl_shuffle.errors import ConfigError, DataError
from fl_shuffle.report.record import RunRecord

Write = Callable[[Path, list[Any]], Path]


def as_csv(folder: Path, owners: list[Any]) -> Path:
    lines = ["ward,x,label", *(f"{owner},{k},0" for k, owner in enumerate(owners))]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return folder


def as_parquet(folder: Path, owners: list[Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    numbers = list(range(len(owners)))
    table = {"ward": owners, "x": numbers, "label": [0] * len(owners)}
    parquet.write_table(pyarrow.table(table), folder / "train.parquet")
    return folder


def as_npz(folder: Path, owners: list[Any]) -> Path:
    x = np.arange(len(owners), dtype=np.float32)[:, None]
    y = np.zeros(len(owners), dtype=np.int64)
    np.savez(folder / "train.npz", x=x, y=y, clients=np.array(owners))
    return folder


def read(root: Path) -> Records:
    options: dict[str, Any] = {"classes": 2}
    if not (root / "train.npz").exists():
        options["client"] = "ward"
    return load_records(DataSection(source="files", root=str(root), source_options=options,
                                    validation_fraction=0.1))  # fmt: skip


@pytest.mark.parametrize("write", [as_csv, as_parquet, as_npz])
@pytest.mark.parametrize("kind", [int, float, str, lambda k: f"{k}.0", lambda k: f" {k} "])
def test_budgets_reach_the_same_clients_from_every_source(
    write: Write, kind: Callable[[int], Any], tmp_path: Path
) -> None:
    """Of twelve clients with numbers for names, as numbers, floats and texts."""
    order = np.random.default_rng(3).permutation(np.repeat(np.arange(1, 13), 8))
    records = read(write(tmp_path, [kind(int(k)) for k in order]))
    section = DataSection(source="files", clients=12, partition="natural")
    names = client_names(section, records.train_clients)
    assert names == [str(k) for k in range(1, 13)]
    file = tmp_path / "budgets.csv"
    lines = [f"{k},{k},0" for k in range(12, 0, -1)]
    file.write_text("client_id,epsilon,delta\n" + "\n".join(lines) + "\n")
    budgets = make_budgets(BudgetsSection(distribution="file", file=str(file)), 12, names)
    assert budgets.epsilon.tolist() == list(range(1, 13))
    # The records of client i are those of owner i + 1: their inputs are their places in the file.
    parts = make_partition(section, records.train_labels, 2, records.train_clients)
    for client, own in enumerate(np.split(parts.order, parts.offsets[1:-1])):
        places = records.train_images[own, 0].astype(int)
        assert set(order[places]) == {client + 1}


@pytest.mark.parametrize("write", [as_parquet, as_npz])
@pytest.mark.parametrize(
    ("owners", "why"),
    [
        ([1.0, float("nan"), 2.0], "is missing"),
        ([1.0, 2.5, 2.0], "must be whole"),
        ([1.0, float("inf"), 2.0], "must be whole"),
        ([1.0, 1e17, 2.0], "names several numbers"),
        (["a", "", "b"], "is missing"),
        (["a", "M\ufffdller", "b"], "cannot be decoded"),
        (["a", "x" * 1001, "b"], "1001 characters"),
    ],
)
def test_owners_that_are_nobody_are_refused(
    write: Write, owners: list[Any], why: str, tmp_path: Path
) -> None:
    place = "clients[1]" if write is as_npz else "train.parquet: row 2"
    with pytest.raises(DataError) as caught:
        read(write(tmp_path, owners))
    assert why in str(caught.value) and place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_null_owner_in_a_parquet_file_is_refused(tmp_path: Path) -> None:
    for owners in (["a", None, "b"], [1, None, 2]):
        with pytest.raises(DataError, match=r"train\.parquet: row 2: the client is missing"):
            read(as_parquet(tmp_path, owners))


def test_an_undecodable_owner_in_a_csv_is_refused(tmp_path: Path) -> None:
    text = "ward,x,label\nMeyer,1,0\nMüller,2,1\n"
    (tmp_path / "train.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"train\.csv: line 3: the client cannot be decoded"):
        read(tmp_path)
    (tmp_path / "train.csv").write_text(text)
    owners = read(tmp_path).train_clients
    assert owners is not None and set(owners) <= {"Meyer", "Müller"}


@pytest.mark.parametrize(
    ("owners", "found"),
    [
        ([b"b", b"a"], ["b", "a"]),
        (["7", "007"], ["7", "007"]),  # leading zeros are part of a name
        (["1", "ward"], ["1", "ward"]),
        (["1.0", "2.", "-3"], [1, 2, -3]),
        ([10, 9], [10, 9]),
        ([True, False], ["True", "False"]),
    ],
)
def test_owner_names(owners: list[Any], found: list[Any]) -> None:
    assert owner_names(np.array(owners), str).tolist() == found
    assert owner_names(owners, str).tolist() == found
    x, y = np.zeros((len(owners), 1)), np.zeros(len(owners), dtype=np.int64)
    kept = Records(x, y, x, y, classes=2, train_clients=np.array(owners)).train_clients
    assert kept is not None and kept.tolist() == found


def test_ledger_finds_a_client_by_its_name(tmp_path: Path) -> None:
    """Read from the run's data, or the file that was taken line by line; a number stays one."""
    order = np.repeat([5, 3, 12, 7], 10)
    as_npz(tmp_path, [int(k) for k in order])
    data = {"source": "files", "root": str(tmp_path), "clients": 4, "partition": "natural"}
    options = {"source_options": {"classes": 2}, "validation_fraction": 0.1}
    budgets = {"distribution": "file", "file": str(tmp_path / "budgets.csv")}
    lines = "west,1,0\nnorth,1,0\nsouth,1,0\neast,1,0\n"
    (tmp_path / "budgets.csv").write_text("client_id,epsilon,delta\n" + lines)

    def found(asked: str, **sections: Any) -> int:
        config = parse_config(sections).to_dict()
        run = SimpleNamespace(config=config, class_of=np.zeros(4), directory=tmp_path)
        return client_number(cast(RunRecord, run), asked)

    natural = {"data": {**data, **options}}
    assert [found(f"name={k}", **natural) for k in (3, 5, 7, 12)] == [0, 1, 2, 3]
    assert found("3", **natural) == 3
    placed = {"budgets": budgets, "data": {"clients": 4}}
    assert [found(name, **placed) for name in ("west", "name=east", "2")] == [0, 3, 2]
    for asked, sections, why in (
        ("name=4", natural, "no client of"),
        ("nord", placed, "did you mean 'north'"),
        ("nord", {"data": {"clients": 4}}, "have no names; give a number, 0 to 3"),
    ):
        with pytest.raises(ConfigError, match=why):
            found(asked, **sections)
