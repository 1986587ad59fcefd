"""Every user's mistake at the command line is one clear line, and names what to mend."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fl_shuffle import cli
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import idle_settings, parse_config, without_effect
from fl_shuffle.configuration.sections import Config
from tests.repository import ROOT
from tests.small_federation import Launch, launch, small, summary

__all__ = ["launch", "small"]

OWN = "tests.cli.own_parts"


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("fl-shuffle: error: ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["budgets.epsilon=2"], "budgets.epsilon = 2.0 has no effect with budgets.distribution = "),
        (["run.supernodes=x.csv"], "run.supernodes = 'x.csv' has no effect: a simulation has no"),
        ([f"data.source={OWN}:lists"], "Records.train_images is a list; it must be a NumPy array"),
        ([f"model.kind={OWN}:lazy"], "parameter weight is lazy, and its size unknown; use layers"),
        (["data.features=os:getcwd"], "data.features = 'os:getcwd' returned str without 'fit'"),
        ([f"data.features={OWN}:one_argument"], "cannot be called with data.feature_options = {}"),
        (
            [f"data.features={OWN}:TextFeatures"],
            "transform returned str; it must return a float32 NumPy array with 1428 rows",
        ),
        (
            ["app.server=os:getcwd"],
            "app.server = 'os:getcwd': it must be a function of (grid, context)",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_setting_that_cannot_work_is_one_line(
    launch: Launch, capsys: pytest.CaptureFixture[str], settings: list[str], words: str
) -> None:
    assert launch("run", *settings) == 2
    assert words in said(capsys)


def test_what_clients_raise_is_counted_and_shown_where_asked_for(
    launch: Launch, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest listens to the root logger, as a program does that has set logging up.
    monkeypatch.setattr(logging.getLogger("fl_shuffle.client"), "propagate", False)
    settings = [f"model.kind={OWN}:raising", "run.evaluate_every=9"]
    assert launch("quiet", *settings) == 1
    told = capsys.readouterr().err
    assert "0 usable reports arrived, below privacy.min_reports = 2" in told
    assert "(raised KeyError 'my own mistake': 12)" in told and "Traceback" not in told
    assert "go on with: fl-shuffle simulate --resume" in told
    assert launch("loud", *settings, options=("--verbose",)) == 1
    assert "own_parts.py" in capsys.readouterr().err


def test_ctrl_c_in_a_callback_is_not_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


WITHOUT_TORCH = """
import sys
from importlib.abc import MetaPathFinder

class NotHere(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "flwr", "numba"):
            raise RuntimeError(f"{name} is asked for")

sys.meta_path.insert(0, NotHere())
from fl_shuffle.cli import main
sys.exit(main(sys.argv[1:]))
"""


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
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "simulate", *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text_analyzer", "returned str, no torch.Tensor of shape (650,)"),
        ("nan_analyzer", "returned numbers that are not finite"),
    ],
)
def test_an_analyzer_is_tried_before_a_round_is_paid_for(
    name: str, words: str, launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run", f"server.analyzer={OWN}:{name}") == 2
    error = capsys.readouterr().err
    assert words in error and "made-up reports" in error
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "config.json holds no table of sections: it is damaged"),
        ("[" * 50_000, "config.json is nested too deeply"),
        ('{"run": 3}', "[run] must be a table"),
    ],
)
def test_a_damaged_configuration_is_one_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert main(["simulate", str(tmp_path), "--out", str(tmp_path / "new")]) == 2
    assert words in said(capsys)


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("budgets.distribution=constant", ["--budgets", "own.csv"]),
    ],
)
def test_one_setting_given_in_two_ways_is_refused(
    setting: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--set", setting, *option]) == 2
    assert f"--set {setting}: {option[0]} says the same; drop one of them" in said(capsys)


def test_settings_of_a_file_without_effect_are_warned_of(launch: Launch, tmp_path: Path) -> None:
    """The file's own `low` and `high` are not read any more; the run goes on and says so."""
    assert launch("run", "budgets.distribution=constant", "budgets.epsilon=2", "run.rounds=1") == 0
    warnings = str(summary(tmp_path / "run")["warnings"])
    assert all(f"setting without effect: budgets.{name} = " in warnings for name in ("low", "high"))
    assert idle_settings(Config()) == ()
    own = parse_config({"app": {"server": "my.own:app"}, "data": {"alpha": 3.0}})
    assert without_effect(own) == {}  # which may read anything


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["simulat"], "no command 'simulat'; did you mean 'simulate'?; see fl-shuffle --help"),
        (
            ["simulate", "--ronds", "3"],
            "unrecognized arguments: --ronds; did you mean '--rounds'?",
        ),
        (
            ["bound", "--epsilon_0=1"],
            "--epsilon_0=1; did you mean '--epsilon0'?; see fl-shuffle bound",
        ),
        (["verify", "claim.json", ""], "unrecognized arguments: ; see fl-shuffle verify --help"),
        (["--quick"], "no option '--quick' without a command; see fl-shuffle --help"),
        (["settings", "run.ronds"], "unknown setting: 'run.ronds'; did you mean 'run.rounds'?"),
        (["bound", "--clients", "1.5"], "argument --clients: must be a whole number, not '1.5'"),
        (["bound", "--assumed-honest", "x"], "must be a count or a share, as 500 or 0.8, not 'x'"),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_the_nearest_command_option_or_setting_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    try:
        code = main(words)
    except SystemExit as left:
        code = int(str(left.code))
    assert code == 2
    assert line in said(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "a\0b"],
        ["simulate", "--set", "budgets.distribution=file", "--set", "budgets.file='a\\u0000b'"],
        ["report", "a\0b"],
        ["sweep", "--resume", "a\0b"],
        ["shuffler", "serve", "a\0b"],
        ["verify", "a\0b"],
        ["new", "a\0b"],
    ],
    ids=lambda words: " ".join(words).replace("\0", "NUL").replace("\\u0000", "NUL"),
)
def test_a_name_with_a_nul_character_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = main([word.replace("\\u0000", "\0") for word in words])
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    assert code == 2
    assert said(capsys)
    assert not list(tmp_path.iterdir())
