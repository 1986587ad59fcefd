"""A target is kept to the last digit: the round that would pass it is not played."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.small_federation import Launch, summary


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_no_round_goes_beyond_the_target_by_any_digit(
    release: str, launch: Launch, tmp_path: Path
) -> None:
    column = {"reports": "proven", "sum": "sum"}[release]

    def epsilons(name: str) -> list[float]:
        with sqlite3.connect(tmp_path / name / "ledger.sqlite") as db:
            return [e for (e,) in db.execute(f"SELECT {column} FROM rounds ORDER BY round")]

    settings = (f"privacy.release={release}", "run.rounds=4", "privacy.randomizer=gaussian")
    assert launch("free", *settings) == 0
    third = epsilons("free")[2]
    for name, share, rounds in (("below", 1.0 - 1e-9, 2), ("above", 1.0 + 1e-9, 3)):
        target = third * share
        assert launch(name, *settings, f"privacy.target_epsilon={target!r}") == 0
        kept = epsilons(name)
        assert summary(tmp_path / name)["rounds"] == len(kept) == rounds
        assert all(epsilon <= target for epsilon in kept)
