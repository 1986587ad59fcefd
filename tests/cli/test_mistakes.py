"""Every mistake at the command line is one clear line that names what to mend; so is Ctrl-C."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from fl_shuffle import cli
from fl_shuffle.cli import main
from fl_shuffle.cli.renamed import renamed
from fl_shuffle.configuration.reading import idle_settings, parse_config, without_effect
from fl_shuffle.configuration.sections import Config
from tests.repository import ROOT
from tests.small_federation import Launch, Play, summary

OWN = "tests.cli.own_parts"
SUMS = "bound --randomizer gaussian --epsilon0 2 --delta0 1e-5 --release sum --delta 1e-6"


def code_of(words: list[str]) -> int:
    """The exit code of a command, however it ends."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def said(capsys: CaptureFixture[str]) -> str:
    """The one line on stderr."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("fl-shuffle: error: ")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("budgets.epsilon=2", "budgets.epsilon = 2.0 has no effect with budgets.distribution = "),
        ("run.supernodes=x.csv", "run.supernodes = 'x.csv' has no effect: a simulation has no"),
        (f"data.source={OWN}:lists", "Records.train_images is a list; it must be a NumPy array"),
        (f"model.kind={OWN}:lazy", "parameter weight is lazy, so its size is unknown; use layers"),
        ("data.features=os:getcwd", "data.features = 'os:getcwd' returned str without 'fit'"),
        (f"data.features={OWN}:one_argument", "cannot be called with data.feature_options = {}"),
        (f"data.features={OWN}:TextFeatures", "returned str; it must return a float32 NumPy array"),
        ("app.server=os:getcwd", "'os:getcwd': it must be a function of (grid, context)"),
        (f"server.analyzer={OWN}:text_analyzer", "returned str, no torch.Tensor of shape (650,)"),
        (f"server.analyzer={OWN}:nan_analyzer", "analyzer' was tried on 12 made-up reports of"),
    ],
)
def test_a_setting_that_cannot_work_is_one_line_before_a_round_is_paid_for(
    setting: str, words: str, launch: Launch, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    assert launch("run", setting) == 2
    assert words in said(capsys)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


PICTURES, DELTA0 = "data.features=pixels", "budgets.delta=0"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([f"model.kind={OWN}:centred", "data.features=raw"],
         f"model.kind = '{OWN}:centred': module 1 = 'Centred': mixes records"),
        ([f"model.kind={OWN}:pictures", "data.features=raw"],
         "it takes ['N', 1, 8, 8]: set data.features = 'pixels'"),
        ([f"model.kind={OWN}:flat", PICTURES],
         "records ['N', 1, 8, 8]: mat1 and mat2 shapes cannot be multiplied (48x8 and 64x10); it "
         "takes ['N', 64]: set data.features = 'raw'"),
        ([f"model.kind={OWN}:narrow"], "returns 3 numbers for a record, and the data source decl"),
        ([f"model.loss={OWN}:balanced"], f"model.loss = '{OWN}:balanced': mixes records"),
        ([f"data.features={OWN}:Standardized"], "mixes records: a record's row changes with those"),
        ([f"data.features={OWN}:Fitted"], "does not declare it; set data_dependent = True"),
        ([f"privacy.randomizer={OWN}:Averaging", DELTA0], "mixes clients: a client's report"),
        ([f"privacy.randomizer={OWN}:Unrepeatable", DELTA0], "draw from the `noise`"),
        ([f"privacy.randomizer={OWN}:no_report", DELTA0], "report of the user's randomizer = "),
        ([f"server.analyzer={OWN}:drawing_analyzer"], "gets the same reports again"),
    ],
)  # fmt: skip
def test_own_code_that_a_trial_refuses_is_one_line(
    settings: list[str], words: str, launch: Launch, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    """Before anything is paid for."""
    assert launch("run", *settings) == 2
    assert words in said(capsys)
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    "settings",
    [
        (f"model.kind={OWN}:pictures", PICTURES),
        (f"data.features={OWN}:Own",),
        (f"data.features={OWN}:FittedAndSaysSo",),
        (f"privacy.randomizer={OWN}:too_quiet", DELTA0),
        ("server.analyzer=fl_shuffle.federation.robust:coordinate_median",),
    ],
)
def test_own_code_that_is_as_it_should_be_runs(settings: tuple[str, ...], play: Play) -> None:
    assert (play("run", *settings) / "model.safetensors").exists()


def test_what_clients_raise_is_counted_and_shown_where_asked_for(
    launch: Launch, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    # pytest listens to the root logger, as a program does that has set logging up.
    monkeypatch.setattr(logging.getLogger("fl_shuffle.client"), "propagate", False)
    settings = [f"model.kind={OWN}:raising", "run.evaluate_every=9"]
    assert launch("quiet", *settings) == 1
    told = capsys.readouterr().err
    assert "0 usable reports arrived, below privacy.min_reports = 2" in told
    assert "(raised KeyError 'my own mistake': 12)" in told and "Traceback" not in told
    assert "continue with: fl-shuffle simulate --resume" in told
    assert launch("loud", *settings, options=("--verbose",)) == 1
    assert "own_parts.py" in capsys.readouterr().err


def test_ctrl_c_in_a_callback_is_not_lost(
    capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    """Python prints an exception that leaves such a method, and goes on."""

    class Interrupted:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def answered(_: object) -> int:
        Interrupted()
        threading.Event().wait(60.0)
        return 0

    monkeypatch.setattr(cli, "_answered", answered)
    hook = sys.unraisablehook
    assert cli.main(["report", "run"]) == 130
    assert said(capsys) == "interrupted"
    assert sys.unraisablehook is hook


AS_IT_IS_IMPORTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder
{before}
class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if {names!r} & {{name, name.partition(".")[0]}}:
            {act}

from fl_shuffle._internal.starting import main
sys.meta_path.insert(0, Finder())
sys.exit(main())
"""
"""The command line, where something happens as one of these modules is about to be imported."""
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"


