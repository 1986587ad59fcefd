"""Reports of evaluation rounds: as long, and moved as far, as those of gradients; and what they
tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.own_metrics import OwnMetrics
from fl_shuffle.gradients.metric_reports import MetricReports
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.randomizers.noise import NoiseStream
from tests.federation.small_tasks import SIZES, configured, parameters_of, task_of

RANGES = {"accuracy": [0.0, 1.0], "loss": [0.0, 3.0]}
CLIENTS = np.arange(len(SIZES))
EVERYBODY = np.ones(len(SIZES), dtype=bool)


def config_of(times: float = 1.0, **privacy: Any) -> Config:
    tables = configured(**{"metrics": RANGES, "metrics_every": 2, **privacy}).to_dict()
    epsilons = [times * each for each in (0.5, 4.0, 1.0, 2.0)]
    tables["budgets"] = {"distribution": "listed", "epsilons": epsilons}
    return parse_config(tables)


def reports_of(config: Config) -> tuple[MetricReports, Calibration]:
    plan = task_of(config).plan
    reports = MetricReports.of(config, plan)
    assert reports is not None
    return reports, plan


KINDS: list[dict[str, Any]] = [
    {},
    {"unit": "client"},
    {"randomizer": "laplace"},
    {"unit": "client", "randomizer": "laplace", "personalization": "clipping"},
    {"client_clip_norm": 0.1},
    {"clipping": "average"},
]


def some_numbers(generator: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of records [count, 2]: in their ranges, at the ends, beyond them, or none."""
    usual = generator.uniform(-0.5, 3.5, (count, 2))
    special = generator.choice([0.0, 1.0, 3.0, 1e30, -1e30, np.nan, np.inf, -np.inf], (count, 2))
    return np.where(generator.random((count, 2)) < 0.5, usual, special)


@pytest.mark.parametrize("privacy", KINDS)
def test_replacing_one_unit_moves_a_report_within_the_sensitivity(privacy: dict[str, Any]) -> None:
    """One record of each client, or all that it holds; also of numbers that are none."""
    config = config_of(**privacy)
    reports, plan = reports_of(config)
    generator = np.random.default_rng(1)
    by_record, longest = config.privacy.unit == "record", 0.0

    def inside(numbers: np.ndarray) -> np.ndarray:
        kept = np.where(np.isfinite(numbers), numbers, reports.low)
        return np.clip(kept, reports.low, reports.high)

    for _ in range(300):
        before, after = np.empty((2, len(SIZES), 2))
        for client, size in enumerate(SIZES):
            records, other = some_numbers(generator, size), some_numbers(generator, 1)[0]
            before[client] = inside(records).mean(axis=0) if by_record else records[0]
            records[0] = other
            after[client] = inside(records).mean(axis=0) if by_record else other
        rows = [reports.means(each, CLIENTS, 7).double().numpy() for each in (before, after)]
        for row in rows:
            assert (np.linalg.norm(row, plan.norm, axis=1) <= plan.radius).all()
            assert not row[:, 2:].any()
        moved = np.linalg.norm(rows[0] - rows[1], plan.norm, axis=1) / plan.sensitivity
        assert (moved <= 1.0).all()
        longest = max(longest, float(moved.max()))
    # The bound is reached, but where another clip allows more than metrics use.
    assert longest > 0.999 or privacy.get("clipping") == "average"


