"""Audits leave the product alone, and see what is wrong in a run, a command or pooled noise.

`tests/mutants.toml` holds the faults that the product's own reports must not have. Power and false
alarms, with the plays made here (small, so that the suite stays quick):

* The checks of order and noise are made at level 0.05 x 0.01 / 4 = 1.25e-4 each, 64 rounds of 16
  clients for the order and 8 for the noise. That is each one's false-alarm rate. The faults of
  order and noise are there in every round: their p-values are below 1e-9 for every seed, which
  leaves nothing to luck.
* Noise x 0.8 and clip x 1.3 move the local game by factors 1.25 and 1.3; at 200,000 reports less
  than 1.2 would have shown. False alarms of all lower bounds together: 5%.
* What is published is compared without chance: no false alarm, and every difference but of times
  is seen.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fl_shuffle.auditing.canaries
import fl_shuffle.auditing.published
from fl_shuffle.auditing.audit import NO_REPORTS, audit_configuration
from fl_shuffle.auditing.canaries import Canaries, check_clipping, most_exposed
from fl_shuffle.auditing.checks import ONE_LAW, TWO_REPORTS, noise_checks, order_check, play_orders
from fl_shuffle.auditing.effort import AuditSettings, Clock
from fl_shuffle.auditing.games import ABSENT_SUMS, DISCRETE_LAW, OWN_LAW, SUMS
from fl_shuffle.auditing.published import (
    AS_THEY_ARE,
    NEIGHBOURS,
    Neighbour,
    TwinData,
    _stand_in,
    audit_published,
    compare,
    fields_of,
    without_times,
)
from fl_shuffle.cli import main
from fl_shuffle.configuration.sections import Config
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.federation.launch import simulate
from fl_shuffle.randomizers.aggregate_noise import AggregateNoise
from fl_shuffle.runs.resume import STATE_VARIABLE, state_folder
from tests.auditing.test_games import QUICK, config, played

CLIENTS = 16
SEEDS = range(3)
LEVEL = 1.25e-4
pytestmark = pytest.mark.usefixtures("coarse_pairs")


def settings_of(unit: str = "client", noise: str = "gaussian") -> Config:
    return config(
        CLIENTS, data={"records_per_client": 5}, privacy={"unit": unit, "randomizer": noise},
        budgets={"delta": 1e-5 if noise == "gaussian" else 0.0},
    )  # fmt: skip


def weighted(noise: str, randomizer: str = "gaussian") -> Config:
    return config(
        30, run={"rounds": 5, "noise": noise}, data={"source": "digits"},
        privacy={"randomizer": randomizer, "clip_norm": 0.5},
        budgets={"distribution": "uniform", "low": 1.0, "high": 6.0},
        server={"weights": "inverse-variance"},
    )  # fmt: skip


@pytest.mark.parametrize("schedule", ["aggregate", "sequential"])
def test_a_random_order_is_left_alone(schedule: str) -> None:
    for seed in SEEDS:
        seen = play_orders(CLIENTS, schedule, seed)
        for target in (3, CLIENTS - 1):
            found = order_check(seen, target, LEVEL, np.random.default_rng(seed))
            assert not found.refuted, found


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_fresh_noise_is_left_alone(noise: str) -> None:
    for seed in SEEDS:
        canaries = Canaries(settings_of(noise=noise), dimension=20, seed=seed)
        found = noise_checks(canaries, LEVEL)
        assert len(found) == 5
        assert not any(check.refuted for check in found), found


@pytest.mark.parametrize("unit", ["client", "record"])
def test_single_reports_keep_their_claims(unit: str) -> None:
    """One report, its sender known: what the accountant claims of it, and reports of the client's
    code."""
    how = AuditSettings(trials=8, reports=200_000)
    found = played(settings_of(unit), dimension=4, how=how).findings[0]
    assert not found.breaks_proven
    # Noise 20% too small would have shown, and a clip 30% too wide.
    assert found.noise_factor < 1.2


def test_the_runs_own_clip_is_looked_at() -> None:
    digits = {"source": "digits", "records_per_client": 0}
    settings = config(12, data=digits, privacy={"unit": "record", "clip_norm": 0.1})
    found = check_clipping(settings)
    assert 0.9 < found.sensitivity_share <= 1.001
    assert found.holds


@pytest.mark.parametrize("other", [1, 2, 4, 5])
def test_each_hostile_change_of_a_record_is_looked_at(
    other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turned around or relabelled, as it is or large: a mean that moves three times as far as it
    may for one of them alone shows, although none is longer than it may be."""
    digits = {"source": "digits", "records_per_client": 0}
    settings = config(12, data=digits, privacy={"unit": "record", "clip_norm": 0.1})
    plan = load_task(settings).plan
    target = most_exposed(plan, "record")
    far = 1.5 * float(plan.sensitivity[target])
    assert far < plan.radius[target]

    def clip(parameters: torch.Tensor, clients: np.ndarray, _round: int) -> torch.Tensor:
        means = torch.zeros(1, len(parameters))
        means[0, 0] = -far if clients[0] == other else far
        return means

    hostile = SimpleNamespace(clipper=clip)
    monkeypatch.setattr(fl_shuffle.auditing.canaries, "Federation", lambda *_: hostile)
    found = check_clipping(settings)
    assert found.radius_share < 1.0 and found.sensitivity_share == pytest.approx(3.0, rel=1e-6)
    assert not found.holds


