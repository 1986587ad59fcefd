"""The table of features names what exists, and every strategy that Flower has."""

from __future__ import annotations

import re
from pathlib import Path

import flwr.serverapp.strategy as strategies
import pytest

import fl_shuffle as fs
from fl_shuffle.configuration.reading import SETTINGS
from tests.repository import ROOT

PAGE = next((ROOT / "docs").rglob("feature-table.md"))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| feature"))
]


def exists(name: str) -> bool:
    """Whether a setting (with a value that it takes), a public function, or a file exists."""
    key, _, value = name.partition(" = ")
    if key in SETTINGS:
        return not value or value.strip('"') in SETTINGS[key].choices
    if name.startswith("fs."):
        return hasattr(fs, name.removeprefix("fs."))
    return "/" in name and Path(ROOT, name).is_file()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_feature_is_there_or_its_lack_has_a_reason(row: list[str]) -> None:
    _, status, why = row
    assert status in ("has", "refused", "not yet")
    named = re.findall("`([^`]+)`", why)
    if status == "has":
        assert named and all(map(exists, named)), named
    if status == "refused":
        assert why


def test_every_strategy_of_flower_is_in_the_table() -> None:
    base = strategies.Strategy
    known = {name for name, each in vars(strategies).items()
             if isinstance(each, type) and issubclass(each, base) and each is not base}  # fmt: skip
    listed = {name for row in ROWS for name in re.findall("`([^`]+)`", row[0])}
    assert len(known) > 10 and not known - listed


def test_what_does_not_exist_is_noticed() -> None:
    assert not any(
        map(exists, ('server.optimizer = "fedsgd"', "run.round", "fs.fit", "fl_shuffle/a.py"))
    )
