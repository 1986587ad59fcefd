"""The benchmarks of speed run from end to end, times are not looked at; the page of accuracies says
what was measured, of rows that can be played."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import accounting, kernels, simulation
from benchmarks.records import PAGE, TRUSTED, page, read
from benchmarks.tables import read_csv
from fl_shuffle.configuration.reading import resolve_config
from tests.repository import ROOT

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    def play(main: Callable[[], int], *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        monkeypatch.chdir(tmp_path)
        return main()

    return play


@pytest.mark.slow
def test_rounds_are_measured_beside_their_floor(run: Run) -> None:
    assert run(simulation.main, "--smoke", "--csv", "table.csv") == 0
    rows = {row["engine"]: row for row in read_csv(Path("table.csv"))}
    assert set(rows) == {"floor", "ours", "pooled"}
    for row in rows.values():
        given = tuple(row[name] for name in ("clients", "records", "d", "rounds", "note"))
        assert given == ("40", "5", "610", "3", "")
    assert float(rows["ours"]["wall_over_ours"]) == 1.0


def test_kernels_and_the_accountant_are_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gradients are compared with the floor's first, and it ends where they differ."""
    monkeypatch.setattr(kernels, "CLIENTS", 8)
    monkeypatch.setattr(kernels, "RECORDS", 20)
    monkeypatch.setattr(kernels, "VARIATES", 1 << 12)
    assert run(kernels.main, "gradients", "--seconds", "0") == 0
    assert run(kernels.main, "noise", "--dimension", "40", "--seconds", "0") == 0
    assert run(accounting.main, "--smoke") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 7 + 2


def test_the_page_is_that_of_the_numbers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text, read()) == text


def test_every_row_can_be_played() -> None:
    for row in read():
        for settings in (row["settings"], {**row["settings"], **(row[TRUSTED] or {})}):
            resolve_config(str(ROOT / "configs" / f"{row['config']}.toml"), settings)
