"""Modules and folders stay small, and nothing is written twice."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400
MAX_MODULES = 12
"""In a folder, its `__init__` not counted."""
RUN = 8
"""So many identical lines in two places are one piece of code written twice."""


def python_files() -> list[Path]:
    """The repository's own: what git tracks, or would; all there are, outside a checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    paths = [ROOT / name for name in listed] or [
        path
        for top in ("fl_shuffle", "clients", "server", "benchmarks", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    return sorted(path for path in paths if path.is_file())


FILES = python_files()


@cache
def tree_of(source: str) -> ast.Module:
    """A module's syntax, read once for all tests."""
    return ast.parse(source)


def code_lines(source: str) -> list[tuple[int, str]]:
    """(number, text) of every line that is neither blank, a comment, nor part of an import."""
    imported: set[int] = set()
    if "import" in source:
        for node in ast.walk(tree_of(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return [
        (number, line.strip())
        for number, line in lines
        if line.strip() and not line.strip().startswith("#") and number not in imported
    ]


def repeated(sources: dict[str, str], run: int = RUN) -> list[list[str]]:
    """Where a run of `run` lines stands more than once: the places of each, as name:line."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, source in sources.items():
        lines = code_lines(source)
        texts = [text for _, text in lines]
        for start, (number, _) in enumerate(lines[: len(lines) - run + 1]):
            places[tuple(texts[start : start + run])].append(f"{name}:{number}")
    return [found for found in places.values() if len(found) > 1]


def test_no_module_is_long() -> None:
    assert len(FILES) > 200
    long = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in FILES}
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}


def test_no_folder_is_crowded() -> None:
    counts = Counter(p.parent for p in FILES if p.name != "__init__.py")
    crowded = {str(p.relative_to(ROOT)): n for p, n in counts.items() if n > MAX_MODULES}
    assert crowded == {}


def test_nothing_is_written_twice() -> None:
    sources = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in FILES}
    assert repeated(sources) == []


def test_a_repetition_would_be_seen() -> None:
    body = "".join(f"x{i} = {i}\n" for i in range(RUN))
    indented = "def f():\n" + "".join(f"\n    # note\n    x{i} = {i}\n" for i in range(RUN))
    assert repeated({"a": body, "b": indented}) == [["a:1", "b:4"]]
    assert repeated({"a": body, "b": body.replace("3", "4")}) == []
    many = "from os import (\n" + "".join(f"    a{i},\n" for i in range(RUN)) + ")\n"
    assert repeated({"a": many, "b": many}) == []


def unexplained(source: str) -> list[str]:
    """Numbers at module level, named in capitals, with neither a text below nor a comment above.

    What is computed by a call has its name for a reason (as in `ROOT_TWO = math.sqrt(2.0)`).
    """
    body, lines = tree_of(source).body, source.splitlines()
    found = []
    for node, below in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.id for each in targets if isinstance(each, ast.Name) and each.id.isupper()]
        parts = list(ast.walk(node.value))
        number = any(
            isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in parts
        ) and not any(isinstance(part, ast.Call | ast.Dict) for part in parts)
        text = (
            isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        )
        # One comment may stand above several lines.
        top = node.lineno - 1
        while top > 0 and lines[top].strip() and not lines[top].startswith("#"):
            top -= 1
        if names and number and not text and not lines[top].startswith("#"):
            found += names
    return found


def test_every_number_has_its_reason() -> None:
    package = ROOT / "fl_shuffle"
    found = {
        str(path.relative_to(ROOT)): names
        for path in FILES
        if path.is_relative_to(package) and (names := unexplained(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_number_without_a_reason_would_be_seen() -> None:
    bare = 'ONE = 1\nTWO = 2\n"""Reason."""\n# Reason.\nTHREE = 3 * 1.0\nNAME = \'x\'\n'
    assert unexplained(bare) == ["ONE"]
