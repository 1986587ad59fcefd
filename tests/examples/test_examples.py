"""The examples run as they are written, and print what their heads and the table say."""

from __future__ import annotations

import ast
import base64
import difflib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.generate import LEDGER_NOTEBOOK, played
from tests.oracles import gaussian_epsilon
from tests.processes import MARK, linux, marking, printed, require_ended
from tests.repository import ROOT

EXAMPLES = ROOT / "examples"


def ran(example: str, folder: Path, *arguments: str) -> str:
    """Run a Python file of the examples in an empty folder; return what it prints."""
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shapes(text: str) -> set[str]:
    """Lines with every number replaced by #."""
    return {re.sub(r"-?\d[\d.,]*(?:e-?\d+)?", "#", line.strip()) for line in text.splitlines()}


def head_of(example: str) -> str:
    head = ast.get_docstring(ast.parse((EXAMPLES / example).read_text(encoding="utf-8")))
    assert head is not None
    return head


def test_table_names_every_example() -> None:
    """There are twelve, and the table links each of them once."""
    found = sorted(path.name for path in EXAMPLES.iterdir() if path.name[0].isdigit())
    assert [name[:2] for name in found] == [f"{number:02}" for number in range(1, 13)]
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[[^]]+\]\(([^)/]+)", table, re.MULTILINE)
    assert linked == found
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    # A tutorial shows the first one itself.
    assert [name for name in found if f"examples/{name}" not in pages] == found[:1]


ALONE = {
    "01_first_federation.py": ["--rounds", "2"],
    "02_client_budgets.py": ["--rounds", "2"],
    "03_mnist_cnn.py": ["--rounds", "2"],
    "04_non_iid.py": ["--rounds", "2"],
    "06_sweep_and_plot.py": ["--rounds", "2"],
    "07_flower_app/after.py": [],
    "07_flower_app/before.py": [],
    "09_accounting_only.py": [],
    "10_certificate.py": [],
}
"""Examples of one file, and what makes them quick."""
QUICK = "01_first_federation.py", "07_flower_app/after.py", "10_certificate.py"
"""Examples that take a few seconds."""
NEEDS = {"07_flower_app/before.py": "ray", "09_accounting_only.py": "dp_accounting",
         "10_certificate.py": "flint"}  # fmt: skip


def slow_or_quick(name: str) -> Any:
    return pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow], id=name)


