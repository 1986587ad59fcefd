"""Apps of strangers, written for Flower's own strategies: ten changed lines, all else kept."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import Layout
from fl_shuffle.plugins import installed, load_attribute
from fl_shuffle.run_words import METRICS_STAY
from tests.apps.programs import program
from tests.apps.strangers import (
    APPS,
    CLIENTS,
    PRIVACY,
    ROUNDS,
    changed_lines,
    edit,
    error_line,
    simulate,
    written,
)
from tests.apps.superlink import PROGRAMS, federation
from tests.small_federation import model_bytes

CLIENT, TASK, SERVER = (Path("torch_app", f"{n}.py") for n in ("client_app", "task", "server_app"))
EVERY_APP = [("torch_app", kind) for kind in PRIVACY] + [("numpy_app", "updates")]


@pytest.mark.parametrize("app", APPS)
def test_it_is_an_app_for_flowers_own_strategy(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, under FedAvg: what is changed afterwards worked before."""
    folder = written(app, tmp_path, changed=False)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    client, server = (
        load_attribute(f"{app}.{side}:app", field="") for side in ("client_app", "server_app")
    )
    config: Any = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    replies: list[Message] = []

    def play(message: Message, context: Context) -> Message:
        context.node_config = {"partition-id": context.node_id - 2, "num-partitions": 4}
        replies.append(client(message, context))
        return replies[-1]

    grid = InProcessGrid(play, config, nodes=4)
    try:
        server(grid, Context(1, 1, {}, RecordDict(), config))
    finally:
        grid.close()
    assert len(replies) >= ROUNDS * 4 and not any(reply.has_error() for reply in replies)


