"""Of a few Laplace reports the column `sum` takes `proven` where that is smaller, and says so."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.columns import SMALLER_NOTE
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.accounting.rounds.trust import Trust

DELTA = 1e-5


def accountant(clients: int, release: str = "sum") -> Accountant:
    own = ClientClass("laplace", 4.0, 1.0, 2.0, 0.5, 0.0, 1)
    return Accountant(
        [own],
        np.zeros(clients, dtype=np.int64),
        unit="client",
        schedule="aggregate",
        delta=DELTA,
        dimension=10,
        trust=Trust(release=release),
    )


@pytest.mark.parametrize(("clients", "smaller"), [(60, True), (4000, False)])
def test_the_smaller_of_both_stands_in_the_column(clients: int, smaller: bool) -> None:
    everybody = np.ones(clients, dtype=bool)
    account = accountant(clients)
    sums = SumAccount.start(
        account._classes, np.zeros(clients, dtype=np.int64), schedule="aggregate", dimension=10
    )
    assert sums.reason is None
    for number in (1, 2):
        spend = account.preview(number, everybody)
        sums = sums.after(everybody)
        of_sum, proven = float(sums.epsilons(DELTA).max()), spend.columns["proven"].worst
        assert proven is not None and (proven < of_sum) is smaller
        column = spend.columns["sum"]
        assert column.worst == min(of_sum, proven) == spend.headline
        assert (column.note == SMALLER_NOTE) is smaller
        np.testing.assert_array_equal(
            account.client_epsilons_after(number, everybody), np.full(clients, column.worst)
        )
        account.commit(number, everybody)
        totals, worst = account.client_totals(), account.worst_client()
        assert worst is not None and worst.epsilon == column.worst
        np.testing.assert_array_equal(totals.sum, np.full(clients, column.worst))
        np.testing.assert_array_equal(totals.headline, totals.sum)
        # The curve that is drawn belongs to the number.
        assert float(worst.profile([column.worst])[0]) <= DELTA * (1 + 1e-9)
