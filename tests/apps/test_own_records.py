"""Apps that give their records: gradients clipped by the record, as in the framework's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file
from torch import nn

import fl_shuffle as fs
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.task import Task, load_task
from fl_shuffle.federation import RunParts
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy
from fl_shuffle.flower.own_records import OwnRecords, RecordGradients

CLIP = 0.5
BUILT_IN: dict[str, Any] = {
    "run": {"rounds": 3},
    "data": {"clients": 12, "records": 20},
    "privacy": {"unit": "record", "clip_norm": CLIP},
    "budgets": {"distribution": "uniform", "low": 1.0, "high": 4.0},
    "server": {"learning_rate": 0.5},
}


def task() -> Task:
    return load_task(parse_config(BUILT_IN))


def records(context: Context) -> tuple[torch.Tensor, np.ndarray]:
    number = int(context.node_config["partition-id"])
    start, end = task().offsets[number : number + 2]
    return task().inputs[start:end], task().labels[start:end].numpy()


def model() -> nn.Module:
    return nn.Linear(64, 10)


server, client = ServerApp(), ShuffleClientApp(records=records, model=model)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    made = task().model(parse_config(BUILT_IN)).state_dict()
    first = dict(zip(["weight", "bias"], made.values(), strict=True))
    ShuffleStrategy.of(context).start(grid, ArrayRecord(first))


def test_it_is_the_run_of_the_framework(tmp_path: Path) -> None:
    """The same records, the same model but for last bits, the same bill of every client."""
    app = {"server": f"{__name__}:server", "client": f"{__name__}:client"}
    own = fs.simulate({**BUILT_IN, "app": app}, out=tmp_path / "own")
    built_in = fs.simulate(BUILT_IN, out=tmp_path / "built_in")
    first, second = (
        {each.shape: each for each in load_file(tmp_path / name / "model.safetensors").values()}
        for name in ("own", "built_in")
    )
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[shape], second[shape], atol=1e-5) for shape in first)
    for number in range(12):
        assert own.ledger.client(number).epsilon == built_in.ledger.client(number).epsilon
    assert own.ledger.record.classes == built_in.ledger.record.classes


def gradients(
    config: dict[str, Any], given: dict[int, tuple[Any, Any]], loss: Any = None
) -> tuple[RecordGradients, torch.Tensor]:
    torch.manual_seed(0)
    parts = RunParts.made_of(parse_config(config))
    made = nn.Linear(3, 2)
    own = OwnRecords(lambda c: given[c.node_config["partition-id"]], lambda: nn.Linear(3, 2), loss)
    flat = torch.cat([each.detach().flatten() for each in made.parameters()])
    return RecordGradients(own, parts), flat


def tables(unit: str = "record", records: int = 4, **privacy: Any) -> dict[str, Any]:
    return {
        "data": {"clients": 3, "records": records},
        "privacy": {"unit": unit, "clip_norm": CLIP, **privacy},
        "app": {"client": "a:b", "server": "a:b"},
    }


def row(means: RecordGradients, parameters: torch.Tensor, client: int = 0) -> np.ndarray:
    context = Context(1, 1, {"partition-id": client}, RecordDict(), {})
    return np.asarray(means.row(parameters, client, context))


def made_up(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return 5 * torch.randn(count, 3, generator=draw), torch.arange(count) % 2


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(reduction="none")])
def test_the_mean_is_over_the_public_number(loss: Any) -> None:
    """Of more records the first ones; missing ones are zeros, whatever the loss."""
    x, y = made_up(9)
    means, parameters = gradients(
        tables(), {0: (x, y), 1: (x[:4], y[:4]), 2: (x[:1].numpy(), y[:1].numpy())}, loss
    )
    singles = []
    for index in range(4):
        one, _ = gradients(tables(records=1), {0: (x[index : index + 1], y[index : index + 1])})
        singles.append(row(one, parameters))
    assert max(np.linalg.norm(each) for each in singles) <= CLIP
    assert max(np.linalg.norm(each) for each in singles) > 0.99 * CLIP
    expected = np.mean(singles, axis=0)
    assert row(means, parameters, 0) == pytest.approx(expected, abs=1e-5)
    assert np.array_equal(row(means, parameters, 0), row(means, parameters, 1))
    assert row(means, parameters, 2) == pytest.approx(singles[0] / 4, abs=1e-5)


@pytest.mark.parametrize("count", [2, 7])
def test_a_replaced_record_moves_it_by_its_share(count: int) -> None:
    """Also where the client has more or fewer records than are counted: by at most 2 C / B, which
    opposite gradients reach."""
    x, y = made_up(count, seed=1)
    moved_x, moved_y = x.clone(), y.clone()
    x[0], y[0] = torch.tensor([50.0, 0.0, 0.0]), 0
    moved_x[0], moved_y[0] = torch.tensor([50.0, 0.0, 0.0]), 1
    means, parameters = gradients(tables(), {0: (x, y), 1: (moved_x, moved_y)})
    distance = np.linalg.norm(row(means, parameters, 0) - row(means, parameters, 1))
    parameters.zero_()
    most = np.linalg.norm(row(means, parameters, 0) - row(means, parameters, 1))
    assert max(distance, most) <= 2 * CLIP / 4 and most > 0.99 * 2 * CLIP / 4


def test_with_the_client_unit_all_its_records_count() -> None:
    x, y = made_up(7)
    means, parameters = gradients(tables("client", records=0), {0: (0.01 * x, y), 1: (x, y)})
    model = nn.Linear(3, 2)
    torch.nn.utils.vector_to_parameters(parameters, model.parameters())
    nn.functional.cross_entropy(model(0.01 * x), y).backward()
    expected = torch.cat([each.grad.flatten() for each in model.parameters()])  # type: ignore[union-attr]
    expected *= min(1.0, CLIP / float(expected.norm()))
    assert row(means, parameters, 0) == pytest.approx(expected.numpy(), abs=1e-5)
    assert np.linalg.norm(row(means, parameters, 1)) <= CLIP
