"""The page of accuracies says what was measured, of rows that are still played so."""

from __future__ import annotations

import json

from benchmarks.records import PAGE, RESULTS, ROWS, page, together
from fl_shuffle.api.configs import resolve_config
from tests.repository import ROOT


def test_the_page_is_that_of_the_numbers() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, rows) == text
    played = {row.name: (row.config, dict(row.settings)) for row in ROWS}
    assert rows
    for row in rows:
        assert played[row["name"]] == (row["config"], row["settings"])
        assert 1 <= row["seeds"] <= 5


def test_every_row_can_be_played() -> None:
    for row in ROWS:
        resolve_config(str(ROOT / "configs" / f"{row.config}.toml"), dict(row.settings))


def test_a_run_of_one_seed_leaves_the_accuracy_of_five() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    five = next(row for row in rows if row["seeds"] == 5)
    one = {**five, "seeds": 1, "accuracy": 1.0, "new": "x"}
    assert together([one]) == [{**row, "new": "x"} if row is five else row for row in rows]
    other = {**one, "settings": {"run.rounds": 2}}
    assert together([other]) == [other if row is five else row for row in rows]


def test_more_seeds_of_a_trusted_server_replace_fewer() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    row = next(row for row in rows if row["trusted_seeds"])
    fewer = {**row, "seeds": 1, "accuracy": 1.0, "trusted": 2.0, "trusted_seeds": 1}
    more = {**fewer, "trusted_seeds": row["trusted_seeds"] + 1}
    assert together([fewer]) == rows
    trusted = {"trusted": 2.0, "trusted_seeds": more["trusted_seeds"]}
    assert together([more]) == [each | trusted if each is row else each for each in rows]
