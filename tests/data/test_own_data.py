"""A user's own: records by site, budgets by name, losses and metrics."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fl_shuffle as fs
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config, DataSection
from fl_shuffle.data import Records
from fl_shuffle.data.evaluation import evaluator
from fl_shuffle.data.models import build_loss, squared_error
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import ConfigError, DataError, FlShuffleError
from fl_shuffle.flower import own_records
from fl_shuffle.flower.messages import TrainRequest
from fl_shuffle.flower.node_registry import held_clients
from fl_shuffle.planner.cost import cost_of, trade_off_of
from tests.one_node import OneNode

HERE = __name__
CLIENTS, EACH = 12, 5
NODE = {"partition-id": 1, "num-partitions": 3}


def everything(section: DataSection) -> Records:
    """Of all sites, which have names; each record says whose it is in its first feature."""
    draw = np.random.Generator(np.random.Philox(3))
    images = draw.normal(size=(CLIENTS * EACH, 20)).astype(np.float32)
    names = np.tile(["west", "north", "east", "south"], len(images) // 4)
    labels = np.arange(len(images)) % 4
    images[:, 0] = np.unique(names, return_inverse=True)[1]
    return Records(images, labels, images[:5], labels[:5], classes=4, train_clients=names)


def second_site(section: DataSection) -> Records:
    """What the second of three nodes holds; zeros elsewhere."""
    whole, held = everything(section), held_clients(NODE, CLIENTS)
    outside = np.delete(np.arange(CLIENTS * EACH), slice(held.start * EACH, held.stop * EACH))
    whole.train_images[outside], whole.train_labels[outside] = 0.0, 0
    return whole


def configured(source: str = "everything", clients: int = 4, **more: Any) -> Config:
    data = {"source": f"{HERE}:{source}", "clients": clients, "partition": "natural"}
    tables = {"data": {**data, "features": "none"}, "budgets": {"distribution": "unif2"}}
    for section, values in more.items():
        tables[section] = {**tables.get(section, {}), **values}
    return parse_config(tables)


def test_natural_clients_hold_their_own_records_and_no_others() -> None:
    """Owners alternate in the source."""
    task = load_task(configured())
    marks = task.inputs[:, 0].round().long().tolist()
    for client in range(4):
        first, last = task.offsets[client], task.offsets[client + 1]
        assert last > first and set(marks[first:last]) == {client}


@pytest.mark.parametrize("unit", ["record", "client"])
def test_other_sites_records_are_not_needed(unit: str) -> None:
    reports = []
    for source in ("everything", "second_site"):
        more = {"data": {"partition": "ordered"}, "privacy": {"unit": unit}}
        config = configured(source, CLIENTS, **more)
        task = load_task(config)
        assert task.offsets.tolist() == list(range(0, CLIENTS * EACH + 1, EACH))
        parameters = torch.linspace(-1, 1, sum(p.numel() for p in task.model(config).parameters()))
        reports.append(OneNode(config, task).reports(TrainRequest(1, np.arange(4, 8)), parameters))
    assert np.array_equal(*reports)
    assert np.ptp(reports[0]) > 0


NAMED = "west,4,1e-6\r\nnorth,2,1e-6\r\nsouth,3,1e-6\r\neast,1,1e-6\r\n\r\n"


def by_file(folder: Path, lines: str = NAMED, partition: str = "natural") -> Config:
    """With budgets of a file that is written first."""
    path = folder / "budgets.csv"
    path.write_text("\ufeffclient_id,epsilon,delta\r\n" + lines, encoding="utf-8")
    budgets = {"distribution": "file", "file": str(path)}
    return configured(data={"partition": partition}, privacy={"unit": "client"}, budgets=budgets)


def test_a_budgets_file_calls_natural_clients_by_their_names(tmp_path: Path) -> None:
    """And clients that a partition made up by their places, which is said."""
    config = by_file(tmp_path)
    task = load_task(config)
    # Clients stand in the order of their ids: east, north, south, west.
    assert task.budgets.epsilon.tolist() == [1.0, 2.0, 3.0, 4.0] and not task.budgets.by_place
    assert sorted(each.epsilon0 for each in cost_of(config).classes) == [1.0, 2.0, 3.0, 4.0]
    assert trade_off_of(config)["budget_lost"] == 0.0
    placed = load_task(by_file(tmp_path, partition="iid"))
    assert placed.budgets.epsilon.tolist() == [4.0, 2.0, 3.0, 1.0] and placed.budgets.by_place
    config = by_file(tmp_path, NAMED.replace("north", "nowhere"))
    for use in (load_task, cost_of):
        with pytest.raises(DataError, match=r"line 3: client_id = 'nowhere' is no client of"):
            use(config)


def test_a_budgets_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    first = load_task(by_file(tmp_path))
    assert load_task(by_file(tmp_path)) is first
    # As long as before, and perhaps of the same second.
    config = by_file(tmp_path, NAMED.replace("north,2", "north,5"))
    again = load_task(config)
    assert again.budgets.epsilon.tolist() == [1.0, 5.0, 3.0, 4.0]
    assert again.plan.scale[1] < first.plan.scale[1]
    (tmp_path / "budgets.csv").unlink()
    with pytest.raises(ConfigError, match=r"budgets\.csv does not exist"):
        load_task(config)


def mean(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def picked(outputs: Tensor, labels: Tensor) -> Tensor:
    return -outputs.gather(1, labels[:, None])[:, 0]


def mixed(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - outputs.mean(0)).square().sum(1)


def r2(outputs: Tensor, labels: Tensor) -> dict[str, Any]:
    return {"r2": 1 - (outputs - labels).square().sum() / (labels - labels.mean()).square().sum()}


def nonsense(outputs: Tensor, labels: Tensor) -> float:
    return 0.5


GAPMINDER = {
    "run": {"rounds": 5, "seed": 2},
    "data": {"source": "gapminder", "partition": "natural", "clients": 114, "features": "none"},
    "model": {"kind": "linear", "init": "zeros", "loss": "squared-error", "metrics": f"{HERE}:r2"},
    "privacy": {"unit": "client", "clip_norm": 0.5},
    "budgets": {"distribution": "constant", "epsilon": 100.0},
    "server": {"learning_rate": 2.0},
}


def test_regression_with_natural_clients(tmp_path: Path) -> None:
    result = fs.simulate(GAPMINDER, out=tmp_path / "run")
    assert result.accuracy is None and result.summary["metrics"]["r2"] > 0.5
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["r2"]) == pytest.approx(result.summary["metrics"]["r2"])
    assert rows[0]["accuracy"] == "" and float(rows[-1]["loss"]) < float(rows[0]["loss"])
    page = result.report(tmp_path / "page.html").read_text()
    assert "1 numbers to predict" in page and len(result.ledger) == 114


def test_squared_errors_are_summed_over_a_records_outputs() -> None:
    outputs, labels = torch.tensor([[1.0, 2.0], [0.0, 5.0]]), torch.tensor([[0.0, 4.0], [0.0, 2.0]])
    assert squared_error(outputs, labels).tolist() == pytest.approx([2.5, 4.5])


@pytest.mark.parametrize(
    ("model", "regression", "why"),
    [
        ({"loss": f"{HERE}:mean"}, False, "one loss for each"),
        ({"loss": f"{HERE}:mixed"}, False, "mixes records"),
        ({"loss": f"{HERE}:picked"}, True, "raised"),
        ({"loss": "squared-error"}, False, "is for regression"),
        ({}, True, "set model.loss = 'squared-error'"),
        ({"loss": f"{HERE}:HERE"}, False, "must be a function"),
    ],
)
def test_losses_that_do_not_fit(model: dict[str, str], regression: bool, why: str) -> None:
    section = parse_config({"model": model}).model
    with pytest.raises(FlShuffleError, match=why):
        build_loss(section, 3, regression=regression)


def test_a_label_that_is_no_class_has_no_loss_of_a_users_own() -> None:
    """It is its holder's mistake: zero, in a run and in an app, and nobody is told."""
    outputs = torch.arange(1.0, 16.0).reshape(5, 3).requires_grad_()
    section = parse_config({"model": {"loss": f"{HERE}:picked"}}).model
    loss = build_loss(section, 3, regression=False)
    assert loss is not None
    found = loss(outputs, torch.tensor([0, 2, 3, -1, 100]))
    assert found.tolist() == [-1.0, -6.0, 0.0, 0.0, 0.0]
    found.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.any(dim=1).tolist() == [True, True, False, False, False]
    # An app's missing record has the label -1; how many classes there are the app alone knows.
    of_app = own_records._of_classes(picked)(outputs, torch.tensor([0, 2, -1, -1, 1]))
    assert of_app.tolist() == [-1.0, -6.0, 0.0, 0.0, -14.0]
    numbers = torch.zeros(5, 3)
    of_numbers = own_records._of_classes(squared_error)(outputs, numbers)
    assert torch.equal(of_numbers, squared_error(outputs, numbers))


