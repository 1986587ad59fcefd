"""Tables, as CSV, as Markdown and on the terminal."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows as CSV; columns in the order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """What `write_csv` wrote, as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with an end of line."""
    lines = [list(heads), *rows]
    text = [f"| {' | '.join(cells)} |\n" for cells in lines]
    text.insert(1, f"|{'---|' * len(heads)}\n")
    return "".join(text)


def between(text: str, start: str, end: str, content: str) -> str:
    """The text with this content between its two markers, which stand there once each."""
    head, rest = text.split(start)
    _, tail = rest.split(end)
    return f"{head}{start}{content}{end}{tail}"


def show(row: Row) -> None:
    """A line of the terminal."""
    cells = (
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in row.items()
        if value not in (None, "")
    )
    print("  ".join(cells), flush=True)
