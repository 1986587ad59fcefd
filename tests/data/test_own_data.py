"""A SuperNode needs the records of its own clients only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.partitions import make_partition
from fl_shuffle.data.task import Task, load_task
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


def named_sites(section: DataSection) -> Records:
    """The same records, of sites that have names."""
    whole = everything(section)
    owner = OWNERS[np.arange(len(whole.train_labels)) % 4]
    return replace(whole, train_clients=owner)


def marked_sites(section: DataSection) -> Records:
    """Records of which each says whose it is."""
    whole = named_sites(section)
    assert whole.train_clients is not None
    _, owner = np.unique(whole.train_clients, return_inverse=True)
    images = whole.train_images.astype(np.float32).reshape(len(owner), -1)
    images[:, 0] = owner
    return replace(whole, train_images=images, test_images=images[:5], test_labels=owner[:5])


def budgets_of(tmp_path: Path, partition: str, lines: str) -> Task:
    path = tmp_path / "budgets.csv"
    path.write_text("\ufeffclient_id,epsilon,delta\r\n" + lines, encoding="utf-8")
    tables = {
        "data": {"source": f"{__name__}:named_sites", "clients": 4, "partition": partition},
        "budgets": {"distribution": "file", "file": str(path)},
        "privacy": {"unit": "client"},
    }
    return load_task(parse_config(tables))


NAMED = "west,4,1e-6\r\nnorth,2,1e-6\r\nsouth,3,1e-6\r\neast,1,1e-6\r\n\r\n"


def test_a_budgets_file_calls_natural_clients_by_their_names(tmp_path: Path) -> None:
    task = budgets_of(tmp_path, "natural", NAMED)
    # Clients stand in the order of their ids: east, north, south, west.
    assert task.budgets.epsilon.tolist() == [1.0, 2.0, 3.0, 4.0] and not task.budgets.by_place
    with pytest.raises(ConfigError, match=r"line 3: client_id = 'nowhere' is no client of these"):
        budgets_of(tmp_path, "natural", NAMED.replace("north", "nowhere"))


def test_natural_clients_hold_their_own_records_and_no_others() -> None:
    """Owners alternate in the source; every record says whose it is in its first feature."""
    tables = {
        "data": {
            "source": f"{__name__}:marked_sites",
            "clients": 4,
            "partition": "natural",
            "features": "none",
        },
        "privacy": {"unit": "client"},
    }
    task = load_task(parse_config(tables))
    marks = task.inputs[:, 0].round().long().tolist()
    for client in range(4):
        first, last = task.offsets[client], task.offsets[client + 1]
        assert last > first and set(marks[first:last]) == {client}


def test_a_budgets_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    first = budgets_of(tmp_path, "natural", NAMED)
    assert budgets_of(tmp_path, "natural", NAMED) is first
    # As long as before, and perhaps of the same second.
    again = budgets_of(tmp_path, "natural", NAMED.replace("north,2", "north,5"))
    assert again.budgets.epsilon.tolist() == [1.0, 5.0, 3.0, 4.0]
    assert again.plan.scale[1] < first.plan.scale[1]
    config = parse_config(
        {
            "data": {"source": f"{__name__}:named_sites", "clients": 4, "partition": "natural"},
            "budgets": {"distribution": "file", "file": str(tmp_path / "budgets.csv")},
            "privacy": {"unit": "client"},
        }
    )
    assert load_task(config) is again
    (tmp_path / "budgets.csv").unlink()
    with pytest.raises(ConfigError, match=r"budgets\.csv does not exist"):
        load_task(config)


def test_names_of_clients_that_a_partition_made_up_are_places_and_that_is_said(
    tmp_path: Path,
) -> None:
    task = budgets_of(tmp_path, "iid", NAMED)
    assert task.budgets.epsilon.tolist() == [4.0, 2.0, 3.0, 1.0] and task.budgets.by_place


def test_plans_and_audits_read_names_too(tmp_path: Path) -> None:
    budgets_of(tmp_path, "natural", NAMED)
    config = parse_config(
        {
            "run": {"rounds": 1},
            "data": {"source": f"{__name__}:named_sites", "clients": 4, "partition": "natural"},
            "budgets": {"distribution": "file", "file": str(tmp_path / "budgets.csv")},
            "privacy": {"unit": "client"},
        }
    )
    _, kinds = cost_of(config)
    assert sorted(kind["epsilon0"] for kind in kinds) == [1.0, 2.0, 3.0, 4.0]
    assert trade_off_of(config)["budget_lost"] == 0.0
    (tmp_path / "budgets.csv").write_text("client_id,epsilon,delta\n" + "a,1,1e-6\n")
    with pytest.raises(ConfigError, match="'a' is no client of these data"):
        cost_of(config)


def test_an_ordered_partition_keeps_the_sources_order() -> None:
    parts = make_partition(DataSection(clients=4, partition="ordered"), np.zeros(22, np.int64), 1)
    assert parts.order.tolist() == list(range(20))
    assert parts.offsets.tolist() == [0, 5, 10, 15, 20]


@pytest.mark.parametrize("unit", ["record", "client"])
def test_other_sites_records_are_not_needed(unit: str) -> None:
    reports = []
    for source in ("everything", "second_site"):
        config = parse_config(
            {
                "data": {"source": f"{__name__}:{source}", "clients": CLIENTS,
                         "partition": "ordered"},
                "privacy": {"unit": unit},
                "budgets": {"distribution": "uniform", "low": 0.5, "high": 2.0},
            }
        )  # fmt: skip
        task = load_task(config)
        parameters = torch.linspace(-1, 1, sum(p.numel() for p in task.model(config).parameters()))
        reports.append(OneNode(config, task).reports(TrainRequest(1, 4, 4), parameters))
    assert np.array_equal(*reports)
    assert np.ptp(reports[0]) > 0
