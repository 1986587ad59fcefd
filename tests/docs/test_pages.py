"""Every code block of the documents runs as a reader would run it, from top to bottom; what is made
is up to date; the site builds; the notebook runs.

Python blocks of a page share one namespace, and all its blocks one working directory. A block whose
first line is `# file: name` is that file. Lines that start with `fl-shuffle` are run through the
command line; the word RUN stands for the newest run below `runs`. A comment above a block says what
is different about it:

    <!-- smaller: --rounds 1 -->     these options are added, so that the tests stay quick
    <!-- not run: reason -->         why the block cannot be run here
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from tests.docs.generate import NOTEBOOK, generated, played
from tests.repository import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").glob("*.md")]
)
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>smaller|not run): (?P<note>.*?) -->\n)?"
    r"^```(?P<language>\w+|\{[\w-]+\})\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN_WORD = re.compile(r"^RUN(?=/|$)")
RUN = ("python", "sh", "toml", "csv")
SHOWN = ("text", "ini", "mermaid", "sql", "json", "html", "{toctree}", "{eval-rst}",
         "{all-commands}", "{all-settings}")  # fmt: skip
"""Blocks that are output, drawings, questions to another program, or orders to Sphinx."""
QUICK = ("bounds", "ledger")
"""Pages whose blocks train no federations of their own."""
SMALL = {"run.rounds": 3, "data.clients": 20, "budgets.low": 0.2, "budgets.high": 0.4}
"""The run that a page's RUN stands for."""


class Block(NamedTuple):
    """One that is run."""

    language: str
    body: str
    smaller: list[str]


def play(block: Block, names: dict[str, Any]) -> None:
    """Run it in the working directory; what fails raises."""
    if named := re.match(r"# file: (\S+)\n", block.body):
        file = Path(named[1] + (".py" if block.language == "python" else ""))
        file.parent.mkdir(exist_ok=True)
        # The first line of a CSV file is its header: the name was for the reader.
        body = block.body.partition("\n")[2] if file.suffix == ".csv" else block.body
        file.write_text(body, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.body, "<block>", "exec"), names)
    else:
        for line in block.body.replace("\\\n", " ").splitlines():
            if words := shlex.split(line.replace("[RUN ...]", ""), comments=True):
                shell([RUN_WORD.sub(newest_run, word) for word in words], block.smaller)


def shell(words: list[str], smaller: list[str]) -> None:
    assert words[0] == "fl-shuffle", f"only fl-shuffle is run here: {words}"
    try:
        code: object = main([*words[1:], *smaller])
    except SystemExit as done:  # after --help
        code = done.code
    assert code == 0, words


def newest_run(_: object) -> str:
    runs = [ledger.parent for ledger in Path("runs").glob("*/ledger.sqlite")]
    return str(max(runs, key=lambda path: path.stat().st_mtime))


def blocks(text: str) -> list[Block]:
    return [
        Block(found["language"], found["body"], shlex.split(found["note"] or ""))
        for found in BLOCK.finditer(text)
        if found["language"] in RUN and found["kind"] != "not run"
    ]


WITH_CODE = {page: found for page in PAGES if (found := blocks(page.read_text(encoding="utf-8")))}


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = [line for line in text.splitlines() if line.startswith("```")]
        assert all(line == "```" for line in fences[1::2]), f"{page}: a fence is not closed"
        for opening in fences[::2]:
            assert opening[3:] in (*RUN, *SHOWN), f"{page}, {opening}: say what language it is"
        assert len(BLOCK.findall(text)) == len(fences) // 2, page
    assert len(WITH_CODE) > 3


def slow_or_quick(page: Path) -> Any:
    marks = [] if page.stem in QUICK else [pytest.mark.slow]
    return pytest.param(page, marks=marks, id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("page", map(slow_or_quick, WITH_CODE))
def test_code_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    loaded, names = set(sys.modules), {"__name__": "__main__"}
    if any(b.language == "sh" and re.search(r"\bRUN\b", b.body) for b in WITH_CODE[page]):
        fs.simulate(overrides=SMALL)
    try:
        for block in WITH_CODE[page]:
            play(block, names)
    finally:
        for name in set(sys.modules) - loaded:  # a page's own files
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def test_what_is_made_is_what_would_be_made() -> None:
    for path, text in generated().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run scripts/generate"


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="the site needs [docs]")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    command += [str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page, *words in (
        ("reference/commands", "--solve-for"),
        ("index", "What to expect", "mnist_clients"),
        ("reference/python", "fl_shuffle.simulate"),
        ("tutorial", "epsilon", "proven"),
    ):
        text = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        assert all(word in text for word in words), page


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
