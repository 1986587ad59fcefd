"""Runs of which only sums leave: same bits, another headline, and every output gives that one."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import fl_shuffle as fs
from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_epsilon
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.ledger.writer import LedgerWriter
from fl_shuffle.report.record import read_run
from tests.crashes import released
from tests.runs.test_runs import one_kind
from tests.small_federation import Launch, model_bytes, summary

SUM = "privacy.release=sum"
WEIGHTS = "server.weights=inverse-variance"


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").open()))


def test_every_output_gives_the_same_sum(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (WEIGHTS, "training.participation=0.7", "privacy.assumed_honest=0.5")
    assert launch("reports", *settings) == 0
    capsys.readouterr()
    assert launch("sum", SUM, *settings, quiet=False) == 0
    shown = capsys.readouterr().out
    run, plain = tmp_path / "sum", tmp_path / "reports"
    # What is released does not change: only what is claimed first does.
    assert model_bytes(run) == model_bytes(plain)
    final, before = summary(run), summary(plain)
    for name in ("proven_epsilon", "sum_epsilon", "epsilon_quantiles", "columns", "accuracy"):
        assert final[name] == before[name], name
    assert (before["headline"], before["epsilon"]) == ("proven", before["proven_epsilon"])
    assert (final["headline"], final["epsilon"]) == ("sum", final["sum_epsilon"])
    headline, proven = float(str(final["epsilon"])), float(str(final["proven_epsilon"]))
    assert 0.0 < headline < 0.9 * proven
    # Metrics, the Python face and the screen; the page, tables and views have tests of their own.
    last = rows(run)[-1]
    assert float(last["sum_epsilon"]) == pytest.approx(headline, rel=1e-9)
    assert 0.9 * headline < float(last["sum_lower_epsilon"]) <= headline
    record, result = read_run(run), fs.Result(run)
    assert record.agrees and not record.differing.size and record.worst is not None
    assert record.worst.epsilon == headline == result.epsilon == result.sum_epsilon
    assert record.worst.profile([headline])[0] <= 1.001e-5
    bill = result.ledger.client(record.worst.client)
    assert bill.epsilon == bill.sum_epsilon == headline < bill.proven_epsilon <= bill.local_epsilon
    (first,) = [line for line in shown.splitlines() if line.startswith("epsilon ")]
    assert first.split()[:3] == ["epsilon", f"{headline:.4g}", "proven"] and "sums" in first
    removed = add_remove_epsilon(headline, 1e-5)
    assert final["sum_epsilon_add_remove"] == removed == result.sum_epsilon_add_remove < headline
    (other,) = [line for line in shown.splitlines() if line.startswith("  removed ")]
    assert other.split()[1] == f"{removed:.4g}" and ADD_REMOVE_WORDS in other
    assert main(["ledger", str(run), "--client", str(record.worst.client)]) == 0
    assert f"{removed:.4g} is {ADD_REMOVE_WORDS}" in capsys.readouterr().out
    for words in ("at least 0.5 of all clients", "only sums of at least 2 reports leave"):
        assert words in str(final["assumptions"])


def test_the_sum_of_a_run_is_the_formula(launch: Launch, tmp_path: Path) -> None:
    """mu_i^2 = T (w_i Delta_i)^2 / sum of w_j^2 sigma_j^2, from the classes the ledger holds."""
    assert launch("run", SUM, WEIGHTS) == 0
    record = read_run(tmp_path / "run")
    own = [record.classes[index] for index in record.class_of]
    variance = math.fsum(kind.scale**2 for kind in own)
    for client, kind in enumerate(own):
        mu = math.sqrt(3.0) * kind.sensitivity / math.sqrt(variance)
        assert record.totals.sum[client] == pytest.approx(gaussian_epsilon(1e-5, mu), rel=1e-6)
        assert record.totals.sum[client] >= gaussian_epsilon(1e-5, mu) * (1.0 - 1e-9)


def test_lifetimes_follow_what_is_released(launch: Launch, tmp_path: Path) -> None:
    """A client whose next report would take its own sum above its limit stays away."""
    path = tmp_path / "b.csv"
    lines = [f"{i},{1 + i / 4},1e-5,{'1.0' if i < 9 else 'inf'}\n" for i in range(12)]
    path.write_text("client_id,epsilon,delta,lifetime_epsilon\n" + "".join(lines))
    settings = (SUM, WEIGHTS, "run.rounds=6")
    assert launch("run", *settings, options=("--budgets", str(path))) == 0
    spent = read_run(tmp_path / "run").totals
    assert (spent.sum[:9] <= 1.0).all() and (spent.rounds[9:] == 6).all()
    assert spent.proven[:9].max() > 1.0
    # Weights expose clients differently, so that they leave one after the other.
    assert 0 < spent.rounds[:9].min() < spent.rounds[:9].max()


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


ANALYZERS = "import torch\ndef median(reports): return reports.median(dim=0).values\n"


def test_where_there_is_no_sum_the_column_says_why(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_analyzers.py").write_text(ANALYZERS)
    assert launch("analyzed", "server.analyzer=own_analyzers:median", "run.rounds=1") == 0
    assert launch("sequential", "training.schedule=sequential", "run.rounds=1") == 0
    for name, words in (("analyzed", "an analyzer gets single reports"), ("sequential", "alone")):
        final = summary(tmp_path / name)
        columns = final["columns"]
        assert isinstance(columns, dict) and final["sum_epsilon"] is None
        assert columns["sum"]["epsilon"] is None and words in columns["sum"]["note"]
        assert final["headline"] == "proven"
        assert "only sums of" not in json.dumps(final["assumptions"])
        assert rows(tmp_path / name)[0]["sum_epsilon"] == ""
        assert np.isnan(read_run(tmp_path / name).totals.sum).all()


def test_fewer_reports_than_honest_ones_are_not_released(tmp_path: Path) -> None:
    """A count says that so many honest reports arrive: a round that disproves it is thrown away."""
    everybody = np.ones(10, dtype=bool)
    ledger, accountant = one_kind(tmp_path, 10, 0.3, Trust("sum", assumed_honest=8))
    writer = LedgerWriter(accountant, ledger, parse_config({"run": {"entropy": "system"}}))
    assert writer.reserve(1, everybody) is not None
    assert writer.commit(1, np.arange(10) < 8) is not None
    writer.reserve(2, everybody)
    with pytest.raises(PrivacyBudgetError, match="below privacy.assumed_honest = 8"):
        writer.commit(2, np.arange(10) < 7)
    assert released(tmp_path / "l.sqlite") == [(1, 1, 8)]
    ledger.close()