@pytest.mark.parametrize(("app", "kind"), EVERY_APP)
def test_ten_changed_lines_and_it_is_private(
    app: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert changed_lines(app) <= 10
    monkeypatch.chdir(written(app, tmp_path, kind))
    assert simulate() == 0
    said = capfd.readouterr().err
    assert said.count(METRICS_STAY) == 1
    assert "failed" not in said and "counts as zero" not in said
    result = fs.Result("run")
    assert list(result.metrics["n_reports"]) == [CLIENTS] * ROUNDS
    spend = result.ledger.client(3)
    assert spend.rounds == ROUNDS and 0.0 < spend.epsilon <= spend.local_epsilon
    if app == "numpy_app":
        assert json.loads(Path("accuracy.json").read_text())["accuracy"] > 0.7
        return
    # What the app leaves, as under FedAvg.
    log = json.loads(Path("log.json").read_text())
    assert list(result.metrics["accuracy"]) == pytest.approx(log[1:]) and len(log) == 1 + ROUNDS
    names = list(torch.load("model-3.pt"))
    assert names == list(load_attribute("torch_app.task:Net", field="")().state_dict())


ALIKE, NUMBER = "the first 3 clients all failed alike: ", "    number, of = (context"
MISTAKES = [
    ("updates", '"max-grad-norm"]', '"max-norm"]',
     rf"{ALIKE}KeyError: 'max-norm' \(client_app\.py, line \d+, in train_fn\)"),
    ("updates", "ArrayRecord(net.st", "ArrayRecord(net.head.st", rf"{ALIKE}KeyError: 'body\.0\.w"),
    ("updates", '{"arrays": arrays, ', '{"a": arrays, "b": arrays, ', f"{ALIKE}KeyError: 'arrays'"),
    ("updates", '    return Message(RecordDict({"arrays"', '    Message(RecordDict({"arrays"',
     f"{ALIKE}.*the app returned NoneType, no message"),
    ("records", NUMBER, f"    context.node_config['no']\n{NUMBER}",
     rf"{ALIKE}KeyError: 'no' \(task\.py, line \d+"),
    ("records", "return x, x[:, :3].argmax(1)", "return x",
     r"records\(context\) = 'Tensor': must return a pair \(x, y\)"),
    ("records", "model=Net", "model=lambda: Net().head",
     r"its parameters are weight \[3, 6\].* of the server body.0.weight \[6, 8\]"),
    ("records", ", records=load_data, model=Net\n)", ")\napp.train()(lambda msg, context: msg)",
     r"privacy\.unit = 'record': an update cannot.*ShuffleClientApp\(records=\.\.\."),
    ("records", PRIVACY["records"], PRIVACY["declared"], "no noise would be added to gradients"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "old", "new", "told"), MISTAKES)
def test_a_mistake_is_told_with_its_place_before_more_is_paid(
    kind: str,
    old: str,
    new: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written("torch_app", tmp_path, kind))
    (file,) = (f for f in (CLIENT, TASK, Path("shuffle.toml")) if old in f.read_text())
    edit(file, (old, new))
    assert simulate() == 2
    assert re.search(told, error_line(capfd))
    if told.startswith(ALIKE):
        with sqlite3.connect("run/ledger.sqlite") as ledger:
            assert ledger.execute("SELECT max(round) FROM reservations").fetchone() == (1,)
            assert not ledger.execute("SELECT * FROM rounds").fetchall()


def test_a_client_that_is_none_of_these_is_told(
    torch_app: None, capfd: pytest.CaptureFixture[str]
) -> None:
    edit(
        CLIENT,
        ("from fl_shuffle.flower import ShuffleClientApp", "from flwr.clientapp import ClientApp"),
        ("ShuffleClientApp(mods=[count_calls], beside=__file__)", "ClientApp()"),
    )
    assert simulate() == 1
    told = "raised KeyError 'partition-id': 16); app.client must be a ShuffleClientApp"
    assert told in error_line(capfd)


def test_few_that_fail_among_others_are_no_mistake(torch_app: None) -> None:
    """Whether somebody's training raises may hang on a record: the run goes on."""
    what = "    draw = torch.Generator().manual_seed(1000"
    edit(TASK, (what, f"    assert number in (2, 9)\n{what}"))
    assert simulate("run.jobs=1") == 0
    assert list(fs.Result("run").metrics["n_reports"]) == [CLIENTS] * ROUNDS


def test_a_run_has_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """[tool.flwr.app.config] reaches the apps in process, [app.config] comes first, both stay on
    record, and what Flower could not carry is refused."""
    monkeypatch.chdir(written("numpy_app", tmp_path))
    assert simulate() == 0
    kept = json.loads(Path("run/config.json").read_text())["app"]["config"]
    assert kept == {"num-server-rounds": 3, "penalty": "l2", "local-epochs": 2}
    assert main(["simulate", "run", "--out", "again", "--quiet"]) == 0
    edit(Path("shuffle.toml"), ("[privacy]", "[app.config]\nlocal-epochs = 1\n[privacy]"))
    assert simulate(out="other") == 0
    first, again, other = (model_bytes(Path(name)) for name in ("run", "again", "other"))
    assert first == again != other
    capfd.readouterr()
    for value, told in (
        ("{x = [1]}", "app.config.x = [1]: must be a text, a boolean or a finite number"),
        ("{resume = 1}", "app.config: 'resume' is the run's own and reaches no app; rename it"),
    ):
        assert simulate(f"app.config={value}", out="refused") == 2
        assert error_line(capfd) == told
    Path("pyproject.toml").write_text("[tool")
    assert simulate(out="refused") == 2
    assert "pyproject.toml cannot be read: " in error_line(capfd)


def test_what_asks_for_no_gradient_gets_no_noise_and_tied_weights_count_once(
    torch_app: None,
) -> None:
    edit(
        TASK,
        ("nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6))",
         "nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6, False), nn.Linear(6, 6, False))\n"
         "        self.body[0].requires_grad_(False)\n"
         "        self.body[2].weight = self.body[1].weight"),
    )  # fmt: skip
    edit(SERVER, ("beside=__file__)", "beside=__file__, model=net)"))
    assert simulate() == 0
    first, last = torch.load("model-0.pt"), load_file("run/model.safetensors")
    assert set(first) == set(last)
    for name in ("body.0.weight", "body.0.bias"):
        assert torch.equal(first[name], last[name])
    assert torch.equal(last["body.1.weight"], last["body.2.weight"])
    assert not torch.equal(first["body.1.weight"], last["body.1.weight"])
    # 6 x 6 once, and the last layer: nothing else is clipped, or gets noise.
    assert fs.Result("run").ledger.record.meta["dimension"] == 36 + 18 + 3


def test_buffers_get_no_noise_and_statistics_of_batches_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    model.register_buffer("scale", torch.ones(3))
    model.register_buffer("count", torch.tensor(7))
    arrays = ArrayRecord(model.state_dict())
    with pytest.raises(InvalidValueError, match=r"1\.num_batches_tracked.*GroupNorm.*ModuleValid"):
        Layout.of(Frozen.of(model, arrays).trained(arrays))
    model[1] = torch.nn.GroupNorm(1, 1)
    arrays = ArrayRecord(model.state_dict())
    frozen = Frozen.of(model, arrays)
    trained = frozen.trained(arrays)
    assert list(trained) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(frozen.whole(trained)) == list(arrays)


def test_models_that_do_not_fit_their_arrays_are_one_line() -> None:
    model = torch.nn.Linear(2, 1)
    arrays = ArrayRecord(model.state_dict())
    with pytest.raises(ConfigError, match="initial_arrays lack 'bias'"):
        Frozen.of(model, ArrayRecord({"weight": Array(np.zeros((1, 2)))}))
    with pytest.raises(ConfigError, match="model is a dict"):
        Frozen.of({}, ArrayRecord())
    nothing = Frozen.of(model.requires_grad_(False), arrays)
    with pytest.raises(InvalidValueError, match="must hold the model's parameters"):
        Layout.of(nothing.trained(arrays))


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
@pytest.mark.parametrize(("kind", "engine"), [("updates", "ray"), ("records", "flwr")])
def test_another_engine_gives_the_same_bits_and_bills(
    kind: str,
    engine: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written("torch_app", tmp_path, kind))
    for name in ("in-process", engine):
        assert simulate(out=name, options=("--engine", name)) == 0
        assert capfd.readouterr().err.count(METRICS_STAY) == 1
    assert model_bytes(Path("in-process")) == model_bytes(Path(engine))
    own, other = (fs.Result(each).ledger.client(3) for each in ("in-process", engine))
    assert own.epsilon == other.epsilon and own.rounds == other.rounds == ROUNDS


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(program(name)) is None for name in PROGRAMS),
    reason="Flower's programs are not installed",
)
def test_flwr_run_plays_it_on_supernodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, on two nodes that hold eight clients each; the run directory, which the last one
    does not name, is where the log says."""
    # The ServerApp inherits this folder, and the apps write into it.
    monkeypatch.chdir(tmp_path)
    with federation(tmp_path / "flower", ready=True) as flower:
        flower.start_superlink()
        for index in range(2):
            flower.start_supernode(f"node{index}", f"partition-id={index} num-partitions=2")
        flower.wait_for_supernodes(2)
        for app, kind in EVERY_APP:
            folder = written(app, tmp_path / kind, kind)
            out = tmp_path / f"run-{kind}" if app == "torch_app" else None
            run_id = flower.run(folder, run_directory=str(out or ""))
            status = flower.wait(run_id, seconds=600)
            assert status == "finished:completed", flower.log("link")[-3000:]
            said = flower.flwr_prints("log", run_id, "lab", "--show")
            told = Path(re.findall(r"run directory: (.*\S)", said)[-1])
            assert told == out if out else told.parent == tmp_path / "runs"
            assert said.count(METRICS_STAY) == 1
            assert list(fs.Result(told).metrics["n_reports"]) == [CLIENTS] * ROUNDS