@pytest.mark.parametrize("name", map(slow_or_quick, ALONE))
def test_example_prints_what_its_head_says(name: str, tmp_path: Path) -> None:
    """Numbers differ with fewer rounds; the words around them are those of the docstring."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"the example needs {NEEDS[name]}")
    said, head = ran(name, tmp_path, *ALONE[name]), head_of(name)
    assert said and shapes(said) <= shapes(head)
    if not ALONE[name]:
        assert [line.strip() for line in said.splitlines()] == [
            line.strip() for line in head.splitlines()[-len(said.splitlines()) :]
        ]


def test_flower_app_changes_where_its_comments_say() -> None:
    """Imports, two constructors, and the start: everything else is as it was."""
    texts = [
        (EXAMPLES / "07_flower_app" / name).read_text(encoding="utf-8").partition("\nfrom ")[2]
        for name in ("before.py", "after.py")
    ]
    bodies = [text.partition("\nif __name__")[0].splitlines() for text in texts]
    added = [line[2:] for line in difflib.ndiff(*bodies) if line.startswith("+ ")]
    assert sum("# w" in line for line in added) == 3  # "was" or "were"
    train = [text[text.index("@client.train()") : text.index("@server.main()")] for text in texts]
    assert train[0] == train[1]


@pytest.mark.slow
def test_privacy_ledger_shows_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebook runs from top to bottom; stored outputs are those of today, and small."""
    for library in ("pandas", "nbclient", "nbformat"):
        pytest.importorskip(library, reason="the notebook needs [docs]")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PATH", str(Path(sys.prefix) / "share" / "jupyter"))
    book = played(tmp_path, LEDGER_NOTEBOOK)
    assert LEDGER_NOTEBOOK.stat().st_size < 200_000
    known = json.loads(LEDGER_NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    figures = 0
    for cell, stored in zip(book.cells, known, strict=True):
        if cell.cell_type != "code":
            continue
        assert len(cell.outputs) == len(stored["outputs"]), cell.source
        for output, old in zip(cell.outputs, stored["outputs"], strict=True):
            if picture := output.get("data", {}).get("image/png"):
                assert len(base64.b64decode(picture)) > 5_000
                assert old["data"]["image/png"]
                figures += 1
            else:
                assert shapes(text_of(output)) == shapes(text_of(old)), cell.source
    assert figures == 3
    assert (tmp_path / "spend.csv").read_text(encoding="utf-8").count("\n") == 10 * 718 + 1


def text_of(output: Any) -> str:
    """What a cell prints, or its last value as text."""
    found = output.get("text") or output["data"]["text/plain"]
    return "".join(found)


@pytest.mark.slow
def test_opacus_clients(tmp_path: Path) -> None:
    """Twenty Gaussian steps, each moved by twice the clip; Opacus' own figure is the smaller one:
    it credits secret sampling."""
    copy, run = tmp_path / "app", tmp_path / "run"
    shutil.copytree(EXAMPLES / "08_opacus_clients", copy)
    command = [sys.executable, "-m", "fl_shuffle", "simulate", "opacus_app.toml", "--out", str(run)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    ours = gaussian_epsilon(math.sqrt(20.0) * 2.0 / 1.5, 1e-5)
    assert summary["epsilon"] == pytest.approx(ours, rel=1e-6)
    found = re.search(r"Opacus' accountant: epsilon (\d+\.\d+)", done.stdout)
    assert found is not None and 4.0 < float(found[1]) < 4.5
    assert "as the clients declare" in done.stdout


@pytest.mark.slow
def test_compare_baselines(tmp_path: Path) -> None:
    """No privacy is best, and a trusted server no worse than shuffling at the same epsilon."""
    folder = tmp_path / "baselines"
    *lines, picture = ran("11_compare_baselines.py", tmp_path).splitlines()
    rows = [re.fullmatch(r"(.{15}) accuracy +(\S+)%  epsilon (\S+)", line) for line in lines]
    assert len(rows) == 7 and all(rows)
    found = [(row[1].strip(), float(row[2]), float(row[3])) for row in rows if row is not None]
    assert found[0][0] == "no privacy" and found[0][1] == max(each[1] for each in found)
    for trusted, shuffled, local in (found[1:4], found[4:7]):
        assert trusted[2] == pytest.approx(shuffled[2], rel=0.01) == local[2]
        assert local[1] < trusted[1]
    assert picture.startswith("picture: ") and (folder / "accuracy.png").stat().st_size > 1000


@linux
@pytest.mark.slow
def test_deployment_runs_and_ends(tmp_path: Path) -> None:
    """It prints the lines of its head, and none of its processes stays."""
    script = EXAMPLES / "12_deploy_localhost.sh"
    with marking() as mark:
        said = printed(str(script), folder=tmp_path, **{MARK: mark})
        require_ended(mark)
    head = script.read_text(encoding="utf-8").partition("set -euo")[0]
    expected = re.findall(r"^#     (.*)$", head, re.MULTILINE)
    assert len(expected) == 5
    assert [line for line in said.splitlines() if line in expected] == expected
    assert (tmp_path / "clinics" / "deployment" / "run" / "report.html").is_file()


def test_deployment_names_what_is_missing(tmp_path: Path) -> None:
    """Without the environment, it says so in one line, and writes nothing."""
    (tmp_path / "python").symlink_to(sys.executable)
    script = str(EXAMPLES / "12_deploy_localhost.sh")
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, script],
        cwd=tmp_path,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("fl-shuffle is not on the PATH: ")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "clinics").exists()
