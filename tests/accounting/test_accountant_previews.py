"""A preview changes no number, whoever reports in the end."""

from __future__ import annotations

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import RoundKind, RoundLibrary

CLASSES = [
    ClientClass("gaussian", 4.0, 1.0, 0.5, 1.0, 1e-5, 4),
    ClientClass("gaussian", 6.0, 1.0, 0.5, 0.7, 1e-5, 4),
]
CLASS_OF = np.repeat([0, 1], [30, 20])
EVERYBODY = np.ones(50, dtype=bool)


def new_accountant() -> Accountant:
    return Accountant(
        CLASSES, CLASS_OF, unit="record", schedule="aggregate", delta=1e-5, dimension=3
    )


def test_a_preview_for_others_leaves_no_numbers_behind() -> None:
    classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in (2.0, 2.2)]
    everybody, most = np.ones(40, dtype=bool), np.arange(40) >= 3
    plain, ahead = (
        Accountant(
            classes, most.astype(np.int64), unit="client", schedule="sequential",
            delta=1e-5, dimension=3,
        )
        for _ in range(2)
    )  # fmt: skip
    ahead.preview(1, everybody)
    for one in (plain, ahead):
        # The class that an attack serves best stays away.
        one.commit(1, most)
    assert ahead.preview(2, most) == plain.preview(2, most)
    assert ahead.lower_columns() == plain.lower_columns()
    assert plain.lower_columns()["lower"].epsilon[1] > 0.5


def test_a_single_round_is_accounted_for_without_a_dominating_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs are for composition, and dear: the first round shows before they are certified."""

    def refuse(self: RoundLibrary, kind: RoundKind) -> None:
        raise AssertionError("a pair was asked for")

    monkeypatch.setattr(RoundLibrary, "pair", refuse)
    account = new_accountant()
    proven = account.preview(1, EVERYBODY).columns["proven"].epsilon
    account.commit(1, EVERYBODY)
    assert max(proven.values()) == pytest.approx(account.client_totals().proven.max())
    with pytest.raises(AssertionError, match="a pair was asked for"):
        account.preview(2, EVERYBODY)
