"""What a run says before, during and after it: one wording, its own numbers, 80 columns."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl_shuffle as fs
from fl_shuffle.accounting.guarantee import gain_at_most
from fl_shuffle.budgets import make_budgets
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.randomizers.calibration import make_plan
from fl_shuffle.randomizers.personal import make_randomizer
from fl_shuffle.runs.console_messages import (
    footer,
    hides_nobody,
    hiding_advice,
    is_shown,
    noise_words,
    one_line,
    shown_rounds,
    waiting,
)
from fl_shuffle.runs.display import Display, FlowerLog, LiveDisplay, make_display
from fl_shuffle.runs.events import Certifying, Preparing, RunEvent
from tests.golden import epsilons
from tests.repository import ROOT
from tests.small_federation import Play, model_bytes, notes, page

SMALL = {"run.rounds": 4, "data.clients": 30, "run.jobs": 1}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[RunEvent]:
    found: list[RunEvent] = []
    out = tmp_path_factory.mktemp("words") / "run"
    fs.simulate("configs/digits_record.toml", overrides=SMALL, out=out, on_event=found.append)
    return found


def test_the_result_goes_to_stdout_and_the_rest_to_stderr(
    events: list[RunEvent], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = events[-1].summary  # type: ignore[union-attr]
    told = {}
    for quiet in (False, True):
        display = make_display(quiet=quiet, as_json=False)
        for event in events:
            display(event)
        told[quiet] = capsys.readouterr()
    assert told[True].out == one_line(summary, summary["run_directory"]) + "\n"
    assert told[True].err.startswith("! simulation: noise is seeded")
    assert "4/4" not in told[True].err and " 4/4 " in told[False].err
    assert told[False].out.splitlines() == footer(summary) and len(footer(summary)) <= 9


def test_footer_huge_epsilon_and_no_test_records_read_well(events: list[RunEvent]) -> None:
    summary = dict(events[-1].summary)  # type: ignore[union-attr]
    summary |= {"epsilon": 9.9994e9, "test_records": 0, "test_data": "the app's own"}
    accuracy, epsilon, operator = footer(summary)[:3]
    assert epsilon.startswith("epsilon       9.999e+09 against an attacker who sees the shuffled ")
    # As large, whoever runs a server that shuffles; and what is printed in one line names both.
    local = f"{float(summary['columns']['local']['epsilon']):.4g}"
    said = f"epsilon       {local:<8} against the operator of this server, which "
    assert operator.startswith(said)
    assert f"reports, {local} against the operator" in one_line(summary, "run")
    assert "on the app's own test records, after 4 rounds" in accuracy


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (1.0470 / 0.9492, "1.11"),  # 1.103
        (1.0247, "1.03"),
        (1.0, "1"),
        (1.25, "1.25"),
        (1.2 / 1.2 + 1e-12, "1.01"),
        (9.991, "10"),
        (40.01, "40.1"),
        (12341.0, "12400"),
    ],
)
def test_what_a_better_proof_gains_is_rounded_up(
    events: list[RunEvent], ratio: float, shown: str
) -> None:
    """The line says "at most": a number that is rounded down is false."""
    summary = dict(events[-1].summary)  # type: ignore[union-attr]
    attack = {**summary["columns"]["shuffled_lower"], "epsilon": 1.0}
    columns = {**summary["columns"], "shuffled_lower": attack}
    lines = footer(summary | {"epsilon": ratio, "columns": columns})
    (line,) = (line for line in lines if line.lstrip().startswith("lower bound"))
    assert line.endswith(f"a better proof gains at most {gain_at_most(ratio)} times")
    assert gain_at_most(ratio) == shown and float(shown) >= ratio


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        # Rounded up, because the line says "largest": e^1.047 + 1e-5 / 0.01 is 2.8501.
        ({"epsilon": 1.047, "delta": 1e-5}, "2.86 largest factor by which the shuffled reports"),
        ({"epsilon": 1.047, "delta": 0.01}, "3.85 largest factor by which the shuffled reports"),
        ({"epsilon": 14.0}, "inf this epsilon limits an attacker's odds in no useful sense"),
        ({"epsilon": 0.0, "delta": 1e-9, "unit": "record"}, "a client's record, rare evidence"),
    ],
)
def test_footer_says_what_epsilon_means(
    events: list[RunEvent], changed: dict[str, Any], shown: str
) -> None:
    summary = dict(events[-1].summary) | changed  # type: ignore[union-attr]
    (line,) = (line for line in footer(summary) if line.startswith("  meaning"))
    assert shown in " ".join(line.split())


@pytest.mark.parametrize("shuffler", ["server", "separate"])
@pytest.mark.parametrize("hidden", [False, True])
def test_footer_states_each_number_once(
    events: list[RunEvent], shuffler: str, hidden: bool
) -> None:
    """What a client's own noise gives is the operator's epsilon; where another party shuffles it is
    a line if shuffling hides nobody."""
    summary = dict(events[-1].summary)  # type: ignore[union-attr]
    local = float(summary["columns"]["local"]["epsilon"])
    summary |= {"shuffler": shuffler, "epsilon": 0.5 * local if hidden else local}
    lines = footer(summary)
    alone = [line for line in lines if line.split()[:2] == ["local", f"{local:.4g}"]]
    operator = [line for line in lines if "against the operator of this server" in line]
    assert len(operator) == (shuffler == "server")
    assert len(alone) == (shuffler == "separate" and not hidden)
    said = [line for line in lines if "shuffling hides nobody here" in line]
    assert said == ([] if hidden else operator or alone)


@pytest.mark.parametrize(
    ("rounds", "shown", "line"),
    [
        (20, list(range(1, 21)), []),
        (30, [1, *range(2, 31, 2)], ["every 2nd round is shown; metrics.csv has all of them"]),
        (99, [1, *range(5, 99, 5), 99], ["every 5th round is shown; metrics.csv has all of them"]),
        (1000, [1, *range(50, 1001, 50)],
         ["every 50th round is shown; metrics.csv has all of them"]),
    ],
)  # fmt: skip
def test_shown_rounds_are_equally_spaced_and_named(
    rounds: int, shown: list[int], line: list[str]
) -> None:
    assert [number for number in range(1, rounds + 1) if is_shown(number, rounds)] == shown
    assert shown_rounds(rounds) == line


@pytest.mark.parametrize(
    ("overrides", "levels", "clipping"),
    [
        ({}, False, False),  # the quickstart clips by budget
        ({"privacy.personalization": "noise"}, True, True),
        ({"privacy.personalization": "noise", "budgets.levels": 1}, False, False),
        ({"privacy.personalization": "noise", "budgets.levels": 0}, True, True),
    ],
)
def test_advice_names_no_setting_that_is_set(
    overrides: dict[str, Any], levels: bool, clipping: bool
) -> None:
    advice = hiding_advice(resolve_config("configs/quickstart.toml", overrides).to_dict())
    assert ("budgets.levels" in advice, "clipping" in advice) == (levels, clipping)
    assert "more clients" in advice


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
    assert 0.5 < columns["shuffled_lower"]["epsilon"] <= result.epsilon
    assert result.accuracy is not None and result.accuracy > 0.8
    # README and guide show what is written down there.
    known = epsilons.read()["configurations"]["quickstart"]
    assert {name: column["epsilon"] for name, column in columns.items()} == {
        name: None if value is None else pytest.approx(value, rel=1e-5)
        for name, value in known.items()
    }


def test_every_run_says_what_it_reads_whether_it_is_kept_or_not(
    play: Play, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On the screen of whoever has the data; the run directory knows nothing of it."""
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path / "cache"))
    hog = "data.features=hog", "data.feature_options={cells = [2]}", "run.rounds=1"
    said, runs = [], []
    for name in ("first", "second"):
        run_cache.forget()
        runs.append(play(name, *hog, quiet=False))
        said.append(capsys.readouterr().err.splitlines()[:2])
    assert said[0] == said[1] and said[0][0] == "reading digits ..."
    assert said[0][1].startswith("features hog of 1,")
    # The same run, to the bit, and no trace of where its features come from.
    assert model_bytes(runs[0]) == model_bytes(runs[1])
    for content in (path.read_bytes() for run in runs for path in run.iterdir()):
        assert b"features hog of" not in content and str(tmp_path / "cache").encode() not in content
    run_cache.forget()


