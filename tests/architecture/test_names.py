"""Names in backquotes, in docstrings, comments, and documents, are names that the code has."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import ROOT

TESTS = ROOT / "tests"
FOLDERS = ("fl_shuffle", "clients", "server", "benchmarks")
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
ELSEWHERE = {
    # Formulas.
    "shift_i",
    # Placeholders and files of users.
    "EXT",
    "GROUP",
    "clients_train",
    "y_test",
    "y_train",
    # Names of other software that no code here spells.
    "DataFrame",
    "ThreadPool",
    "pandas",
}
"""Words in backquotes that are no names of this code, and what they are instead."""


def _files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def _docstrings(tree: ast.Module) -> set[int]:
    """Return the first lines of all docstrings, and of strings that stand alone as comments do."""
    return {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _split(path: Path) -> tuple[set[str], list[tuple[int, str]]]:
    """Return the words of a file's code, and its comments and docstrings with their lines."""
    text = path.read_text(encoding="utf-8")
    prose_lines = _docstrings(ast.parse(text))
    words: set[str] = set()
    prose: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and line in prose_lines
        ):
            prose.append((line, token.string))
        elif token.type in (tokenize.NAME, tokenize.STRING):
            words.update(WORD.findall(token.string))
    return words, prose


def _known(files: list[Path]) -> set[str]:
    known = {*dir(builtins), *keyword.kwlist, *sys.stdlib_module_names, *ELSEWHERE}
    for path in files:
        known |= _split(path)[0]
        known.update(path.relative_to(ROOT).with_suffix("").parts)
    for path in [*(ROOT / "configs").rglob("*.toml"), ROOT / "pyproject.toml"]:
        known.update(WORD.findall(path.read_text(encoding="utf-8")))
    return known


def _modules(files: list[Path]) -> set[str]:
    """Return the dotted names of all modules, and of the ends of those names."""
    dotted = [path.relative_to(ROOT).with_suffix("").parts for path in files]
    return {".".join(parts[start:]) for parts in dotted for start in range(len(parts))}


def _ghosts(
    known: set[str], modules: set[str], prose: list[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything in backquotes that has a part which nothing is called.

    A dotted name whose last part is a module of several words must be the end of that module's
    name: its first part may be the name of something else.
    """
    for line, text in prose:
        for match in NAME.finditer(text):
            parts = match.group(1).removesuffix(".py").split(".")
            module = len(parts) > 1 and "_" in parts[-1] and parts[-1] in modules
            moved = module and ".".join(parts) not in modules
            if moved or any(len(part) > 1 and part not in known for part in parts):
                yield line + text.count("\n", 0, match.start()), match.group(1)


def test_backquoted_name_resolves() -> None:
    files = _files()
    known, modules = _known(files), _modules(files)
    ghosts = [
        f"{path.relative_to(ROOT)}:{line}: `{name}` is not a name of the code"
        for path in files
        for line, name in _ghosts(known, modules, _split(path)[1])
    ]
    assert not ghosts, "\n".join(ghosts)


PROOFS = sorted((ROOT / "docs/research/proofs").glob("*.md"))
PAGES = [ROOT / "docs" / "concepts" / "architecture.md", *PROOFS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_file_that_a_page_names_exists(page: Path) -> None:
    files = {path.relative_to(ROOT).as_posix() for path in [*_files(), *TESTS.rglob("*.py")]}
    named = re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    gone = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in files)]
    assert gone == []


def test_section_of_the_proofs_that_code_cites_exists() -> None:
    headings = "\n".join(page.read_text(encoding="utf-8") for page in PROOFS)
    there = {int(number) for number in re.findall(r"^## (\d+)\. ", headings, re.MULTILINE)}
    assert there == set(range(19))
    cited: set[int] = set()
    for path in _files():
        text = re.sub(r"[\s#\"]+", " ", path.read_text(encoding="utf-8"))
        for found in re.findall(r"docs/research/proofs,? sections? ([\d, andto]+)", text):
            cited |= {int(number) for number in re.findall(r"\d+", found)}
    assert len(cited) > 10 and cited <= there


def _defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_what_happens_where_names_what_there_is() -> None:
    """Each row ends with files of the package, and functions or classes that they define."""
    text = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## What happens, where")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    places = [row.rstrip("| ").rsplit(" | ", 1)[-1] for row in rows[1:] if "`" in row]
    assert len(places) > 40
    for place in places:
        for part in place.split("; "):
            files, _, names = part.partition(": ")
            paths = [ROOT / "fl_shuffle" / name for name in re.findall(r"`([^`]+)`", files)]
            assert paths and all(path.suffix == ".py" and path.is_file() for path in paths), part
            missing = set(re.findall(r"`([^`]+)`", names)) - _defined_in(paths[-1])
            assert not missing, f"{part}: no {missing}"


SHARED_NAMES = {
    # Of a query, as a user types them; and those of a run.
    "Budgets",
}
"""Names of two different things; every other class and type is defined in one module."""


def _defined(path: Path) -> Iterator[str]:
    """Yield the public classes and types of a module."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            name = ast.unparse(node.targets[0])
        else:
            continue
        if name[0].isupper() and not name.isupper():
            yield name


def test_class_name_means_one_thing() -> None:
    """`verify` shares nothing with the rest, which it checks."""
    modules: dict[str, list[str]] = {}
    for path in sorted((ROOT / "fl_shuffle").rglob("*.py")):
        if "verify" not in path.parts:
            for name in _defined(path):
                modules.setdefault(name, []).append(str(path.relative_to(ROOT)))
    several = {name: found for name, found in modules.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in SHARED_NAMES} == {}


def test_ghost_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    code = '# `real.gone()`, `text.the_module`\nreal = "`text` no prose"\n'
    path.write_text('"""See `real`, `os.path`,\nand `sum_rare`."""\n' + code)
    words, prose = _split(path)
    assert words >= {"real", "text"} and "sum_rare" not in words
    found = list(
        _ghosts({*words, "os", "path", "the_module"}, {"the_module", "real.the_module"}, prose)
    )
    assert found == [(2, "sum_rare"), (3, "real.gone"), (3, "text.the_module")]
