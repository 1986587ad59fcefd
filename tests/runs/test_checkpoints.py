"""Models that are saved on the way: which, how private, and what they are after a resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import RunError
from fl_shuffle.report.page import render
from fl_shuffle.report.record import read_run
from fl_shuffle.runs import run as run_module
from fl_shuffle.runs.directory import checkpoint_name, checkpoints_in
from fl_shuffle.runs.events import RoundFinished, RunEvent
from tests.small_federation import Play, stored, summary

EVERY = "run.checkpoint_every=2"


@pytest.mark.slow
def test_every_second_model_is_saved(play: Play) -> None:
    run = play("run", EVERY, "run.rounds=5", "run.evaluate_every=1")
    assert checkpoints_in(run) == [2, 4]
    for number in (2, 4):
        path = run / checkpoint_name(number)
        assert (
            path.stat().st_mode & 0o777
            == 0o600
            == (run / "model.safetensors").stat().st_mode & 0o777
        )
        # The model of a run that ends there, to the bit.
        shorter = play(f"{number}", f"run.rounds={number}")
        saved, final = load_file(path), load_file(shorter / "model.safetensors")
        assert saved.keys() == final.keys()
        assert all(torch.equal(saved[name], final[name]) for name in saved)
        model = fs.load_model(run, round_number=number)
        assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
    last = fs.load_model(run).state_dict()
    assert all(torch.equal(v, fs.Result(run).model.state_dict()[n]) for n, v in last.items())
    assert "after rounds 2, 4" in render([read_run(run)])
    with pytest.raises(RunError, match="saved after rounds: 2, 4"):
        fs.load_model(run, round_number=3)
    (run / checkpoint_name(2)).write_bytes(b"no model")
    with pytest.raises(RunError, match="is not the run's model"):
        fs.load_model(run, round_number=2)


def test_model_is_saved_after_the_ledger_is_durable(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the folder finds no model of a round that the ledger does not have."""
    released: list[tuple[int, int]] = []
    save = run_module._save_model

    def watched(path: Path, model: Mapping[str, torch.Tensor]) -> None:
        if path.name.startswith("model-round"):
            (count,) = stored(path.parent, "SELECT COUNT(*) FROM rounds")[0]
            released.append((int(path.stem.rsplit("-", 1)[1]), count))
        save(path, model)

    monkeypatch.setattr(run_module, "_save_model", watched)
    play("run", EVERY, "run.rounds=4")
    assert released == [(2, 2), (4, 4)]


@pytest.mark.slow
def test_a_resumed_run_knows_them(play: Play, small: Path, tmp_path: Path) -> None:
    whole = play("whole", EVERY, "run.rounds=4")
    run = tmp_path / "stopped"

    class StopError(Exception):
        pass

    def stop(event: RunEvent) -> None:
        if isinstance(event, RoundFinished) and event.outcome.round_number == 3:
            raise StopError

    settings = {"run.checkpoint_every": 2, "run.rounds": 4}
    with pytest.raises(StopError):
        fs.simulate(small, overrides=settings, out=run, on_event=stop)
    assert checkpoints_in(run) == [2] and fs.load_model(run, round_number=2) is not None
    # More of them from here on: nothing that was accounted depends on it.
    assert (
        main(["simulate", "--resume", str(run), "--quiet", "--set", "run.checkpoint_every=1"]) == 0
    )
    assert set(checkpoints_in(run)) >= {2, 3, 4}
    for name in (checkpoint_name(2), checkpoint_name(4), "model.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert summary(run)["epsilon"] == summary(whole)["epsilon"]


def test_without_the_setting_only_the_last_is_saved(play: Play) -> None:
    assert not checkpoints_in(play("run", "run.rounds=2"))


def test_rounds_of_saved_models_are_listed_in_order(tmp_path: Path) -> None:
    """By number, however the folder lists its files; nothing else is taken for one."""
    rounds = [1, 2, 3, 9, 10, 11, 20, 99, 100, 101, 1000, 123_456_789]
    for number in reversed(rounds):
        (tmp_path / checkpoint_name(number)).touch()
    for other in ("0", "01", "-1", "x", "2.part"):
        (tmp_path / f"model-round-{other}.safetensors").touch()
    assert checkpoints_in(tmp_path) == rounds
