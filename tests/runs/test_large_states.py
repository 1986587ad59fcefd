"""The state of a large model: in a file that the ledger names, whenever the process dies."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_shuffle.ledger import state_file, writer
from fl_shuffle.ledger.store import Ledger
from tests.crashes import Crashing, Refused, resume
from tests.small_federation import Launch, model_bytes, summary

SETTINGS = ("run.rounds=6", "server.optimizer=adam", "server.averaging=0.9")


@pytest.fixture(autouse=True)
def _every_model_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "MOST_IN_LEDGER", 0)
    monkeypatch.setattr(writer, "CHECKPOINT_SECONDS", 0.0)


def states(run: Path) -> list[Path]:
    return sorted(run.glob("state-*"))


def named_by(run: Path) -> Path | None:
    """The file that the durable ledger names, which is there and is what it was."""
    with sqlite3.connect(run / "ledger.sqlite") as ledger:
        row = ledger.execute("SELECT state, typeof(state) FROM checkpoint").fetchone()
    if row is None:
        return None
    path = run / f"state-{row[0]}"
    assert row[1] == "text" and hashlib.sha256(path.read_bytes()).hexdigest() == row[0]
    return path


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_it_goes_on_from_the_file_and_leaves_none(
    entropy: str, crash: Crashing, launch: Launch, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    crash(3, *SETTINGS, f"run.entropy={entropy}")
    path = named_by(run)
    assert path is not None and path in states(run) and len(states(run)) <= 2
    assert {each.stat().st_mode & 0o777 for each in states(run)} == {0o600}
    assert resume(run) == 0 and not states(run) and named_by(run) is None
    assert summary(run)["rounds"] == 6
    if entropy == "seeded":
        assert launch("whole", *SETTINGS) == 0
        assert model_bytes(run) == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_whenever_it_is_killed_the_ledger_names_a_whole_file(
    entropy: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at from beside, before and after all that touches a file or the ledger."""
    run, seen = tmp_path / "run", set()

    def watched(owner: Any, name: str) -> None:
        whole: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            for own in (True, False):
                found = whole(*arguments, **options) if not own else None
                if (run / "ledger.sqlite").exists():
                    seen.add(named_by(run))
            return found

        monkeypatch.setattr(owner, name, call)

    for owner, name in (
        (writer, "store_state"),
        (state_file, "sync_folder"),
        (Ledger, "checkpoint"),
        (Ledger, "flush"),
        (Ledger, "_merge"),
        (Path, "unlink"),
    ):
        watched(owner, name)
    assert launch("run", *SETTINGS, f"run.entropy={entropy}") == 0
    assert len(seen) >= 6 and not states(run)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (Path.unlink, "cannot be read (No such file or directory); put the file back"),
        (lambda path: path.write_bytes(b"?" + path.read_bytes()[1:]), "put an intact copy back"),
        (lambda path: path.write_bytes(b""), "is not what was written"),
    ],
)
def test_a_file_that_is_missing_or_altered_is_one_line(
    harm: Callable[[Path], object], told: str, crash: Crashing, refused: Refused, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    crash(2, *SETTINGS)
    path = named_by(run)
    assert path is not None
    whole = path.read_bytes()
    harm(path)
    line = refused(run)
    assert str(path) in line and "the state to go on from" in line and told in line
    path.write_bytes(whole)
    assert resume(run) == 0
