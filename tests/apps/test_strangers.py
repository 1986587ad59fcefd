"""Apps written for Flower's own strategies (`strangers.txt`): ten changed lines, all else kept."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from pytest import CaptureFixture, MonkeyPatch
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle._internal.plugins import installed, load_attribute
from fl_shuffle.cli import main
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.runs.console_messages import METRICS_STAY
from tests.one_node import nodes
from tests.oracles import gaussian_epsilon
from tests.small_federation import model_bytes, summary

Enter = Callable[..., None]

SOURCE = Path(__file__).with_name("strangers.txt").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^~~~~\w+\n# file: (\S+)\n(.*?)^~~~~$", SOURCE, re.M | re.S))
PATCHES = dict(re.findall(r"^~~~~patch (\w+)\n(.*?)^~~~~$", SOURCE, re.M | re.S))

CLIENTS, ROUNDS = 16, 2
SETTINGS = """
[run]
rounds = 2
[data]
clients = 16
records_per_client = 20
[app]
server = "{app}.server_app:app"
client = "{app}.client_app:app"
"""
"""The new file beside the app: what of the run is public, and what it may cost."""
PRIVACY = {
    "updates": '[privacy]\nunit = "client"\nclip_norm = 1.0\nrelease = "sum"\n'
    'personalization = "clipping"\n[budgets]\ndistribution = "uniform"\nlow = 20.0\nhigh = 40.0\n',
    "records": '[privacy]\nunit = "record"\nclip_norm = 0.5\n[budgets]\nepsilon = 2.0\n',
    "declared": '[privacy]\nrandomizer = "declared"\ndeclared_sigma = 3.0\n',
}
"""What is protected: updates, gradients of single records, or nothing but by the app itself."""
EVERY_APP = [("torch_app", kind) for kind in PRIVACY] + [("numpy_app", "updates")]


def written(app: str, place: Path, kind: str = "updates", *, changed: bool = True) -> Path:
    """The app's folder with its configuration, or as its author left it."""
    files = {name: text for name, text in FILES.items() if name.startswith(app)}
    files[f"{app}/{app}/__init__.py"] = ""
    if changed:
        files[f"{app}/shuffle.toml"] = SETTINGS.format(app=app) + PRIVACY[kind]
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for patch in (PATCHES[name] for name in (app, kind) if changed and name in PATCHES):
        command = ["git", "apply", "--unidiff-zero", "-"]
        subprocess.run(command, cwd=place, input=patch, text=True, check=True)
    return place / app


def edit(changes: dict[str, str]) -> None:
    """Replace texts that stand once in the app in the current folder."""
    for old, new in changes.items():
        files = (path for path in Path().rglob("*") if path.suffix in (".py", ".toml"))
        texts = {path: path.read_text() for path in files}
        (path,) = (path for path, text in texts.items() if text.count(old))
        assert texts[path].count(old) == 1, old
        path.write_text(texts[path].replace(old, new))


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: MonkeyPatch) -> Iterator[Enter]:
    """Write an app (as `written`) and go into its folder. What is loaded from there is forgotten
    afterwards."""
    loaded = set(sys.modules)

    def go(app: str = "torch_app", kind: str = "updates", *, changed: bool = True) -> None:
        monkeypatch.chdir(written(app, tmp_path, kind, changed=changed))
        monkeypatch.syspath_prepend(tmp_path / app)

    yield go
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def simulate(*settings: str, out: str = "run", engine: str = "in-process") -> int:
    """Play the app in the current folder; the exit code."""
    arguments = [part for setting in settings for part in ("--set", setting)]
    return main(["simulate", "shuffle.toml", "--out", out, "--engine", engine, *arguments])


def error_line(capture: CaptureFixture[str]) -> str:
    """The one error line since somebody looked."""
    lines = capture.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("fl-shuffle: error: ")]
    return line.removeprefix("fl-shuffle: error: ")


