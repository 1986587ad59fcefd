"""Whole runs: what they leave behind, what they refuse, what they cost by what is released."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch, approx

import fl_shuffle as fs
from fl_shuffle.accounting.accountant import Preview
from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_epsilon
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.cli import main
from fl_shuffle.errors import PrivacyBudgetError
from fl_shuffle.ledger.reader import LedgerRecord
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.report.record import read_run
from tests.crashes import opened, released
from tests.federation.small_tasks import configured, task_of
from tests.small_federation import Launch, Play, model_bytes, rows, stored, summary

SUM = "privacy.release=sum"
WEIGHTS = "server.weights=inverse-variance"


def test_a_run_directory_holds_everything(play: Play, capsys: CaptureFixture[str]) -> None:
    run = play("run", quiet=False)
    assert {"config.json", "ledger.sqlite", "metrics.csv", "model.safetensors", "run.log",
            "summary.json"} <= {path.name for path in run.iterdir()}  # fmt: skip
    assert [row["round"] for row in rows(run)] == ["1", "2", "3"]
    proven = [float(row["shuffled_epsilon"]) for row in rows(run)]
    assert proven == sorted(proven) and proven[0] > 0
    final, known = summary(run), LedgerRecord(run)
    assert final["shuffled_epsilon"] == approx(proven[-1])
    assert known.rounds.tolist() == [1, 2, 3] and len(known.attempts) == 3
    assert known.recorded_spend is not None and known.recorded_spend[:, 0].tolist() == [3.0] * 12
    assert known.recorded_spend[:, 1].max() == approx(proven[-1])
    assert {"seed", "run", "data", "relation", "libraries", "code_version"} <= set(known.meta)
    shown = capsys.readouterr().out
    assert "proven" in shown and "as published" in shown and str(run) in shown
    # What the numbers take for granted is counted on screen, and said in summary and ledger.
    assumed = [text for _, kind, text in known.notes if kind == "assumption"]
    assert final["assumptions"] == assumed and f"{len(assumed)} assumptions" in shown
    assert "readings and no guarantee" in assumed[0] and "seeded" in assumed[1]


@pytest.mark.parametrize(("every", "measured"), [(1, "123"), (2, "23"), (3, "3"), (7, "3")])
def test_a_model_is_measured_every_so_many_rounds_and_at_the_end(
    every: int, measured: str, play: Play
) -> None:
    run = play("run", f"run.evaluate_every={every}")
    assert "".join(row["round"] for row in rows(run) if row["accuracy"]) == measured
    assert summary(run)["accuracy"] == approx(float(rows(run)[-1]["accuracy"]))


ODD_MODELS = """
import torch
def integers(shape, classes):
    model = torch.nn.Linear(shape[0], 10)
    model.extra = torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
    return model
def text(shape, classes): return "model"
"""


def test_nothing_is_left_behind_by_a_refused_run(
    launch: Launch, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    """What is wrong with a setting, or with a user's model, is one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_model.py").write_text(ODD_MODELS)
    for setting in (
        "run.rounds=0", "data.clients=5000", "budgets.epsilon=nan", "data.source=mnis",
        "model.kind=mlp", "data.features=pcaa", "model.kind=odd_model:integers",
        "model.kind=odd_model:text",
    ):  # fmt: skip
        assert launch("refused", setting) == 2
        assert not (tmp_path / "refused").exists()
        errors = capsys.readouterr().err.strip().splitlines()
        assert len(errors) == 1 and errors[0].startswith("fl-shuffle: error:")


def test_a_round_has_its_worst_client_and_every_client_its_own_bill(
    play: Play, tmp_path: Path
) -> None:
    """Every client has a budget of its own: what is written down, and for whom."""
    drawn = np.random.default_rng(4).uniform(1.0, 9.0, 300).tolist()
    path = tmp_path / "b.csv"
    lines = [f"{client},{epsilon},1e-5\n" for client, epsilon in enumerate(drawn)]
    path.write_text("client_id,epsilon,delta\n" + "".join(lines))
    settings = ("data.clients=300", "training.participation=0.6")
    run = play("run", *settings, options=("--budgets", str(path)))
    read = LedgerRecord(run)
    presence = [present for _, present, _ in read.attempts]
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
    assert stored(run, "SELECT local FROM rounds WHERE round = 3") == [(approx(max(expected)),)]


