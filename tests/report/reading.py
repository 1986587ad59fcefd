"""A report page, read back: its tables with all digits, and whether it is sound HTML."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from html import unescape
from typing import Any
from xml.etree import ElementTree

FETCHING = ("src", "href", "action", "poster", "srcset")
AS_XML = [
    (r"<!doctype html>", ""),
    (r"<(script|style)\b([^>]*)>.*?</\1>", r"<\1\2/>"),
    (r"<(meta|br|link|img|input|hr)\b([^>]*)>", r"<\1\2/>"),
    (r" hidden>", ' hidden="">'),
    (r" scope=row ", ' scope="row" '),
    (r" xlink:href=", " href="),
]
"""What a page may write shorter than XML."""


@dataclass
class ReadTable:
    """One table: its column heads and its rows, as numbers where the page holds numbers."""

    heads: list[str]
    rows: list[list[str | float | None]]


def cell(element: ElementTree.Element) -> str | float | None:
    """Its number with all digits, or its text."""
    text, number = "".join(element.itertext()).strip(), element.get("data-v")
    if number is None:
        return text
    return float(number) if number else None


class Page:
    """Insists that elements close in order, that names are given once, and nothing is fetched.

    `data` maps the key of a `<data>` element to its value; `rows` holds what a table shows page by
    page, by its name.
    """

    def __init__(self, text: str) -> None:
        kept = re.findall(r'<script [^>]*id="([^"]*)-rows">(.*?)</script>', text, re.DOTALL)
        self.rows: dict[str, dict[str, Any]] = {name: json.loads(rows) for name, rows in kept}
        for written, read in AS_XML:
            text = re.sub(written, read, text, flags=re.DOTALL)
        text = re.sub(r"&(?!amp|lt|quot)\w+;", lambda named: unescape(named[0]), text)
        self.root = ElementTree.fromstring(text.strip())
        named = Counter(each.get("id") for each in self.root.iter() if each.get("id"))
        assert not named or max(named.values()) == 1, named.most_common(3)
        # A marker of a figure is drawn by the name that it has in the page.
        fetched = [each.get(name, "#") for each in self.root.iter() for name in FETCHING]
        assert all(target.startswith("#") for target in fetched), fetched
        self.count = Counter(each.tag for each in self.root.iter())
        self.text = "".join(self.root.itertext())
        self.data = {each.get("data-key"): float(each.get("value", "")) for each in
                     self.root.iter("data")}  # fmt: skip

    def table(self, place: str) -> ReadTable:
        """The table of this name, or the first inside the element that has it."""
        (found,) = self.root.iterfind(f".//*[@id='{place}']")
        table = next(found.iter("table"))
        heads = ["".join(head.itertext()) for head in table.iterfind("thead/tr/th")]
        rows = [[cell(each) for each in row] for row in table.iterfind("tbody/tr")]
        return ReadTable(heads, rows)

    def clients(self, prefix: str = "") -> dict[int, list[float]]:
        """Every client of a run, in the order of its pages, with its row."""
        known = self.rows[f"{prefix}clients-table"]
        return {
            client: [float(number) for number in row]
            for row, own in zip(known["groups"], known["clients"], strict=True)
            for client in own
        }
