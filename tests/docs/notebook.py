"""The tutorial as a notebook: `python -m tests.docs.notebook` writes docs/tutorial.ipynb."""

from __future__ import annotations

import json
from typing import Any

from tests.architecture.test_limits import ROOT
from tests.docs.blocks import BLOCK, Block

PAGE = ROOT / "docs" / "tutorial.md"
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def _cell(kind: str, text: str, number: int) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    cell["source"] = text.strip("\n").splitlines(keepends=True)
    return cell


def _code(language: str, body: str) -> str:
    """A block as a cell: files are written, commands handed to the shell."""
    name = Block(language, body).file
    if name is not None:
        return f"%%writefile {name}\n{body}"
    return body if language == "python" else f"%%sh\n{body}"


def notebook(text: str) -> str:
    """The notebook of a page: its prose as markdown cells, its blocks as code cells."""
    cells: list[dict[str, Any]] = []
    start = 0
    for found in [*BLOCK.finditer(text), None]:
        prose = text[start : found.start() if found else len(text)]
        if prose.strip():
            cells.append(_cell("markdown", prose, len(cells)))
        if found:
            cells.append(_cell("code", _code(found["language"], found["body"]), len(cells)))
            start = found.end()
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