def test_a_batch_that_would_break_a_lifetime_budget_is_thrown_away(tmp_path: Path) -> None:
    everybody, few = np.ones(3000, dtype=bool), np.arange(3000) < 5
    with opened(tmp_path / "free", 3000) as run:
        whole = run.accountant.preview(1, everybody).client_epsilons()[0]
        assert whole < 0.5 * run.accountant.preview(1, few).client_epsilons()[0]
    with opened(tmp_path / "run", 3000, client_epsilon=1.01 * whole) as run:
        allowed = run.reserve(1, everybody)
        assert allowed is not None and allowed.all()
        assert run.commit(1, few) is None
        assert not released(tmp_path / "run")
        assert run.commit(1, everybody) is not None


def test_a_batch_beyond_the_target_is_thrown_away(tmp_path: Path) -> None:
    """With everybody the round is within the target; with the few that arrived it is not."""
    everybody, few = np.ones(10, dtype=bool), np.arange(10) < 5
    with opened(tmp_path / "free", 10, release="sum") as run:
        whole = run.accountant.preview(1, everybody).spend.headline
    with opened(tmp_path / "run", 10, release="sum", target_epsilon=1.01 * whole) as run:
        assert run.reserve(1, everybody) is not None
        assert run.commit(1, few) is None and not released(tmp_path / "run")
        assert run.commit(1, everybody) is not None


