"""The audit catches patched copies of the product, and leaves the product itself alone.

Power and false alarms, with the plays made here (small, so that the suite stays quick):

* The checks of order and noise are made at level 0.05 x 0.01 / 4 = 1.25e-4 each, 64 rounds of 16
  clients for the order and 8 for the noise. That is each one's false-alarm rate. These mutants fail
  in every round: their p-values are below 1e-9 for every seed, which leaves
  nothing to luck.
* Noise x 0.8 and clip x 1.3 move the local game by factors 1.25 and 1.3; at 200,000 reports it is
  stated to catch 1.2 with probability 95%. False alarms of all lower bounds together: 5%.
* What is published is compared without chance: no false alarm, and every difference is seen.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.auditing.audit import AuditSettings, run_audit
from fl_shuffle.auditing.claims import ClaimBook, accountant_claims
from fl_shuffle.auditing.findings import AuditReport, Check, Finding
from fl_shuffle.auditing.games import Clock
from fl_shuffle.auditing.independence import TWO_CLIENTS, TWO_ROUNDS, noise_checks, play_noise
from fl_shuffle.auditing.order import order_check
from fl_shuffle.auditing.published import Published
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.simulation.twin_runs import NEIGHBOURS, Neighbour, audit_published
from fl_shuffle.tasks.canaries import Canaries, check_clipping
from fl_shuffle.tasks.rehearsal import play_orders
from tests.auditing import mutants
from tests.auditing.mutants import Patch

CLIENTS, DIMENSION = 16, 20
SEEDS = range(3)
REPORTS = 200_000


def config(schedule: str = "aggregate", unit: str = "client", noise: str = "gaussian") -> Config:
    return parse_config(
        {
            "run": {"rounds": 2},
            "data": {"clients": CLIENTS, "records": 5},
            "training": {"schedule": schedule},
            "privacy": {"unit": unit, "randomizer": noise},
            "budgets": {"epsilon": 1.0, "delta": 1e-5 if noise == "gaussian" else 0.0},
        }
    )


LEVEL = 1.25e-4


def order_of(schedule: str, seed: int, *, target: int = 3) -> Check:
    """The test of the order, as the audit makes it."""
    seen = play_orders(CLIENTS, schedule, seed)
    assert seen is not None
    return order_check(seen, target, LEVEL, np.random.default_rng(seed))


def noise_of(noise: str, seed: int) -> dict[str, Check]:
    """The tests of the noise, by game, as the audit makes them."""
    canaries = Canaries(config(noise=noise), dimension=DIMENSION, seed=seed)
    return {check.game: check for check in noise_checks(play_noise(canaries), LEVEL)}


def test_a_random_order_is_left_alone() -> None:
    assert not order_of("sequential", 0).refuted
    for seed in SEEDS:
        assert not order_of("aggregate", seed).refuted


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_fresh_noise_is_left_alone(noise: str) -> None:
    for seed in SEEDS:
        found = noise_of(noise, seed)
        assert len(found) == 3
        assert not any(check.refuted for check in found.values()), found


@pytest.mark.parametrize(
    "permutation",
    [
        mutants.unchanged,
        mutants.rotation,
        mutants.within_halves,
        mutants.blocks_of_three,
        mutants.always_the_same,
    ],
)
def test_an_order_that_tells_is_caught(
    permutation: mutants.Permutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants.order(permutation)(monkeypatch)
    for seed in SEEDS:
        found = order_of("aggregate", seed)
        assert found.p_value < 1e-9, found


def test_a_target_that_always_comes_last_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.order(mutants.last_stays_last)(monkeypatch)
    for seed in SEEDS:
        assert order_of("aggregate", seed, target=CLIENTS - 1).p_value < 1e-9


@pytest.mark.parametrize("permutation", [mutants.unchanged, mutants.always_the_same])
def test_an_order_of_single_reports_that_tells_is_caught(
    permutation: mutants.Permutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutants.order(permutation)(monkeypatch)
    assert order_of("sequential", 0).p_value < 1e-9


def test_a_shuffler_that_forgets_to_permute_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mutants.batch_as_it_came(monkeypatch)
    for seed in SEEDS:
        assert order_of("aggregate", seed).p_value < 1e-9


@pytest.mark.parametrize(
    ("patch", "game"),
    [
        (mutants.noise_of_clients(np.zeros_like), TWO_CLIENTS),
        # One pair of clients only.
        (mutants.noise_of_clients(lambda ids: np.where(ids == 13, 3, ids)), TWO_CLIENTS),
        (mutants.noise_of_rounds(lambda number: 1), TWO_ROUNDS),
        (mutants.noise_of_rounds(lambda number: number % 4), TWO_ROUNDS),
    ],
    ids=["all clients", "one pair", "every round", "every fourth round"],
)
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_noise_that_is_used_twice_is_caught(
    patch: Patch, game: str, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    for seed in SEEDS:
        found = noise_of(noise, seed)
        assert found[game].p_value < 1e-9, found[game]


@cache
def claims_of(settings: str) -> ClaimBook:
    config = parse_config(json.loads(settings))
    honest = Canaries(config, dimension=4)
    return accountant_claims(config, honest.plan, honest.scene.target)


def local_game(settings: Config) -> Finding:
    """One report, its sender known: the claims of the right product, the reports of this one."""
    report = run_audit(
        "mutant",
        Canaries(settings, dimension=4),
        claims_of(settings.to_json()),
        unit=settings.privacy.unit,
        delta=1e-5,
        rounds=1,
        settings=AuditSettings(trials=8, reports=REPORTS),
    )
    return report.findings[0]


@pytest.mark.parametrize("unit", ["client", "record"])
def test_too_little_noise_and_too_wide_a_clip_are_caught(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(unit=unit)
    right = local_game(settings)
    assert not right.breaks_proven
    # The stated power covers both.
    assert right.detectable is not None
    assert right.detectable < 1.2
    for patch in (mutants.noise_times(0.8), mutants.clip_times(1.3)):
        with monkeypatch.context() as patched:
            patch(patched)
            assert local_game(settings).breaks_proven


def test_the_runs_own_clip_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(unit="record")
    assert check_clipping(settings).holds
    mutants.clip_times(1.3)(monkeypatch)
    assert not check_clipping(settings).holds


# --- What is published -------------------------------------------------------------------------


def published(settings: Config, neighbours: Sequence[Neighbour] = NEIGHBOURS) -> Published:
    found = audit_published(settings, Clock(600.0), neighbours)
    assert found.neighbours == tuple(neighbour.name for neighbour in neighbours)
    assert found.fields > 300
    assert found.messages >= settings.run.rounds
    return found


def digits(**training: object) -> Config:
    return parse_config(
        {
            "run": {"rounds": 2},
            "data": {"clients": 8, "records": 5},
            "training": training,
            "budgets": {"epsilon": 2.0},
        }
    )


def test_nothing_is_published_beside_the_reports() -> None:
    assert [found.text() for found in published(digits()).differences] == []


@pytest.mark.parametrize(
    ("patch", "where"),
    [
        (mutants.hash_in_ledger, "ledger.sqlite: digest"),
        (mutants.size_of_a_file, "padding.bin: bytes"),
        (mutants.loss_in_reply, "reply: metrics"),
        (mutants.nonfinite_clients_send_nothing, "reply: usable reports"),
        (mutants.record_that_raises, "the run ends with an error"),
    ],
    ids=["hash in the ledger", "size of a file", "loss in a reply", "no report", "an exception"],
)
def test_a_leak_is_seen(patch: Patch, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [one for one in NEIGHBOURS if one.picture or "NaN" in one.name]
    assert len(chosen) == 2
    patch(monkeypatch)
    assert any(where in leak.where for leak in published(digits(), chosen).differences)


# --- The command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (mutants.order(mutants.unchanged), "the order in which the analyzer sees the reports"),
        (mutants.noise_of_clients(np.zeros_like), TWO_CLIENTS),
    ],
    ids=["no permutation", "shared noise"],
)
def test_the_command_says_so(
    patch: Patch,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    patch(monkeypatch)
    path = tmp_path / "run.toml"
    path.write_text("[data]\nclients = 12\n[run]\nrounds = 1\n", encoding="utf-8")
    options = ["--trials", "8", "--reports", "1000", "--seconds", "5"]
    assert main(["audit", str(path), *options]) == 1
    assert f"{words}" in "".join(
        line for line in capsys.readouterr().out.splitlines() if "REFUTED" in line
    )


def test_a_check_counts_in_the_verdict() -> None:
    report = AuditReport("a", "record", 2, 3, "gaussian", 0.95, ())
    check = Check("g", "m", 1, 10, 1e-3, 1e-4, "p")
    assert not dataclasses.replace(report, checks=(check,)).breaks_proven
    assert dataclasses.replace(
        report, checks=(dataclasses.replace(check, p_value=1e-4),)
    ).breaks_proven
