"""The page of accuracies says what was measured, of rows that can be played."""

from __future__ import annotations

from benchmarks.records import PAGE, TRUSTED, page, read, together
from fl_shuffle.configuration.reading import resolve_config
from tests.repository import ROOT


def test_the_page_is_that_of_the_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, read()) == text


def test_every_row_can_be_played() -> None:
    for row in read():
        for settings in (row["settings"], {**row["settings"], **(row[TRUSTED] or {})}):
            resolve_config(str(ROOT / "configs" / f"{row['config']}.toml"), settings)


def test_fewer_seeds_add_what_was_not_measured_and_more_replace() -> None:
    five = {"name": "x", "seeds": 5, "accuracy": 98.0, "certified": None, "trusted_seeds": 1}
    one = {"seeds": 1, "accuracy": 1.0, "certified": "2", "trusted": 2.0, "trusted_seeds": 1}
    assert together(five, one) == {**five, "certified": "2", "trusted": 2.0}
    more = {**one, "trusted_seeds": 2}
    assert together(five, more) == {**five, "certified": "2", "trusted": 2.0, "trusted_seeds": 2}
    assert together({"name": "x"}, one) == {"name": "x", **one}
    assert together(five, {**one, "seeds": 5}) == {"name": "x", **one, "seeds": 5}