def test_who_leaves_hides_nobody_and_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose lifetime is spent stays away. The others hide one another less without it, and
    of them more must leave."""
    limits = np.linspace(2.0, 4.0, 400)

    def epsilons(present: np.ndarray) -> np.ndarray:
        """Those of an accountant: the fewer clients are present, the more each of them spends."""
        return np.where(present, 2.5 * (400 / max(1, int(present.sum()))) ** 0.1, 0.0)

    with opened(tmp_path / "run", 400, client_epsilon=1e9) as run:
        run._lifetime = limits
        monkeypatch.setattr(Preview, "client_epsilons", lambda each: epsilons(each.present))
        everybody = np.ones(400, dtype=bool)
        allowed = run._within_lifetime(1, everybody).present
        assert everybody.all() and 200 < allowed.sum() < (limits >= 2.5).sum()
        assert (epsilons(allowed)[allowed] <= limits[allowed]).all()


def test_fewer_reports_than_honest_ones_are_not_released(tmp_path: Path) -> None:
    """A count says that so many honest reports arrive: a round that disproves it is thrown away."""
    everybody = np.ones(10, dtype=bool)
    with opened(tmp_path / "run", 10, release="sum", assumed_honest=8) as run:
        assert run.reserve(1, everybody) is not None
        assert run.commit(1, np.arange(10) < 8) is not None
        run.reserve(2, everybody)
        with pytest.raises(PrivacyBudgetError, match="below privacy.assumed_honest = 8"):
            run.commit(2, np.arange(10) < 7)
    assert released(tmp_path / "run") == [(1, 1, 8)]


def test_every_output_gives_the_same_sum(play: Play, capsys: CaptureFixture[str]) -> None:
    """What is released does not change where only sums leave: only what is claimed first does."""
    settings = (WEIGHTS, "training.participation=0.7", "privacy.assumed_honest=0.5")
    plain = play("reports", *settings)
    capsys.readouterr()
    run = play("sum", SUM, *settings, quiet=False)
    shown = capsys.readouterr().out
    assert model_bytes(run) == model_bytes(plain)
    final, before = summary(run), summary(plain)
    for name in ("shuffled_epsilon", "sum_epsilon", "epsilon_quantiles", "columns", "accuracy"):
        assert final[name] == before[name], name
    assert (before["headline"], before["epsilon"]) == ("shuffled", before["shuffled_epsilon"])
    assert (final["headline"], final["epsilon"]) == ("sum", final["sum_epsilon"])
    headline = final["epsilon"]
    assert 0.0 < headline < 0.9 * final["shuffled_epsilon"]
    # Metrics, the Python face and the screen; the page, tables and views have tests of their own.
    last = rows(run)[-1]
    assert float(last["sum_epsilon"]) == approx(headline, rel=1e-9)
    assert 0.9 * headline < float(last["sum_lower_epsilon"]) <= headline
    record, result = read_run(run), fs.Result(run)
    assert record.agrees and not record.differing.size and record.worst is not None
    assert record.worst.epsilon == headline == result.epsilon == result.sum_epsilon
    assert record.worst.profile([headline])[0] <= 1.001e-5
    bill = result.ledger.client(record.worst.client)
    assert (
        bill.epsilon == bill.sum_epsilon == headline < bill.shuffled_epsilon <= bill.local_epsilon
    )
    first, _ = [line for line in shown.splitlines() if line.startswith("epsilon ")]
    assert first.split()[:2] == ["epsilon", f"{headline:.4g}"]
    assert "proven" in first and "sums" in first
    removed = add_remove_epsilon(headline, 1e-5)
    assert final["sum_epsilon_add_remove"] == removed == result.sum_epsilon_add_remove < headline
    (other,) = [line for line in shown.splitlines() if line.startswith("  add-remove ")]
    assert other.split()[1] == f"{removed:.4g}" and ADD_REMOVE_WORDS in other
    assert main(["ledger", str(run), "--client", str(record.worst.client)]) == 0
    assert f"{removed:.4g} is {ADD_REMOVE_WORDS}" in capsys.readouterr().out
    for words in ("at least 0.5 of all clients", "only sums of at least 2 reports leave"):
        assert words in str(final["assumptions"])


def test_the_sum_of_a_run_is_the_formula(play: Play) -> None:
    """mu_i^2 = T (w_i Delta_i)^2 / sum of w_j^2 sigma_j^2, from the classes the ledger holds."""
    record = read_run(play("run", SUM, WEIGHTS))
    own = [record.classes[index] for index in record.class_of]
    variance = math.fsum(kind.scale**2 for kind in own)
    for client, kind in enumerate(own):
        exact = gaussian_epsilon(1e-5, math.sqrt(3.0) * kind.sensitivity / math.sqrt(variance))
        assert exact * (1.0 - 1e-9) <= record.totals.sum[client] <= exact * (1.0 + 1e-6)


def test_lifetimes_follow_what_is_released(play: Play, tmp_path: Path) -> None:
    """A client whose next report would take its own sum above its limit stays away."""
    path = tmp_path / "b.csv"
    lines = [f"{i},{1 + i / 4},1e-5,{'1.0' if i < 9 else 'inf'}\n" for i in range(12)]
    path.write_text("client_id,epsilon,delta,lifetime_epsilon\n" + "".join(lines))
    run = play("run", SUM, WEIGHTS, "run.rounds=6", options=("--budgets", str(path)))
    spent = read_run(run).totals
    assert (spent.sum[:9] <= 1.0).all() and (spent.rounds[9:] == 6).all()
    assert spent.shuffled[:9].max() > 1.0
    # Weights expose clients differently, so that they leave one after the other.
    assert 0 < spent.rounds[:9].min() < spent.rounds[:9].max()


@pytest.mark.parametrize("release", ["reports", "sum"])
def test_no_round_goes_beyond_the_target_by_any_digit(release: str, play: Play) -> None:
    column = {"reports": "shuffled", "sum": "sum"}[release]
    settings = (f"privacy.release={release}", "run.rounds=4", "privacy.randomizer=gaussian")
    third = LedgerRecord(play("free", *settings)).epsilons[column][2]
    for name, share, rounds in (("below", 1.0 - 1e-9, 2), ("above", 1.0 + 1e-9, 3)):
        target = float(third * share)
        run = play(name, *settings, f"privacy.target_epsilon={target!r}")
        kept = LedgerRecord(run).epsilons[column]
        assert summary(run)["rounds"] == len(kept) == rounds
        assert (kept <= target).all()


LAPLACE = ("privacy.randomizer=laplace", "budgets.distribution=constant", "budgets.epsilon=1.0")


def test_runs_with_laplace_reports_publish_their_renyi_epsilon(
    play: Play, capsys: CaptureFixture[str]
) -> None:
    """One number, that of `fs.bound`, in every place, with its status."""
    run = play("run", *LAPLACE, quiet=False)
    screen = capsys.readouterr()
    query = {"epsilon0": 1.0, "clients": 12, "delta": 1e-5}
    wanted = [fs.bound(method="rdp", rounds=rounds, **query).epsilon for rounds in (1, 2, 3)]
    result, final = fs.Result(run), summary(run)
    assert [value for (value,) in stored(run, "SELECT rdp FROM rounds")] == approx(wanted, rel=1e-6)
    assert [float(row["rdp_epsilon"]) for row in rows(run)] == approx(wanted, rel=1e-6)
    assert result.metrics["rdp_epsilon"].tolist() == approx(wanted, rel=1e-6)
    column = final["columns"]["rdp"]
    assert column["epsilon"] == approx(wanted[2], rel=1e-6) and column["status"] == "proven"
    assert final["headline"] == "shuffled"
    assert f"  RDP         {wanted[2]:<8.4g} proven, by Renyi divergences" in screen.out
    (heads,) = [line for line in screen.err.splitlines() if line.split()[:1] == ["round"]]
    (last,) = [line for line in screen.err.splitlines() if line.split()[:1] == ["3/3"]]
    assert len(heads) <= 80
    assert dict(zip(heads.split(), last.split(), strict=True))["RDP"] == f"{wanted[2]:.4g}"
    assert main(["ledger", str(run), "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    assert [float(line["rdp_epsilon"]) for line in table] == approx(wanted, rel=1e-6)


def test_runs_with_gaussian_reports_have_no_renyi_epsilon(
    play: Play, capsys: CaptureFixture[str]
) -> None:
    run = play("run", quiet=False)
    screen = capsys.readouterr()
    assert "RDP" not in screen.out + screen.err
    column = summary(run)["columns"]["rdp"]
    assert column["epsilon"] is None and "pure local budget" in column["note"]
    assert [row["rdp_epsilon"] for row in rows(run)] == [""] * 3


ANALYZERS = "import torch\ndef median(reports): return reports.median(dim=0).values\n"


def test_where_there_is_no_sum_the_column_says_why(
    play: Play, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_analyzers.py").write_text(ANALYZERS)
    for setting, words in (
        ("server.analyzer=own_analyzers:median", "an analyzer gets single reports"),
        ("training.schedule=sequential", "alone"),
    ):
        run = play(words, setting, "run.rounds=1")
        final = summary(run)
        column = final["columns"]["sum"]
        assert column["epsilon"] is final["sum_epsilon"] is None and words in column["note"]
        assert final["headline"] == "shuffled"
        assert "only sums of" not in json.dumps(final["assumptions"])
        assert rows(run)[0]["sum_epsilon"] == "" and np.isnan(read_run(run).totals.sum).all()


OWN_NOISE = """
def laplace(mean, epsilon0, delta0, generator):
    return mean + generator.laplace(0.0, 2.0 / epsilon0, mean.shape)
