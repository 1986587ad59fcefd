"""A Jupyter notebook as a page of the site: its cells, and what they printed when it was played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser


def markdown(notebook: dict[str, Any]) -> str:
    """The page: prose as it is, code and its output in fences."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        language, body = ("sh", source[5:]) if source.startswith("%%sh\n") else ("python", source)
        parts.append(f"```{language}\n{body}\n```")
        shown = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        if shown:
            parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


class NotebookParser(MystParser):
    """`tutorial.ipynb` read as MyST."""

    supported: ClassVar = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        name = Path(document["source"]).name
        page = markdown(json.loads(inputstring))
        super().parse(f"{page}\n{{download}}`This page as a notebook <{name}>`.\n", document)
