"""Runs whose clients have totals: nobody exceeds one, and what is left behind says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest import CaptureFixture

import fl_shuffle as fs
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon, gaussian_mu
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.federation import RunParts
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.report.record import read_run
from fl_shuffle.runs.directory import RunPlace
from fl_shuffle.runs.run import Run, open_run
from tests.crashes import Crashing, Refused, resume
from tests.small_federation import Play, model_bytes, notes, page, summary

TOTALS = ("budgets.of=run", "budgets.distribution=groups", "budgets.expected_share=1.0",
          "privacy.release=sum", "privacy.personalization=clipping")  # fmt: skip


@pytest.fixture
def sums_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed of shuffled reports, which takes a second for each new attendance."""
    monkeypatch.setattr(ShuffledView, "_credited", lambda self: {})
    monkeypatch.setenv("FL_SHUFFLE_CACHE", os.environ["FL_SHUFFLE_CACHE"] + "-sums")


@contextmanager
def opened(folder: Path, totals: list[float], rounds: int, **more: Any) -> Iterator[Run]:
    """A run of clients with these totals, open; the test says who is present."""
    tables: dict[str, Any] = {
        "run": {"entropy": "system", "rounds": rounds},
        "data": {"clients": len(totals)},
        "privacy": {"unit": "client", "release": "sum", "personalization": "clipping"},
        "budgets": {"of": "run", "distribution": "listed", "epsilons": totals},
    }
    for section, table in more.items():
        tables[section] = {**tables.get(section, {}), **table}
    parts = RunParts.made_of(parse_config(tables))
    facts, accountant = parts.facts(10, ()), parts.accountant(10)
    with open_run(facts, RunPlace(folder), accountant, lambda event: None) as run:
        yield run


def played(run: Run, arrive: Any) -> tuple[int, NDArray[np.float64]]:
    """Rounds until the run stops or ends, where `arrive(round, asked)` of those asked arrive; how
    many there were, and what each client has spent."""
    clients, rounds = len(run.facts.budgets), run.config.run.rounds
    for number in range(1, rounds + 1):
        allowed = run.reserve(number, np.ones(clients, dtype=bool))
        if allowed is None or run.commit(number, allowed & arrive(number, allowed)) is None:
            return number - 1, run.accountant.client_totals().headline
    return rounds, run.accountant.client_totals().headline


@pytest.mark.usefixtures("sums_alone")
@pytest.mark.parametrize("seed", range(4))
def test_random_absences_take_nobody_above_its_total(seed: int, tmp_path: Path) -> None:
    """Of clients that are absent at random, each as often as it likes, or as the network does."""
    rng = np.random.default_rng(seed)
    clients, rounds = int(rng.integers(20, 200)), int(rng.integers(2, 16))
    totals = rng.uniform(0.1, 8.0, clients)
    often = rng.uniform(0.3, 1.0, clients) if seed % 2 else np.full(clients, rng.uniform(0.6, 1.0))
    honest = {} if seed % 3 else {"privacy": {"assumed_honest": 0.7}}
    share = float(rng.uniform(0.5, 1.0))
    budgets = {"budgets": {"expected_share": share}}
    with opened(tmp_path / "run", totals.tolist(), rounds, **honest, **budgets) as run:
        number, spent = played(run, lambda _, asked: rng.random(len(asked)) < often)
    assert (spent <= totals).all() and number >= 1 and spent.max() > 0.0
    record = LedgerRecord(tmp_path / "run")
    account = SumAccount.start(
        record.classes, record.class_of, schedule="aggregate", dimension=10,
        assumed_honest=record.config["privacy"].get("assumed_honest"),
    )  # fmt: skip
    for _, present, _ in record.attempts:
        account = account.after(present)
    assert account.epsilons(1e-5).tolist() == spent.tolist()


