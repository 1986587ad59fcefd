"""Runs of many clients: the page stays small, and still holds everybody that fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main
from fl_shuffle.report import page as pages
from fl_shuffle.report.record import read_run
from tests.report.reading import Page
from tests.small_federation import Launch

CLIENTS = 6_000

pytestmark = pytest.mark.usefixtures("coarse_pairs")


def federation(levels: int, clients: int = CLIENTS) -> tuple[str, ...]:
    return (
        "data.source='benchmarks.jobs:records'", f"data.clients={clients}",
        "data.records=1", "data.features='none'", f"budgets.levels={levels}",
        "run.rounds=2", "training.participation=0.5",
    )  # fmt: skip


def test_a_page_about_many_clients_shows_all_of_them_page_by_page(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    assert launch("run", *federation(3)) == 0
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    shown, totals = Page(text), read_run(folder).totals
    listed = shown.clients()
    assert sorted(listed) == list(range(CLIENTS)) and "not listed" not in shown.text
    at = shown.paged()[0].heads.index("proven") - 1
    assert [row[at] for row in listed.values()] == np.sort(totals.headline)[::-1].tolist()
    assert all(row[at] == totals.proven[client] for client, row in listed.items())
    (first,) = shown.paged()
    together = [[client, *row] for client, row in listed.items()]
    assert first.rows == together[: pages.PAGE_ROWS] and len(first.rows) == 50
    assert f"{CLIENTS - 50:,} more rows are on the screen" in shown.text

    # Where they do not fit the least exposed are left out, and the page says how to see them.
    monkeypatch.setattr(pages, "CLIENT_BYTES", 20_000)
    assert main(["report", str(folder)]) == 0
    shown = Page((folder / "report.html").read_text(encoding="utf-8"))
    count = len(shown.clients())
    assert 1000 < count < CLIENTS
    kept = shown.clients()
    assert all(listed[client] == row for client, row in kept.items())
    # Who is exposed alike may stand in any order.
    wanted = [row[at] for row in listed.values()][:count]
    assert [row[at] for row in kept.values()] == wanted
    assert f"{count:,} of {CLIENTS:,} clients, the most exposed first" in shown.text
    assert f"{CLIENTS - count:,} less exposed clients are not listed" in shown.text
    assert main(["ledger", str(folder), "--out", str(folder / "export")]) == 0
    written = np.genfromtxt(folder / "export" / "clients.csv", delimiter=",", names=True)
    assert written["proven_epsilon"].tolist() == totals.headline.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 20])
def test_a_hundred_thousand_clients_fit_into_two_megabytes(
    levels: int, launch: Launch, tmp_path: Path
) -> None:
    settings = (*federation(levels, 100_000), "training.participation=1.0", "run.noise=pooled")
    assert launch("run", *settings) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    shown = Page(text)
    assert sorted(shown.clients()) == list(range(100_000))
    assert "each of 100,000 clients was computed again" in shown.text
