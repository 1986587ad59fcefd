"""The federation benchmark runs from end to end and writes its table; times are not looked at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import simulation
from benchmarks.tables import read_csv


@pytest.mark.slow
def test_smoke_form_measures_the_floor_and_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.csv"
    monkeypatch.setattr(sys, "argv", ["simulation", "--smoke", "--csv", str(table)])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert simulation.main() == 0
    rows = {row["engine"]: row for row in read_csv(table)}
    assert set(rows) == {"floor", "ours", "pooled"}
    for row in rows.values():
        given = tuple(row[name] for name in ("clients", "records", "d", "rounds", "note"))
        assert given == ("40", "5", "610", "3", "")
    assert float(rows["ours"]["wall_over_ours"]) == 1.0


def test_unknown_engine_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    wanted = ["simulation", "--smoke", "--engines", "flor", "--csv", str(table)]
    monkeypatch.setattr(sys, "argv", wanted)
    with pytest.raises(SystemExit):
        simulation.main()
    assert "known ones are floor, ours, pooled" in capsys.readouterr().err
    assert not table.exists()
