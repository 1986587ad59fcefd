"""Pieces of HTML that every page is made of: numbers, tables, figures, the frame."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from fl_shuffle.errors import RunError
from fl_shuffle.report import drawing
from fl_shuffle.report.figures import Figure, Vector
from fl_shuffle.report.style import CSS, JS


@dataclass(frozen=True)
class Number:
    """A number in a cell: four digits for the eye, all of them in the page's `data-v`."""

    value: float | int | None
    text: str = ""

    def __str__(self) -> str:
        return self.text or short(self.value)


Cell = str | Number


def short(value: float | int | None) -> str:
    """Whole numbers whole, others with four significant digits; `-` for what does not exist."""
    if isinstance(value, int):
        return str(value)
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def exact(value: float | int | None) -> str:
    """All digits, as they are read back; empty for a number that does not exist."""
    return "" if value is None or math.isnan(value) else repr(value)


def html_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str = "",
    cards: bool = False,
    label: str = "",
) -> str:
    """A table whose first column names its rows; no head row if `heads` are empty.

    Cells are text, escaped here. `cards`: a row becomes a block on narrow screens; other tables
    scroll there, as a region called `label` (or `caption`).
    """
    every = [list(row) for row in rows]
    numeric = _numeric(every, len(heads))
    head = _head(heads, numeric) if any(heads) else ""
    body = "".join(_row(row, heads, numeric, roles=cards) for row in every)
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    kind = ' class="cards" role="table"' if cards else ""
    group = ' role="rowgroup"' if cards else ""
    table = f"<table{kind}>{named}{head}<tbody{group}>{body}</tbody></table>"
    return table if cards else scrolling(table, label or caption or "table")


def marked(text: str) -> str:
    """Text as HTML; what stands between backticks is code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def scrolling(table: str, label: str, *, tall: bool = False) -> str:
    """A region that scrolls by itself, also with the keyboard."""
    kind = "scroll tall" if tall else "scroll"
    return (
        f'<div class="{kind}" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'
    )


def sortable_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    name: str,
    caption: str,
    label: str,
    hint: str,
    printed: int,
) -> str:
    """A table with search and sorting where scripts run, and every row where they do not.

    On paper are its first `printed` rows. `name` and `label` tell it from others on the page,
    `hint` says what to search for.
    """
    every = [list(row) for row in rows]
    numeric = _numeric(every, len(heads))
    bodies = [
        "".join(_row(row, heads, numeric) for row in part)
        for part in (every[:printed], every[printed:])
    ]
    hidden = len(every) - printed
    more = f'<p class="paper">{hidden:,} more rows are on the screen.</p>' if hidden > 0 else ""
    table = (
        f'<table class="sortable" id="{name}" data-search="{name}-search"><caption>'
        f"{escape(caption)}</caption>{_head(heads, numeric)}<tbody>{bodies[0]}</tbody>"
        f'<tbody class="rest">{bodies[1]}</tbody></table>'
    )
    return (
        f'<div class="search" id="{name}-search" hidden><label>{escape(hint)} '
        f'<input type="search" autocomplete="off"></label> '
        f'<output aria-live="polite"></output></div>{scrolling(table, label, tall=True)}{more}'
    )


def charts(figures: Sequence[Figure], prefix: str = "") -> str:
    """Figures in a grid, each with its legend and, folded away, its numbers.

    `prefix` tells them from others on the page.
    """
    return f'<div class="charts">{"".join(_chart(each, prefix) for each in figures)}</div>'


def _chart(figure: Figure, prefix: str) -> str:
    name = f"{prefix}{figure.name}"
    heading = f"<h3>{escape(figure.title)}</h3>"
    numbers = html_table(*_columns(figure.table()), label=f"numbers of {figure.title} {prefix}")
    return (
        f'<figure id="{escape(name)}">{heading}{drawing.svg(figure, name)}'
        f"{drawing.legend(figure)}<figcaption>{escape(figure.caption)}</figcaption>"
        f"<details><summary>Numbers of this figure</summary>{numbers}</details></figure>"
    )


def _columns(table: Mapping[str, Vector]) -> tuple[list[str], list[list[Cell]]]:
    columns = [values.tolist() for values in table.values()]
    return list(table), [[Number(cell) for cell in row] for row in zip(*columns, strict=True)]


def page(title: str, body: Iterable[str]) -> str:
    """The whole document, which fetches nothing."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{JS}</script>\n</body>\n</html>\n"
    )


def write_page(text: str, path: Path) -> Path:
    """Write a page that its owner alone may read, as private as the runs it tells of; returns
    where it is. Raises `RunError` if it cannot be written."""
    try:
        with open(path, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)


def _numeric(rows: Sequence[Sequence[Cell]], columns: int) -> list[bool]:
    """Which columns hold numbers alone."""
    width = max([columns, *(len(row) for row in rows)])
    return [
        bool(rows) and all(isinstance(row[index], Number) for row in rows if index < len(row))
        for index in range(width)
    ]


def _head(heads: Sequence[str], numeric: Sequence[bool]) -> str:
    cells = "".join(
        f'<th scope="col"{_class(right)}>{escape(head)}</th>' if head else "<td></td>"
        for head, right in zip(heads, numeric, strict=False)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _row(
    row: Sequence[Cell], heads: Sequence[str], numeric: Sequence[bool], *, roles: bool = False
) -> str:
    cells = []
    for index, cell in enumerate(row):
        value = f' data-v="{exact(cell.value)}"' if isinstance(cell, Number) else ""
        if index == 0:
            extra = (' role="rowheader"' if roles else "") + _class(numeric[0]) + value
            cells.append(f'<th scope="row"{extra}>{escape(str(cell))}</th>')
            continue
        head = heads[index] if index < len(heads) else ""
        extra = f' role="cell" data-head="{escape(head)}"' if roles else ""
        cells.append(f"<td{extra}{_class(numeric[index])}{value}>{marked(str(cell))}</td>")
    role = ' role="row"' if roles else ""
    return f"<tr{role}>{''.join(cells)}</tr>"


def _class(right: bool) -> str:
    return ' class="n"' if right else ""