def test_ends_of_the_ranges_are_ends_of_the_ball_and_what_is_not_finite_is_the_lower_one() -> None:
    reports, plan = reports_of(config_of(unit="client"))
    values = np.array([[1.0, 3.0], [0.0, 0.0], [np.nan, np.inf], [-9.0, -np.inf]])
    rows = reports.means(values, CLIENTS, 5).double().numpy()
    lengths = np.linalg.norm(rows, axis=1) / plan.radius
    assert lengths == pytest.approx(1.0, abs=1e-5)
    assert (rows[0, :2] > 0).all()
    assert np.array_equal(rows[1:, :2], -np.abs(rows[1:, :2]))


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "client", "personalization": "clipping"},
        {"randomizer": "laplace"},
        {"unit": "client", "report_bits": 8},
        {"unit": "client", "reports_per_round": 3},
    ],
)
def test_estimates_are_unbiased_within_their_standard_error(privacy: dict[str, Any]) -> None:
    """Mean and spread over 4,000 coordinates that all hold the same report. A bias of a tenth of
    the error, or an error off by a tenth, would be noticed."""
    config = config_of(20.0, **privacy)
    reports, plan = reports_of(config)
    values = np.array([[0.1, 0.3], [0.5, 1.0], [0.9, 2.0], [0.7, 2.9]])
    present, count = EVERYBODY.copy(), 4_000
    present[1] = False
    clients = CLIENTS[present]
    means = reports.means(values[present], clients, 2)
    wide = means.repeat(1, count)
    batches = config.privacy.reports_per_round
    drawn = [
        plan.local.reports(wide.clone(), clients, NoiseStream(bytes([7 + each]) * 16, 2 * count))
        for each in range(batches)
    ]
    mean = torch.cat(drawn).double().mean(dim=0).numpy().reshape(count, 2)
    number = len(clients) * batches
    found = [reports.estimates(each.astype(np.float32), present, number) for each in mean]
    weight = (plan.weight * plan.radius)[present]
    for column, name in enumerate(reports.names):
        estimates = np.array([each[f"private_{name}"] for each in found])
        error = found[0][f"private_{name}_error"]
        truth = float(np.average(values[present, column], weights=weight))
        assert abs(estimates.mean() - truth) < 0.1 * error
        assert estimates.std() == pytest.approx(error, rel=0.1)


class Picky(nn.Module):
    """A model that raises on some records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if (inputs > 100.0).any():
            raise IndexError("no such token")
        answer: torch.Tensor = self.layer(inputs)
        return answer


def test_own_numbers_are_those_of_the_records_each_clipped() -> None:
    config = config_of()
    task, parameters = task_of(config), parameters_of(config)
    model = task.model(config)
    ranges = np.array([[0.0, 0.5], [1.0, 1.2]])
    own = OwnMetrics(model, task, ("accuracy", "loss"), ranges, by_record=True)
    found = own(parameters, np.array([1, 3]))
    nn.utils.vector_to_parameters(parameters, model.parameters())
    for row, client in zip(found, (1, 3), strict=True):
        rows = slice(*task.offsets[client : client + 2].tolist())
        outputs, labels = model(task.inputs[rows]).detach(), task.labels[rows]
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none").clamp(0.5, 1.2)
        right = (outputs.argmax(dim=1) == labels).double()
        assert row == pytest.approx([float(right.mean()), float(losses.double().mean())], abs=1e-6)
    both = OwnMetrics(model, task, ("accuracy", "loss"), ranges, by_record=False)
    assert both(parameters, np.array([1, 3])) == pytest.approx(found, abs=1e-6)


def test_record_on_which_the_model_raises_changes_no_other_records_number() -> None:
    """It counts as the lower end. In the record unit the others keep their bits; in the client unit
    the client counts as the lower end."""
    config, client = config_of(), 1
    healthy = task_of(config)
    first = int(healthy.offsets[client])
    spoilt = task_of(config, {first: 1e3})
    numbers = []
    parameters = nn.utils.parameters_to_vector(Picky().parameters()).detach()
    ranges = np.array([[0.0], [3.0]])
    for task in (healthy, spoilt):
        own = OwnMetrics(Picky(), task, ("loss",), ranges, by_record=True)
        each = [own(parameters, np.array([client]))[0, 0] * SIZES[client]]
        alone = own._of_records(first, first + 1)[0, 0]
        numbers.append((each[0], alone))
    (whole, own_loss), (left, nothing) = numbers
    assert nothing == 0.0 and own_loss > 0.0
    assert left == pytest.approx(whole - own_loss, abs=1e-12)
    by_client = OwnMetrics(Picky(), spoilt, ("loss",), ranges, by_record=False)
    assert by_client(parameters, np.array([client]))[0, 0] == 0.0


def test_label_that_is_no_class_has_no_loss() -> None:
    config = config_of()
    task = task_of(config)
    task.labels[0] = 7
    own = OwnMetrics(task.model(config), task, ("loss",), np.array([[0.0], [9.0]]), by_record=True)
    parameters = parameters_of(config)
    assert own._of_records(0, 1)[0, 0] == 0.0
    assert own(parameters, np.array([0]))[0, 0] > 0.0
