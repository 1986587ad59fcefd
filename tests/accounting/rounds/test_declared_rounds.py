"""Own randomizers: credit from declared budgets, and only where any two reports share one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.columns import DECLARED_NOTE
from fl_shuffle.accounting.reports import OwnLaw
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.local_guarantees import local_delta, local_epsilon
from fl_shuffle.accounting.rounds.trust import Trust


def declared(
    epsilon0: float, delta0: float = 0.0, radius: float = 1.0, records: int = 1
) -> ClientClass:
    return ClientClass("user", 0.0, radius, 2 * radius, epsilon0, delta0, records)


def headline(
    classes: list[ClientClass],
    counts: list[int],
    *,
    unit: str = "client",
    rounds: int = 1,
    discrete: bool = False,
) -> tuple[float, str, str]:
    class_of = np.repeat(np.arange(len(classes)), counts)
    accountant = Accountant(
        classes,
        class_of,
        unit=unit,
        schedule="aggregate",
        delta=1e-6,
        trust=Trust(discrete=discrete),
    )
    everybody = np.ones(len(class_of), dtype=bool)
    for number in range(1, rounds + 1):
        spend = accountant.preview(number, everybody)
        accountant.commit(number, everybody)
    column = spend.columns["proven"]
    assert accountant.client_totals()[1].max() == pytest.approx(spend.headline)
    if discrete:
        texts = " ".join(each.source + each.note for each in spend.columns.values())
        assert "declared" not in texts and "not known" not in texts and "the user's" not in texts
    return spend.headline, column.note, column.source


def test_a_declared_budget_gets_the_profile_bound_and_says_on_what_it_rests() -> None:
    found, note, source = headline([declared(1.0)], [10_000])
    assert 0.0079 < found <= 0.0442  # 2-ary randomized response reaches about .0079 or more
    assert note == DECLARED_NOTE and "docs/proofs.md" in source


def test_other_budgets_and_clips_hide_nobody() -> None:
    alone = headline([declared(1.0)], [200])[0]
    others = [declared(0.5), declared(1.0, 1e-9), declared(1.0, radius=0.5)]
    mixed = [headline([declared(1.0), other], [200, 2_000])[0] for other in others]
    assert mixed[0] == pytest.approx(alone, rel=1e-9)
    assert min(mixed[1:]) >= alone * (1 - 1e-9)


def test_a_budget_for_one_of_several_records_gets_no_credit() -> None:
    found, note, _ = headline([declared(1.0, records=6)], [1_000], unit="record")
    assert found == 1.0 and "one of several records" in note
    assert headline([declared(1.0, records=1)], [1_000], unit="record")[0] < 0.3


@pytest.mark.parametrize(
    ("count", "epsilon", "records"), [(10_000, 1.0, 1), (1_000, 1.0, 6), (2, 9.0, 1)]
)
def test_discrete_noise_counts_alike_in_words_of_its_own(
    count: int, epsilon: float, records: int
) -> None:
    classes = [declared(epsilon, records=records)]
    found, note, _ = headline(classes, [count], unit="record", discrete=True)
    plain, other, _ = headline(classes, [count], unit="record")
    assert found == plain and note != other
    assert "the law of the discrete noise is known" in note


def test_a_delta0_above_the_target_is_never_amplified_away() -> None:
    assert math.isinf(headline([declared(1.0, 1e-5)], [1_000])[0])


@pytest.mark.parametrize(("epsilon0", "delta0", "rounds"), [(0.7, 0.0, 3), (1.3, 0.01, 4)])
def test_local_composition_against_enumeration(epsilon0: float, delta0: float, rounds: int) -> None:
    law = OwnLaw("user", epsilon0, delta0)
    # The worst pair: outcomes "certain" (delta0), and randomized response with the rest.
    up = (1 - delta0) / (1 + math.exp(-epsilon0))
    first = [delta0, 0.0, up, 1 - delta0 - up]
    second = [0.0, delta0, 1 - delta0 - up, up]
    for epsilon in (0.0, 0.5, 1.9, 3.0):
        outcomes = itertools.product(range(4), repeat=rounds)
        exact = sum(
            max(
                0.0,
                math.prod(first[i] for i in outcome)
                - math.exp(epsilon) * math.prod(second[i] for i in outcome),
            )
            for outcome in outcomes
        )
        found = local_delta(law, rounds, epsilon)
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-6) + 1e-15
        solved = local_epsilon(law, rounds, found * (1 + 1e-6))
        assert solved <= epsilon + 1e-4
