"""How labels lie among the clients: counts against the records that each client trains on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.label_counts import LabelCounts
from fl_shuffle.data.task import load_task

DEALT = {"data.partition": "dirichlet", "data.dirichlet_alpha": 0.2, "data.sizes": "unequal"}


def test_counts_are_those_of_the_records_that_clients_train_on(small: Path) -> None:
    config = resolve_config(small, {**DEALT, "data.clients": 30, "data.records_per_client": 0})
    task, found = load_task(config), LabelCounts.of(config.data)
    for client in range(30):
        own = task.labels[task.offsets[client] : task.offsets[client + 1]].numpy()
        assert found.counts[client].tolist() == np.bincount(own, minlength=10).tolist()
    assert found.sizes.tolist() == np.diff(task.offsets).tolist()
    said = found.summary()
    assert said["records"] == len(task.labels) and said["clients"] == 30
    shares = [max(row) / sum(row) for row in found.counts.tolist()]
    assert said["largest_share"] == pytest.approx(sum(shares) / 30)


def test_labels_of_no_class_are_counted_apart() -> None:
    counts = np.array([[2, 0], [1, 1]])
    found = LabelCounts(counts, np.array([0, 3]), ["a", "b"])
    assert found.sizes.tolist() == [2, 5]
    assert found.summary()["records_of_no_class"] == 3


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "csv"])
def test_the_file_is_its_owners_alone(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"labels.{ending}"
    assert main(["data", "--clients", "90", "--plot", str(path), "--json"]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    said = json.loads(capsys.readouterr().out)
    if ending == "csv":
        rows = list(csv.DictReader(path.open()))
        assert [row["client"] for row in rows] == [str(k) for k in range(90)]
        total = sum(int(value) for row in rows for name, value in row.items() if name != "client")
        assert total == said["records"]
    if ending == "svg":
        assert "60 of 90 are shown" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "labels.txt"], "the name must end in png, svg, pdf, csv"),
        (["--plot", "nowhere/labels.png"], "there is no folder nowhere"),
        (["--set", "data.source=gapminder"], "is for regression"),
        (["--clients", "100000"], "training records"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
