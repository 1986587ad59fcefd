"""Every code block of the documents runs as it stands, or says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import fl_shuffle as fs
from tests.architecture.test_docs import PAGES
from tests.docs.blocks import RUN, SHOWN, Block, blocks, commands, run
from tests.repository import ROOT

WITH_CODE = [
    page
    for page in PAGES
    if any(b.language in RUN and not b.excuse for b in blocks(page.read_text(encoding="utf-8")))
]

LONG = ("guide", "certificates", "coming-from", "own-data", "own-app", "own-parts")
"""Pages whose blocks train federations of their own."""
SMALL = {"run.rounds": 3, "data.clients": 20}
"""The run that a page's RUN stands for."""


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = [line for line in text.splitlines() if line.startswith("```")]
        assert all(line == "```" for line in fences[1::2]), f"{page}: a fence is not closed"
        for opening in fences[::2]:
            assert opening[3:] in (*RUN, *SHOWN), f"{page}, {opening}: say what language it is"
        assert len(list(blocks(text))) == len(fences) // 2, page


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.slow] * (page.stem in LONG),
            id=str(page.relative_to(ROOT)),
        )
        for page in WITH_CODE
    ],
)
def test_code_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    loaded = set(sys.modules)
    names: dict[str, object] = {"__name__": "__main__"}
    todo = [
        block
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language in RUN and not block.excuse
    ]
    if any(block.asks_a_run for block in todo):
        fs.simulate(overrides=SMALL)
    try:
        for block in todo:
            run(block, names)
    finally:
        for name in set(sys.modules) - loaded:  # a page's own files
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def test_a_block_that_fails_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "<!-- smaller: --rounds 1 -->\n```sh\nfl-shuffle nothing \\\n  --at all  # so\n```\n"
    (block,) = blocks(text)
    assert block == Block("sh", "fl-shuffle nothing \\\n  --at all  # so\n", ("--rounds", "1"))
    assert list(commands(block.body)) == [["fl-shuffle", "nothing", "--at", "all"]]
    with pytest.raises(AssertionError):
        run(block, {})
    with pytest.raises(ZeroDivisionError):
        run(Block("python", "1 / 0\n"), {})
    with pytest.raises(AssertionError):
        run(Block("sh", "ls\n"), {})
    run(Block("csv", "# file: mine.csv\na,b\n1,2\n"), {})
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"
    assert len(WITH_CODE) > 3


def test_no_formula_is_eaten() -> None:
    """Emphasis is written with stars: two bare underscores, as in `(x)_+ + (y)_+`, would vanish."""
    assert not {
        page.name: found for page in PAGES if (found := eaten(page.read_text(encoding="utf-8")))
    }


def test_an_eaten_formula_would_be_seen() -> None:
    assert eaten("*so* `(a)_+ + (b)_+`, x_1 + x_2, (a)\\_+ + (b)\\_+, **and**\n") == []
    assert eaten("E(x)_+ <= E(y)_+\n") == ["E(x)_+ <= E(y)_+"]
    assert eaten("the law <b of c> is\n") == ["the law <b of c> is"]


def eaten(text: str) -> list[str]:
    """The paragraphs that show less than what was written, as CommonMark reads them."""
    paragraphs = MarkdownIt("commonmark").enable("table").parse(text)
    return [
        paragraph.content
        for paragraph in paragraphs
        for part in paragraph.children or ()
        if part.type == "html_inline" or (part.type.endswith("_open") and part.markup[:1] == "_")
    ]
