"""The site builds without a warning, and the tutorial's notebook runs from top to bottom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.generate import NOTEBOOK, generated
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
    python = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert "fl_shuffle.simulate" in python


def test_what_is_made_is_what_would_be_made() -> None:
    for path, text in generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run scripts/generate"


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("nbclient", reason="the notebook needs [docs]")
    nbformat = pytest.importorskip("nbformat")
    commands = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", commands + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PATH", str(Path(sys.prefix) / "share" / "jupyter"))
    book = nbformat.read(NOTEBOOK, as_version=4)
    client.NotebookClient(
        book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "report.html").is_file()
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