def started(
    folder: Path, names: set[str], act: str, *arguments: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    code = AS_IT_IS_IMPORTED.format(names=names, act=act, before=before)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fl_shuffle.cli", "fl_shuffle.cli.simulate", "torch"])
def test_ctrl_c_while_something_is_imported(name: str, tmp_path: Path) -> None:
    done = started(tmp_path, {name}, INTERRUPT, "simulate", "--out", "run")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "fl-shuffle: error: interrupted\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: None"])
def test_a_signal_that_is_not_pythons_own_is_left_alone(handler: str, tmp_path: Path) -> None:
    before = f"signal.signal(signal.SIGINT, {handler})"
    done = started(tmp_path, {"fl_shuffle.cli"}, INTERRUPT, "--version", before=before)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "nowhere"], "nowhere"),
        (["--set", "model.kind=nobodys.package:net"], "there is no module 'nobodys'"),
        (["--set", "data.source=files", "--data", "nothing"], "nothing does not exist"),
    ],
)
def test_what_needs_no_pytorch_is_said_without_it(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    libraries = {"torch", "flwr", "numba"}
    done = started(tmp_path, libraries, "raise RuntimeError(name)", "simulate", *arguments)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_of_a_file_without_effect_are_warned_of(launch: Launch, tmp_path: Path) -> None:
    """The file's own `low` and `high` are not read any more; the run goes on and says so."""
    few = ("data.clients=4", "run.rounds=1")
    assert launch("run", "budgets.distribution=constant", "budgets.epsilon=2", *few) == 0
    warnings = str(summary(tmp_path / "run")["warnings"])
    assert all(f"setting without effect: budgets.{name} = " in warnings for name in ("low", "high"))
    assert idle_settings(Config()) == ()
    own = parse_config({"app": {"server": "my.own:app"}, "data": {"dirichlet_alpha": 3.0}})
    assert without_effect(own) == {}  # which may read anything


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("simulat", "no command 'simulat'; did you mean 'simulate'?; see fl-shuffle --help"),
        ("simulate --ronds 3", "unrecognized arguments: --ronds; did you mean '--rounds'?"),
        ("bound --epsilon_0=1", "--epsilon_0=1; did you mean '--epsilon0'?; see fl-shuffle bound"),
        ("verify claim.json ''", "unrecognized arguments: ; see fl-shuffle verify --help"),
        ("--quick", "no option '--quick' without a command; see fl-shuffle --help"),
        ("simulate --set data.source=FashionMNIST", "did you mean 'fashion-mnist'?"),
        ("simulate --set model.kind=parts/net.py:Net", "not a file; did you mean 'parts.net:Net'?"),
        ("settings run.ronds", "unknown setting: 'run.ronds'; did you mean 'run.rounds'?"),
        ("new 1st", "NAME = '1st': must begin with a letter and hold letters, digits, - and _"),
        ("new numpy", "NAME = 'numpy': the app would hide the Python module 'numpy'"),
        ("bound --clients 1.5", "argument --clients: must be a whole number, not '1.5'"),
        ("bound --assumed-honest x", "must be a count or a share, as 500 or 0.8, not 'x'"),
        ("bound --epsilon0 1 --clients 0 --delta 1e-6", "clients = 0: must be a whole number in"),
        ("bound --epsilon0 1 --clients 9 --delta nan", "delta = nan: must be a finite number in"),
        ("bound --epsilon0 1 --clients 9 --delta .1 --method blanket", "needs a randomizer"),
        ("bound --clients 9 --delta .1 --budgets /no.csv", "budgets file /no.csv does not exist"),
        (f"{SUMS} --clients 9 --assumed-honest 10", "must be at most the number of reports, 9"),
        (f"{SUMS} --epsilon 1 --solve-for clients --assumed-honest 9", "give a share with"),
        ("bound --epsilon 1 --solve-for delta", "--epsilon without --delta computes it"),
        ("bound --clients 5 --epsilon0 1 --solve-for sigma", "needs the target"),
        ("bound --epsilon 1 --delta 2 --clients 5 --solve-for sigma", "delta"),
        ("bound --clients 5 --epsilon0 1 --solve-for sigm", "did you mean 'sigma'?"),
        ("bound --clients 5 --epsilon 1 --delta .1 --solve-for clients", "leave it out"),
        ("bound configs/quickstart.toml --epsilon0 1", "cannot be combined with CONFIG"),
        ("bound --grid budgets.levels=3", "add CONFIG"),
        ("bound quickstart --solve-for rounds", "needs the target, --epsilon"),
        ("audit nowhere.toml", "does not exist"),
        ("audit quickstart --confidence nan", "confidence = nan"),
        ("audit quickstart --set privacy.unit=person", "privacy.unit"),
        ("audit tests", "no config.json"),
        ("bound configs/quickstart.toml --grid budgets.levels=x", "budgets.levels = 'x'"),
        (
            "simulate --set budgets.distribution=constant --budgets own.csv",
            "--set budgets.distribution=constant: --budgets sets the same setting",
        ),
    ],
)
def test_what_is_mistyped_or_said_twice_is_named(
    capsys: CaptureFixture[str], words: str, line: str
) -> None:
    assert code_of(shlex.split(words)) == 2
    assert line in said(capsys)


