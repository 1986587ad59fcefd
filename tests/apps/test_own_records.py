"""Apps that give their records: gradients clipped by the record, as in the framework's own runs."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from safetensors.torch import load_file
from torch import nn

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.federation import RunParts
from fl_shuffle.flower import ShuffleClientApp
from fl_shuffle.flower.own_records import OwnRecords, RecordGradients
from tests.apps.test_strangers import _forgotten  # noqa: F401

RECORDS, CLIENTS, CLIP = 20, 12, 0.5

CONFIG = f"""
[run]
rounds = 3
[data]
clients = {CLIENTS}
records = {RECORDS}
[privacy]
unit = "record"
clip_norm = {CLIP}
[budgets]
distribution = "uniform"
low = 1.0
high = 4.0
[server]
learning_rate = 0.5
"""
APPS = """
[app]
server = "recordapp:server"
client = "recordapp:client"
"""

APP = """
import tomllib
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from torch import nn

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.data.task import load_task
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy


def task():
    return load_task(parse_config(tomllib.load(open("built_in.toml", "rb"))))


def records(context):
    number = context.node_config["partition-id"]
    assert context.node_config["num-partitions"] == 12
    start, end = task().offsets[number : number + 2]
    return task().inputs[start:end], task().labels[start:end].numpy()


def model():
    return nn.Linear(64, 10)


server, client = ServerApp(), ShuffleClientApp(beside=__file__, records=records, model=model)


@server.main()
def main(grid, context):
    built_in = parse_config(tomllib.load(open("built_in.toml", "rb")))
    made = task().model(built_in)
    first = dict(zip(["weight", "bias"], made.state_dict().values()))
    ShuffleStrategy.of(context, beside=__file__).start(grid, ArrayRecord(first))
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "built_in.toml").write_text(CONFIG)
    (tmp_path / "own.toml").write_text(CONFIG + APPS)
    (tmp_path / "recordapp.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_the_run_of_the_framework(app: Path) -> None:
    """The same records, the same model but for last bits, the same bill of every client."""
    for name in ("own", "built_in"):
        assert main(["simulate", f"{name}.toml", "--out", name, "--quiet"]) == 0
    own, built_in = fs.Result("own"), fs.Result("built_in")
    first, second = (
        list(load_file(f"{n}/model.safetensors").values()) for n in ("own", "built_in")
    )
    for each in first:
        (other,) = [values for values in second if values.shape == each.shape]
        assert torch.allclose(each, other, atol=1e-5)
    for client in range(CLIENTS):
        assert own.ledger.client(client).epsilon == built_in.ledger.client(client).epsilon
    assert own.ledger.record.ledger.classes == built_in.ledger.record.ledger.classes


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


@pytest.mark.parametrize("count", [2, 4, 7])
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


MISTAKES = {
    "raises": ("    start, end", "    context.node_config['no']\n    start, end",
               r"the first 3 clients all failed alike: KeyError: 'no' \(recordapp\.py, line \d+"),
    "no pair": (", task().labels[start:end].numpy()", "",
                r"records\(context\) = 'Tensor': must return a pair \(x, y\)"),
    "lengths": ("labels[start:end]", "labels[start : end - 1]", "must be as many labels as record"),
    "another model": ("nn.Linear(64, 10)", "nn.Linear(64, 9)",
                      r"its parameters are weight \[9, 64\].* of the server weight \[10, 64\]"),
    "batch statistics": ("nn.Linear(64, 10)", "nn.Sequential(nn.BatchNorm1d(64))",
                         r"ShuffleClientApp\(model=\.\.\.\): .*BatchNorm1d"),
    "no records": ("beside=__file__, records=records, model=model)",
                   "beside=__file__)\nclient.train()(lambda message, context: message)",
                   r"privacy\.unit = 'record': an update cannot.*ShuffleClientApp\(records=\.\.\."),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_one_line(kind: str, app: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old, new, told = MISTAKES[kind]
    assert APP.count(old) == 1
    (app / "recordapp.py").write_text(APP.replace(old, new))
    assert main(["simulate", "own.toml", "--out", "run"]) == 2
    lines = capfd.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("fl-shuffle: error: ")]
    assert re.search(told, line)


def test_one_client_whose_records_fail_reports_like_any_other(app: Path) -> None:
    failing = "    assert number != 5\n    start, end"
    (app / "recordapp.py").write_text(APP.replace("    start, end", failing))
    assert main(["simulate", "own.toml", "--out", "run", "--quiet"]) == 0
    assert list(fs.Result("run").metrics["n_reports"]) == [CLIENTS] * 3


def test_an_app_can_be_handed_on() -> None:
    """To the actors of Ray."""
    means, parameters = gradients(tables(), {0: made_up(4)})
    own = OwnRecords(made_up, nn.Identity, nn.MSELoss(reduction="none"))
    again = pickle.loads(pickle.dumps(own))
    assert (again.records, again.model, again.loss.reduction) == (made_up, nn.Identity, "none")
    assert row(means, parameters).shape == (8,)
    pickle.dumps(ShuffleClientApp(records=made_up, model=nn.Identity)._mods)


def test_what_goes_together() -> None:
    def nothing(context: Context) -> tuple[Any, Any]:
        raise AssertionError

    for given in (
        SimpleNamespace(records=nothing, model=None, loss=None),
        SimpleNamespace(records=None, model=nn.Identity, loss=None),
        SimpleNamespace(records=None, model=None, loss=nn.MSELoss()),
    ):
        with pytest.raises(ConfigError, match=r"records=\.\.\. and model=\.\.\. go together"):
            ShuffleClientApp(**vars(given))
    with pytest.raises(InvalidValueError, match=r"data\.records = 0: with privacy\.unit = 'reco"):
        RunParts.made_of(parse_config(tables(records=0)))
