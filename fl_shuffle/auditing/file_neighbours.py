"""Neighbouring files, for the audit's twin runs: one line of a training table says something else.

How many records there are, and whose, is public; so is whether a file can be read. These texts are
those at which readers of .csv files give way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.sources.files import training_files
from fl_shuffle.data.sources.options import text_option
from fl_shuffle.data.sources.tables import cells_of, quoted_cells

CELLS = {
    "a line of blank cells": b"",
    "a cell that begins with a quote": b'"1',
    "carriage returns in cells": b"1\r2",
    "cells of 200,000 characters": b"1" * 200_000,
    "cells that are no UTF-8": b"\xff\xfe",
    "cells that hold NUL": b"\0",
}
"""What stands in every cell of the record but the one that says whose it is."""


def holds_lines(section: DataSection) -> bool:
    """Whether the training records are lines of text."""
    files = training_files(Path(section.root)) if section.source == "files" else []
    return bool(files) and all(path.suffix == ".csv" for path in files)


@contextmanager
def with_cells(section: DataSection, record: int, cells: bytes) -> Iterator[DataSection]:
    """The section of the same files, but for the training record of this number."""
    root = Path(section.root).resolve()
    client = text_option(section.source_options, "client", "")
    with TemporaryDirectory(prefix="fl-shuffle-files-") as folder:
        # All of it links, but the file that is changed.
        copy = Path(folder) / root.name
        if root.is_dir():
            shutil.copytree(root, copy, copy_function=os.symlink)
        for path in training_files(root):
            lines = path.read_bytes().split(b"\n")
            records = len(lines) - 1 - (not lines[-1])
            if record < records:
                lines[record + 1] = _line(lines[0], lines[record + 1], client, cells)
                changed = copy / path.relative_to(root)
                changed.unlink(missing_ok=True)
                changed.write_bytes(b"\n".join(lines))
                yield replace(section, root=str(copy))
                return
            record -= records
        raise IndexError("no such record")


def _line(header: bytes, line: bytes, client: str, cells: bytes) -> bytes:
    names = [name.strip() for name in quoted_cells(header.decode("utf-8-sig"))]
    own = cells_of(line.decode("utf-8", errors="replace"), len(names))
    private = [place for place, name in enumerate(names) if name != client]
    found = [text.strip().encode() for text in own]
    for place in private:
        # A second quote would close the first one.
        found[place] = b"" if cells[:1] == b'"' and place != private[-1] else cells
    return b",".join(found)