@pytest.mark.parametrize("app", ["torch_app", "numpy_app"])
def test_it_is_an_app_for_flowers_own_strategy(app: str, enter: Enter) -> None:
    """As it stands, under FedAvg: what is changed afterwards worked before."""
    enter(app, changed=False)
    client, server = (
        load_attribute(f"{app}.{side}:app", field="") for side in ("client_app", "server_app")
    )
    config: Any = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    replies: list[Message] = []

    def play(message: Message, context: Context) -> Message:
        context.node_config = {"partition-id": context.node_id - 2, "num-partitions": 4}
        replies.append(client(message, context))
        return replies[-1]

    with nodes(play, 4, **config) as grid:
        server(grid, Context(1, 1, {}, RecordDict(), config))
    assert len(replies) >= ROUNDS * 4 and not any(reply.has_error() for reply in replies)


@pytest.mark.parametrize(("app", "kind"), EVERY_APP)
def test_ten_changed_lines_and_it_is_private(
    app: str, kind: str, enter: Enter, capfd: CaptureFixture[str]
) -> None:
    """Each client is asked once a round, with a state of its own, or the app would fail."""
    assert len(re.findall(r"^[-+](?![-+])", PATCHES[app], re.MULTILINE)) <= 10
    enter(app, kind)
    assert simulate() == 0
    said = capfd.readouterr().err
    assert said.count(METRICS_STAY) == 1
    assert "failed" not in said and "counts as zero" not in said
    result = fs.Result("run")
    assert list(result.metrics["num_reports"]) == [CLIENTS] * ROUNDS
    spend = result.ledger.client(3)
    assert spend.rounds == ROUNDS and 0.0 < spend.epsilon <= spend.local_epsilon
    if app == "numpy_app":
        assert json.loads(Path("accuracy.json").read_text())["accuracy"] > 0.7
        return
    # What the app leaves, as under FedAvg.
    log = json.loads(Path("log.json").read_text())
    assert list(result.metrics["accuracy"]) == pytest.approx(log[1:]) and len(log) == 1 + ROUNDS
    model, last = torch.load("model.pt"), torch.load("model-2.pt")
    assert list(model) == list(load_attribute("torch_app.task:Net", field="")().state_dict())
    assert all(torch.equal(model[name], last[name]) for name in model)
    with pytest.raises(FlShuffleError, match="is user-defined"):
        _ = result.model