def test_last_releases_names_are_translated_and_said() -> None:
    for old, new in (
        ("compare --epsilon0 1", "bound --epsilon0 1 --all"),
        ("compare --epsilon0 1 --clients 9", "bound --epsilon0 1 --clients 9 --all"),
        ("export RUN", "ledger RUN --out RUN/export"),
        ("export RUN --format json", "ledger RUN --format json --out RUN/export"),
        ("export RUN OTHER", "ledger RUN OTHER --out RUN/export"),
        ("export RUN --out=here", "ledger RUN --out=here"),
        ("simulate --tensorboard --quiet", "simulate --track tensorboard --quiet"),
        ("bound --epsilon0 1 --why", "bound --epsilon0 1 --explain"),
        ("bound --method proven", "bound --method vector"),
        ("bound --method=blanket,proven", "bound --method=blanket,vector"),
        ("ledger RUN --recount", "ledger RUN --recompute"),
        ("certify RUN --short", "certify RUN --proof convex-order"),
        ("certify RUN --column proven", "certify RUN --column shuffled"),
        ("shuffler init D --passes P", "shuffler init D --credentials P"),
        ("shuffler init D --largest-report=9", "shuffler init D --max-report-bytes=9"),
    ):
        assert renamed(old.split()) == (new.split(), f"note: this is now fl-shuffle {new}")
        assert renamed(new.split()) == (new.split(), "")


FILES = {
    "deep.toml": "x = " + "[" * 50_000,
    "long.toml": "[run]\nseed = " + "9" * 5000,
    "binary.toml": "\0\1\2",
    "list/config.json": "[1, 2]",
    "deep/config.json": "[" * 50_000,
    "number/config.json": '{"run": 3}',
    "budgets.csv": "client_id,epsilon,delta\n" + "9" * 5000 + ",1,1\n",
}
ODD = ("/proc/x", "/dev/null")
NEW = ["--quiet", "--out", "run", "--rounds", "1"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["simulate", name.removesuffix("/config.json"), *NEW] for name in FILES),
        *(["simulate", name, *NEW] for name in ("folder.toml", "none.toml", "/dev/zero")),
        *(
            ["simulate", "--set", setting, *NEW]
            for setting in ("run.seed=" + "9" * 5000, "run.seed=" + "[" * 50_000, "run",
                            "app.client=os:getcwd", "app.client=no.such:app",
                            "data.source=os:getcwd", "model.kind=os:getcwd")
        ),
        *(["simulate", "--budgets", name, *NEW] for name in ("budgets.csv", "/dev/zero", ".")),
        *(["simulate", "--quiet", "--rounds", "1", "--out", out] for out in ODD),
        *(["simulate", "--resume", name] for name in ("/proc", ".")),
        *(["report", name] for name in ("/proc", ".")),
        ["bound", "--matrix", "/dev/zero", "--clients", "9", "--delta", "1e-6"],
        *([*words, "a\0b"] for words in (["simulate"], ["report"], ["sweep", "--resume"],
                                         ["shuffler", "serve"], ["verify"], ["new"])),
    ],
    ids=lambda arguments: " ".join(arguments)[:50].replace("\0", "NUL"),
)  # fmt: skip
def test_odd_files_and_folders_are_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    Path("folder.toml").mkdir()
    assert code_of(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not Path("run").exists()


WITHOUT_LOCKS = """
import sys
sys.modules["fcntl"] = None  # as on Windows
from fl_shuffle.cli import main
sys.exit(main(["simulate", "quickstart", "--quiet", "--rounds", "1"]))
"""


def test_system_without_file_locks_is_one_line_that_names_wsl(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_LOCKS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    (line,) = done.stderr.strip().splitlines()
    assert done.returncode == 2 and "on Windows, run it in WSL" in line
    assert not list(tmp_path.iterdir())
