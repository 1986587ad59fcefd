"""Totals of shuffled reports: nobody exceeds one, and each is spent as far as the proof allows."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fl_shuffle as fs
from fl_shuffle._internal.arrays import Vector
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.partial_shuffle.curve import MAX_SPREAD
from fl_shuffle.budgets import Budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.randomizers import shuffled_totals
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.shuffled_totals import (
    Certified,
    PlannedReports,
    TotalsSearch,
    rounded,
    solved_reports,
)
from fl_shuffle.randomizers.total_budgets import solved_totals, solved_words
from tests.randomizers.test_total_budgets import configured, totals_of

FEDERATIONS = int(os.environ.get("FL_SHUFFLE_FEDERATIONS", "2"))
"""Random federations to solve for; 60 take an hour."""


def of_reports(clients: int, rounds: int, share: float = 1.0, **privacy: Any) -> Config:
    budgets = {"expected_share": share}
    return configured(clients, rounds, budgets, **{"release": "reports", **privacy})


def planned(config: Config, totals: NDArray[np.float64]) -> Calibration:
    ones = np.ones(len(totals), dtype=np.int64)
    return make_plan(config, Budgets(totals, np.zeros(len(totals)), of="run"), ones)


def spent(config: Config, plan: Calibration, rounds: int) -> NDArray[np.float64]:
    """Each client's headline epsilon [clients] after rounds in which everybody takes part."""
    account = Accountant.of(config.to_dict(), plan.classes, plan.class_of, 10)
    account.count([(number, np.ones(len(plan), dtype=bool)) for number in range(1, rounds + 1)])
    return account.client_totals().headline


def moved(plan: Calibration, classes: NDArray[np.int64], times: float) -> Calibration:
    """The plan with the moves of these classes, and the balls of their means, `times` as large."""
    factor = np.ones(len(plan.classes))
    factor[classes] = times
    table = plan.classes
    larger = dataclasses.replace(
        table, radius=table.radius * factor, sensitivity=table.sensitivity * factor
    )
    return dataclasses.replace(plan, classes=larger)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("personalization", "randomizer"),
    [("clipping", "gaussian"), ("noise", "gaussian"), ("noise", "laplace")],
)
def test_totals_of_one_round_are_spent_by_all(personalization: str, randomizer: str) -> None:
    """Reports of two totals hide one another, or those of a total alone; one curve at a time."""
    totals = np.repeat([0.5, 2.0], [120, 80])
    config = of_reports(200, 1, personalization=personalization, randomizer=randomizer)
    plan = planned(config, totals)
    ratio = spent(config, plan, 1) / totals
    assert ratio.max() <= 1.0 and ratio.min() >= 0.95
    # A report alone spends more than the total: it is the others that hide a client.
    assert (plan.classes.epsilon0[plan.class_of] > totals).all()
    largest = plan.clip == plan.clip.max()
    assert largest.all() if personalization == "noise" else (largest == (totals == 2.0)).all()
    assert (np.unique(plan.scale).size == 1) == (personalization == "clipping")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FEDERATIONS))
