"""Every code block of the documents runs as a reader would run it, from top to bottom; what is made
is up to date; the site builds; the notebook runs.

Python blocks of a page share one namespace, and all its blocks one directory. A block below the
comment `<!-- file: NAME -->` is saved as that file, and not run. Lines that start with `fl-shuffle`
are run through the command line; the word RUN stands for the newest run below `runs`. Another
comment above a block says what is different about it:

    <!-- smaller: --rounds 1 -->     these options are added, so that the tests stay quick
    <!-- not run: reason -->         why the block cannot be run here
    <!-- needs: pandas -->           run where this package is installed; it is no dependency

A `text` block that follows one of these, with no other block between, shows what it prints. Unless
the block is played smaller, it must print that (`shown.py`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from tests.docs.generate import NOTEBOOK, generated, played
from tests.docs.shown import missing_lines
from tests.repository import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").glob("*.md")]
)
BLOCK = re.compile(
    r"(?:<!-- (?P<kind>smaller|not run|needs): (?P<note>.*?) -->\n)?"
    r"(?:<!-- file: (?P<file>\S+) -->\n)?"
    r"^```(?P<language>\w+|\{[\w-]+\})\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN_WORD = re.compile(r"^RUN(?=/|$)")
RUN = ("python", "sh", "toml", "csv")
SHOWN = ("text", "ini", "mermaid", "sql", "json", "html", "{toctree}", "{eval-rst}",
         "{all-commands}", "{all-settings}")  # fmt: skip
"""Blocks that are output, drawings, questions to another program, or orders to Sphinx."""
QUICK = ("bounds", "estimation")
"""Pages whose blocks train no federations of their own."""
SMALL = {"run.rounds": 3, "data.clients": 20, "budgets.low": 0.2, "budgets.high": 0.4}
"""The run that a page's RUN stands for."""


class Block(NamedTuple):
    """One that is run."""

    language: str
    body: str
    smaller: list[str]
    file: str
    shown: str = ""
    """What the page says that it prints; empty where it says nothing, or it is played smaller."""


def play(block: Block, names: dict[str, Any]) -> None:
    """Run it in the working directory; what fails raises."""
    if block.file:
        file = Path(block.file)
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.body, encoding="utf-8")
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
    found = list(BLOCK.finditer(text))
    following = [*found[1:], None] if found else []
    return [
        Block(
            each["language"],
            each["body"],
            shlex.split(each["note"]) if each["kind"] == "smaller" else [],
            each["file"] or "",
            output_of(each, after),
        )
        for each, after in zip(found, following, strict=True)
        if each["language"] in RUN and can_run(each["kind"], each["note"])
    ]


def output_of(block: re.Match[str], after: re.Match[str] | None) -> str:
    """What the page shows below a block that is played as it stands; empty if nothing."""
    if block["kind"] == "smaller" or block["file"] or block["language"] not in ("python", "sh"):
        return ""
    return after["body"] if after is not None and after["language"] == "text" else ""


def can_run(kind: str | None, note: str) -> bool:
    return kind != "not run" and (kind != "needs" or find_spec(note) is not None)


MOVED = tomllib.loads((ROOT / "docs" / "redirects.toml").read_text(encoding="utf-8"))
NAMED = re.compile(r"(?<![\w/])docs/([\w./-]*\w)(?:#([\w-]+))?")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
READ = (".py", ".md", ".toml", ".yml", ".cff", ".in", ".j2", ".html", "")
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


def sections_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("printed", "is_missing"),
    [
        ("epsilon 1.0471, 718 clients", False),
        ("epsilon 1.05, 718 clients", True),
        ("epsilon 1.047, 719 clients", False),
        ("epsilon 1.047, 725 clients", True),
        ("epsilon 1.047, 718 servers", True),
        ("", True),
    ],
)
def test_shown_output_that_is_not_printed_is_noticed(printed: str, is_missing: bool) -> None:
    shown = "first\n...\nepsilon   1.047, 718 clients\n"
    assert bool(missing_lines(shown, f"first\nanother\n{printed}\nlast")) == is_missing
    assert missing_lines(shown, f"{printed}\nfirst")


def test_addresses_of_older_releases_lead_to_pages() -> None:
    """None of the old files is left, and each new one has the section that is named."""
    docs = ROOT / "docs"
    for old, new in (MOVED["pages"] | MOVED["anchors"]).items():
        assert not (docs / f"{old}.md").exists(), old
        name, _, section = new.partition("#")
        (page,) = (path for kind in ("md", "ipynb") for path in docs.glob(f"{name}.{kind}"))
        assert not section or section in sections_of(page), new
    assert all(place.partition("#")[0] in MOVED["pages"] for place in MOVED["anchors"])


def test_every_document_that_the_code_names_exists() -> None:
    """Error texts, docstrings, comments, and configurations name documents by their path."""
    tops = ("fl_shuffle", "clients", "server", "configs", "tests", "benchmarks", "scripts")
    files = [*ROOT.glob("*.*"), *(ROOT / ".github").rglob("*.yml"), ROOT / "docs" / "conf.py"]
    files += [path for top in tops for path in (ROOT / top).rglob("*")]
    named = {
        (found[1], found[2], path)
        for path in files
        if path.suffix in READ and path.is_file() and path.name != "CHANGELOG.md"
        for found in NAMED.finditer(path.read_text(encoding="utf-8"))
        if "." in found[1]
    }
    assert len(named) > 40
    lost = [
        f"{path.relative_to(ROOT)}: docs/{name}#{section}".rstrip("#")
        for name, section, path in named
        if not leads_somewhere(ROOT / "docs" / name, section)
    ]
    assert not lost, "\n".join(lost)


def test_links_between_documents_lead_somewhere() -> None:
    lost = [
        f"{page.relative_to(ROOT)}: {target}#{section}".rstrip("#")
        for page in PAGES
        for target, section in LINK.findall(page.read_text(encoding="utf-8"))
        if not leads_somewhere(page.parent / target if target else page, section)
    ]
    assert not lost, "\n".join(lost)


def leads_somewhere(document: Path, section: str | None) -> bool:
    if not section or document.suffix != ".md":
        return document.exists()
    return document.is_file() and section in sections_of(document)


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
            capsys.readouterr()
            play(block, names)
            out, err = capsys.readouterr()
            # Rounds go to one stream and the summary to the other.
            lost = min((missing_lines(block.shown, p) for p in (out + err, err + out)), key=len)
            assert not lost, f"{page.name} shows what is not printed: {lost}\nprinted: {err}{out}"
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
    pytest.importorskip("sphinxcontrib.mermaid", reason="the site needs [docs]")
    command = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    command += [str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page, *words in (
        ("reference/commands", "--solve-for"),
        ("index", "What to expect", "mnist_clients"),
        ("reference/python", "fl_shuffle.simulate"),
        ("tutorials/privacy-utility", "epsilon", "proven"),
        ("concepts/architecture", 'class="mermaid"'),
    ):
        text = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        assert all(word in text for word in words), page
    for old, new in MOVED["pages"].items():
        assert f"{new}.html" in (tmp_path / "site" / f"{old}.html").read_text(encoding="utf-8")
    for new in MOVED["anchors"].values():
        page, _, anchor = new.partition("#")
        text = (tmp_path / "site" / f"{page}.html").read_text(encoding="utf-8")
        assert not anchor or f'id="{anchor}"' in text, new


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
