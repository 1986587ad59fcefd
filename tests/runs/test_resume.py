"""Going on with a run: from its own ledger alone, and never with a release off the bill."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
import shutil
import sqlite3
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import SETTINGS
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data import Records
from fl_shuffle.data.run_cache import run_cache
from fl_shuffle.errors import RunError
from fl_shuffle.ledger import state_file
from fl_shuffle.ledger.reader import LedgerRecord, RunView
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.report.record import read_run
from fl_shuffle.runs import run as running
from fl_shuffle.runs.directory import RunPlace
from fl_shuffle.runs.events import RoundFinished
from fl_shuffle.runs.resume import Resumed, changes_of, replays, require_newest
from tests.crashes import SYSTEM, Crash, Crashing, Refused, dying_after, opened, released, resume
from tests.small_federation import Launch, Play, model_bytes, notes, rows, stored, summary

both = pytest.mark.parametrize("entropy", ["seeded", "system"])


@both
def test_a_stopped_run_says_from_where_it_replays(
    entropy: str, small: Path, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    """Of a seeded run the state is kept now and then; a real one's after every round."""

    def stop(event: object) -> None:
        if isinstance(event, RoundFinished) and event.outcome.round_number == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 1e9)
    run, settings = tmp_path / "run", {"run.rounds": 5, "run.entropy": entropy}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fs.simulate(small, overrides=settings, out=run, on_event=stop)
    replayed = "rounds 2 to 4 are played again"
    assert (replayed in str(stopped.value)) == (entropy == "seeded")
    assert main(["simulate", "--resume", str(run)]) == 0
    assert (f"going on at round 2: {replayed}" in capsys.readouterr().err) == (entropy == "seeded")


@pytest.mark.parametrize(
    ("first", "rounds", "said"),
    [
        (1, [], ""),
        (3, [1, 2], ""),
        (1, [1], "round 1 is played again"),
        (3, [1, 2, 3], "round 3 is played again"),
        (3, [1, 2, 3, 4], "rounds 3 to 4 are played again"),
    ],
)
def test_every_round_behind_the_last_checkpoint_is_said_to_be_replayed(
    first: int, rounds: list[int], said: str
) -> None:
    known: Any = SimpleNamespace(first_round=first, rounds=np.array(rounds, int), seeded=True)
    assert replays(known).startswith(said) and bool(replays(known)) == bool(said)
    known.seeded = False
    assert replays(known) == ""


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_ledger_that_lacks_any_round_before_the_state_is_refused(lost: int) -> None:
    """The first, the last, and one between: what they released would not be counted."""
    known: Any = SimpleNamespace(
        directory=Path("run"), first_round=4, entries=8, seeded=True, meta={"run": "ab"},
        rounds=np.array([number for number in (1, 2, 3, 4) if number != lost]),
    )  # fmt: skip
    with pytest.raises(RunError, match=f"has no round {lost}"):
        require_newest(known, "ab", 8)
    known.rounds = np.array([1, 2, 3])
    assert require_newest(known, "ab", 8) == require_newest(known, "", 0) == ""


@pytest.mark.parametrize(
    "text", ["plain", 'with "quotes"', "it's", 'back\\slash\\"', "two\nlines", "caf\u00e9 $HOME"]
)
def test_a_printed_command_resumes_with_every_value_as_it_was(text: str) -> None:
    """Through the shell, and as Flower reads it: TOML, whose texts end at the first quote."""
    given = (("config", text), ("count", 3), ("noisy", True), ("empty", ""))
    place = RunPlace(Path("before"), "no", given)
    command = place.flwr_run(Path("/runs") / text.replace("\n", " "), vouched=True)
    *head, config = shlex.split(command)
    assert head == ["flwr", "run", ".", "--run-config"]
    found = re.findall(r'([a-z-]+)=("[^"]*"|[^ ]+)', config)
    read = {name: tomllib.loads(f"x = {value}")["x"] for name, value in found}
    wanted = {"config": text, "count": 3, "noisy": True, "resume": "data-unchanged"}
    assert read == {**wanted, "run-directory": str(Path("/runs") / text.replace("\n", " "))}


