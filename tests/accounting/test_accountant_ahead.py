"""What an accountant works out ahead changes no number, whoever reports in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.rounds.events import ClientClass
from fl_shuffle.accounting.rounds.round_library import RoundKind, RoundLibrary
from fl_shuffle.ledger import run_book
from fl_shuffle.ledger.run_book import RunBook
from fl_shuffle.ledger.store import Ledger

CLASSES = [
    ClientClass("gaussian", 4.0, 1.0, 0.5, 1.0, 1e-5, 4),
    ClientClass("gaussian", 6.0, 1.0, 0.5, 0.7, 1e-5, 4),
]
CLASS_OF = np.repeat([0, 1], [30, 20])
EVERYBODY = np.ones(50, dtype=bool)
MOST = np.arange(50) % 7 > 0


def new_accountant() -> Accountant:
    return Accountant(
        CLASSES, CLASS_OF, unit="record", schedule="aggregate", delta=1e-5, rounds=9, dimension=3
    )


@pytest.mark.parametrize("arrived", [EVERYBODY, MOST], ids=["as foreseen", "fewer"])
def test_rounds_foreseen_are_the_rounds_counted(arrived: np.ndarray) -> None:
    plain, ahead = new_accountant(), new_accountant()
    for number in range(1, 6):
        present = arrived if number == 3 else EVERYBODY
        for one in (plain, ahead):
            one.preview(number, EVERYBODY)
        ahead.foresee(number, EVERYBODY, EVERYBODY)
        # Asked again, before it is committed: nothing of what was foreseen has been counted.
        assert ahead.preview(number, present) == plain.preview(number, present)
        for one in (plain, ahead):
            one.commit(number, present)
        assert ahead.preview(number + 1, EVERYBODY) == plain.preview(number + 1, EVERYBODY)
    for mine, theirs in zip(ahead.client_totals(), plain.client_totals(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_was_foreseen_for_others_leaves_no_numbers_behind() -> None:
    classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in (2.0, 2.2)]
    everybody, most = np.ones(40, dtype=bool), np.arange(40) >= 3
    plain, ahead = (
        Accountant(
            classes, most.astype(np.int64), unit="client", schedule="sequential",
            delta=1e-5, rounds=9, dimension=3,
        )
        for _ in range(2)
    )  # fmt: skip
    ahead.foresee(1, everybody, everybody)
    for one in (plain, ahead):
        # The class that an attack serves best stays away.
        one.commit(1, most)
    assert ahead.preview(2, most) == plain.preview(2, most)
    assert plain.preview(2, most).columns["lower"].epsilon[1] > 0.5


def test_a_round_foreseen_is_not_composed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    account = new_accountant()
    account.preview(1, EVERYBODY)
    account.foresee(1, EVERYBODY, MOST)
    account.commit(1, EVERYBODY)

    def refuse(self: Accountant, present: np.ndarray) -> None:
        raise AssertionError("worked out again")

    monkeypatch.setattr(Accountant, "_listed", refuse)
    assert account.preview(2, MOST).round_number == 2
    with pytest.raises(AssertionError, match="worked out again"):
        account.preview(2, EVERYBODY)


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


@pytest.mark.parametrize("long", [True, False])
def test_only_long_accounting_is_done_ahead_with_the_same_numbers(
    long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, accountant = new_accountant(), new_accountant()
    ahead: list[int] = []
    foresee = Accountant.foresee

    def noted(self: Accountant, number: int, *masks: np.ndarray) -> None:
        ahead.append(number)
        foresee(self, number, *masks)

    monkeypatch.setattr(Accountant, "foresee", noted)
    monkeypatch.setattr(run_book, "LONG_SECONDS", 0.0 if long else 1e9)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", {}, CLASSES, CLASS_OF)
    book = RunBook(accountant, ledger, target_epsilon=None, lifetime=None, replayable=True)
    for number in (1, 2, 3, 4):
        assert book.reserve(number, EVERYBODY) is not None
        book.foresee(number, EVERYBODY, EVERYBODY)
        assert book.commit(number, EVERYBODY, 0.1) == plain.preview(number, EVERYBODY)
        plain.commit(number, EVERYBODY)
    # What was not worked out ahead may turn out to take long.
    monkeypatch.setattr(run_book, "LONG_SECONDS", 0.0)
    assert book.reserve(5, MOST) is not None
    book.foresee(5, MOST, EVERYBODY)
    assert ahead.pop() == 5
    ledger.close()
    # Before the first is worked out nobody knows how long it takes.
    assert ahead == ([1, 2, 3, 4] if long else [1])
