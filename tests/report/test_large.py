"""Runs of many clients: the page stays small, and still holds everybody that fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.report import page as pages
from fl_shuffle.report.page import write_report
from fl_shuffle.report.record import read_run
from fl_shuffle.report.tables import clients_table
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
    text = write_report([read_run(folder)]).read_text(encoding="utf-8")
    assert len(text.encode()) < 300_000
    shown, totals = Page(text), read_run(folder).totals
    listed, first = shown.clients(), shown.table("clients-table")
    assert sorted(listed) == list(range(CLIENTS)) and "not listed" not in shown.text
    at = first.heads.index("proven") - 1
    assert [row[at] for row in listed.values()] == np.sort(totals.headline)[::-1].tolist()
    assert all(row[at] == totals.proven[client] for client, row in listed.items())
    assert first.rows == [[client, *row] for client, row in listed.items()][:50]
    assert f"{CLIENTS - 50:,} more rows are on the screen" in shown.text

    # Where they do not fit the least exposed are left out, and the page says how to see them.
    monkeypatch.setattr(pages, "CLIENT_BYTES", 20_000)
    shown = Page(pages.render([read_run(folder)]))
    kept = shown.clients()
    count = len(kept)
    assert 1000 < count < CLIENTS
    # Who is exposed alike may stand in any order.
    assert all(listed[client] == row for client, row in kept.items())
    assert [row[at] for row in kept.values()] == [row[at] for row in listed.values()][:count]
    assert f"{count:,} of {CLIENTS:,} clients, the most exposed first" in shown.text
    assert f"{CLIENTS - count:,} less exposed clients are not listed" in shown.text
    assert clients_table(read_run(folder))["proven_epsilon"].tolist() == totals.headline.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("levels", [1, 20])
def test_a_hundred_thousand_clients_fit_into_two_megabytes(
    levels: int, launch: Launch, tmp_path: Path
) -> None:
    settings = (*federation(levels, 100_000), "training.participation=1.0", "run.noise=pooled")
    assert launch("run", *settings) == 0
    text = write_report([read_run(tmp_path / "run")]).read_text(encoding="utf-8")
    assert len(text.encode()) < 2_000_000
    shown = Page(text)
    assert sorted(shown.clients()) == list(range(100_000))
    assert "each of 100,000 clients was computed again" in shown.text