def test_open_run_is_whole_before_anything_is_asked_of_it(tmp_path: Path) -> None:
    with opened(tmp_path / "run", 6) as run:
        assert run.resumed == Resumed(1, None, None)
        assert rows(tmp_path / "run") == []
        header = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8")
        assert header.startswith("round,")


@both
def test_open_run_says_where_the_stopped_one_continues(
    entropy: str, crash: Crashing, monkeypatch: MonkeyPatch
) -> None:
    begun = list[Any]()
    real = running.Run.__init__

    def noted(self: Any, *given: Any) -> None:
        real(self, *given)
        accounted = self.accountant.client_totals().rounds.max()
        begun.append((self.resumed, self.rounds, accounted, rows(self.ledger.path.parent)))

    run = crash(2, "run.rounds=4", f"run.entropy={entropy}")
    known = LedgerRecord(run)
    monkeypatch.setattr(running.Run, "__init__", noted)
    assert resume(run) == 0
    ((resumed, last, accounted, lines),) = begun
    assert resumed.round == known.first_round and resumed.counted is None
    assert resumed.optimizer_state is not None and last == resumed.round - 1 == len(lines)
    assert accounted == (last if entropy == "seeded" else len(known.rounds))


@both
def test_a_crashed_run_resumes_and_keeps_its_budget(
    entropy: str, crash: Crashing, play: Play
) -> None:
    spent = [float(row["shuffled_epsilon"]) for row in rows(play("whole", "run.rounds=6"))]
    target = (spent[4] + spent[5]) / 2
    settings = ("run.rounds=6", f"privacy.target_epsilon={target}", f"run.entropy={entropy}")
    run = crash(3, *settings)
    assert resume(run) == 0
    assert summary(run)["rounds"] == 5 and summary(run)["shuffled_epsilon"] <= target
    if entropy == "seeded":
        assert model_bytes(play("straight", *settings)) == model_bytes(run)
        assert [row["round"] for row in rows(run)] == ["1", "2", "3", "4", "5"]


def test_the_file_knows_of_a_release_before_it_happens(crash: Crashing) -> None:
    """System entropy: whoever is killed between commit and release has the round on the bill."""
    run = crash(2, SYSTEM, at="commit")
    assert released(run) == [(1, 1, 12), (2, 2, 12)]
    assert resume(run) == 0
    spend = LedgerRecord(run).recorded_spend
    assert spend is not None and spend[:, 0].max() == 4


def test_whoever_is_killed_after_a_step_of_a_round_has_it_on_disk(tmp_path: Path) -> None:
    """Reserved, committed, amended by reports that cannot be used, and what stops a run: each is in
    a copy of the folder that is made right behind it."""
    everybody, folder, copies = np.ones(12, dtype=bool), tmp_path / "run", iter(range(9))

    def left() -> LedgerRecord:
        return LedgerRecord(shutil.copytree(folder, tmp_path / f"killed-{next(copies)}"))

    with opened(folder, 12) as run:
        run.reserve(1, everybody)
        assert left().entries == 1 and not left().attempts
        run.commit(1, everybody)
        assert [unusable for *_, unusable in left().attempts] == [0]
        spend, _ = run.amend(1, everybody, 3)
        known = left()
        assert [unusable for *_, unusable in known.attempts] == [3]
        assert known.spent("shuffled") == spend.columns["shuffled"].worst
        assert [kind for number, kind, _ in known.notes if number] == ["unusable"]
        # Fewer, when they are asked for again, are still those.
        fewer, _ = run.amend(1, everybody, 1)
        assert [unusable for *_, unusable in left().attempts] == [3]
        for name in ("shuffled", "sum"):
            assert fewer.columns[name].worst == spend.columns[name].worst
        assert left().spent("shuffled") == spend.columns["shuffled"].worst
        assert len([kind for number, kind, _ in left().notes if number]) == 1
        run._lifetime = np.zeros(12)
        assert run.reserve(2, everybody) is None
        assert [kind for number, kind, _ in left().notes if number][-1] == "stopped"


