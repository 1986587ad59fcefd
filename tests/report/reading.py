"""A report page, read back: its tables with all digits, and whether it is sound HTML."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "link", "img", "input", "hr"}
FETCHING = ("src", "href", "xlink:href", "action", "poster", "srcset")


@dataclass
class ReadTable:
    """One table: its column heads and its rows, as numbers where the page holds numbers."""

    inside: tuple[str, ...]
    heads: list[str] = field(default_factory=list)
    rows: list[list[str | float | None]] = field(default_factory=list)


class Page(HTMLParser):
    """Insists that elements close in order, that names are given once, and nothing is fetched.

    `tables` are in the order of the page; `data` maps the key of a `<data>` element to its value;
    `rows` holds what a table shows page by page, by its name.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.text = ""
        self.tables: list[ReadTable] = []
        self.data: dict[str, float] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.names: set[str] = set()
        self._open: list[tuple[str, str]] = []
        self._cell: list[str] | None = None
        self._value: str | None = None
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.count[tag] = self.count.get(tag, 0) + 1
        # A marker of a figure is drawn by the name that it has in the page.
        fetched = [named[each] for each in FETCHING if each in named]
        assert all(str(target).startswith("#") for target in fetched), (tag, named)
        name = named.get("id") or ""
        assert not name or name not in self.names, name
        self.names.add(name)
        if tag == "data":
            self.data[str(named["data-key"])] = float(str(named["value"]))
        if tag == "table":
            self.tables.append(ReadTable((name, *(outer for _, outer in self._open))))
        if tag == "tr":
            self.tables[-1].rows.append([])
        if tag in ("td", "th"):
            self._cell, self._value = [], named.get("data-v")
        if tag not in VOID:
            self._open.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag
        if tag in ("td", "th") and self._cell is not None:
            text = "".join(self._cell).strip()
            number = self._value
            read = text if number is None else float(number) if number else None
            self.tables[-1].rows[-1].append(read)
            self._cell = None
        if tag == "thead":
            self.tables[-1].heads = [str(head) for head in self.tables[-1].rows.pop()]

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] in ("style", "script"):
            if self._open[-1][1].endswith("-rows"):
                self.rows[self._open[-1][1].removesuffix("-rows")] = json.loads(data)
            return
        self.text += data
        if self._cell is not None:
            self._cell.append(data)

    def table(self, place: str) -> ReadTable:
        """The table of this name, or the first inside the element that has it."""
        return next(table for table in self.tables if place in table.inside)

    def clients(self, prefix: str = "") -> dict[int, list[float]]:
        """Every client of a run, in the order of its pages, with its row."""
        known = self.rows[f"{prefix}clients-table"]
        return {
            client: [float(cell) for cell in row]
            for row, own in zip(known["groups"], known["clients"], strict=True)
            for client in own
        }