@pytest.mark.parametrize(
    ("privacy", "weights"),
    [
        ({}, "uniform"),
        ({}, "inverse-variance"),
        ({"randomizer": "laplace"}, "uniform"),
        ({"personalization": "clipping"}, "inverse-variance"),
        ({"client_clip_norm": 0.1}, "uniform"),
        ({"reports_per_round": 3}, "uniform"),
    ],
    ids=str,
)
def test_the_noise_of_the_mean_is_as_long_as_it_is_drawn(
    privacy: dict[str, Any], weights: str
) -> None:
    """The randomizers themselves, asked to randomize nothing."""
    tables = {
        "data": {"clients": 40},
        "privacy": {"unit": "client", "clip_norm": 0.5, **privacy},
        "budgets": {"distribution": "uniform", "low": 1.0, "high": 9.0},
        "server": {"weights": weights},
    }
    config, dimension = parse_config(tables), 2000
    plan = make_plan(config, make_budgets(config.budgets, 40), np.ones(40, dtype=np.int64))
    randomizer = make_randomizer(config, plan, None)
    drawn = [
        torch.linalg.vector_norm(randomizer(torch.zeros(40, dimension), np.arange(40), n).mean(0))
        for n in range(1, 4)
    ]
    clips = float(np.mean(drawn) / np.mean(plan.weight * plan.radius))
    found = [plan.noise_of_mean(dimension, share) or 0.0 for share in (1.0, 0.25)]
    # The length of 2,000 variates has a relative deviation of 1/60, Laplace's more.
    assert found[0] == pytest.approx(clips, rel=0.08) and found[1] == pytest.approx(2 * found[0])


