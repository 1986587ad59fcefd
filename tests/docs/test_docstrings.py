"""What the public face says of itself, in numpydoc sections.

`tests/api/test_api.py` runs the examples.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.repository import ROOT

PAGE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
FUNCTIONS = sorted(set(re.findall(r"\.\. autofunction:: (\S+)", PAGE)))
CLASSES = sorted(set(re.findall(r"\.\. autoclass:: (\S+)", PAGE)))


def _found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _parameters(function: Any) -> Iterator[str]:
    for each in inspect.signature(function).parameters.values():
        if each.name not in ("self", "cls"):
            yield each.name


def _documented(text: str) -> set[str]:
    """Return the names in a docstring's section of parameters."""
    section = re.search(r"^Parameters\n-{10}\n(.*?)(?=^\w+( \w+)?\n---|\Z)", text, re.M | re.S)
    heads = re.findall(r"^(\S.*?)(?: : .*)?$", section[1], re.M) if section else []
    return {name.strip("*` ") for head in heads for name in head.split(",")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_function_documents_all_that_it_takes(name: str) -> None:
    function = _found(name)
    text = inspect.getdoc(function) or ""
    taken = set(_parameters(function)) - {"question"}  # of `compare`, those of `bound`
    if "As for `bound`" not in text:
        assert taken <= _documented(text), name
    assert "\nReturns\n-------\n" in text
    assert "\nExamples\n--------\n" in text


@pytest.mark.parametrize("name", CLASSES)
def test_public_class_has_a_summary_and_more(name: str) -> None:
    text = inspect.getdoc(_found(name)) or ""
    assert re.match(r"[^\n]+\.(\n\n|$)", text), name
    assert re.search(r"^(Parameters|Attributes|Examples|Notes)\n-{5,}$", text, re.M), name


@pytest.mark.parametrize("package", ["fl_shuffle", "fl_shuffle.accounting", "fl_shuffle.flower"])
def test_every_exported_name_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    names = [name for name in dir(module) if not name.startswith("_")]
    documented = {
        name: getattr(module, name).__doc__
        for name in names
        if inspect.isclass(getattr(module, name)) or inspect.isfunction(getattr(module, name))
    }
    assert documented and [name for name, text in documented.items() if not text] == []