@pytest.mark.parametrize("neighbour", [AS_THEY_ARE, *NEIGHBOURS], ids=lambda each: each.name)
def test_data_beside_differ_in_one_record_as_named(neighbour: Neighbour) -> None:
    """A change that is not made finds nothing."""
    twin = TwinData(config(8, data={"source": "digits", "records_per_client": 5}).data)
    own, other = twin.beside(AS_THEY_ARE), twin.beside(neighbour)
    classes = other.classes
    moved = (own.train_images != other.train_images).any(axis=1)
    named = own.train_labels != other.train_labels
    at = np.flatnonzero(moved | named)
    assert len(at) == (neighbour is not AS_THEY_ARE)
    if not len(at):
        return
    label, vector = int(other.train_labels[at[0]]), other.train_images[at[0]]
    assert named[at[0]] == (neighbour.label is not None)
    wanted = {0: range(classes), 1: [classes], 1000: [classes + 999], -1: [-1]}
    if neighbour.label is not None:
        assert label in wanted[neighbour.label]
    assert moved[at[0]] == (neighbour.label in (None, 0))
    if neighbour.feature is not None:
        np.testing.assert_array_equal(vector, np.full_like(vector, neighbour.feature))
    if neighbour.largest:
        assert (vector == own.train_images.max()).all()


@pytest.mark.parametrize("noise", ["per-report", "per-sum"])
def test_nothing_else_is_published(noise: str) -> None:
    """Beside the reports, or the sums that pooled noise hides."""
    run = {"rounds": 2, "noise": noise}
    settings = config(8, run=run, data={"records_per_client": 5}, privacy={"unit": "record"})
    found = audit_published(settings, Clock(600.0))
    assert found.neighbours == tuple(neighbour.name for neighbour in NEIGHBOURS)
    assert found.fields > 200 and found.messages >= settings.run.rounds
    assert found.differences == ()


def test_audit_leaves_the_users_state_and_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    seen: list[tuple[dict[str, str], Path]] = []

    def watched(*given: Any) -> None:
        seen.append((dict(os.environ), state_folder()))
        simulate(*given)

    monkeypatch.setattr(fl_shuffle.auditing.published, "simulate", watched)
    before = dict(os.environ)
    audit_published(config(8, run={"rounds": 1}, data={"records_per_client": 5}), Clock(0.0))
    assert len(seen) == 2 and not (tmp_path / "state").exists()
    for environment, folder in seen:
        assert environment == before and folder != tmp_path / "state"
    assert state_folder() == tmp_path / "state"