def test_the_noise_of_what_is_declared() -> None:
    """As clients train who have nothing to learn: steps over 20 records with noise on their sum."""
    clients, sigma, clip, batch, steps, dimension = 8, 3.0, 0.5, 20, 4, 5000
    declared = {"randomizer": "declared", "clip_norm": clip, "declared_sigma": sigma}
    privacy, app = {**declared, "declared_steps": steps}, {"client": "a:b", "server": "a:b"}
    config = parse_config({"data": {"clients": clients}, "privacy": privacy, "app": app})
    plan = make_plan(config, make_budgets(config.budgets, clients), np.ones(clients, np.int64))
    size = (clients // 2, steps, dimension)
    draws = np.random.default_rng(1).normal(scale=sigma / batch, size=size)
    drawn = np.linalg.norm(draws.sum(axis=1).mean(axis=0))
    found = plan.noise_of_mean(dimension, 0.5)
    assert found is not None and found / batch == pytest.approx(drawn / (steps * clip), rel=0.05)
    assert noise_words(125.23, None).startswith(
        "noise of the mean: 125.2 times the clipping norm over the records"
    )


@pytest.mark.parametrize(
    ("epsilon", "hopeless"),
    [pytest.param(0.1, True, marks=pytest.mark.slow), (40.0, False)],
)
def test_simulate_report_and_bound_say_the_same(
    epsilon: float, hopeless: bool, play: Play, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["budgets.distribution=constant", f"budgets.epsilon={epsilon}", "run.rounds=1"]
    run = play("run", *settings, quiet=False)
    kind = "warning" if hopeless else "noise"
    (told,) = [text for text in notes(run, kind) if "noise of the mean" in text]
    said = told.split(";")[0]
    assert said.startswith("noise of the mean: ")
    assert said in capsys.readouterr().err.split("reports  accuracy")[0]
    assert said in page(run)
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert main(["bound", str(small), *arguments]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "noise of the mean" in x]
    assert line.startswith("warning: ") is hopeless and "650 numbers" in line
    assert line.removeprefix("warning: ").startswith(said)


def test_of_an_own_app_the_size_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read or built: the app is not there."""
    config, app = tmp_path / "app.toml", "{ server = 'no.where:app', client = 'no.where:app' }"
    config.write_text(f"app = {app}\ndata.clients = 10\nprivacy.unit = 'client'\n")
    assert main(["bound", str(config)]) == 0
    said = capsys.readouterr().out
    found, own = fs.cost(str(config)), resolve_config(str(config))
    assert found.dimension is None and found.noise_of_mean is not None
    # What a run of an app with such a model says.
    plan = make_plan(own, make_budgets(own.budgets, 10), np.ones(10, dtype=np.int64))
    clips = plan.noise_of_mean(10_000)
    assert clips is not None and f"{noise_words(clips, 10)}, for a model of 10,000 numbers" in said


@pytest.mark.parametrize(
    ("setting", "idle"),
    [
        ("privacy.min_reports=3", True),
        ("privacy.randomizer=laplace", False),
        ("privacy.assumed_honest=0.5", False),
        ("server.weights=inverse-variance", False),
    ],
)
def test_a_run_in_which_budgets_do_not_act_says_so(setting: str, idle: bool, play: Play) -> None:
    run = play("run", "privacy.release=sum", setting, "run.rounds=1")
    warned = notes(run, "warning")
    assert any(text.startswith("budgets do not act") for text in warned) is idle
    ledger = fs.Result(run).ledger
    assert (len({ledger.client(client).epsilon for client in range(12)}) == 1) is idle


def test_live_display_says_what_a_new_kind_of_round_costs(events: list[RunEvent]) -> None:
    """Once for all rounds that are alike, before the first of them; and nothing where no line is
    rewritten."""
    kinds = [type(each).__name__ for each in events if type(each) is not Preparing]
    alike = ["Certifying", *["RoundFinished"] * kinds.count("RoundFinished")]
    assert kinds == ["RunStarted", *alike, "Certifying", "RunFinished"]
    first, last = (each for each in events if isinstance(each, Certifying))
    out, progress = io.StringIO(), io.StringIO()
    live, plain = LiveDisplay(out, io.StringIO()), Display(out, progress)
    for event in events:
        live(event)
        if isinstance(event, Certifying):
            assert live._bar.tasks[0].description == event.text
        plain(event)
    live.close()
    assert "round 1 costs" in first.text and "every client has spent" in last.text
    assert progress.getvalue() and first.text not in progress.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_waiting_rewrites_one_line_of_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is empty in the end, also where it fails; nothing is written elsewhere."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(ZeroDivisionError), waiting() as told:
        for text in ("first", "x" * 100):
            told(text)
        _ = 1 / 0
    if not terminal:
        assert not out.getvalue()
        return
    *lines, last = out.getvalue().split("\r")[1:]
    assert [line.strip() for line in lines] == ["first", "x" * 59, ""] and not last
    assert {len(line) for line in lines} == {59}


@pytest.mark.parametrize(
    ("epsilon", "local", "nobody"),
    [
        (2.0, 2.0, True),
        (1.97, 2.0, True),
        (1.95, 2.0, False),
        ("inf", "inf", True),
        (None, 2.0, False),
        (2.0, None, False),
    ],
)
def test_a_gain_of_two_percent_is_a_gain(
    epsilon: float | str | None, local: float | str | None, nobody: bool
) -> None:
    """Numbers of a summary, in which an infinite one is a text."""
    assert hides_nobody(epsilon, local) == nobody
