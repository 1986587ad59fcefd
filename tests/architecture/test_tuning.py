"""In the rooms with a tolerances object, no tuning constant stands inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.test_limits import FILES, ROOT, tree_of

ROOMS = ("fl_shuffle/gradients", "fl_shuffle/accounting/bounds/partial_shuffle")
LARGEST = 16
"""Larger numbers are somebody's choice; smaller ones are mostly parts of formulas, or counts."""


def inner_numbers(source: str) -> list[str]:
    """Numbers inside functions that are larger than `LARGEST` or written with an exponent."""
    found, lines = [], source.encode().splitlines()
    for node in ast.walk(tree_of(source)):
        if isinstance(node, ast.FunctionDef):
            for number in _numbers(node):
                line = lines[number.lineno - 1]
                text = line[number.col_offset : number.end_col_offset].decode()
                if abs(number.value) > LARGEST or "e" in text.lower():
                    found.append(f"{number.lineno}: {text}")
    return sorted(set(found))


def _numbers(function: ast.FunctionDef) -> Iterator[ast.Constant]:
    """Of its body and defaults; a decorator's (the size of a cache) decide nothing."""
    for part in (*function.body, function.args):
        for node in ast.walk(part):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                yield node


def test_tuning_constants_are_fields() -> None:
    found = {
        str(path.relative_to(ROOT)): numbers
        for path in FILES
        if path.is_relative_to(ROOT)
        and str(path.relative_to(ROOT)).startswith(ROOMS)
        and (numbers := inner_numbers(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_every_field_has_its_reason() -> None:
    """A text below each field of every tolerances object."""
    files = [path for path in FILES if path.name.endswith("tolerances.py") and _of_package(path)]
    assert len(files) > 4
    for path in files:
        classes = [
            node
            for node in tree_of(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef)
        ]
        assert classes, path
        for node in classes:
            assert bare_fields(node) == [], path


def bare_fields(node: ast.ClassDef) -> list[str]:
    return [
        ast.unparse(field.target)
        for field, below in zip(node.body, [*node.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
    ]


def _of_package(path: Path) -> bool:
    return path.is_relative_to(ROOT / "fl_shuffle")


def test_they_would_be_seen() -> None:
    source = "ONE = 1e-9\n@cache(64)\ndef f(x=1e-3):\n    return x * 1e9 + 2.0 * 300 + 16\n"
    assert inner_numbers(source) == ["3: 1e-3", "4: 1e9", "4: 300"]
    (node,) = ast.parse('class A:\n    a: int = 1\n    """Why."""\n    b: int = 2\n').body
    assert isinstance(node, ast.ClassDef) and bare_fields(node) == ["b"]
