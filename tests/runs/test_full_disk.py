"""A disk that is full when a run ends: one line, and a run that can continue."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture, MonkeyPatch

from fl_shuffle.cli import main
from fl_shuffle.ledger.store import Ledger
from fl_shuffle.runs import run as running
from fl_shuffle.runs.directory import RunDirectory
from fl_shuffle.runs.run import MetricsFile, Run
from tests.crashes import resume
from tests.small_federation import Launch, Play, model_bytes, rows, summary

NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextmanager
def no_room(most: int = 16) -> Iterator[None]:
    """No file grows beyond so many bytes: the system refuses, as it does on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, NO_LIMIT)


ENDS = {
    "model": (running, "replace_file", 512),
    "ledger": (Ledger, "finish", 512),
    "metrics": (MetricsFile, "__init__", 16),
    "summary": (RunDirectory, "write", 16),
}
"""What of a run's end finds so little room."""


def fill_the_disk(patch: MonkeyPatch, where: str) -> None:
    """Once a run ends, this part of it finds no room."""
    owner, name, most = ENDS[where]
    whole, ends, ending = getattr(owner, name), Run.finish, list[bool]()

    def full(*given: Any, **named: Any) -> Any:
        with no_room(most) if ending else nullcontext():
            return whole(*given, **named)

    def finish(self: Run, *given: Any, **named: Any) -> None:
        ending.append(True)
        ends(self, *given, **named)

    patch.setattr(Run, "finish", finish)
    patch.setattr(owner, name, full)


@pytest.mark.slow
@pytest.mark.parametrize("where", ENDS)
@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_full_disk_at_the_end_is_one_line_and_resumes(
    where: str, entropy: str, launch: Launch, play: Play, tmp_path: Path,
    capsys: CaptureFixture[str],
) -> None:  # fmt: skip
    run, setting = tmp_path / "run", f"run.entropy={entropy}"
    whole = play("whole", setting)
    capsys.readouterr()
    with MonkeyPatch.context() as patch:
        fill_the_disk(patch, where)
        assert launch("run", setting) == 2
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("fl-shuffle")]
    assert "Traceback" not in said and "Logging error" not in said
    assert len(lines) == 1 and f"fl-shuffle simulate --resume {run}" in lines[0]
    # Where the ledger was closed already, what was lost is written again from it.
    closed = where in ("metrics", "summary")
    assert resume(run) == (2 if closed else 0)
    assert ("has been written again" in capsys.readouterr().err) == closed
    assert summary(run)["rounds"] == 3 and len(rows(run)) == 3
    filled = [{name: bool(cell) for name, cell in row.items()} for row in rows(whole)]
    assert [{name: bool(cell) for name, cell in row.items()} for row in rows(run)] == filled
    assert not list(run.glob("*.unfinished"))
    if entropy == "seeded":
        assert model_bytes(run) == model_bytes(whole)
    assert main(["ledger", str(run)]) == 0
