"""What of the documents is made by a program (`scripts/generate`): tables, a page, and what the
notebooks show."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import pictures, ship_pairs
from benchmarks.reproduction import papers, publish
from benchmarks.reproduction.core import all_targets
from benchmarks.reproduction.page import page
from benchmarks.tables import between
from tests.golden import epsilons
from tests.repository import ROOT

NOTEBOOK = ROOT / "docs" / "tutorials" / "privacy-utility.ipynb"
LEDGER_NOTEBOOK = ROOT / "examples" / "05_privacy_ledger.ipynb"


def played(folder: Path, notebook: Path = NOTEBOOK) -> Any:
    """Return the notebook, run from top to bottom in `folder`, with what its cells show.

    Needs `[docs]`. What goes to stderr (progress) is left out, as are times. The tutorial is a page
    of the site, too, which shows text alone; the other notebook keeps its tables and figures.
    """
    from nbclient import NotebookClient
    from nbformat import read

    book = read(notebook, as_version=4)
    with_path = {"metadata": {"path": str(folder)}}
    NotebookClient(book, timeout=600, resources=with_path).execute()
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if _is_kept(each, notebook)]
    return book


def _is_kept(output: Any, notebook: Path) -> bool:
    if output.output_type == "stream":
        return bool(output.name == "stdout")
    return notebook != NOTEBOOK and output.output_type in ("execute_result", "display_data")


def write_notebooks() -> None:
    import nbformat

    for notebook in (NOTEBOOK, LEDGER_NOTEBOOK):
        with tempfile.TemporaryDirectory() as folder:
            book = played(Path(folder), notebook)
        notebook.write_text(nbformat.writes(book) + "\n", encoding="utf-8")


def generated() -> dict[Path, str]:
    """Every file that is made, in whole or in part, with what must stand in it."""
    results, readme = ROOT / publish.FOLDER, ROOT / "README.md"
    entries = [json.loads((results / name / "entry.json").read_text()) for name in all_targets()]
    table = f"\n{publish.expectations(results)}"
    made = {
        readme: between(readme.read_text("utf-8"), publish.START, publish.END, table),
        results / "README.md": page(entries),
    }
    bounds, proofs = (ROOT / "docs" / name for name in (epsilons.PAGE, epsilons.SHARP_PAGE))
    known = epsilons.read()
    listed = ROOT / papers.PAGE
    made[listed] = papers.with_tables(listed.read_text("utf-8"), results)
    return made | {
        bounds: epsilons.with_table(bounds.read_text("utf-8"), known),
        proofs: epsilons.with_sharpness(proofs.read_text("utf-8"), known),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--epsilons"]:
        epsilons.write_down()
    if sys.argv[1:] == ["--notebook"]:
        write_notebooks()
    if sys.argv[1:] == ["--pictures"]:
        pictures.main()
    ship_pairs.main()
    for target, text in generated().items():
        target.write_text(text, encoding="utf-8")
