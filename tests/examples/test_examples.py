"""The examples run as they are written, and say what their pages say."""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles import gaussian_epsilon

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def played(example: str, folder: Path, *arguments: str) -> str:
    """Run `fl-shuffle` in a copy of the example's folder; returns what it prints."""
    copy = folder / example
    shutil.copytree(EXAMPLES / example, copy)
    command = [sys.executable, "-m", "fl_shuffle", *arguments]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_opacus_clients(tmp_path: Path) -> None:
    """Twenty Gaussian steps, each moved by twice the clip; Opacus' own figure is the smaller one:
    it credits secret sampling."""
    run = tmp_path / "run"
    said = played("08_opacus_clients", tmp_path, "simulate", "opacus_app.toml", "--out", str(run))
    summary = json.loads((run / "summary.json").read_text())
    ours = gaussian_epsilon(math.sqrt(20.0) * 2.0 / 1.5, 1e-5)
    assert summary["epsilon"] == pytest.approx(ours, rel=1e-6)
    found = re.search(r"Opacus' accountant: epsilon (\d+\.\d+)", said)
    assert found is not None and 4.0 < float(found[1]) < 4.5
    assert "as the clients declare" in said


@pytest.mark.slow
def test_compare_baselines(tmp_path: Path) -> None:
    """No privacy is best, and a trusted server no worse than shuffling at the same epsilon."""
    folder = tmp_path / "baselines"
    command = [sys.executable, str(EXAMPLES / "11_compare_baselines.py"), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *lines, picture = done.stdout.splitlines()
    rows = [re.fullmatch(r"(.{15}) accuracy +(\S+)%  epsilon (\S+)", line) for line in lines]
    assert len(rows) == 7 and all(rows)
    found = [(row[1].strip(), float(row[2]), float(row[3])) for row in rows if row is not None]
    assert found[0][0] == "no privacy" and found[0][1] == max(each[1] for each in found)
    for trusted, shuffled, local in (found[1:4], found[4:7]):
        assert trusted[2] == pytest.approx(shuffled[2], rel=0.01) == local[2]
        assert local[1] < trusted[1]
    assert picture.startswith("picture: ") and (folder / "accuracy.png").stat().st_size > 1000


def shapes(text: str) -> set[str]:
    """Lines with every number replaced by #."""
    return {re.sub(r"-?\d[\d.,]*(?:e-?\d+)?", "#", line.strip()) for line in text.splitlines()}


ALONE = {
    "01_first_federation": ["--rounds", "2"],
    "06_sweep_and_plot": ["--rounds", "2"],
    "10_certificate": [],
}
"""Examples of one file, and what makes them quick."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_example_prints_what_its_head_says(name: str, tmp_path: Path) -> None:
    """Numbers differ with fewer rounds; the words around them are those of the docstring."""
    if name == "10_certificate":
        pytest.importorskip("flint", reason="certificates need python-flint")
    file = EXAMPLES / f"{name}.py"
    command = [sys.executable, str(file), *ALONE[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert head is not None and done.stdout
    assert shapes(done.stdout) <= shapes(head)
    if not ALONE[name]:
        assert [line.strip() for line in done.stdout.splitlines()] == [
            line.strip() for line in head.splitlines()[-3:]
        ]