def test_an_audits_stand_ins_tell_who_sent_nothing_and_no_more() -> None:
    """Noise is taken out of what is compared; a report that is missing stays missing."""
    reports = np.array([[1.0, 2.0], [np.nan, 3.0], [np.inf, 0.0], [0.0, 4.0]], dtype=np.float32)
    found, other = (_stand_in(each, False, 5) for each in (reports, 7.0 * reports))
    assert np.isnan(found).tolist() == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert found.dtype == np.float32 and np.array_equal(found, other, equal_nan=True)
    assert not np.array_equal(found[[0, 3]], _stand_in(reports, False, 6)[[0, 3]])
    assert np.isfinite(_stand_in(np.ones(3), True, 5)).all()
    assert np.isnan(_stand_in(np.array([1.0, np.nan, 1.0]), True, 5)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "privacy",
    [
        {"randomizer": "discrete-gaussian"},
        {"randomizer": "discrete-laplace"},
        {"shuffler": "separate"},
    ],
)
def test_audit_runs_what_needs_system_entropy(privacy: dict[str, str]) -> None:
    """An audit compares seeded runs, which these configurations refuse to a user."""
    budgets = {"delta": 0.0 if privacy.get("randomizer") == "discrete-laplace" else 1e-5}
    run, data = {"rounds": 1, "entropy": "system"}, {"records_per_client": 5}
    settings = config(8, run=run, data=data, privacy=privacy, budgets=budgets)
    found = audit_published(settings, Clock(0.0))
    assert found.differences == () and len(found.neighbours) == 1 and found.fields > 200


@pytest.mark.slow
def test_audit_of_discrete_noise_says_which_games_it_lacks() -> None:
    privacy, run = {"randomizer": "discrete-laplace"}, {"rounds": 1, "entropy": "system"}
    settings = config(
        8, run=run, data={"records_per_client": 5}, privacy=privacy, budgets={"delta": 0.0}
    )
    how = AuditSettings(trials=8, reports=2000, seconds=600.0)
    found = audit_configuration("discrete", settings, how, dimension=4)
    assert DISCRETE_LAW in found.notes and OWN_LAW not in found.notes
    assert not found.breaks_proven and "local" in [one.column for one in found.findings]


@pytest.mark.slow
def test_noise_of_reports_of_few_bits_is_compared_before_they_are_rounded() -> None:
    """Of a few levels any two are often equal, by chance alone: that is no fault."""
    settings = config(30, run={"rounds": 1}, privacy={"unit": "client", "report_bits": 3})
    how = AuditSettings(trials=8, reports=20_000, seconds=600.0)
    found = audit_configuration("few bits", settings, how, dimension=40)
    assert "noise is compared before reports are rounded to few bits" in found.notes
    assert [check.game for check in found.checks if check.refuted] == []
    assert any(check.game == TWO_REPORTS for check in found.checks)
    assert not found.breaks_proven and "shuffled" in [one.column for one in found.findings]


def test_what_is_declared_and_what_there_was_no_time_for_is_noted() -> None:
    """Also of a configuration for a Ray cluster, which nobody joins."""
    run = {"rounds": 1, "engine": "ray", "ray_address": "192.0.2.1:6379", "jobs": 1}
    settings = config(8, run=run, data={"records_per_client": 5, "validation_fraction": 0.1})
    found = audit_published(settings, Clock(0.0))
    assert found.differences == () and len(found.neighbours) == 1
    assert found.notes == (
        "held-out records decide accuracy and loss: that is not covered",
        f"the time was up: {len(NEIGHBOURS) - 1} neighboring data sets were not tried",
    )
    with pytest.raises(FlShuffleError, match="more clients than"):
        audit_published(config(10_000), Clock(600.0))


