"""The site builds without a warning, and the tutorial's notebook runs from top to bottom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.generate import NOTEBOOK, generated, played
from tests.repository import ROOT


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs [docs]")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "--solve-for" in commands
    front = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "What to expect" in front and "mnist_clients" in front
    python = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert "fl_shuffle.simulate" in python
    tutorial = (tmp_path / "site" / "tutorial.html").read_text(encoding="utf-8")
    assert "epsilon" in tutorial and "proven" in tutorial


def test_what_is_made_is_what_would_be_made() -> None:
    for path, text in generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run scripts/generate"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient", reason="the notebook needs [docs]")
    pytest.importorskip("nbformat")
    commands = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", commands + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PATH", str(Path(sys.prefix) / "share" / "jupyter"))
    book = played(tmp_path)
    assert (tmp_path / "report.html").is_file()
    known = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for cell, stored in zip(book.cells, known, strict=True):
        if cell.cell_type == "code":  # numbers differ in their last digits between machines
            assert cell.execution_count and bool(cell.outputs) == bool(stored["outputs"])
