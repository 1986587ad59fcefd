"""What is installed by choice: without it the same bits, or one clear line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fl_shuffle._internal.plugins import requirements
from fl_shuffle.cli import main


def test_the_ray_engine_without_ray_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--engine", "ray"]) == 2
    assert capsys.readouterr().err == (
        "fl-shuffle: error: run.engine = 'ray' needs ray, which is not installed; "
        "pip install 'flwr[simulation]<1.43,>=1.40'\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_required_library_that_is_missing_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As if no test before this one had loaded the command.
    monkeypatch.delitem(sys.modules, "fl_shuffle.cli.report", raising=False)
    monkeypatch.setitem(sys.modules, "fl_shuffle.report.draw", None)
    with pytest.raises(ModuleNotFoundError):
        main(["report", "RUN"])
    monkeypatch.setattr("fl_shuffle.cli.REQUIRED", ("fl_shuffle.report.draw",))
    assert main(["report", "RUN"]) == 2
    assert capsys.readouterr().err == (
        "fl-shuffle: error: report needs fl_shuffle.report.draw, which is not installed; "
        "pip install fl_shuffle.report.draw\n"
    )
    # A library of the package's own requirements comes with the versions that fit.
    monkeypatch.delitem(sys.modules, "fl_shuffle.cli.report", raising=False)
    monkeypatch.setitem(sys.modules, "fl_shuffle.report.draw", None)
    monkeypatch.setattr("fl_shuffle.cli.REQUIRED", ("fl_shuffle.report.draw",))
    monkeypatch.setattr("fl_shuffle.cli.requirements", lambda: ["fl_shuffle.report.draw>=3"])
    assert main(["report", "RUN"]) == 2
    assert capsys.readouterr().err.endswith("pip install 'fl_shuffle.report.draw>=3'\n")


def test_requirements_of_an_extra_are_its_packages() -> None:
    assert requirements("ray") == ["flwr[simulation]<1.43,>=1.40"]
    assert requirements("parquet") == ["pyarrow>=15"]
    assert "torchvision>=0.21" in requirements() and "pyarrow>=15" not in requirements()