def test_an_audit_of_weighted_clients_over_rounds() -> None:
    """Clients of many kinds and weights, rounds that the accountant must all count, absent clients,
    noise that occurs again at other coordinates or at a few."""
    how = AuditSettings(trials=400, reports=60_000, seconds=600.0)
    report = audit_configuration("weighted", weighted("per-report"), how, dimension=200)
    assert [found.game for found in report.findings if found.breaks_proven] == []
    assert [check.game for check in report.checks if check.refuted] == []
    games = [found.game for found in report.findings]
    # Six kinds of clients, the least and the most weighted among them.
    assert sum(game.startswith("one report of a client at") for game in games) == 6
    rounds = {found.rounds for found in report.findings if "several rounds" in found.game}
    assert rounds == {1, 5}
    assert any("others absent" in game for game in games)
    assert any("any two places" in check.game for check in report.checks)
    for found in report.findings:
        assert all(point.proven_epsilon is not None for point in found.points)


def test_a_whole_audit_tests_both_columns() -> None:
    settings = config(12, privacy={"assumed_honest": 8, "release": "sum"})
    how = AuditSettings(trials=50, reports=4000)
    report = audit_configuration("test", settings, how, dimension=4)
    assert {finding.column for finding in report.findings} == {"local", "shuffled", "sum"}
    assert not report.breaks_proven
    assert any("no order" in note for note in report.notes)
    assert all("order" not in check.game for check in report.checks)