def test_random_federations_stay_within_their_totals(seed: int, record_property: Any) -> None:
    """With all present no client exceeds its total, and each ends near it, or just below a jump of
    its epsilon."""
    rng = np.random.default_rng(seed)
    few = FEDERATIONS < 10
    clients = int(np.exp(rng.uniform(math.log(50), math.log(300 if few else 5000))))
    rounds = 1 if few else int(np.exp(rng.uniform(0.0, math.log(101))))
    shape = ("two", "three", "all different")[1 if few else seed % 3]
    personalization = ("clipping", "noise")[seed // 3 % 2]
    config = of_reports(clients, rounds, personalization=personalization)
    totals = totals_of(shape, clients, rng)
    plan = planned(config, totals)
    ratio = spent(config, plan, rounds) / totals
    record_property("setting", f"{clients} clients, {rounds} rounds, {shape}, {personalization}")
    record_property("ratio", float(ratio.min()))
    print(f"{seed}: {clients} {rounds} {shape} {personalization} {ratio.min():.4f}", flush=True)
    assert ratio.max() <= 1.0
    low = ratio <= 0.75
    if low.any():
        # No noise spends such a total: a theorem begins to hide nobody just above this move.
        more = spent(config, moved(plan, np.unique(plan.class_of[low]), 1.03), rounds)
        assert (more[low] > totals[low]).all()


def test_levels_are_those_of_the_least_worst_ratio() -> None:
    config = of_reports(300, 1)
    totals = np.random.default_rng(1).uniform(0.3, 3.0, 300)
    found = solved_totals(config, totals)
    assert len(np.unique(found)) == 20 and (found <= totals).all()
    # In a ratio of 10 with 20 levels, equal ratios of 10 ** (1 / 20) would lose 11%.
    lost = 1.0 - found / totals
    assert 0.08 < lost.max() <= 1.0 - 10.0 ** (-1.0 / 20.0) + 1e-12
    words = solved_words(config, totals)
    assert f"{(lost > 0).sum()} clients give up" in words and f"{lost.max():.1%} at most" in words
    assert solved_words(config, np.repeat([1.0, 2.0], 150)) == ""
    sums = configured(300, 1, {}, release="sum")
    assert solved_totals(sums, totals) is totals


def asked(**changes: Any) -> PlannedReports:
    given: dict[str, Any] = {
        "noise": "gaussian", "totals": (1.0,), "batch": (1,), "counts": (50,), "present": (50,),
        "rounds": 1, "delta": 1e-5, "absent": 0, "honest": None, "unit": "client",
        "clipping": True,
    }  # fmt: skip
    return PlannedReports(**{**given, **changes})


def test_own_noise_is_the_answer_where_nobody_hides_a_client() -> None:
    """Of three clients, and of totals that need no others, own noise spends the total exactly."""
    for question in (asked(counts=(3,), present=(3,)), asked(totals=(9.0,), noise="laplace")):
        mu = solved_reports(question, lambda _: None).moves
        assert 0.99 <= Certified(question).local(mu)[0] / question.totals[0] <= 1.0
    assert question.rounds == 1


class Jump(Certified):
    """Epsilons that jump from half of the totals to three times as much, at a certain move."""

    def __init__(self, question: PlannedReports, at: float) -> None:
        super().__init__(question)
        self.at, self.totals = at, np.array(question.totals)

    def __call__(self, mu: Vector, *, fine: bool) -> Vector:
        found: Vector = np.where(mu <= self.at, 0.5, 3.0) * self.totals
        return found


def test_a_search_that_begins_above_a_jump_ends_just_below_it() -> None:
    search = TotalsSearch(asked(), lambda _: None)
    first = search._start()
    at = 0.8 * float(first[0])
    assert at > search.floor[0]
    search.certified = Jump(asked(), at)
    found = float(search.best()[0])
    assert 0.95 * at < found <= at
    # Once the jump is bracketed there is nothing left to search for.
    assert search.at_jump.all() and search.steps <= 6


def test_no_step_goes_beyond_where_theorems_end() -> None:
    """Epsilons far below the totals there: more cannot be had, and one step finds that out."""
    search = TotalsSearch(asked(totals=(6.0,), counts=(5000,), present=(5000,)), lambda _: None)
    search.certified = Jump(search.asked, MAX_SPREAD)
    found = float(search.best()[0])
    assert MAX_SPREAD * (1.0 - 2e-3) < found <= MAX_SPREAD
    assert search.at_jump.all() and search.steps <= 5


@pytest.mark.slow
def test_absent_reports_hide_nobody() -> None:
    """Planned for 60% of the clients, each clips more."""
    everybody = solved_reports(asked(), lambda _: None).moves
    fewer = solved_reports(asked(absent=20), lambda _: None).moves
    colluding = solved_reports(asked(honest=30), lambda _: None).moves
    assert fewer[0] < 0.97 * everybody[0] and colluding[0] == fewer[0]


@pytest.mark.slow
def test_answers_are_kept_and_a_search_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL_SHUFFLE_CACHE", str(tmp_path))
    shuffled_totals.forget()
    lines: list[str] = []
    first = solved_reports(asked(), lines.append).moves
    assert lines[0].startswith("solving for the noise of 1 totals: step 1")
    shuffled_totals.forget()
    monkeypatch.setattr(shuffled_totals, "TotalsSearch", None)
    assert solved_reports(asked(), lines.append).moves.tolist() == first.tolist()


def test_parameters_keep_few_bits() -> None:
    mu = np.array([0.1, 1.0 + 1e-9, 2.9999])
    found = rounded(mu)
    assert (found <= mu).all() and (found > mu * (1.0 - 2.0**-11)).all()
    assert np.array_equal(rounded(found * (1.0 + 1e-12)), found)


@pytest.mark.slow
def test_calibrate_solves_for_shuffled_reports() -> None:
    config = {
        "data": {"records_per_client": 5, "clients": 3},
        "privacy": {"unit": "client", "release": "reports", "personalization": "clipping"},
    }
    given = {"budgets.expected_share": 1.0, "run.rounds": 1}
    rows = fs.calibrate(config, totals=[0.5] * 120 + [2.0] * 80, overrides=given)
    assert [(row.total, row.clients) for row in rows] == [(0.5, 120), (2.0, 80)]
    assert all(0.95 <= row.epsilon / row.total <= 1.0 for row in rows)
    assert all(row.report_epsilon > 2.0 * row.total for row in rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"randomizer": "discrete-gaussian", "personalization": "noise"}, "one report alone"),
        ({"calibration": "classical"}, "must be analytic"),
    ],
)
def test_what_is_not_solved_for_is_refused(change: dict[str, Any], words: str) -> None:
    tables = of_reports(4, 2).to_dict()
    tables["run"]["entropy"] = "system"
    tables["privacy"] |= change
    with pytest.raises(FlShuffleError, match=words):
        planned(parse_config(tables), np.array([1.0, 2.0, 1.0, 2.0]))


def test_clients_of_different_numbers_of_records_are_refused() -> None:
    config = of_reports(4, 2, unit="record")
    totals = Budgets(np.full(4, 1.0), np.zeros(4), of="run")
    with pytest.raises(FlShuffleError, match="clients of 1 to 4 records"):
        make_plan(config, totals, np.arange(1, 5))