def test_metrics_that_are_no_numbers_are_one_line(tmp_path: Path) -> None:
    model = {"metrics": f"{HERE}:nonsense"}
    with pytest.raises(FlShuffleError, match="mapping of names to numbers"):
        fs.simulate({"run": {"rounds": 1}, "model": model}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def write_npz(path: Path, shift: float) -> None:
    draw = np.random.Generator(np.random.Philox(5))
    x = draw.normal(size=(40, 3)).astype(np.float32) + np.float32(shift)
    np.savez(path, x_train=x, y_train=np.arange(40) % 2, x_test=x[:9], y_test=np.arange(9) % 2)


def of_file(path: Path) -> dict[str, Any]:
    data = {"source": "files", "root": str(path), "clients": 4, "features": "none"}
    return {
        "run": {"rounds": 1},
        "data": {**data, "source_options": {"classes": 2}},
        "privacy": {"unit": "client"},
        "budgets": {"distribution": "constant"},
    }


def test_files_that_have_changed_are_read_again(tmp_path: Path) -> None:
    """By a second run of the same process, with the same settings."""
    path, first = tmp_path / "d.npz", parse_config(of_file(tmp_path / "d.npz"))
    write_npz(path, 0.0)
    before = load_task(first)
    assert load_task(first) is before
    models = [fs.simulate(of_file(path), out=tmp_path / "a").model]
    write_npz(path, 7.0)
    after = load_task(first)
    assert torch.allclose(after.inputs, before.inputs + 7.0)
    models.append(fs.simulate(of_file(path), out=tmp_path / "b").model)
    assert not torch.equal(*(next(each.parameters()) for each in models))
    folder = tmp_path / "folder"
    folder.mkdir()
    write_part(folder / "train.npz", 0.0)
    write_part(folder / "test.npz", 0.0)
    config = parse_config(of_file(folder))
    assert float(load_task(config).test_inputs[0, 0]) == 0.0
    write_part(folder / "test.npz", 1.0)
    assert float(load_task(config).test_inputs[0, 0]) == 1.0


def write_part(path: Path, value: float) -> None:
    np.savez(path, x=np.full((8, 3), value, np.float32), y=np.arange(8) % 2)


asked: list[str] = []


def counted(section: DataSection) -> Records:
    asked.append("source")
    return everything(section)


class Shifted:
    data_dependent = False

    def fit(self, images: Any) -> None: ...

    def transform(self, images: Any) -> Any:
        return (images + np.float32(asked.count("source"))).astype(np.float32)


def entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def nothing(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.0 * nn.functional.cross_entropy(outputs, labels, reduction="none")


def trained(tables: dict[str, Any], out: Path) -> Tensor:
    """The first parameter after a round with hardly any noise."""
    tables = {**tables, "run": {"rounds": 1}}
    tables["budgets"] = {"distribution": "constant", "epsilon": 1e9, "delta": 1e-6}
    return next(fs.simulate(tables, out=out).model.parameters()).detach()


def test_own_source_and_features_are_called_for_each_run(tmp_path: Path) -> None:
    """Once, for server and nodes: what they return may be something else the next time."""
    tables = configured("counted").to_dict()
    tables["data"] = {**tables["data"], "features": f"{HERE}:Shifted"}
    asked.clear()
    first = trained(tables, tmp_path / "a")
    assert len(asked) == 1
    second = trained(tables, tmp_path / "b")
    assert len(asked) == 2
    assert not torch.allclose(first, second, atol=1e-3)


def test_loss_that_has_changed_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where a cell is run again."""
    tables = configured(model={"loss": f"{HERE}:entropy"}).to_dict()
    first = trained(tables, tmp_path / "a")
    monkeypatch.setattr(f"{HERE}.entropy", nothing)
    assert not torch.allclose(first, trained(tables, tmp_path / "b"), atol=1e-3)


class Tied(nn.Module):
    """Whose last layer but one has the embedding's weights."""

    def __init__(self, *, whole: bool = False, extra: bool = False) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.last.weight = self.embedding.weight
        self.head = nn.Linear(7, 3)
        self.whole, self.extra = whole, extra

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens if self.whole else tokens.long()
        return self.head(self.last(self.embedding(tokens).mean(1)))


class Extra(Tied):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None: ...


def tied(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tied()


def whole(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Tied(whole=True)


def with_extra(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Extra()


def tokens(section: DataSection) -> Records:
    """Whole numbers; the class is the first one's."""
    draw = np.random.Generator(np.random.Philox(3))
    x = draw.integers(0, 7, size=(240, 5))
    return Records(x, x[:, 0] % 3, x[:60], x[:60, 0] % 3, classes=3)


def of_tokens(kind: str) -> dict[str, Any]:
    return {
        "run": {"rounds": 3},
        "data": {"source": f"{HERE}:tokens", "clients": 12, "features": "none"},
        "model": {"kind": f"{HERE}:{kind}"},
        "privacy": {"unit": "client"},
        "budgets": {"distribution": "constant", "epsilon": 1e3},
    }


def test_model_with_tied_weights_is_saved_and_read(tmp_path: Path) -> None:
    result = fs.simulate(of_tokens("tied"), out=tmp_path / "run")
    state = result.model.state_dict()
    assert torch.equal(state["last.weight"], state["embedding.weight"])
    assert result.summary["rounds"] == 3 and list(result.metrics["num_reports"]) == [12] * 3


def test_model_that_cannot_be_saved_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(FlShuffleError, match=r"holds '_extra_state', a dict.*tensors alone"):
        fs.simulate(of_tokens("with_extra"), out=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


def test_whole_numbers_stay_whole_for_a_model_that_takes_no_others(tmp_path: Path) -> None:
    """The same bits as those of a model that makes them whole itself."""
    models = [
        fs.simulate(of_tokens(kind), out=tmp_path / kind).model.state_dict()
        for kind in ("tied", "whole")
    ]
    assert all(torch.equal(one, models[1][name]) for name, one in models[0].items())
    with pytest.raises(FlShuffleError, match=r"takes whole numbers: have the source return them"):
        tables = of_tokens("whole")
        tables["data"] |= {"source": "digits", "features": "raw"}
        fs.simulate(tables, out=tmp_path / "digits")


class Restless(nn.Linear):
    """Computes something else while it trains, as layers that draw do."""

    def forward(self, inputs: Tensor) -> Tensor:
        return -super().forward(inputs) if self.training else super().forward(inputs)


def test_a_model_is_measured_at_rest_whatever_it_was_doing() -> None:
    torch.manual_seed(0)
    model = Restless(3, 2)
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    inputs = torch.randn(50, 3)
    labels = nn.Linear.forward(model, inputs).argmax(dim=1)
    task: Any = SimpleNamespace(
        test_inputs=inputs, test_labels=labels, regression=False, loss=None, classes=2
    )
    measure = evaluator(model, task, Config().model)
    for number in (1, 2):
        model.train()
        assert measure(number, parameters)["accuracy"] == 1.0


@pytest.mark.parametrize("owned", [False, True])
def test_a_fingerprint_is_of_every_number_and_label(owned: bool) -> None:
    """Whatever changes places, of training or of test records, another one comes out; and
    the same of the same bytes."""
    parts = {
        "train_images": np.arange(12.0, dtype=np.float32).reshape(6, 2),
        "train_labels": np.array([0, 1, 2, 0, 1, 2]),
        "test_images": np.arange(6.0, dtype=np.float32).reshape(3, 2),
        "test_labels": np.array([0, 1, 2]),
    }
    if owned:
        parts["train_clients"] = np.array(["a", "b", "a", "b", "c", "a"])

    def fingerprint(classes: int = 3, **changed: Any) -> str:
        return Records(**{**parts, **changed}, classes=classes).fingerprint()

    found = [fingerprint(), fingerprint(classes=4)]
    for name, values in parts.items():
        for first, second in ((0, 1), (-1, -2)):
            changed = values.copy()
            changed[[first, second]] = changed[[second, first]]
            found.append(fingerprint(**{name: changed}))
            assert fingerprint(**{name: values.copy()}) == found[0]
    assert len(set(found)) == len(found)
