"""A SuperNode needs the records of its own clients only."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.flower.records import TrainRequest
from fl_shuffle.flower.roster import held_clients
from fl_shuffle.tasks.data import Records, make_partition
from fl_shuffle.tasks.task import load_task
from fl_shuffle.tasks.worker import Worker

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
        reports.append(Worker(config, task).reports(TrainRequest(1, 4, 4), parameters))
    assert np.array_equal(*reports)
    assert np.ptp(reports[0]) > 0