@pytest.mark.parametrize(
    ("randomizer", "factor"),
    [("gaussian", 1.0), ("laplace", 1.0), ("gaussian", 0.9), ("gaussian", 1e-3)],
)
def test_sums_alone_are_attacked_where_noise_is_pooled(
    randomizer: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And noise of another distribution than that of the reports, `factor` times as large, is
    refuted."""
    monkeypatch.setattr(
        fl_shuffle.auditing.canaries,
        "AggregateNoise",
        lambda noise, scale, step: AggregateNoise(noise, factor * scale, step),
    )
    how = dataclasses.replace(QUICK, trials=200 if factor == 1.0 else 1000)
    report = audit_configuration("per-sum", weighted("per-sum", randomizer), how, dimension=60)
    assert NO_REPORTS in report.notes
    assert [check.game for check in report.checks] == [ONE_LAW]
    assert {finding.game for finding in report.findings} == {SUMS, ABSENT_SUMS}
    assert report.breaks_proven == report.checks[0].refuted == (factor != 1.0)
    if factor < 0.01:
        # The sum itself gives the target away.
        assert any(finding.breaks_proven for finding in report.findings)


OPTIONS = ["--trials", "8", "--reports", "1000", "--seconds", "1"]


def test_the_command_finds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = tmp_path / "run.toml", str(tmp_path / "run")
    path.write_text("[data]\nclients = 12\n[run]\nrounds = 1\n", encoding="utf-8")
    assert main(["simulate", str(path), "--quiet", "--out", run]) == 0
    capsys.readouterr()
    code, report = main(["audit", run, *OPTIONS, "--json"]), json.loads(capsys.readouterr().out)
    assert (code, report["breaks_proven"], report["clients"]) == (0, False, 12), report
    for finding in report["findings"]:
        assert finding["plays"] > 0
        for point in finding["points"]:
            assert 0.0 <= point["epsilon_lower"] <= point["proven_epsilon"]


def test_a_contradicted_claim_is_exit_code_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, quiet = tmp_path / "small.toml", "tests.cli.own_parts:too_quiet"
    privacy = f'[privacy]\nunit = "record"\nrandomizer = "{quiet}"\n[budgets]\ndelta = 0.0\n'
    path.write_text(f"[data]\nclients = 12\n{privacy}", encoding="utf-8")
    assert main(["audit", str(path), *OPTIONS]) == 1
    text = capsys.readouterr().out
    assert "CONTRADICTS THE PROVEN BOUND" in text
    assert "proven bound CONTRADICTED" in text


LATER = '"2027-01-02T03:04:05.999+00:00"'
TABLES = """
CREATE TABLE meta (key TEXT, value TEXT);
CREATE TABLE rounds (round INTEGER, proven REAL, seconds REAL, bits BLOB);
CREATE TABLE checkpoint (only INTEGER, round INTEGER, state BLOB);
INSERT INTO meta VALUES ('started', '"2026-01-02T03:04:05.678+00:00"');
INSERT INTO rounds VALUES (1, 0.25, 0.125, x'0011');
INSERT INTO checkpoint VALUES (0, 1, x'22')
"""
FILES = {
    "summary.json": '{"loss": 1.5, "seconds": 2.0, "list": [1, 2]}',
    "metrics.csv": "round,loss,seconds\n1,0.5,0.01\n",
    "run.log": "2026-01-02 03:04:05,678 INFO started\n",
    "model.safetensors": "\x00\x01",
    "ledger.sqlite": TABLES,
}


def write(folder: Path, name: str, content: str) -> None:
    if not name.endswith(".sqlite"):
        (folder / name).write_text(content)
        return
    with sqlite3.connect(folder / name) as ledger:
        ledger.executescript(content)
    ledger.close()


@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("ledger.sqlite", "UPDATE rounds SET proven = 0.26", "rounds[0]"),
        ("ledger.sqlite", "UPDATE rounds SET bits = x'0012'", "rounds[0]"),
        ("ledger.sqlite", "CREATE TABLE more (a)", "schema"),
        ("ledger.sqlite", "UPDATE checkpoint SET state = x'23'", "checkpoint of round 1"),
        ("ledger.sqlite", "UPDATE rounds SET seconds = 7.5", None),
        ("ledger.sqlite", f"UPDATE meta SET value = '{LATER}' WHERE key = 'started'", None),
        # The clock says after which round a checkpoint is written.
        ("ledger.sqlite", "UPDATE checkpoint SET round = 2", None),
        ("summary.json", '{"loss": 1.6, "seconds": 9.0, "list": [1, 2]}', "line 1"),
        ("metrics.csv", "round,loss,seconds\n1,0.6,0.02\n", "line 1"),
        ("metrics.csv", "round,loss,seconds\n1,0.5,0.02\n", None),
        ("run.log", "2026-01-02 03:04:05,678 INFO started\nmore\n", "line 2"),
        ("run.log", "2026-01-02 03:04:06,789 INFO started\n", None),
        ("model.safetensors", "ab", "content"),
        ("new.bin", "", "mode"),
    ],
)
def test_everything_is_seen_but_times(
    tmp_path: Path, name: str, change: str, where: str | None
) -> None:
    for file, content in FILES.items():
        write(tmp_path, file, content)
    before = fields_of(tmp_path)
    write(tmp_path, name, change)
    found = [difference.where for difference in compare("n", before, fields_of(tmp_path))]
    assert found == [] if where is None else f"{name}: {where}" in found


def test_only_times_are_masked() -> None:
    assert without_times({"seconds": "1e-05"}) == without_times('{"seconds": "0.1"}')
    assert without_times({"loss": 1, "started": "2026-01-02 03:04:05 UTC"}) == without_times(
        {"loss": 1, "started": "2027-11-12T13:14"}
    )
    for kept in ("pixel 17", "1.25 pixels", "2026-01-02T03:04 pixel"):
        assert kept in without_times({"seconds": kept})
    assert "1.25" in without_times({"loss": 1.25}) and "1.2" in without_times({"a": "seconds: 1.2"})
    assert without_times({"run": "0" * 32}) == without_times({"run": "f" * 32})
    assert "digest" in without_times({"run": "digest"})
    assert "0" * 32 in without_times({"digest": "0" * 32})
