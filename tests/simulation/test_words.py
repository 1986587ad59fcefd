"""What a run says: one sentence from its own numbers, whole words in 80 columns."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.api.configs import resolve_config
from fl_shuffle.apps.flower_log import FlowerLog
from fl_shuffle.run_words import HEADINGS, WIDTHS, footer, number, plain_words, row, wrapped
from fl_shuffle.runs import RunEvent
from fl_shuffle.simulation.progress import LiveDisplay, make_display
from tests.architecture.test_limits import ROOT

SMALL = {"run.rounds": 4, "data.clients": 30, "run.jobs": 1}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[RunEvent]:
    found: list[RunEvent] = []
    out = tmp_path_factory.mktemp("words") / "run"
    fs.simulate("configs/digits_record.toml", overrides=SMALL, out=out, on_event=found.append)
    return found


def test_the_sentence_is_made_of_the_runs_numbers(events: list[RunEvent]) -> None:
    summary = events[-1].summary  # type: ignore[union-attr]
    columns = summary["columns"]
    local, lower = (number(columns[name]["epsilon"]) for name in ("local", "lower"))
    assert summary["in_plain_words"] == (
        f"a client's own reports, 4 rounds: epsilon {local}; after shuffling 30 of them in every "
        f"round: {local}, so that hides nobody; an attack reaches {lower}"
    )
    assert f"in plain words: {summary['in_plain_words']}" in footer(summary)


def test_sentences_for_sums_and_for_what_hides() -> None:
    epsilons = {"local": 33.0, "proven": 1.2, "sum": 0.8, "lower": 0.9, "sum_lower": None}
    said = plain_words(epsilons, headline="proven", reports=718, rounds=30)
    assert said == (
        "a client's own reports, 30 rounds: epsilon 33; after shuffling 718 of them in every "
        "round: 1.2; an attack reaches 0.9"
    )
    said = plain_words(epsilons, headline="sum", reports=718, rounds=1)
    assert said == (
        "a client's own reports, 1 round: epsilon 33; after adding up 718 of them in every round: "
        "0.8"
    )
    endless = {"local": "inf", "proven": "inf"}
    assert "epsilon inf" in plain_words(endless, headline="proven", reports=2, rounds=1)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_word_is_broken_and_none_is_lost(events: list[RunEvent], width: int) -> None:
    lines = footer(events[-1].summary)  # type: ignore[union-attr]
    cut = wrapped(lines, width)
    assert " ".join(" ".join(cut).split()) == " ".join(" ".join(lines).split())
    assert all(len(line) <= width or " " not in line.strip() for line in cut)
    assert wrapped(lines, None) == lines


def test_a_row_fits_into_80_columns() -> None:
    assert all(len(name) <= width for name, width in zip(HEADINGS, WIDTHS, strict=True))
    assert len(row(HEADINGS)) <= 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_table_fits_too(events: list[RunEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    display = LiveDisplay(terminal)
    for event in events:
        display(event)
    display.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", terminal.getvalue())
    lines = [line for part in shown.splitlines() for line in part.split("\r") if line.strip()]
    assert lines and all(len(line) <= 80 or "/" in line for line in lines)
    last = next(line for line in reversed(lines) if re.match(r"\s*4/4 ", line))
    assert len(last.split()) == 9  # eight cells, the last of two words


def test_flower_log_gets_what_the_screen_gets(
    events: list[RunEvent],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    display = make_display(quiet=False, as_json=False)
    for event in events:
        display(event)
    printed = capsys.readouterr().out.splitlines()
    with caplog.at_level(logging.INFO, logger="flwr"):
        told = FlowerLog(resolve_config("configs/digits_record.toml", SMALL))
        for event in events:
            told(event)
    logged = [record.getMessage() for record in caplog.records if record.name == "flwr"]

    def untimed(lines: list[str]) -> list[str]:
        return [re.sub(r"\s+\d+ s$", "", line) for line in lines]

    assert untimed(logged) == untimed(printed)


def test_a_deployments_log_has_no_times(
    events: list[RunEvent],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    overrides = {**SMALL, "run.entropy": "system"}
    told = FlowerLog(resolve_config("configs/digits_record.toml", overrides))
    with caplog.at_level(logging.INFO, logger="flwr"):
        for event in events:
            told(event)
    logged = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert logged and not [line for line in logged if re.search(r"\d s$|\.\.\.$", line)]


def test_the_quickstart_shows_what_shuffling_is_for() -> None:
    config = resolve_config("configs/quickstart.toml")
    assert (config.data.source, config.privacy.unit) == ("digits", "client")
    assert config.privacy.personalization == "clipping"


@pytest.mark.slow
def test_the_quickstarts_numbers(tmp_path: Path) -> None:
    result = fs.simulate("configs/quickstart.toml", out=tmp_path / "run")
    columns = result.summary["columns"]
    assert result.epsilon < 1.5 and columns["local"]["epsilon"] > 30.0
    assert 0.5 < columns["lower"]["epsilon"] <= result.epsilon
    assert result.accuracy is not None and result.accuracy > 0.8
    # README and guide show them; the guide with all the digits that are printed.
    numbers = [columns["local"]["epsilon"], result.epsilon, columns["lower"]["epsilon"]]
    for page, words, digits in (
        ("docs/guide.md", r"epsilon ([\d.]+); after shuffling .*?: ([\d.]+); .*? ([\d.]+) ", 4),
        ("README.md", r"epsilon of ([\d.]+); after shuffling .*? ([\d.]+), .*? ([\d.]+)\. ", 2),
    ):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        (shown,) = re.findall(words, text)
        assert [float(each) for each in shown] == [
            pytest.approx(float(f"{number:.{digits}g}"), rel=2.0 * 10.0**-digits)
            for number in numbers
        ]
