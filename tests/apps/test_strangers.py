"""Apps of strangers, written for Flower's own strategies: ten changed lines, all else kept."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, FlShuffleError, InvalidValueError
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy
from fl_shuffle.flower.configured import NOT_TAKEN
from fl_shuffle.flower.frozen import Frozen
from fl_shuffle.flower.grid import InProcessGrid
from fl_shuffle.flower.messages import Layout
from fl_shuffle.flower.settings import RESOLVED
from fl_shuffle.plugins import installed, load_attribute
from fl_shuffle.run_words import METRICS_STAY
from tests.apps import silos
from tests.apps.programs import program
from tests.apps.silos import KINDS
from tests.apps.strangers import APPS, changed_lines, written
from tests.apps.superlink import PROGRAMS, federation
from tests.small_federation import model_bytes

CLIENTS = 16


@pytest.fixture(autouse=True)
def _forgotten(tmp_path: Path) -> Iterator[None]:
    """Modules of one app are not those of the next."""
    loaded, path, threads = set(sys.modules), list(sys.path), torch.get_num_threads()
    yield
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = path
    torch.set_num_threads(threads)


@pytest.mark.parametrize("app", APPS)
def test_it_is_an_app_for_flowers_own_strategy(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands, under FedAvg: what is changed afterwards worked before."""
    folder = written(app, tmp_path, changed=False)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    (package,) = (path.parent.name for path in folder.rglob("task.py"))
    config: dict[str, Any] = _flower_config(folder)
    grid = InProcessGrid(load_attribute(f"{package}.client_app:app", field=""), config, nodes=4)
    for number, own in enumerate(grid._contexts.values()):
        own.node_config = {"partition-id": number, "num-partitions": 4}
    answered, replies = grid._answered, []
    monkeypatch.setattr(
        grid, "_answered", lambda message: replies.append(answered(message)) or replies[-1]
    )
    context = Context(1, 1, {}, RecordDict(), config)
    try:
        load_attribute(f"{package}.server_app:app", field="")(grid, context)
    finally:
        grid.close()
    assert len(replies) >= 3 * 4 and not any(reply.has_error() for reply in replies)


def _flower_config(folder: Path) -> dict[str, Any]:
    import tomllib

    tables = tomllib.loads((folder / "pyproject.toml").read_text())
    found: dict[str, Any] = tables["tool"]["flwr"]["app"]["config"]
    return found


@pytest.mark.parametrize("app", APPS)
def test_ten_changed_lines_and_it_is_private(
    app: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert changed_lines(app) <= 10
    monkeypatch.chdir(written(app, tmp_path, changed=True))
    assert main(["simulate", "shuffle.toml", "--out", "run"]) == 0
    said = capfd.readouterr().err
    assert said.count(METRICS_STAY) == 1
    assert "failed" not in said and "counts as zero" not in said
    result = fs.Result("run")
    assert list(result.metrics["n_reports"]) == [CLIENTS] * 3
    spend = result.ledger.client(3)
    assert spend.rounds == 3 and 0.0 < spend.epsilon <= spend.local_epsilon
    _what_the_app_leaves(app)


def _what_the_app_leaves(app: str) -> None:
    if app == "quickstart_pytorch":
        names = ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]
        assert list(torch.load("final_model.pt")) == names
    elif app == "quickstart_sklearn":
        assert json.loads(Path("accuracy.json").read_text())["accuracy"] > 0.7
    elif app == "advanced_pytorch":
        log = json.loads(Path("log.json").read_text())
        assert [line["step"] for line in log] == [0, 1, 2, 3]
        assert list(fs.Result("run").metrics["accuracy"]) == pytest.approx(
            [line["accuracy"] for line in log[1:]]
        )
        assert Path("best_model.pt").is_file()


def _simulate(*settings: str) -> int:
    arguments = [part for setting in settings for part in ("--set", setting)]
    return main(["simulate", "shuffle.toml", "--out", "run", *arguments])


def _said(capfd: pytest.CaptureFixture[str]) -> str:
    """The one error line."""
    lines = capfd.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("fl-shuffle: error: ")]
    return line.removeprefix("fl-shuffle: error: ")


