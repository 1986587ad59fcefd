"""What of the documents is made by a program (`scripts/generate`): tables, the notebook, a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import ship_pairs
from benchmarks.reproduction import publish
from benchmarks.reproduction.core import all_targets
from benchmarks.reproduction.page import page
from tests.docs.blocks import BLOCK, Block
from tests.golden import epsilons
from tests.repository import ROOT

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


def generated() -> dict[Path, str]:
    """Every file that is made, in whole or in part, with what must stand in it."""
    results, readme = ROOT / publish.FOLDER, ROOT / "README.md"
    entries = [json.loads((results / name / "entry.json").read_text()) for name in all_targets()]
    made = {
        NOTEBOOK: notebook(PAGE.read_text(encoding="utf-8")),
        readme: publish.with_table(readme.read_text("utf-8"), publish.expectations(results)),
        results / "README.md": page(entries),
    }
    for name in epsilons.TABLES:
        path = ROOT / "docs" / name
        made[path] = epsilons.with_tables(name, path.read_text("utf-8"), epsilons.read())
    return made


if __name__ == "__main__":
    if sys.argv[1:] == ["--epsilons"]:
        epsilons.write_down()
    ship_pairs.main()
    for target, text in generated().items():
        target.write_text(text, encoding="utf-8")