"""


def test_sums_of_which_nothing_is_proven_are_accounted_as_reports(
    play: Play, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    """Of a user's own noise: on screen, in the summary and in Python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_noise.py").write_text(OWN_NOISE)
    own = "privacy.randomizer=own_noise:laplace"
    run = play("own", SUM, own, "run.rounds=1", quiet=False)
    final, result = summary(run), fs.Result(run)
    assert final["columns"]["sum"]["epsilon"] is None
    assert final["headline"] == result.headline == "shuffled"
    assert final["epsilon"] == final["shuffled_epsilon"] == result.epsilon > 0.0
    assert math.isnan(result.sum_epsilon) and result.ledger.client(0).epsilon > 0.0
    assert not read_run(run).differing.size  # what says nothing is counted again as nothing
    assert f"epsilon       {final['epsilon']:<8.4g} " in capsys.readouterr().out


def test_two_rounds_of_three_reports_cost_what_six_of_one_do(play: Play, tmp_path: Path) -> None:
    """The mean's noise falls, and each report is paid for, whoever adds up."""
    wanted = rows(play("six", "run.rounds=6"))[-1]
    for setting in ("run.noise=per-report", "server.analyzer=coordinate-median",
                    "run.noise=per-sum"):  # fmt: skip
        found = rows(play(setting, "run.rounds=2", "privacy.reports_per_round=3", setting))[-1]
        for price in ("gspa", "shuffled", "sum", "local", "shuffled_lower"):
            paid, due = found[f"{price}_epsilon"], wanted[f"{price}_epsilon"]
            if paid or "median" not in setting:
                assert float(paid) == approx(float(due), rel=1e-9), price
    # What the accountant says again from the ledger is what was written.
    record = read_run(tmp_path / "run.noise=per-report")
    assert record.totals.headline.max() == approx(float(wanted["shuffled_epsilon"]))
    assert record.totals.rounds.tolist() == [2] * 12


def test_pooled_noise_is_that_of_all_reports_of_a_round() -> None:
    """The sum of 12 clients' 5 reports each: five means, and the variance of 60 noises."""
    plan = task_of(configured()).plan
    noise = AggregateNoise("gaussian", plan.scale, plan.step, 5)
    present, total = np.ones(len(plan), dtype=bool), np.full(200_000, 3.0)
    found = noise.add_to(total, present, np.random.default_rng(1))
    assert float(found.mean()) == approx(15.0, abs=0.05 * float(plan.scale.max()) * 8)
    assert float(found.var()) == approx(5.0 * float(np.sum(np.square(plan.scale))), rel=0.02)


def test_reports_that_are_missing_are_counted_in_a_note(tmp_path: Path) -> None:
    """Of the clients that were asked; nothing is noted of a round that all of them answer."""
    everybody = np.ones(12, dtype=bool)
    with opened(tmp_path / "run", 12) as run:
        for number, (asked, present) in enumerate(
            [(everybody, np.arange(12) > 2), (everybody, everybody), (np.arange(12) < 9,) * 2], 1
        ):
            run.reserve(number, asked)
            run.commit(number, present)
    found = [note for note in LedgerRecord(tmp_path / "run").notes if note[1] == "dropped"]
    assert found == [(1, "dropped", "3 clients sent no usable report")]