def test_a_sequential_round_under_way_is_counted(
    launch: Launch, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Its reports move the model as they come: whoever is killed before the round is committed has
    it on the bill, with all who could have reported."""
    commit = running.Run.commit

    def dying(self: running.Run, round_number: int, present: Any) -> Any:
        if round_number == 2:
            raise Crash
        return commit(self, round_number, present)

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(running.Run, "commit", dying)
        launch("run", SYSTEM, "training.schedule=sequential")
    run = tmp_path / "run"
    assert released(run) == [(1, 1, 12), (2, 2, 12)]
    assert resume(run) == 0
    spend = LedgerRecord(run).recorded_spend
    assert spend is not None and spend[:, 0].tolist() == [4] * 12


@both
def test_nothing_left_to_do_has_numbers(entropy: str, crash: Crashing, play: Play) -> None:
    run = crash(3, f"run.entropy={entropy}", at="finish")
    whole = play("whole", f"run.entropy={entropy}")
    assert resume(run) == 0
    learned = ("accuracy",) if entropy == "seeded" else ()
    for name in ("rounds", "shuffled_epsilon", "columns", *learned):
        assert summary(run)[name] == summary(whole)[name]
    assert (model_bytes(run) == model_bytes(whole)) == (entropy == "seeded")


@both
def test_an_older_ledger_is_refused(
    entropy: str, crash: Crashing, play: Play, refused: Refused
) -> None:
    """A seeded run plays again what it forgot, and says so."""
    run = crash(1, "run.rounds=6", f"run.entropy={entropy}")
    older = (run / "ledger.sqlite").read_bytes()
    with dying_after(4):
        resume(run)
    newer = (run / "ledger.sqlite").read_bytes()
    (run / "ledger.sqlite").write_bytes(older)
    if entropy == "system":
        for _ in range(2):  # refusing it changes nothing
            assert "the ledger is older than the run, as lock shows" in refused(run)
        (run / "ledger.sqlite").write_bytes(newer)
    assert resume(run) == 0
    assert read_run(run).totals.rounds.tolist() == [6] * 12
    if entropy == "seeded":
        (note,) = notes(run, "resumed")
        assert "played again, to the same bits" in note
        assert model_bytes(run) == model_bytes(play("whole", "run.rounds=6"))


def test_a_missing_ledger_is_refused(
    crash: Crashing, launch: Launch, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    run = crash(2, SYSTEM)
    for file in run.glob("ledger.sqlite*"):
        file.unlink()
    assert resume(run) == resume(tmp_path / "none") == launch("run") == 2
    said = capsys.readouterr().err
    for words in ("put it back", "this is not a run directory", "not empty"):
        assert words in said


def test_another_runs_ledger_is_refused(crash: Crashing, refused: Refused) -> None:
    other, run = crash(2, SYSTEM, name="other"), crash(2, SYSTEM, "budgets.high=2.0")
    shutil.copy(other / "ledger.sqlite", run / "ledger.sqlite")
    for side in ("-wal", "-shm"):
        (run / f"ledger.sqlite{side}").unlink(missing_ok=True)
    assert "another run than" in refused(run)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM reservations WHERE attempt = 1",
        "UPDATE reservations SET released = 0 WHERE attempt = 2",
        "UPDATE reservations SET present = x'0fff' WHERE attempt = 2",
        "UPDATE reservations SET attempt = 9 WHERE attempt = 2",
        "UPDATE classes SET scale = 2 * scale",
        "UPDATE clients SET class_id = 0",
        "UPDATE meta SET value = replace(value, 'learning_rate\": 0.5', 'learning_rate\": 0.6')",
        "DELETE FROM rounds WHERE round = 1",
        "UPDATE meta SET value = '7' WHERE key = 'metrics'",
    ],
)
def test_a_changed_ledger_is_refused(change: str, crash: Crashing, refused: Refused) -> None:
    run = crash(2, SYSTEM)
    with sqlite3.connect(run / "ledger.sqlite") as db:
        assert db.execute(change).rowcount > 0
    db.close()
    said = refused(run)
    assert any(x in said for x in ("was changed", "has no round 1", "is damaged"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.out=elsewhere", ""),
        ("data.root=elsewhere", ""),  # digits lie in the package
        ("server.learning_rate=0.7", "server.learning_rate = 0.7: it was started with 0.5"),
        ("run.entropy=system", "run.entropy = 'system'"),
        ("run.rounds=2", "rounds may only be added"),
        ("run.rounds=5", ""),
        ("run.ray_address=auto", "run.ray_address = 'auto': is for run.engine = 'ray'"),
        ("run.supernodes=nodes.csv", "a simulation has no SuperNodes"),
    ],
)
def test_what_a_run_may_change_when_it_goes_on(
    setting: str, words: str, crash: Crashing, refused: Refused
) -> None:
    """It stays in its folder, and the change is noted; what was promised is one line."""
    run = crash(1, "server.lr_schedule=linear")
    if words:
        assert words in refused(run, "--set", setting)
    else:
        assert resume(run, "--set", setting) == 0
    noted = [setting.partition("=")[0] in text for text in notes(run, "changed")]
    assert noted == [True] * (not words)


@pytest.mark.parametrize(("more", "seeded"), [(-1, False), (0, False), (1, False), (1, True)])
def test_a_ledger_that_lacks_one_entry_is_older(more: int, seeded: bool, tmp_path: Path) -> None:
    """Also where that is the newest attempt's release alone."""
    known: Any = SimpleNamespace(
        directory=tmp_path, first_round=1, rounds=np.arange(0), meta={"run": "r"}, entries=5,
        seeded=seeded,
    )  # fmt: skip
    if more > 0 and not seeded:
        with pytest.raises(RunError, match="older than the run"):
            require_newest(known, "r", 5 + more)
    else:
        assert bool(require_newest(known, "r", 5 + more)) == (more > 0)


MAY_CHANGE = {
    *("run.rounds", "run.out", "run.jobs", "run.timeout", "run.supernodes", "run.ray_address"),
    *("run.checkpoint_every", "data.root", "budgets.file"),
}


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_no_other_setting_changes_when_a_run_goes_on(key: str, tmp_path: Path) -> None:
    """Whichever it is: releases that were made under another one are not what the ledger says."""
    section, _, name = key.partition(".")
    old, other = Config(), 1_000 if key == "run.rounds" else "something else"
    known: Any = SimpleNamespace(config=old.to_dict(), directory=tmp_path)
    own = dataclasses.replace(getattr(old, section), **{name: other})
    now = dataclasses.replace(old, **{section: own})
    if key in MAY_CHANGE:
        assert changes_of(known, now) != []
    else:
        with pytest.raises(RunError, match=f"cannot be resumed with {key} = "):
            changes_of(known, now)


def test_rounds_may_be_added_and_that_is_written_down(crash: Crashing, play: Play) -> None:
    run = crash(2)
    assert resume(run, "--rounds", "5", "--jobs", "1", "--set", "run.timeout=60") == 0
    assert notes(run, "changed") == [
        "resumed with run.jobs = 1 instead of 0",
        "resumed with run.rounds = 5 instead of 3",
        "resumed with run.timeout = 60.0 instead of 3600.0",
    ]
    assert json.loads((run / "config.json").read_text()) == RunView(run).config
    assert model_bytes(run) == model_bytes(play("straight", "run.rounds=5"))


def test_budgets_may_lie_elsewhere_when_they_are_the_same(
    crash: Crashing, refused: Refused, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Where budgets are read from may change; what is in them, and the data, are compared."""
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    lines = [f"{client},2.{client},1e-5\n" for client in range(12)]
    budgets = "client_id,epsilon,delta\n" + "".join(lines)
    old.write_text(budgets)
    run, moved = crash(2, SYSTEM, options=("--budgets", str(old))), f"budgets.file={new}"
    old.unlink()
    # Another budget, and the same ones of which two clients have each other's.
    swapped = [*lines[:3], "3,2.7,1e-5\n", *lines[4:7], "7,2.3,1e-5\n", *lines[8:]]
    for other in (
        budgets.replace("2.0", "0.1", 1),
        budgets.replace("".join(lines), "".join(swapped)),
    ):
        assert other != budgets
        new.write_text(other)
        assert "its budgets or clipping changed" in refused(run, "--set", moved)
    new.write_text(budgets)
    with monkeypatch.context() as patch:
        run_cache.forget()
        patch.setattr(Records, "fingerprint", lambda self: "another")
        assert "its data changed" in refused(run, "--set", moved)
    run_cache.forget()
    assert resume(run, "--set", moved) == 0
    (told,) = notes(run, "changed")
    assert told.startswith(f"resumed with budgets.file = {str(new)!r}")


def test_the_one_file_is_enough(small: Path, tmp_path: Path) -> None:
    """A copy of ledger.sqlite alone, taken after each round."""
    run, copy, seen = tmp_path / "run", tmp_path / "copy.sqlite", list[int]()

    def copying(_: object) -> None:
        shutil.copy(run / "ledger.sqlite", copy)
        seen.append(len(LedgerRecord(copy).attempts))

    fs.simulate(small, overrides={"run.entropy": "system"}, out=run, on_round=copying)
    assert seen == [1, 2, 3] and not list(run.glob("ledger.sqlite-*"))


LARGE = ("run.rounds=6", "server.optimizer=adam", "server.averaging_fraction=0.9")


@pytest.fixture
def large(monkeypatch: MonkeyPatch) -> None:
    """Every model is: its state lies in a file that the ledger names, after every round."""
    monkeypatch.setattr(state_file, "MOST_IN_LEDGER", 0)
    monkeypatch.setattr(running, "CHECKPOINT_SECONDS", 0.0)


def named_by(run: Path) -> Path | None:
    """The file that the durable ledger names, which is there and is what it was."""
    for digest, kind in stored(run, "SELECT state, typeof(state) FROM checkpoint"):
        path = run / f"state-{digest}"
        assert kind == "text" and hashlib.sha256(path.read_bytes()).hexdigest() == digest
        return path
    return None


@both
@pytest.mark.usefixtures("large")
def test_whenever_it_is_killed_the_ledger_names_a_whole_file(
    entropy: str, play: Play, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Looked at from beside, before and after all that touches a file or the ledger."""
    run, seen = tmp_path / "run", set()

    def watched(owner: Any, name: str) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def look() -> None:
            if (run / "ledger.sqlite").exists():
                seen.add(named_by(run))

        def call(*arguments: Any, **options: Any) -> Any:
            look()
            found = whole(*arguments, **options)
            look()
            return found

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (running, "store_state"), (state_file, "sync_folder"), (Ledger, "checkpoint"),
        (Ledger, "flush"), (Path, "unlink"),
    ):  # fmt: skip
        watched(owner, name)
    play("run", *LARGE, f"run.entropy={entropy}")
    assert len(seen) >= 6 and list(run.glob("state-*")) == [named_by(run)]


@pytest.mark.usefixtures("large")
def test_it_goes_on_from_the_file_and_from_no_other(
    crash: Crashing, play: Play, refused: Refused
) -> None:
    run = crash(3, *LARGE)
    path = named_by(run)
    assert path is not None and path.stat().st_mode & 0o777 == 0o600
    assert len(list(run.glob("state-*"))) <= 2
    whole = path.read_bytes()
    for harmed, told in (
        (None, "cannot be read (No such file or directory); put the file back"),
        (b"?" + whole[1:], "put an intact copy back"),
        (b"", "is damaged"),
    ):
        path.unlink()
        if harmed is not None:
            path.write_bytes(harmed)
        line = refused(run)
        assert str(path) in line and "the saved state" in line and told in line
        path.write_bytes(whole)
    assert resume(run) == 0 and list(run.glob("state-*")) == [named_by(run)]
    assert summary(run)["rounds"] == 6 and model_bytes(run) == model_bytes(play("whole", *LARGE))
