"""A SuperNode needs the records of its own clients only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError
from fl_shuffle.flower.messages import TrainRequest
from fl_shuffle.flower.node_registry import held_clients
from fl_shuffle.planner.cost import cost_of, trade_off_of
from tests.one_node import OneNode

CLIENTS, EACH, SITES = 12, 5, 3


def everything(section: DataSection) -> Records:
    """All sites' records."""
    draw = np.random.Generator(np.random.Philox(3))
    images = draw.integers(0, 17, (CLIENTS * EACH + 20, 8, 8)).astype(np.uint8)
    labels = np.arange(len(images)) % 4
    cut = CLIENTS * EACH
    return Records(images[:cut], labels[:cut], images[cut:], labels[cut:], classes=4)


def second_site(section: DataSection) -> Records:
    """What the second site holds; zeros elsewhere."""
    whole = everything(section)
    held = held_clients({"partition-id": 1, "num-partitions": SITES}, CLIENTS)
    rows = slice(held.start * EACH, held.stop * EACH)
    images, labels = np.zeros_like(whole.train_images), np.zeros_like(whole.train_labels)
    images[rows], labels[rows] = whole.train_images[rows], whole.train_labels[rows]
    return Records(images, labels, whole.test_images, whole.test_labels, whole.classes)


OWNERS = np.array(["west", "north", "east", "south"])


def sites(section: DataSection) -> Records:
    """The same records, of sites that have names; each says whose it is in its first feature."""
    whole = everything(section)
    place = np.arange(CLIENTS * EACH) % 4
    images = whole.train_images.astype(np.float32).reshape(len(place), -1)
    images[:, 0] = np.argsort(np.argsort(OWNERS))[place]
    return replace(
        whole,
        train_clients=OWNERS[place],
        train_images=images,
        test_images=images[:5],
        test_labels=whole.train_labels[:5],
    )


def configured(
    source: str, partition: str = "natural", unit: str = "client", **data: Any
) -> Config:
    tables = {
        "run": {"rounds": 1},
        "data": {"source": f"{__name__}:{source}", "clients": 4, "partition": partition, **data},
        "privacy": {"unit": unit},
        "budgets": {"distribution": "uniform", "low": 0.5, "high": 2.0},
    }
    return parse_config(tables)


def by_file(folder: Path, partition: str, lines: str) -> Config:
    """With budgets of a file that is written first."""
    path = folder / "budgets.csv"
    path.write_text("\ufeffclient_id,epsilon,delta\r\n" + lines, encoding="utf-8")
    base = configured("sites", partition, features="none").to_dict()
    return parse_config({**base, "budgets": {"distribution": "file", "file": str(path)}})


NAMED = "west,4,1e-6\r\nnorth,2,1e-6\r\nsouth,3,1e-6\r\neast,1,1e-6\r\n\r\n"


def test_a_budgets_file_calls_natural_clients_by_their_names(tmp_path: Path) -> None:
    """And clients that a partition made up by their places, which is said."""
    config = by_file(tmp_path, "natural", NAMED)
    task = load_task(config)
    # Clients stand in the order of their ids: east, north, south, west.
    assert task.budgets.epsilon.tolist() == [1.0, 2.0, 3.0, 4.0] and not task.budgets.by_place
    assert sorted(each.epsilon0 for each in cost_of(config).classes) == [1.0, 2.0, 3.0, 4.0]
    assert trade_off_of(config)["budget_lost"] == 0.0
    placed = load_task(by_file(tmp_path, "iid", NAMED))
    assert placed.budgets.epsilon.tolist() == [4.0, 2.0, 3.0, 1.0] and placed.budgets.by_place
    config = by_file(tmp_path, "natural", NAMED.replace("north", "nowhere"))
    for use in (load_task, cost_of):
        with pytest.raises(ConfigError, match=r"line 3: client_id = 'nowhere' is no client of"):
            use(config)


def test_a_budgets_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    first = load_task(by_file(tmp_path, "natural", NAMED))
    assert load_task(by_file(tmp_path, "natural", NAMED)) is first
    # As long as before, and perhaps of the same second.
    config = by_file(tmp_path, "natural", NAMED.replace("north,2", "north,5"))
    again = load_task(config)
    assert again.budgets.epsilon.tolist() == [1.0, 5.0, 3.0, 4.0]
    assert again.plan.scale[1] < first.plan.scale[1]
    (tmp_path / "budgets.csv").unlink()
    with pytest.raises(ConfigError, match=r"budgets\.csv does not exist"):
        load_task(config)


def test_natural_clients_hold_their_own_records_and_no_others() -> None:
    """Owners alternate in the source; every record says whose it is in its first feature."""
    task = load_task(configured("sites", features="none"))
    marks = task.inputs[:, 0].round().long().tolist()
    for client in range(4):
        first, last = task.offsets[client], task.offsets[client + 1]
        assert last > first and set(marks[first:last]) == {client}


@pytest.mark.parametrize("unit", ["record", "client"])
def test_other_sites_records_are_not_needed(unit: str) -> None:
    reports = []
    for source in ("everything", "second_site"):
        config = configured(source, "ordered", unit, clients=CLIENTS)
        task = load_task(config)
        assert task.offsets.tolist() == list(range(0, CLIENTS * EACH + 1, EACH))
        parameters = torch.linspace(-1, 1, sum(p.numel() for p in task.model(config).parameters()))
        reports.append(OneNode(config, task).reports(TrainRequest(1, np.arange(4, 8)), parameters))
    assert np.array_equal(*reports)
    assert np.ptp(reports[0]) > 0