@pytest.mark.usefixtures("sums_alone")
def test_planned_absences_cost_no_round(tmp_path: Path) -> None:
    """One client in twenty is absent, in turn. Planned for all, the last round is not played;
    planned for 93 of 100, all are, and each client ends near its total."""
    totals = [0.5, 1.0, 2.0, 4.0] * 25

    def arrive(number: int, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return (np.arange(100) + 5 * number) % 100 >= 5

    ended = {}
    for share in (1.0, 0.93):
        folder = tmp_path / str(share)
        with opened(folder, totals, 10, budgets={"expected_share": share}) as run:
            ended[share], spent = played(run, arrive)
            assert (spent <= totals).all()
    assert ended[1.0] < 10 and ended[0.93] == 10
    ratio = spent / totals
    # 95 arrive where 93 are planned for, and half of the clients miss a round of ten.
    assert ratio.min() > 0.92 and ratio.max() == pytest.approx((93 / 95) ** 0.5, abs=0.02)


@pytest.mark.usefixtures("sums_alone")
def test_who_would_exceed_is_left_out_before_the_round(tmp_path: Path) -> None:
    """Drawn for every round, where a fifth of the clients is drawn: the others' rounds go on."""
    drawn = {"training": {"participation": 0.2}, "budgets": {"expected_share": 0.2}}
    with opened(tmp_path / "run", [1.0] * 40, 40, **drawn) as run:
        for number in range(1, 41):
            asked = (np.arange(40) + 7 * number) % 39 < 7
            asked[0], asked[39] = True, False
            allowed = run.reserve(number, asked)
            assert allowed is not None and (allowed[1:] == asked[1:]).all()
            assert run.commit(number, allowed) is not None
        spent = run.accountant.client_totals()
    assert (spent.headline <= 1.0).all() and spent.headline[0] > 0.95
    assert 10 < spent.rounds[0] < 40
    left = notes(tmp_path / "run", "lifetime")
    assert len(left) == 40 - spent.rounds[0]
    assert set(left) == {
        "1 client is left out, because it could exceed its total of the run with this round"
    }


@pytest.mark.usefixtures("sums_alone")
def test_a_round_is_planned_without_whom_absences_would_cost_it(tmp_path: Path) -> None:
    """Of 40 clients 36 arrive twice, and then 32, as planned. With all 40 client 0 could take part
    once more, with 32 it could not: it is left out, and the batch is not thrown away."""
    with opened(tmp_path / "run", [1.0] * 40, 3, budgets={"expected_share": 0.8}) as run:
        assert run._lifetime is not None
        # Planned are 3 / 32 of squared parameters; 2 / 36 + 1 / 40 < 0.084 < 2 / 36 + 1 / 32.
        planned = gaussian_mu(1.0, 1e-5)
        run._lifetime[0] = gaussian_epsilon(1e-5, planned * (0.084 / (3 / 32)) ** 0.5)
        for number, arriving in ((1, 36), (2, 36), (3, 32)):
            allowed = run.reserve(number, np.ones(40, dtype=bool))
            assert allowed is not None and allowed.all() == (number < 3)
            present = np.flatnonzero(allowed)[: arriving - (number == 3)]
            assert run.commit(number, np.isin(np.arange(40), present)) is not None
        assert run.accountant.client_totals().rounds.tolist()[:2] == [2, 3]


@pytest.mark.usefixtures("sums_alone")
def test_a_run_spends_its_totals_and_everything_accepts_it(
    play: Play, capsys: CaptureFixture[str]
) -> None:
    run = play("run", *TOTALS)
    record, result = read_run(run), fs.Result(run)
    ratio = record.totals.headline / record.total_epsilon
    assert record.agrees and not record.differing.size
    assert ratio.min() >= 0.999 and ratio.max() <= 1.0
    assert summary(run)["left_out"] is None
    table = result.ledger.to_dict()
    assert np.array_equal(table["total_epsilon"], record.total_epsilon)
    assert (table["epsilon0"] > table["total_epsilon"]).all()
    capsys.readouterr()
    assert main(["ledger", str(run), "--client", "3"]) == 0
    asked = f"total of the run: epsilon {record.total_epsilon[3]:g}, hence (epsilon, delta) ="
    assert asked in capsys.readouterr().out
    shown = page(run)
    assert "total of the run" in shown and "epsilon of a report" in shown
    assert main(["certify", str(run)]) == 0
    ledger = ["--ledger", str(run / "ledger.sqlite")]
    assert main(["verify", str(run / "certificate.json"), *ledger]) == 0
    assert "accepted" in capsys.readouterr().out


@pytest.mark.usefixtures("sums_alone")
def test_a_crashed_run_goes_on_with_its_plan(crash: Crashing, play: Play, refused: Refused) -> None:
    whole = play("whole", *TOTALS)
    run = crash(1, *TOTALS)
    assert "calibrated for totals over 3 rounds" in refused(run, "--set", "run.rounds=4")
    assert resume(run) == 0
    assert model_bytes(run) == model_bytes(whole)
    assert read_run(run).totals.headline.tolist() == read_run(whole).totals.headline.tolist()


@pytest.mark.usefixtures("sums_alone")
def test_a_lifetime_budget_below_the_total_stops_first(
    play: Play, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    """The screen and the page say how many clients are left out, and since when."""
    path = tmp_path / "b.csv"
    lines = [f"{k},2.0,{'1.2' if k < 3 else 'inf'}\n" for k in range(12)]
    path.write_text("client_id,total_epsilon,lifetime_epsilon\n" + "".join(lines))
    settings = [each for each in TOTALS if "groups" not in each]
    run = play("run", *settings, "run.rounds=6", "budgets.expected_share=0.6",
               options=("--budgets", str(path)), quiet=False)  # fmt: skip
    spent = read_run(run).totals
    assert (spent.sum[:3] <= 1.2).all() and (spent.rounds[:3] < 6).all()
    assert (spent.sum[3:] <= 2.0).all() and (spent.rounds[3:] == 6).all()
    since = 1 + int(spent.rounds[:3].max())
    said = "3 clients are left out, because they could exceed their total of the run or lifetime"
    assert all(said in text for text in notes(run, "lifetime"))
    words = f"clients were left out since round {since}"
    assert words in summary(run)["left_out"] and words in capsys.readouterr().out
    assert words in page(run)


@pytest.mark.usefixtures("sums_alone")
def test_shuffled_reports_of_many_totals_are_counted_when_asked_for(
    play: Play, tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve kinds of reports, of which only sums leave: every output says so in one way, and
    `--recompute` computes what nobody had asked for."""
    path = tmp_path / "b.csv"
    lines = [f"{k},{1.0 + 0.1 * k}\n" for k in range(12)]
    path.write_text("client_id,total_epsilon\n" + "".join(lines))
    settings = [each for each in TOTALS if "groups" not in each]
    with monkeypatch.context() as patched:
        patched.setattr(ShuffledView, "round_types", None)
        run = play("run", *settings, "run.rounds=2", options=("--budgets", str(path)), quiet=False)
        record = read_run(run)
        assert record.agrees and not record.differing.size
        shown = page(run)
    said = "not computed: the run releases sums alone, and each of 12 kinds of reports"
    assert said in capsys.readouterr().out and said in shown
    assert summary(run)["columns"]["shuffled"]["epsilon"] is None
    assert summary(run)["columns"]["shuffled"]["note"].startswith(said)
    assert summary(run)["headline"] == "sum" and not record.every_column
    assert np.isnan(fs.Result(run).ledger.to_dict()["shuffled_epsilon"]).all()
    assert main(["ledger", str(run), "--recompute", "--clients", "--format", "csv"]) == 0
    told = capsys.readouterr()
    assert "the ledger says the same" in told.err and "nan" not in told.out
    record = read_run(run)
    record.every_column = True
    # With `sums_alone` nobody is hidden.
    assert (record.totals.shuffled == record.totals.local).all()
