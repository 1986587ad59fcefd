"""Several reports a round, each in a batch of its own, cost what as many rounds of one would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import RoundLibrary
from fl_shuffle.accounting.rounds.trust import Trust

LIBRARY = RoundLibrary()
CLASS_OF = np.repeat([0, 1], [30, 20])
PRESENT = [np.ones(50, dtype=bool), np.arange(50) % 7 != 2]


def played(noise: str, release: str, reports: int, rounds: int) -> Accountant:
    """`rounds` rounds of `reports` each; every second one lacks some clients."""
    classes = [
        ClientClass(noise, 4.0, 1.0, 0.5, 1.0, 1e-5, 4),
        ClientClass(noise, 6.0 if noise == "gaussian" else 4.0, 1.0, 0.5, 0.7, 1e-5, 4),
    ]
    trust = replace(Trust(), release=release, reports_per_round=reports)
    accountant = Accountant(
        classes, CLASS_OF, unit="record", schedule="aggregate", delta=1e-5, dimension=3,
        trust=trust, library=LIBRARY,
    )  # fmt: skip
    for number in range(rounds):
        present = PRESENT[number % 2] if reports > 1 else PRESENT[number // 3 % 2]
        accountant.commit(number + 1, present)
    return accountant


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
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
    everybody = PRESENT[0]
    more = several.preview(5, everybody)
    for number in (13, 14):
        single.commit(number, everybody)
    last = single.preview(15, everybody)
    for name, column in more.columns.items():
        assert column.epsilon == pytest.approx(last.columns[name].epsilon, rel=1e-12)
