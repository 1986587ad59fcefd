"""Adding rounds to a finished run: one longer run, with all that it released on its account."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

import fl_shuffle as fs
from fl_shuffle.certificates.runs import certificate_of_run
from fl_shuffle.cli import main
from fl_shuffle.errors import InvalidValueError, RunError
from fl_shuffle.ledger import state_file
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.resume import STATE_VARIABLE
from tests.crashes import SYSTEM, Crashing, Refused, dying_after, resume
from tests.small_federation import Play, model_bytes, notes, rows, stored, summary

PRIVACY = ("num_reports", "gspa_epsilon", "shuffled_epsilon", "sum_epsilon", "local_epsilon")


def spent(run: Path) -> list[list[str]]:
    return [[row[name] for name in PRIVACY] for row in rows(run)]


@pytest.mark.parametrize(
    "settings",
    [
        (),
        pytest.param(
            ("server.optimizer=adam", "server.warmup=2", "privacy.release=sum"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("server.averaging_fraction=1.0", "training.participation=0.8"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_continued_seeded_run_equals_a_longer_one(
    settings: tuple[str, ...], play: Play, monkeypatch: MonkeyPatch
) -> None:
    run, whole = play("run", *settings), play("whole", *settings, "run.rounds=6")
    states = stored(run, "SELECT round FROM checkpoint")
    assert states == [(3,)]  # the state after the last round, so nothing is repeated
    assert resume(run, "--rounds", "6") == 0
    assert model_bytes(run) == model_bytes(whole)
    assert spent(run) == spent(whole)
    assert LedgerRecord(run).recorded_spend.tolist() == LedgerRecord(whole).recorded_spend.tolist()
    one, other = summary(run), summary(whole)
    for name in ("rounds", "shuffled_epsilon", "sum_epsilon", "columns", "epsilon_quantiles"):
        assert one[name] == other[name]
    select = "SELECT round, shuffled_lower, sum_lower FROM rounds ORDER BY round"
    assert stored(run, select) == stored(whole, select)
    assert notes(run, "changed") == ["resumed with run.rounds = 6 instead of 3"]
    record = read_run(run)
    assert record.agrees and not len(record.differing)


@pytest.mark.slow
def test_continued_real_run_counts_every_round(play: Play) -> None:
    run, whole = play("run", SYSTEM), play("whole", SYSTEM, "run.rounds=5")
    before = LedgerRecord(run)
    assert resume(run, "--rounds", "5") == 0
    assert spent(run) == spent(whole)
    after = LedgerRecord(run)
    assert len(after.attempts) == 5 and after.recorded_spend[:, 0].tolist() == [5] * 12
    assert before.entries == 6 and after.entries == 10
    # Twice more: the rounds that were added are the planned ones of the next time.
    assert resume(run, "--rounds", "6") == resume(run, "--rounds", "7") == 0
    assert len(LedgerRecord(run).attempts) == 7


def test_continued_run_is_certified_and_verified(play: Play, tmp_path: Path) -> None:
    run = play("run", "privacy.release=sum", SYSTEM)
    assert resume(run, "--rounds", "5") == 0
    written, printed = certificate_of_run(run)
    assert printed == summary(run)["sum_epsilon"]
    assert sum(int(each["times"]) for each in written["facts"]["rounds"]) == 5
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(written))
    assert main(["verify", str(path), "--ledger", str(run / "ledger.sqlite")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("at", ["reserve", "commit", "finish"])
@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_killed_continuation_is_resumed(entropy: str, at: str, play: Play) -> None:
    run = play("run", f"run.entropy={entropy}")
    with dying_after(4, at):
        resume(run, "--rounds", "6")
    view = RunView(run)
    assert not view.finished and not (run / "summary.json").exists()
    assert resume(run) == 0
    known = LedgerRecord(run)
    repeated = entropy == "system" and at == "commit"
    assert known.recorded_spend[:, 0].tolist() == [6 + repeated] * 12
    if entropy == "seeded":
        whole = play("whole", "run.rounds=6")
        assert model_bytes(run) == model_bytes(whole) and spent(run) == spent(whole)


def test_older_copy_of_continued_ledger_is_refused(play: Play, refused: Refused) -> None:
    run = play("run", SYSTEM)
    older = (run / "ledger.sqlite").read_bytes()
    assert resume(run, "--rounds", "5") == 0
    (run / "ledger.sqlite").write_bytes(older)
    assert "the ledger is older than the run" in refused(run, "--rounds", "5")


@pytest.mark.slow
def test_large_state_is_kept_for_more_rounds(play: Play, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "MOST_IN_LEDGER", 0)
    run = play("run", SYSTEM, "server.optimizer=adam")
    assert len(list(run.glob("state-*"))) == 1
    assert resume(run, "--rounds", "4") == 0
    assert len(LedgerRecord(run).attempts) == 4 and len(list(run.glob("state-*"))) == 1


@pytest.mark.parametrize("rounds", ["2", "3"])
def test_finished_run_needs_more_rounds(rounds: str, play: Play, refused: Refused) -> None:
    run = play("run")
    said = refused(run, "--rounds", rounds)
    assert "that run is finished; to add rounds to it, add --rounds N with N above 3" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("budgets.of=run",), "the noise was calibrated for totals over 3 rounds"),
    ],
)
def test_rounds_that_cannot_be_right_are_refused(
    settings: tuple[str, ...], words: str, play: Play, refused: Refused
) -> None:
    assert words in refused(play("run", *settings), "--rounds", "5")


def test_failed_and_lost_runs_are_refused(play: Play, refused: Refused) -> None:
    run = play("run", SYSTEM)
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    for folder, change, words in (
        (run, "DELETE FROM checkpoint", "state after round 3 was not kept"),
        (
            copy,
            "UPDATE meta SET value = replace(value, '\"failed\": false', '\"failed\": true')",
            "that run has failed",
        ),
    ):
        stored_change(folder, change)
        assert words in refused(folder, "--rounds", "5")


def stored_change(run: Path, change: str) -> None:
    with closing(sqlite3.connect(run / "ledger.sqlite")) as database:
        assert database.execute(change).rowcount > 0
        database.commit()


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_added_rounds_keep_the_last_rate(schedule: str, play: Play, crash: Crashing) -> None:
    """The first rounds repeat to the same bits, whether the run had finished or not."""
    settings = (f"server.lr_schedule={schedule}",)
    run, stopped = play("run", *settings), crash(2, *settings, name="stopped")
    finished = model_bytes(run)
    assert resume(run, "--rounds", "5") == resume(stopped, "--rounds", "5") == 0
    assert model_bytes(run) == model_bytes(stopped) != finished
    assert model_bytes(run) != model_bytes(play("whole", *settings, "run.rounds=5"))


@pytest.mark.slow
def test_budget_stops_added_rounds(play: Play) -> None:
    whole = [float(row["shuffled_epsilon"]) for row in rows(play("whole", "run.rounds=6"))]
    target = (whole[3] + whole[4]) / 2
    run = play("run", f"privacy.target_epsilon={target}", SYSTEM)
    assert resume(run, "--rounds", "6") == 0
    assert summary(run)["rounds"] == 4 and summary(run)["shuffled_epsilon"] <= target
    assert len(LedgerRecord(run).attempts) == 4
    # Still no round more, and the run ends as it did.
    assert resume(run, "--rounds", "9") == 0
    assert summary(run)["rounds"] == 4 and len(LedgerRecord(run).attempts) == 4


@pytest.mark.slow
def test_other_machine_must_vouch_for_finished_run(
    play: Play, refused: Refused, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    run = play("run")
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "elsewhere"))
    assert "cannot be verified here" in refused(run, "--rounds", "4")
    assert resume(run, "--rounds", "4", "--data-unchanged") == 0


def test_python_adds_rounds(play: Play, capsys: CaptureFixture[str]) -> None:
    run = play("run")
    assert len(fs.resume(run, rounds=4).metrics["round"]) == 4
    with pytest.raises(RunError, match="with N above 4"):
        fs.resume(run)
    for wrong in (0, -1, 2.5, True, "five"):
        with pytest.raises(InvalidValueError, match="rounds"):
            fs.resume(run, rounds=wrong)  # type: ignore[arg-type]