def _edited(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


MISTAKES = {
    "a setting that is not there": (
        'context.run_config["max-grad-norm"]',
        'context.run_config["max-norm"]',
        r"KeyError: 'max-norm' \(client_app\.py, line \d+, in train_fn\)",
    ),
    "train_config that nobody gave": (
        'context.run_config["max-grad-norm"]',
        'msg.content["config"]["lr"]',
        r"KeyError: 'lr' \(client_app\.py, line \d+, in train_fn\)",
    ),
    "another model": (
        "wrapped._module.state_dict()",
        "wrapped._module[:1].state_dict()",
        r"KeyError: '1\.weight'",
    ),
    "no arrays": ('{"arrays": arrays, ', "{", r"KeyError: 'arrays'"),
    "which arrays": ('{"arrays": arrays, ', '{"a": arrays, "b": arrays, ', r"KeyError: 'arrays'"),
    "nothing": ("    return Message(", "    Message(", "the app returned NoneType, no message"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_told_with_its_place_before_more_is_paid(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = written("opacus_fl", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    old, new, told = MISTAKES[kind]
    _edited(folder, "opacus_fl/client_app.py", old, new)
    assert _simulate() == 2
    assert re.search(rf"the first 3 clients all failed alike: .*{told}", _said(capfd))
    with sqlite3.connect("run/ledger.sqlite") as ledger:
        assert ledger.execute("SELECT max(round) FROM reservations").fetchone() == (1,)
        assert not ledger.execute("SELECT * FROM rounds").fetchall()


def test_mods_that_look_into_replies_hide_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Flower's own do: they raise where a reply has no content."""
    folder = written("opacus_fl", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    client = "opacus_fl/client_app.py"
    _edited(
        folder,
        client,
        "beside=__file__)",
        "beside=__file__, mods=[arrays_size_mod])",
    )
    what = "from fl_shuffle.flower import ShuffleClientApp"
    _edited(folder, client, what, f"from flwr.clientapp.mod import arrays_size_mod\n{what}")
    assert _simulate() == 0
    old, new, told = MISTAKES["train_config that nobody gave"]
    _edited(folder, client, old, new)
    sys.modules.pop("opacus_fl.client_app")
    capfd.readouterr()
    assert main(["simulate", "shuffle.toml", "--out", "again"]) == 2
    assert re.search(rf"the first 3 clients all failed alike: .*{told}", _said(capfd))


def test_arrays_in_a_reply_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under Flower's own strategies, which take the only ones."""
    folder = written("quickstart_sklearn", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    _edited(folder, "sklearnexample/client_app.py", '{"arrays": arrays', '{"mine": arrays')
    assert _simulate() == 0
    _what_the_app_leaves("quickstart_sklearn")


def test_a_client_that_is_none_of_these_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = written("opacus_fl", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    _edited(
        folder,
        "opacus_fl/client_app.py",
        "from fl_shuffle.flower import ShuffleClientApp",
        "from flwr.clientapp import ClientApp",
    )
    _edited(folder, "opacus_fl/client_app.py", "ShuffleClientApp(beside=__file__)", "ClientApp()")
    assert _simulate() == 1
    said = _said(capfd)
    assert "raised KeyError 'partition-id': 16); app.client must be a ShuffleClientApp" in said


def test_the_mod_by_itself_is_what_the_app_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among other mods of a `ClientApp`."""
    folder = written("quickstart_sklearn", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    assert main(["simulate", "shuffle.toml", "--out", "first", "--quiet"]) == 0
    _edited(
        folder,
        "sklearnexample/client_app.py",
        "app = ShuffleClientApp(beside=__file__)",
        "from flwr.clientapp import ClientApp\nfrom fl_shuffle.flower import ShuffleMod\n"
        "calls = []\n\n\ndef mine(message, context, call_next):\n"
        "    calls.append(message)\n    return call_next(message, context)\n\n\n"
        "app = ClientApp(mods=[mine, ShuffleMod(beside=__file__)])",
    )
    sys.modules.pop("sklearnexample.client_app")
    assert main(["simulate", "shuffle.toml", "--out", "second", "--quiet"]) == 0
    assert model_bytes(Path("first")) == model_bytes(Path("second"))
    assert len(load_attribute("sklearnexample.client_app:calls", field="")) >= 3


def test_few_that_fail_among_others_are_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether somebody's training raises may hang on a record: the run goes on."""
    folder = written("opacus_fl", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    what = 'x, y = load_data(context.node_config["partition-id"]'
    _edited(folder, "opacus_fl/client_app.py", f"    {what}",
            f'    assert context.node_config["partition-id"] in (2, 9)\n    {what}')  # fmt: skip
    assert _simulate("run.jobs=1") == 0
    assert list(fs.Result("run").metrics["n_reports"]) == [CLIENTS] * 3


def test_a_run_has_one_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """[tool.flwr.app.config] reaches the apps in process, [app.config] comes first, both stay on
    record, and what Flower could not carry is refused."""
    folder = written("quickstart_sklearn", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    assert _simulate() == 0
    kept = json.loads(Path("run/config.json").read_text())["app"]["config"]
    assert kept == {"num-server-rounds": 3, "penalty": "l2", "local-epochs": 2}
    assert main(["simulate", "run", "--out", "again", "--quiet"]) == 0
    for name in ("run", "again", "other"):
        if name == "other":
            with (folder / "shuffle.toml").open("a") as file:
                file.write("[app.config]\nlocal-epochs = 1\n")
            assert main(["simulate", "shuffle.toml", "--out", name, "--quiet"]) == 0
    first, again, other = (
        Path(name, "model.safetensors").read_bytes() for name in ("run", "again", "other")
    )
    assert first == again != other
    capfd.readouterr()
    for value, told in (
        ("{x = [1]}", "app.config.x = [1]: must be a text, a boolean or a finite number"),
        ("{x = nan}", "app.config.x = nan: must be a text, a boolean or a finite number"),
        ("{resume = 1}", "app.config: 'resume' is the run's own and reaches no app; rename it"),
    ):
        assert main(["simulate", "shuffle.toml", "--set", f"app.config={value}"]) == 2
        assert _said(capfd) == told
    (folder / "pyproject.toml").write_text("[tool")
    assert main(["simulate", "shuffle.toml"]) == 2
    assert "pyproject.toml cannot be read: " in _said(capfd)


def test_settings_for_apps_need_an_app() -> None:
    with pytest.raises(FlShuffleError, match=r"app\.config = .*is for apps of your own"):
        parse_config({"app": {"config": {"lr": 0.1}}})


def test_the_server_refuses_settings_that_flower_would_hide() -> None:
    """Under `flwr run` the apps read Flower's run configuration, whatever the TOML says."""
    tables = {
        "privacy": {"unit": "client"},
        "app": {"client": "a:b", "server": "a:b", "config": {"lr": 0.1, "deep": {"er": "x"}}},
    }
    same = {"lr": 0.1, "deep.er": "x", "more": 1, RESOLVED: json.dumps(tables)}
    ShuffleStrategy.of(Context(1, 1, {}, RecordDict(), same))
    for run_config in ({**same, "lr": 0.5}, {**same, "deep.er": "y"}):
        with pytest.raises(FlShuffleError, match=r"\[tool\.flwr\.app\.config\].*--run-config"):
            ShuffleStrategy.of(Context(1, 1, {}, RecordDict(), run_config))


def test_budgets_by_number_stand_in_the_toml(tmp_path: Path) -> None:
    """Flower packs no .csv."""
    tables: dict[str, Any] = {
        "data": {"clients": 3},
        "budgets": {"distribution": "listed", "epsilons": [4, 8, 12.5]},
    }
    config = parse_config(tables)
    assert make_budgets(config.budgets, 3).epsilon.tolist() == [4.0, 8.0, 12.5]
    for epsilons, told in (
        ([4.0, 8.0], "budgets.epsilons holds 2 numbers, and data.clients is 3"),
        ([4.0, 8.0, 0.0], r"budgets.epsilons\[2\] = 0.0: must be"),
        (4.0, r"budgets.epsilons = 4.0: must be a list of numbers > 0"),
    ):
        tables["budgets"]["epsilons"] = epsilons
        with pytest.raises(FlShuffleError, match=told):
            parse_config(tables)
    tables["budgets"] = {"distribution": "file", "file": str(tmp_path / "no.csv")}
    with pytest.raises(FlShuffleError, match=r"`flwr run` packs no \.csv.*budgets\.epsilons"):
        make_budgets(parse_config(tables).budgets, 3)


@pytest.mark.parametrize("argument", sorted(NOT_TAKEN))
def test_what_fedavg_takes_and_this_cannot_is_named(argument: str) -> None:
    context = Context(1, 1, {}, RecordDict(), {RESOLVED: "{}"})
    with pytest.raises(ConfigError, match=rf"of\({argument}=\.\.\.\): .*; leave it out$"):
        ShuffleStrategy.of(context, **{argument: 1})
    signature = inspect.signature(FedAvg).parameters
    assert argument in signature and set(signature) - {"self"} <= set(NOT_TAKEN)


def test_arguments_that_there_are_not_and_private_weights() -> None:
    context = Context(1, 1, {}, RecordDict(), {RESOLVED: "{}"})
    with pytest.raises(ConfigError, match=r"of\(fraction_trained=\.\.\.\).*'fraction_train'"):
        ShuffleStrategy.of(context, fraction_trained=1)
    with pytest.raises(ConfigError, match="num-examples is private"):
        ShuffleStrategy.of(context, weighted_by_key="num-examples")


def test_a_client_fn_is_told_of_the_message_api() -> None:
    with pytest.raises(ConfigError, match=r"Message API.*@app\.train\(\)"):
        ShuffleClientApp(lambda context: None)


@pytest.mark.parametrize("dtype", ["bfloat16", "int64", "complex64", "bool"])
def test_other_types_are_refused_by_name(dtype: str) -> None:
    record = ArrayRecord()
    record["w"] = Array(dtype, (3,), "numpy.ndarray", b"")
    with pytest.raises(InvalidValueError, match=f"dtype of w = '{dtype}'.*float16, float32, flo"):
        Layout.of(record)


def test_names_shapes_and_types_come_back_as_they_went() -> None:
    record = ArrayRecord()
    arrays = {"half": np.float16(1.5), "wide": np.ones((2, 0, 3)), "": np.eye(2, dtype=np.float32)}
    for name, values in arrays.items():
        record[name] = Array(np.asarray(values))
    layout = Layout.of(record)
    back = layout.record(layout.flatten(record))
    assert list(back) == list(record)
    for name, values in arrays.items():
        found = back[name].numpy()
        assert found.dtype == values.dtype and found.shape == values.shape
        assert np.array_equal(found, values)


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
@pytest.mark.parametrize("app", APPS)
def test_on_ray_it_gives_the_same_bits(
    app: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(written(app, tmp_path, changed=True))
    for out, engine in (("here", "in-process"), ("there", "ray")):
        arguments = ["--out", out, "--engine", engine, "--set", "run.rounds=3"]
        assert main(["simulate", "shuffle.toml", *arguments]) == 0
        assert capfd.readouterr().err.count(METRICS_STAY) == 1
    here, there = (Path(name, "model.safetensors").read_bytes() for name in ("here", "there"))
    # The initial model of a torch app is drawn anew in every run.
    assert app != "quickstart_sklearn" or here == there
    assert list(fs.Result("there").metrics["n_reports"]) == [CLIENTS] * 3


@pytest.mark.slow
@pytest.mark.skipif(
    any(shutil.which(program(name)) is None for name in PROGRAMS),
    reason="Flower's programs are not installed",
)
@pytest.mark.parametrize("apps", [KINDS, APPS[:3], APPS[3:]], ids="-".join)
def test_flwr_run_plays_it_on_supernodes(
    apps: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All five, and those of silos, on two nodes that hold eight clients each; the run directory,
    which the last one does not name, is where the log says."""
    # The ServerApp inherits this folder, and the apps write into it.
    monkeypatch.chdir(tmp_path)
    with federation(tmp_path / "flower", ready=True) as flower:
        flower.start_superlink()
        for index in range(2):
            flower.start_supernode(f"node{index}", f"partition-id={index} num-partitions=2")
        flower.wait_for_supernodes(2)
        for app in apps:
            if app in KINDS:
                folder = silos.written(app, tmp_path, CLIENTS)
            else:
                folder = written(app, tmp_path, changed=True)
            out = tmp_path / f"run-{app}"
            chosen = flower.home / "run.toml"
            named = "" if app == apps[-1] else str(out)
            chosen.write_text(f"run-directory = {json.dumps(named)}\n")
            flower._finished = flower._count()
            answer = flower.flwr("run", str(folder), "lab", "--run-config", str(chosen))
            run_id = str(json.loads(answer[answer.index("{") :])["run-id"])
            status = flower.wait(run_id, seconds=600)
            assert status == "finished:completed", flower.log("link")[-3000:]
            said = flower.flwr_prints("log", run_id, "lab", "--show")
            told = Path(re.findall(r"run directory: (.*\S)", said)[-1])
            assert told == out if named else told.parent == tmp_path / "runs"
            assert said.count(METRICS_STAY) == 1
            assert list(fs.Result(told).metrics["n_reports"]) == [CLIENTS] * 3


def test_what_asks_for_no_gradient_gets_no_noise_and_tied_weights_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written("opacus_fl", tmp_path, changed=True)
    monkeypatch.chdir(folder)
    task, server, trains = "opacus_fl/task.py", "opacus_fl/server_app.py", "trained(net)"
    _edited(
        folder,
        task,
        "    return nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3))",
        "    still, body, tied = nn.Linear(8, 6), nn.Linear(6, 6, False), nn.Linear(6, 6, False)\n"
        "    still.requires_grad_(False)\n"
        "    tied.weight = body.weight\n"
        "    return nn.Sequential(still, body, nn.Tanh(), tied, nn.Linear(6, 3))\n\n\n"
        "def trained(net):\n"
        "    return [each for each in net.parameters() if each.requires_grad]",
    )
    _edited(
        folder,
        task,
        "each in net.parameters()]\n    for record",
        f"each in {trains}]\n    for record",
    )
    text = (
        (folder / task).read_text().replace("zip(sums, net.parameters())", f"zip(sums, {trains})")
    )
    (folder / task).write_text(text)
    _edited(folder, server, "beside=__file__)", "beside=__file__, model=(net := make_net()))")
    _edited(folder, server, "ArrayRecord(make_net().state_dict())", "first(net)")
    _edited(folder, server, "app = ServerApp()", "app = ServerApp()\n\n\ndef first(net):\n"
            "    import torch\n    torch.save(net.state_dict(), 'first.pt')\n"
            "    return ArrayRecord(net.state_dict())")  # fmt: skip
    assert _simulate() == 0
    first, last = torch.load("first.pt"), load_file("run/model.safetensors")
    assert list(first) == list(load_attribute("opacus_fl.task:make_net", field="")().state_dict())
    assert set(last) == set(first)
    for name in ("0.weight", "0.bias"):
        assert torch.equal(first[name], last[name])
    assert torch.equal(last["1.weight"], last["3.weight"])
    assert not torch.equal(first["1.weight"], last["1.weight"])
    # 6 x 6 once, and the last layer: nothing else is clipped, or gets noise.
    assert fs.Result("run").ledger.record.ledger.meta["dimension"] == 36 + 18 + 3


def test_buffers_get_no_noise_and_statistics_of_batches_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    model.register_buffer("scale", torch.ones(3))
    model.register_buffer("count", torch.tensor(7))
    arrays = ArrayRecord(model.state_dict())
    with pytest.raises(InvalidValueError, match=r"1\.num_batches_tracked.*GroupNorm"):
        Layout.of(Frozen.of(model, arrays).trained(arrays))
    model[1] = torch.nn.GroupNorm(1, 1)
    arrays = ArrayRecord(model.state_dict())
    frozen = Frozen.of(model, arrays)
    trained = frozen.trained(arrays)
    assert list(trained) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(frozen.whole(trained)) == list(arrays)


def test_models_that_do_not_fit_their_arrays_are_one_line() -> None:
    model = torch.nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="initial_arrays lack 'bias'"):
        Frozen.of(model, ArrayRecord({"weight": Array(np.zeros((1, 2)))}))
    with pytest.raises(ConfigError, match="model is a dict"):
        Frozen.of({}, ArrayRecord())
    nothing = Frozen.of(model.requires_grad_(False), ArrayRecord(model.state_dict()))
    with pytest.raises(InvalidValueError, match="must hold the model's parameters"):
        Layout.of(nothing.trained(ArrayRecord(model.state_dict())))
