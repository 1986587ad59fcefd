"""What is installed by choice: without it the same bits, a plainer page, or one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError
from fl_shuffle.gradients import factory
from fl_shuffle.gradients.factory import load_ahead, make_gradient_engine
from fl_shuffle.plugins import installed, require_extra
from fl_shuffle.randomizers import noise_cpu
from fl_shuffle.randomizers.noise import NoiseStream

KRR = ("--randomizer", "krr", "--k=4", "--epsilon0=1", "--clients=9", "--delta=1e-3")


def remove(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError):
        __import__(library)


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed("numpy") and not installed("no_such_library")
    require_extra("numpy", "fast", "nothing")
    with pytest.raises(ConfigError, match=r"pip install 'fl-shuffle\[fast\]'"):
        require_extra("no_such_library", "fast", "speed")


@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_noise_without_numba_has_the_same_bits(monkeypatch: pytest.MonkeyPatch, law: str) -> None:
    monkeypatch.setattr(noise_cpu, "COMPILED_FROM", 0)
    drawn = []
    for missing in (False, True):
        if missing:
            remove(monkeypatch, "numba")
            monkeypatch.delitem(sys.modules, "fl_shuffle.randomizers.noise_compiled")
            monkeypatch.delattr("fl_shuffle.randomizers.noise_compiled")
        monkeypatch.setattr(noise_cpu, "_loops", noise_cpu.CompiledLoops())
        drawn.append(getattr(NoiseStream(bytes(16), 610), law)(4, 3))
    assert torch.equal(*drawn)


def test_what_is_loaded_ahead_is_what_the_engine_will_use(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(factory, "load_loops", lambda: loaded.append("loops"))
    for module, records, loops in (
        (nn.Linear(60, 10), 1 << 20, ["loops"]),
        (nn.Linear(60, 10), 100, []),
        (nn.Sequential(nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 10)), 1 << 20, []),
        (nn.LSTM(60, 10), 1 << 20, []),
    ):
        loaded.clear()
        load_ahead(module, loss=None, records=records)
        assert loaded == loops


def test_softmax_regression_without_numba_goes_through_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def path() -> str:
        engine = make_gradient_engine(nn.Linear(60, 10), clip="record", records=1 << 20)
        return engine.path

    assert path() == "closed-form linear, compiled"
    remove(monkeypatch, "numba")
    assert "compiled" not in path()


def test_the_ray_engine_without_ray_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(monkeypatch, "ray")
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == (
        "fl-shuffle: error: run.engine = 'ray' needs ray, which is not installed; "
        "pip install 'fl-shuffle[ray]'\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_required_library_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remove(monkeypatch, "rich.console")
    query = ["compare", *KRR]
    with pytest.raises(ModuleNotFoundError):
        main(query)
    monkeypatch.setattr("fl_shuffle.cli.REQUIRED", ("rich.console",))
    assert main(query) == 2
    assert capsys.readouterr().err == (
        "fl-shuffle: error: compare needs rich.console, which is not installed; "
        "pip install fl-shuffle\n"
    )


def test_without_matplotlib_a_report_has_its_figures_and_no_pictures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"run.rounds": 1}
    result = fs.simulate("configs/digits_record.toml", overrides=settings, out=tmp_path / "run")
    full = result.report().read_text(encoding="utf-8")
    remove(monkeypatch, "matplotlib")
    plain = result.report().read_text(encoding="utf-8")
    assert plain == full and plain.count("<figure") == 4
    assert main(["report", str(tmp_path / "run"), "--png", str(tmp_path / "png")]) == 2
    assert "pip install 'fl-shuffle[report]'" in capsys.readouterr().err
    assert main(["compare", *KRR, "--plot", str(tmp_path / "bounds.svg")]) == 2
    assert "pip install 'fl-shuffle[report]'" in capsys.readouterr().err
