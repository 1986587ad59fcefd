"""The page of accuracies says what was measured, of rows that can be played."""

from __future__ import annotations

from benchmarks.records import PAGE, TRUSTED, page, read
from fl_shuffle.configuration.reading import resolve_config
from tests.repository import ROOT


def test_the_page_is_that_of_the_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, read()) == text


def test_every_row_can_be_played() -> None:
    for row in read():
        for settings in (row["settings"], {**row["settings"], **(row[TRUSTED] or {})}):
            resolve_config(str(ROOT / "configs" / f"{row['config']}.toml"), settings)
