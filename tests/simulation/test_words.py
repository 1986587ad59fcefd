"""What a run says: one sentence from its own numbers, whole words in 80 columns."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.run_words import footer, one_line
from fl_shuffle.runs.display import FlowerLog, LiveDisplay, make_display
from fl_shuffle.runs.events import RunEvent
from tests.golden import epsilons
from tests.repository import ROOT

SMALL = {"run.rounds": 4, "data.clients": 30, "run.jobs": 1}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[RunEvent]:
    found: list[RunEvent] = []
    out = tmp_path_factory.mktemp("words") / "run"
    fs.simulate("configs/digits_record.toml", overrides=SMALL, out=out, on_event=found.append)
    return found


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_line_fits_too(events: list[RunEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    screen, terminal = io.StringIO(), Terminal()
    display = LiveDisplay(screen, terminal)
    for event in events:
        display(event)
    display.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", terminal.getvalue())
    lines = [line for part in shown.splitlines() for line in part.split("\r") if line.strip()]
    assert lines and all(len(line) <= 80 or "/" in line for line in lines)
    summary = events[-1].summary  # type: ignore[union-attr]
    assert screen.getvalue().splitlines() == footer(summary)


def test_the_result_goes_to_stdout_and_the_rest_to_stderr(
    events: list[RunEvent], capsys: pytest.CaptureFixture[str]
) -> None:
    for quiet in (False, True):
        display = make_display(quiet=quiet, as_json=False)
        for event in events:
            display(event)
        told = capsys.readouterr()
        summary = events[-1].summary  # type: ignore[union-attr]
        if quiet:
            assert told.out == one_line(summary, summary["run_directory"]) + "\n"
            assert told.err.startswith("! simulation: noise is seeded") and "4/4" not in told.err
        else:
            assert told.out.splitlines() == footer(summary)
            assert len(told.out.splitlines()) <= 8 and " 4/4 " in told.err


def test_a_deployments_log_has_no_times(
    events: list[RunEvent], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    overrides = {**SMALL, "run.entropy": "system"}
    told = FlowerLog(resolve_config("configs/digits_record.toml", overrides))
    with caplog.at_level(logging.INFO, logger="flwr"):
        for event in events:
            told(event)
    logged = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert logged and not [line for line in logged if re.search(r"\d s$|\.\.\.$", line)]


@pytest.mark.slow
def test_the_quickstarts_numbers(tmp_path: Path) -> None:
    result = fs.simulate("configs/quickstart.toml", out=tmp_path / "run")
    columns = result.summary["columns"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "\n".join(footer(result.summary)[:-2]) in readme
    assert result.epsilon < 1.5 and columns["local"]["epsilon"] > 30.0
    assert 0.5 < columns["lower"]["epsilon"] <= result.epsilon
    assert result.accuracy is not None and result.accuracy > 0.8
    # README and guide show what is written down there.
    known = epsilons.read()["configurations"]["quickstart"]
    assert {name: column["epsilon"] for name, column in columns.items()} == {
        name: None if value is None else pytest.approx(value, rel=1e-5)
        for name, value in known.items()
    }
