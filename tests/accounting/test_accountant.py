"""The accountant: headline, columns, several reports a round, own randomizers, recognition."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import fl_shuffle.accounting.accountant as module
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.attacks.certain_loss import recognition_epsilon
from fl_shuffle.accounting.attacks.likelihood_ratio import attack_epsilon
from fl_shuffle.accounting.columns import DECLARED_NOTE
from fl_shuffle.accounting.reports import ClientClass, OwnLaw, RoundType
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.local_guarantees import local_delta, local_epsilon
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.trust import Trust
from tests.oracles import composed


def make(classes: list[ClientClass], class_of: np.ndarray, **also: Any) -> Accountant:
    settings = {"unit": "client", "schedule": "aggregate", "delta": 1e-5, **also}
    return Accountant(classes, class_of, **settings)


def some_class(rng: np.random.Generator, noise: str, scale: float) -> ClientClass:
    radius = float(rng.uniform(0.05, 0.3))
    return ClientClass(noise, scale, radius, 2 * radius, float(rng.uniform(0.01, 2)), 0.0, 1)


@pytest.mark.parametrize("seed", [*(pytest.param(s, marks=pytest.mark.slow) for s in (0, 1)), 2])
def test_the_headline_covers_clients_that_are_not_listed(
    seed: int, coarse_pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTED_CLASSES", 2)
    rng = np.random.default_rng(seed)
    scales = [1.0, 1.3, 0.2 if seed % 2 else 1.0]
    noises = [["gaussian"], ["laplace"], ["gaussian", "laplace", "user"]][seed % 3]
    classes = [some_class(rng, str(rng.choice(noises)), float(rng.choice(scales)))
               for _ in range(4)]  # fmt: skip
    class_of = rng.integers(0, len(classes), 60)
    accountant = make(classes, class_of)
    for number in range(1, 3):
        present = rng.random(len(class_of)) < 0.8
        spend = accountant.preview(number, present)
        each = accountant.client_epsilons_after(number, present)
        assert len(spend.columns["proven"].epsilon) == 2
        assert each.max() * (1 - 1e-9) <= spend.headline <= each.max() * 1.02
        accountant.commit(number, present)
        local = accountant.client_totals().local
        assert spend.columns["local"].worst == pytest.approx(local.max(), rel=1e-9)


def test_a_preview_for_others_leaves_no_numbers_behind() -> None:
    classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in (2.0, 2.2)]
    everybody, most = np.ones(40, dtype=bool), np.arange(40) >= 3
    class_of = most.astype(np.int64)
    plain, ahead = (make(classes, class_of, schedule="sequential", dimension=3) for _ in range(2))
    ahead.preview(1, everybody)
    for one in (plain, ahead):
        # The class that an attack serves best stays away.
        one.commit(1, most)
    assert ahead.preview(2, most) == plain.preview(2, most)
    assert ahead.lower_columns() == plain.lower_columns()
    assert plain.lower_columns()["lower"].epsilon[1] > 0.5


def test_the_attack_column_is_what_the_attack_reaches_and_no_more() -> None:
    accountant = make([ClientClass("gaussian", 1.0, 0.5, 1.0, 1.0, 1e-5, 1)], np.zeros(50, int))
    kind = RoundType.of([ClientClass("gaussian", 1.0, 0.5, 1.0, count=50)], 0)
    for number in (1, 2):
        reached = attack_epsilon(kind, number, 1e-5)
        accountant.commit(number, np.ones(50, dtype=bool))
        found = accountant.lower_columns()["lower"].worst
        assert found == pytest.approx(reached, rel=1e-6) and found > 0.0


# --- Several reports a round --------------------------------------------------------------------

LIBRARY = RoundLibrary()
PRESENT = [np.ones(20, dtype=bool), np.arange(20) % 7 != 2]


def played(noise: str, release: str, reports: int, rounds: int) -> Accountant:
    """`rounds` rounds of `reports` each; every second one lacks some clients."""
    classes = [
        ClientClass(noise, 4.0, 1.0, 0.5, 1.0, 1e-5, 4),
        ClientClass(noise, 6.0 if noise == "gaussian" else 4.0, 1.0, 0.5, 0.7, 1e-5, 4),
    ]
    trust = replace(Trust(), release=release, reports_per_round=reports)
    class_of = np.repeat([0, 1], [19, 1])
    accountant = make(classes, class_of, unit="record", dimension=3, trust=trust, library=LIBRARY)
    for number in range(rounds):
        present = PRESENT[number % 2] if reports > 1 else PRESENT[number // 3 % 2]
        accountant.commit(number + 1, present)
    return accountant


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize("noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)])
@pytest.mark.parametrize("release", ["reports", "sum"])
def test_three_reports_in_each_of_four_rounds_cost_what_twelve_rounds_do(
    noise: str, release: str
) -> None:
    several, single = played(noise, release, 3, 4), played(noise, release, 1, 12)
    found, wanted = several.client_totals(), single.client_totals()
    assert found.rounds[0] == 4 and wanted.rounds[0] == 12
    assert np.array_equal(found.proven, wanted.proven)
    assert np.array_equal(found.local, wanted.local)
    # The squared parameters of sums are added up in another order.
    assert np.allclose(found.sum, wanted.sum, rtol=1e-12, equal_nan=True)
    ours, theirs = several.lower_columns(), single.lower_columns()
    for name in ours:
        assert ours[name].epsilon == pytest.approx(theirs[name].epsilon, rel=1e-9)
    # One more round of three is three more rounds of one, in all columns.
    more = several.preview(5, PRESENT[0])
    for number in (13, 14):
        single.commit(number, PRESENT[0])
    last = single.preview(15, PRESENT[0])
    for name, column in more.columns.items():
        assert column.epsilon == pytest.approx(last.columns[name].epsilon, rel=1e-12)


# --- Own randomizers: amplified from declared budgets, where any two reports share one ----------


def declared(epsilon0: float = 1.0, radius: float = 1.0, **also: Any) -> ClientClass:
    return ClientClass("user", 0.0, radius, 2 * radius, epsilon0, **also)


def headline(
    classes: list[ClientClass], counts: list[int], unit: str = "client", discrete: bool = False
) -> tuple[float, str, str]:
    """(epsilon, note, source) of one round of everybody."""
    class_of, everybody = np.repeat(np.arange(len(classes)), counts), np.ones(sum(counts), bool)
    accountant = make(classes, class_of, unit=unit, delta=1e-6, trust=Trust(discrete=discrete))
    spend = accountant.preview(1, everybody)
    accountant.commit(1, everybody)
    assert accountant.client_totals()[1].max() == pytest.approx(spend.headline)
    if discrete:
        texts = " ".join(each.source + each.note for each in spend.columns.values())
        assert "declared" not in texts and "not known" not in texts and "the user's" not in texts
    column = spend.columns["proven"]
    return spend.headline, column.note, column.source


def test_a_declared_budget_of_a_whole_report_is_amplified_and_says_on_what_it_rests() -> None:
    found, note, source = headline([declared()], [10_000])
    assert 0.0079 < found <= 0.0442  # 2-ary randomized response reaches about .0079 or more
    assert note == DECLARED_NOTE and "docs/proofs.md" in source
    # A delta0 above the target is never amplified away, nor a budget for one of several records.
    assert math.isinf(headline([declared(delta0=1e-5)], [1_000])[0])
    found, note, _ = headline([declared(records=6)], [1_000], unit="record")
    assert found == 1.0 and "one of several records" in note
    assert headline([declared()], [1_000], unit="record")[0] < 0.3


def test_other_budgets_and_clips_hide_nobody() -> None:
    alone = headline([declared()], [200])[0]
    others = [declared(0.5), declared(delta0=1e-9), declared(radius=0.5)]
    mixed = [headline([declared(), other], [200, 2_000])[0] for other in others]
    assert mixed[0] == pytest.approx(alone, rel=1e-9)
    assert min(mixed[1:]) >= alone * (1 - 1e-9)


def test_discrete_noise_counts_alike_in_words_of_its_own() -> None:
    for count, epsilon, records in ((10_000, 1.0, 1), (1_000, 1.0, 6), (2, 9.0, 1)):
        asked = [declared(epsilon, records=records)], [count], "record"
        (found, note, _), (plain, other, _) = headline(*asked, discrete=True), headline(*asked)
        assert found == plain and note != other
        assert "the law of the discrete noise is known" in note


@pytest.mark.parametrize(("epsilon0", "delta0", "rounds"), [(0.7, 0.0, 3), (1.3, 0.01, 4)])
def test_local_composition_against_enumeration(epsilon0: float, delta0: float, rounds: int) -> None:
    law, likely = OwnLaw("user", epsilon0, delta0), (1 - delta0) / (1 + math.exp(-epsilon0))
    # The worst pair: an outcome that is certain loss, and randomized response with the rest.
    pair = [math.inf, epsilon0, -epsilon0], [delta0, likely, 1 - delta0 - likely]
    for epsilon in (0.0, 0.5, 1.9, 3.0):
        exact = composed([pair] * rounds, epsilon)
        found = local_delta(law, rounds, epsilon)
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-6) + 1e-15
        assert local_epsilon(law, rounds, found * (1 + 1e-6)) <= epsilon + 1e-4


# --- A lower bound is claimed only where its attack is certain ----------------------------------

TARGET = ClientClass("gaussian", 1.0, 6.0, 0.3, 1.0, 1e-5, 1)


def recognised_epsilon(other: ClientClass, counts: list[int], **of: int) -> float | None:
    table = ClassTable.of([TARGET, other])
    return recognition_epsilon(table, np.array(counts), 0, 1, 1e-2, **of) or None


def test_recognition_is_not_claimed_among_smaller_balls_or_larger_noise() -> None:
    counts = [1, 1000]
    assert recognised_epsilon(replace(TARGET, records=2), counts) is not None
    assert recognised_epsilon(replace(TARGET, radius=1e-3, sensitivity=1e-3), counts) is None
    noisy = replace(TARGET, scale=30.0)
    assert recognised_epsilon(noisy, counts) is None
    # One coordinate says nothing about the scale; many do.
    assert recognised_epsilon(noisy, counts, dimension=2) is None
    assert recognised_epsilon(noisy, counts, dimension=600) is not None
    assert recognised_epsilon(replace(TARGET, noise="laplace"), counts) is None


@pytest.mark.parametrize(("scale", "others"), [(1.0, 1000), (30.0, 1000)])
def test_where_recognition_is_claimed_the_attacker_picks_the_right_report(
    scale: float, others: int
) -> None:
    """The claim is an error below 1e-7 a round: none may be seen in 2,000."""
    dimension, rounds = 600, 2000
    other = replace(TARGET, scale=scale, records=2)
    assert recognised_epsilon(other, [1, others], dimension=dimension) is not None
    rng = np.random.default_rng(5)
    tau = chi2.isf(1e-12, dimension - 1)
    along = 6.0 - 0.3 + rng.standard_normal(rounds)
    orthogonal = rng.chisquare(dimension - 1, rounds)
    assert np.all(orthogonal <= tau)
    for index in range(rounds):
        rival = -6.0 + scale * rng.standard_normal(others)
        short = scale**2 * rng.chisquare(dimension - 1, others) <= tau
        assert not np.any(short & (rival >= along[index]))