ALIKE = "the first 3 clients all failed alike: "
APPS = SETTINGS[SETTINGS.index("[app]") :].format(app="torch_app")
Mistake = tuple[str, dict[str, str] | str, str]
SEEN_BY_CLIENTS: list[Mistake] = [
    ("updates", {'"max-grad-norm"]': '"max-norm"]'},
     rf"{ALIKE}KeyError: 'max-norm' \(client_app\.py, line \d+, in train_fn\)"),
    ("updates", {"arrays = ArrayRecord(net": "arrays = ArrayRecord(net.head"},
     rf"{ALIKE}KeyError: 'body\.0\.w"),
    ("updates", {'{"arrays": arr': '{"b": arrays, "a": arr'},
     f"{ALIKE}InvalidValueError: model = 'no arrays': must be an ArrayRecord, 'arrays'"),
    ("updates", {'    return Message(RecordDict({"arrays"': '    Message(RecordDict({"arrays"'},
     f"{ALIKE}.*the app returned NoneType; it must return a Message"),
    ("records", {"    number, of": "    context.node_config['no']\n    number, of"},
     rf"{ALIKE}KeyError: 'no' \(task\.py, line \d+"),
    ("records", {"return x, x[:, :3].argmax(1)": "return x"},
     rf"{ALIKE}.*records\(context\) = 'Tensor': must return a pair \(x, y\)"),
    ("records", {"model=Net": "model=lambda: Net().head"},
     r"its parameters are weight \[3, 6\].* of the server body.0.weight \[6, 8\]"),
    ("records", {", records=load_data, model=Net\n)": ")\napp.train()(lambda msg, context: msg)"},
     r"privacy\.unit = 'record': an update cannot.*ShuffleClientApp\(records=\.\.\."),
    ("records", {PRIVACY["records"]: PRIVACY["declared"]}, "no noise would be added to gradients"),
]  # fmt: skip
SEEN_BEFORE: list[Mistake] = [
    # How the apps are put together.
    ("updates", {"fl_shuffle.flower import ShuffleClientApp": "flwr.clientapp import ClientApp",
                 "ShuffleClientApp(mods=[count_calls], beside=__file__)": "ClientApp()"},
     r"app\.client = 'torch_app\.client_app:app': does not .*must be a ShuffleClientApp"),
    ("records", {", model=Net": ""}, r"records=\.\.\. and model=\.\.\. go together"),
    ("updates", {"mods=[count_calls]": "loss=print"}, r"and loss=\.\.\. with them"),
    ("updates", {"mods=[count_calls]": "client_fn=print"}, r"Message API.*@app\.train\(\)"),
    ("records", {"records_per_client = 20\n": ""},
    r"data\.records_per_client = 0: must be set for your own app"),
    # The server's model and metrics.
    ("updates", {"nn.GroupNorm(2, 6)": "nn.BatchNorm1d(6)", "(context,": "(context, model=net,"},
     r"1\.num_batches_tracked.*GroupNorm.*ModuleValid"),
    ("updates", {"(context, b": "(context, model=torch.nn.Linear(2, 1), b"},
     "initial_arrays lack 'bias'"),
    ("updates", {"(context, b": "(context, model={}, b"}, "model is a dict"),
    ("updates", {"(context, b": "(context, model=net.requires_grad_(False), b"},
     "must hold the model's parameters"),
    ("updates", {'return MetricRecord({"accuracy": ': "return list({1: "}, "mapping"),
    ("updates", {'{"accuracy": acc': '{"seconds": acc'}, r"metrics\.csv's own columns"),
    # What clients declare to have done themselves.
    ("declared", "privacy.unit=client", r"set privacy\.unit = 'record'"),
    ("declared", "privacy.clipping=average", r"leave privacy\.clipping out"),
    ("declared", "privacy.personalization=clipping", "one noise for all"),
    ("declared", "privacy.reports_per_round=2", r"privacy\.reports_per_round = 2: must be 1 with"),
    ("declared", {APPS: ""}, "what clients of an app of your own do"),
    ("declared", "server.weights=inverse-variance", r"set server\.weights = 'uniform'"),
    # What the apps read.
    ("updates", "app.config={x = [1]}",
     r"^app\.config\.x = \[1\]: must be a text, a boolean or a finite number$"),
    ("updates", "app.config={resume = 1}",
     "^app.config: 'resume' is reserved for the run and reaches no app; rename it$"),
    ("updates", {APPS: "[app.config]\nlr = 0.1\n"}, r"app\.config = .*is for apps of your own"),
    ("updates", {"[project]": "[project"}, r"pyproject\.toml cannot be read: "),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "told"), SEEN_BY_CLIENTS + SEEN_BEFORE)
def test_a_mistake_is_one_line_before_more_is_paid(
    kind: str, change: dict[str, str] | str, told: str, enter: Enter, capfd: CaptureFixture[str]
) -> None:
    """Nothing is paid where the server can see it; else one round, and the line names the place."""
    enter("torch_app", kind)
    if isinstance(change, dict):
        edit(change)
    assert simulate(*[change] if isinstance(change, str) else []) == 2
    assert re.search(told, error_line(capfd))
    assert Path("run/ledger.sqlite").exists() is ((kind, change, told) in SEEN_BY_CLIENTS)
    if told.startswith(ALIKE):
        with sqlite3.connect("run/ledger.sqlite") as ledger:
            assert ledger.execute("SELECT max(round) FROM reservations").fetchone() == (1,)
            assert not ledger.execute("SELECT * FROM rounds").fetchall()


def test_few_that_fail_among_others_are_no_mistake(enter: Enter) -> None:
    """Whether somebody's training raises may hang on a record: the run goes on."""
    enter()
    what = "    draw = torch.Generator().manual_seed(1000"
    edit({what: f"    assert number in (2, 9)\n{what}"})
    assert simulate("run.jobs=1") == 0
    assert list(fs.Result("run").metrics["num_reports"]) == [CLIENTS] * ROUNDS


def test_a_run_has_one_configuration(enter: Enter) -> None:
    """[tool.flwr.app.config] reaches the apps in process, [app.config] comes first, and both stay
    on record. Bits do not hang on the number of nodes."""
    enter("numpy_app")
    assert simulate("run.jobs=3") == 0
    kept = json.loads(Path("run/config.json").read_text())["app"]["config"]
    assert kept == {"num-server-rounds": 2, "penalty": "l2", "local-epochs": 2}
    assert main(["simulate", "run", "--out", "again", "--quiet", "--set", "run.jobs=1"]) == 0
    edit({"[privacy]": "[app.config]\nlocal-epochs = 1\n[privacy]"})
    assert simulate(out="other") == 0
    first, again, other = (model_bytes(Path(name)) for name in ("run", "again", "other"))
    assert first == again != other


