"""The prose of the repository uses the field's terms and standard American English.

A text is a Markdown page, a template, a configuration's comment, or a docstring, comment, or string
of the code.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import ROOT

DIALECT = {
    r"hangs? on": "depends on",
    r"whoever": "an attacker who, anybody who, the operator of",
    r"so many": "this number of",
    r"noise widths?": "noise standard deviations",
    r"kinks?": "breakpoints",
    r"lattices?": "grid",
    r"(?:is|are) feared": "the attacker",
    r"name tag": "identifies the client",
    r"(?:on|off) the bill": "in the ledger, charged",
    r"(?:is|are) heard": "influences the model",
    r"(?:work|works|worked|working) (?:it |them )?out": "compute",
    r"worst client": "most exposed client",
    r"(?:go|goes|going|gone|went) on with": "continue",
    r"clip norms?": "clipping norm",
    r"(?:of|with) one's own": "user-defined",
    r"neighbour\w*|colour\w*|centre[sd]?|favour\w*|behaviour\w*": "American spelling",
    r"(?:recogni|normali|randomi|summari|optimi|discreti|seriali)s(?:e|es|ed|ing|ation)": (
        "American spelling"
    ),
}
"""Words of a private dialect, and of British English, with what to write."""

ALLOWED = {
    "fl_shuffle/verify/claims.py": "adversaries of certificates are a part of their format",
    "docs/certificate.schema.json": "the same",
    "CHANGELOG.md": "past releases are described as they were",
    "benchmarks/reproduction/training.py": "names a column of recorded results",
    "benchmarks/reproduction/targets.toml": "the same",
}
"""Files that keep such words, and why."""

PATTERN = re.compile("|".join(rf"\b(?:{each})\b" for each in DIALECT), re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|\{\{.*?\}\}|\{%.*?%\}|\{[^{}]*\}", re.DOTALL)
"""Code in a text: fences, backquotes, and fields of templates and of strings."""
PAGES = (".md", ".j2", ".html", ".toml", ".ipynb")
FOLDERS = (
    "fl_shuffle", "clients", "server", "examples", "configs", "docs", "scripts", "benchmarks",
)  # fmt: skip


def _files() -> list[Path]:
    found = list(ROOT.glob("*.md"))
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in (*PAGES, ".py")]
    kept = (path for path in found if path.relative_to(ROOT).as_posix() not in ALLOWED)
    return sorted(path for path in kept if "reproductions" not in path.parts)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each text of a file with its first line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def dialect(path: Path) -> list[str]:
    """Return the words of the dialect in a file, each with its line."""
    found = []
    for first, text in texts(path):
        prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
        for match in PATTERN.finditer(prose):
            line = first + prose.count("\n", 0, match.start())
            found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    return found


def test_no_text_uses_the_dialect() -> None:
    found = [each for path in _files() for each in dialect(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", ALLOWED)
def test_each_exception_is_still_needed(name: str) -> None:
    assert PATTERN.search((ROOT / name).read_text(encoding="utf-8"))


def test_dialect_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""It hangs on\nso many\n`lattice` points."""\nkinks = 1  # a colour\n')
    monkeypatch.setattr("tests.docs.test_style.ROOT", tmp_path)
    assert dialect(path) == [
        "module.py:1: hangs on", "module.py:2: so many", "module.py:4: colour",
    ]  # fmt: skip
