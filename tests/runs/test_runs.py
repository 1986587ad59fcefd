"""Whole runs: what they leave behind, what they refuse, how they stop and go on."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.laws.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.reports import ClientClass
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.trust import Trust
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.ledger.store import SCHEMA_VERSION, Ledger
from fl_shuffle.ledger.writer import LedgerWriter
from tests.crashes import Crash, Crashing, released, resume
from tests.small_federation import Launch, model_bytes, summary


def one_kind(
    folder: Path, clients: int, mean_at_most: float = 1.0, trust: Trust | None = None
) -> tuple[Ledger, Accountant]:
    """A new ledger of clients that are all of one kind, and their accountant."""
    kind = ClientClass("gaussian", 1.0, mean_at_most, 2.0 * mean_at_most, 1.0, 1e-5, 1)
    class_of = np.zeros(clients, dtype=np.int64)
    accountant = Accountant([kind], class_of, unit="client", schedule="aggregate", delta=1e-5,
                            trust=trust or Trust("reports"))  # fmt: skip
    meta = {"schema": SCHEMA_VERSION}
    return Ledger.create(folder / "l.sqlite", meta, [kind], class_of), accountant


def test_a_run_directory_holds_everything(
    launch: Launch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch("run", quiet=False) == 0
    run = tmp_path / "run"
    assert {"config.json", "ledger.sqlite", "metrics.csv", "model.safetensors", "run.log",
            "summary.json"} <= {path.name for path in run.iterdir()}  # fmt: skip
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    proven = [float(row["proven_epsilon"]) for row in rows]
    assert proven == sorted(proven) and proven[0] > 0
    final = summary(run)
    assert final["proven_epsilon"] == pytest.approx(proven[-1])
    known = LedgerRecord(run)
    assert known.rounds.tolist() == [1, 2, 3] and len(known.attempts) == 3
    assert known.recorded_spend is not None and known.recorded_spend[:, 0].tolist() == [3.0] * 12
    assert known.recorded_spend[:, 1].max() == pytest.approx(proven[-1])
    assert {"seed", "run", "data", "relation", "libraries", "code_version"} <= set(known.meta)
    shown = capsys.readouterr().out
    assert "proven" in shown and "as published" in shown and str(run) in shown
    # What the numbers take for granted is counted on screen, and said in summary and ledger.
    assumed = [text for _, kind, text in known.notes if kind == "assumption"]
    assert final["assumptions"] == assumed and f"{len(assumed)} assumptions" in shown
    assert "readings and no guarantee" in assumed[0] and "seeded" in assumed[1]


def test_nothing_is_left_behind_by_a_refused_run(
    launch: Launch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is wrong with a setting, or with a user's model, is one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_model.py").write_text(NAN_MODEL.format(limit=0))
    for number, setting in enumerate(
        ["run.rounds=0", "data.clients=5000", "budgets.epsilon=nan", "data.source=mnis",
         "model.kind=mlp", "data.features=pcaa", "model.kind=odd_model:integers",
         "model.kind=odd_model:text"]
    ):  # fmt: skip
        assert launch(f"refused{number}", setting) == 2
        assert not (tmp_path / f"refused{number}").exists()
        errors = capsys.readouterr().err.strip().splitlines()
        assert len(errors) == 1 and errors[0].startswith("fl-shuffle: error:")


NAN_MODEL = """
import torch
class Model(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = torch.nn.Linear(features, 10)
    def forward(self, x):
        # One pixel makes a record's gradient NaN.
        return self.layer(x) * torch.where(x[..., 20:21] > {limit}, float("nan"), 1.0)
def build(shape, classes): return Model(shape[0])
def integers(shape, classes):
    model = Model(shape[0])
    model.extra = torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    return model
def text(shape, classes): return "model"
"""


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_number_of_reports_does_not_depend_on_the_data(
    unit: str, launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With records whose gradient is NaN at no client, at some and at all of them."""
    monkeypatch.chdir(tmp_path)
    seen = []
    for name, limit in (("none", 2.0), ("some", 0.99), ("all", -1.0)):
        (tmp_path / f"{name}_nan.py").write_text(NAN_MODEL.format(limit=limit))
        settings = (f"model.kind={name}_nan:build", "data.clients=100", f"privacy.unit={unit}")
        assert launch(name, *settings) == 0
        known = LedgerRecord(tmp_path / name)
        assert known.reports.tolist() == [100] * 3 and known.recorded_spend is not None
        seen.append(known.recorded_spend[:, 0].tolist())
        assert not [text for _, kind, text in known.notes if kind == "dropped"]
        assert "not finite" not in (tmp_path / name / "run.log").read_text(encoding="utf-8")
    assert seen[0] == seen[1] == seen[2] == [3.0] * 100


@pytest.mark.parametrize("entropy", ["seeded", "system"])
def test_a_crashed_run_resumes_and_keeps_its_budget(
    entropy: str, crash: Crashing, launch: Launch, tmp_path: Path
) -> None:
    assert launch("whole", "run.rounds=6") == 0
    spent = [float(row["proven_epsilon"])
             for row in csv.DictReader((tmp_path / "whole" / "metrics.csv").open())]  # fmt: skip
    target = (spent[4] + spent[5]) / 2
    settings = ("run.rounds=6", f"privacy.target_epsilon={target}", f"run.entropy={entropy}")
    assert resume(crash(3, *settings, name="crashed")) == 0
    final = summary(tmp_path / "crashed")
    assert final["rounds"] == 5 and float(str(final["proven_epsilon"])) <= target
    if entropy == "seeded":
        assert launch("straight", *settings) == 0
        assert model_bytes(tmp_path / "straight") == model_bytes(tmp_path / "crashed")
        rows = list(csv.DictReader((tmp_path / "crashed" / "metrics.csv").open()))
        assert [row["round"] for row in rows] == ["1", "2", "3", "4", "5"]


def test_every_release_stays_on_the_bill_and_nothing_else(launch: Launch, tmp_path: Path) -> None:
    assert launch("run", "run.rounds=2", "run.entropy=system") == 0
    path = tmp_path / "run" / "ledger.sqlite"
    ledger = Ledger.open(path)
    # An attempt that ended before its reports left the shuffler.
    ledger.reserve(3, 12, 99.0)
    assert released(path) == [(1, 1, 12), (2, 2, 12)]
    # A second attempt, released without client 0; then a third, after a crash, with everybody.
    present = ~np.eye(12, dtype=bool)[0]
    _, accountant = one_kind(tmp_path, 12)
    for mask in (present, np.ones(12, dtype=bool)):
        ledger.reserve(3, 12, 99.0)
        ledger.record(accountant.preview(3, mask), {0: int(mask.sum())}, mask)
    # Sequential reports are used as they come: reserved is released.
    ledger.reserve(4, 11, 99.0, present)
    ledger.close()
    assert released(path)[2:] == [(3, 4, 11), (3, 5, 12), (4, 6, 11)]
    attempts = LedgerRecord(path).attempts
    assert [number for number, _ in attempts] == [1, 2, 3, 3, 4]
    assert (attempts[2][1] == present).all() and attempts[3][1].all()
    assert (attempts[4][1] == present).all()


def test_the_file_knows_of_a_release_before_it_happens(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """System entropy: whoever dies between commit and release has the round on the bill."""
    commit = LedgerWriter.commit

    def dying(self: LedgerWriter, number: int, present: np.ndarray) -> Spend | None:
        spend = commit(self, number, present)
        if number == 2:
            raise Crash
        return spend

    with monkeypatch.context() as patch:
        patch.setattr(LedgerWriter, "commit", dying)
        # What was not flushed is lost with the process.
        patch.setattr(Ledger, "close", lambda self: self._db.rollback())
        with pytest.raises(Crash):
            launch("crashed", "run.entropy=system")
    assert released(tmp_path / "crashed" / "ledger.sqlite") == [(1, 1, 12), (2, 2, 12)]
    assert main(["simulate", "--resume", str(tmp_path / "crashed"), "--quiet"]) == 0
    spend = LedgerRecord(tmp_path / "crashed").recorded_spend
    assert spend is not None and spend[:, 0].max() == 4


def test_a_batch_that_would_break_a_lifetime_budget_is_thrown_away(tmp_path: Path) -> None:
    everybody, few = np.ones(3000, dtype=bool), np.arange(3000) < 5
    ledger, accountant = one_kind(tmp_path, 3000, 0.3)
    whole = accountant.client_epsilons_after(1, everybody)[0]
    assert whole < 0.5 * accountant.client_epsilons_after(1, few)[0]
    limits = np.full(3000, 1.01 * whole)
    writer = LedgerWriter(accountant, ledger, parse_config({"run": {"entropy": "system"}}), limits)
    allowed = writer.reserve(1, everybody)
    assert allowed is not None and allowed.all()
    assert writer.commit(1, few) is None
    assert not released(tmp_path / "l.sqlite")
    assert writer.commit(1, everybody) is not None
    ledger.close()


def test_a_round_lists_the_most_exposed_and_every_client_has_its_own_bill(
    launch: Launch, tmp_path: Path
) -> None:
    """Every client has a budget of its own: what is written down, and for whom."""
    drawn = np.random.default_rng(4).uniform(1.0, 9.0, 300).tolist()
    path = tmp_path / "b.csv"
    lines = [f"{client},{epsilon},1e-5\n" for client, epsilon in enumerate(drawn)]
    path.write_text("client_id,epsilon,delta\n" + "".join(lines))
    settings = ("data.clients=300", "training.participation=0.6")
    assert launch("run", *settings, options=("--budgets", str(path))) == 0
    read = LedgerRecord(tmp_path / "run" / "ledger.sqlite")
    presence = [present for _, present in read.attempts]
    taken = np.sum(presence, axis=0)
    expected = [
        gaussian_epsilon(1e-5, read.classes[own].exposure * np.sqrt(times)) if times else 0.0
        for own, times in zip(read.class_of.tolist(), taken.tolist(), strict=True)
    ]
    assert read.recorded_spend is not None and len(read.classes) == 300
    rounds, proven, _, local = read.recorded_spend.T
    np.testing.assert_array_equal(rounds, taken)
    np.testing.assert_allclose(local, expected, rtol=1e-10)
    assert (proven <= local * (1.0 + 1e-12)).all()
    with sqlite3.connect(read.path) as db:
        select = "SELECT class_id, n_reports, local FROM round_classes WHERE round = 3"
        listed = db.execute(select).fetchall()
    assert 0 < len(listed) <= 64
    client_of = np.argsort(read.class_of)
    for own, reports, epsilon in listed:
        assert reports == 1 and presence[2][client_of[own]]
        assert epsilon == pytest.approx(expected[client_of[own]], rel=1e-10)