def test_what_asks_for_no_gradient_gets_no_noise_and_tied_weights_count_once(enter: Enter) -> None:
    enter()
    edit(
        {
            "nn.Sequential(nn.Linear(8, 6), nn.GroupNorm(2, 6))": """\
nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6, False), nn.Linear(6, 6, False))
        self.body[0].requires_grad_(False)
        self.body[2].weight = self.body[1].weight
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("count", torch.tensor(7))""",
            "(context, beside": "(context, model=net, beside",
        }
    )
    assert simulate() == 0
    first, last = torch.load("model-0.pt"), load_file("run/model.safetensors")
    assert set(first) == set(last)
    for name in ("body.0.weight", "body.0.bias", "scale", "count"):
        assert torch.equal(first[name], last[name])
    assert torch.equal(last["body.1.weight"], last["body.2.weight"])
    assert not torch.equal(first["body.1.weight"], last["body.1.weight"])
    # 6 x 6 once, and the last layer: nothing else is clipped, or gets noise.
    assert fs.Result("run").ledger.record.meta["dimension"] == 36 + 18 + 3


def test_what_clients_declare_is_averaged_and_never_called_proven(
    enter: Enter, capsys: CaptureFixture[str]
) -> None:
    """The model moves by the mean of what clients trained, whose own noise of 3 clips is all."""
    epsilon = gaussian_epsilon(2.0 / 3.0 * math.sqrt(ROUNDS), 1e-5)
    enter(kind="declared")
    edit(
        {
            "    arrays = Arr": "    SENT.append(net.state_dict())\n    arrays = Arr",
            "@app.train()": "SENT = []\n\n\n@app.train()",
        }
    )
    assert main(["bound", "shuffle.toml"]) == 0
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"declared cost of 2 rounds, unit = record: epsilon <= {epsilon:.5g}")
    assert second.startswith("nothing is proven: ")
    assert fs.cost("shuffle.toml").declared
    assert main(["bound", "shuffle.toml", "--solve-for", "clients", "--epsilon", "4"]) == 2
    assert "must be rounds for declared noise" in error_line(capsys)

    assert simulate("run.jobs=1") == 0
    out, err = capsys.readouterr()
    result = fs.Result("run")
    assert result.epsilon == result.ledger.client(2).epsilon == pytest.approx(epsilon, rel=1e-6)
    assert re.search(r"epsilon +[\d.]+ +against any attacker, as the clients declare", out)
    assert "NOTHING IS PROVEN" in err and not re.search(r"\d +proven", out)
    assert summary(Path("run"))["shuffled_epsilon"] is None
    last = load_attribute("torch_app.client_app:SENT", field="")[-CLIENTS:]
    for name, values in load_file("run/model.safetensors").items():
        mean = torch.stack([each[name] for each in last]).mean(dim=0)
        torch.testing.assert_close(values, mean, atol=1e-3, rtol=0.0)
    page = re.sub(r"<[^>]*>|\s+", " ", unescape(result.report("page.html").read_text()))
    assert "as declared by the clients" in page and "NOTHING IS PROVEN" in page
    assert not re.search(r"\(proven\)|, proven,|A guarantee of the client|are guarantees", page)
    assert main(["certify", "run"]) == 2
    assert "the run's reports are not Gaussian" in error_line(capsys)


@pytest.mark.slow
@pytest.mark.skipif(not installed("ray"), reason="Ray is not installed")
@pytest.mark.parametrize(("kind", "engine"), [("updates", "ray"), ("records", "flwr")])
def test_another_engine_gives_the_same_bits_and_bills(
    kind: str, engine: str, enter: Enter, capfd: CaptureFixture[str]
) -> None:
    enter("torch_app", kind)
    for name in ("in-process", engine):
        assert simulate(out=name, engine=name) == 0
        assert capfd.readouterr().err.count(METRICS_STAY) == 1
    assert model_bytes(Path("in-process")) == model_bytes(Path(engine))
    own, other = (fs.Result(each).ledger.client(3) for each in ("in-process", engine))
    assert own.epsilon == other.epsilon and own.rounds == other.rounds == ROUNDS
