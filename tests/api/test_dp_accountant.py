"""Runs and shuffled reports in the words of Google's dp-accounting, checked by its own test."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.errors import InvalidValueError, NotApplicableError

dp_accounting = pytest.importorskip("dp_accounting")
contract = pytest.importorskip("dp_accounting.privacy_accountant_test")

from fl_shuffle.api.dp_accountant import ShuffleAccountant, ShuffledReportsDpEvent  # noqa: E402

pytestmark = pytest.mark.usefixtures("coarse_pairs")

EVENT = {"epsilon0": 0.5, "clients": 2_000}


def test_it_passes_googles_own_test() -> None:
    def accountants(self: Any) -> list[ShuffleAccountant]:
        return [ShuffleAccountant(), ShuffleAccountant(1e-3)]

    # An abstract test, which skips itself: its methods are played in a class of ours.
    ours = type(
        "OurTest", (contract.PrivacyAccountantTest,), {"_make_test_accountants": accountants}
    )
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(ours).run(result)
    assert result.testsRun >= 13 and result.wasSuccessful() and not result.skipped, result


def test_rounds_of_reports_cost_what_is_proven() -> None:
    accountant = ShuffleAccountant()
    assert not accountant.supports(ShuffledReportsDpEvent.of(epsilon0=-1.0, clients=10))
    with pytest.raises(NotApplicableError, match="compose the event"):
        ShuffledReportsDpEvent.of(**EVENT, rounds=3)
    event = ShuffledReportsDpEvent.of(**EVENT)
    assert accountant.supports(event)
    accountant.compose(event, 10)
    proven = fs.bound(**EVENT, rounds=10, delta=1e-6).epsilon
    assert proven <= accountant.get_epsilon(1e-6) <= 1.02 * proven
    repeated = ShuffleAccountant()
    repeated.compose(dp_accounting.SelfComposedDpEvent(event, 10))
    assert repeated.get_epsilon(1e-6) == accountant.get_epsilon(1e-6)
    accountant.compose(dp_accounting.GaussianDpEvent(2.0))
    gaussian = ShuffleAccountant()
    gaussian.compose(dp_accounting.GaussianDpEvent(2.0))
    both = accountant.get_epsilon(1e-6)
    assert max(proven, gaussian.get_epsilon(1e-6)) < both < proven + gaussian.get_epsilon(1e-6)


RUN = {
    "run": {"rounds": 2},
    "data": {"clients": 24},
    "privacy": {"unit": "client", "clip_norm": 0.5},
    "training": {"participation": 0.5},
    "budgets": {"distribution": "uniform", "low": 1.0, "high": 8.0, "levels": 2},
}


@pytest.mark.parametrize("changes", [{}, {"privacy.randomizer": "laplace"}], ids=str)
def test_a_clients_bill_with_mixed_budgets_and_missed_rounds(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    result = fs.simulate(RUN, overrides={"privacy.release": "sum", **changes}, out=tmp_path / "run")
    taken = result.ledger.record.totals.rounds
    assert taken.min() < taken.max()
    for client in (int(taken.argmin()), int(taken.argmax())):
        law = result.to_dp_accounting(client=client)
        own = result.ledger.client(client).epsilon
        theirs = law.get_epsilon_for_delta(result.delta)
        # What its curve says; the ledger also knows of the client's own noise alone.
        assert own <= theirs * (1 + 1e-6) and theirs <= 1.1 * own
        twice = law.compose(law).get_epsilon_for_delta(result.delta)
        assert theirs < twice <= 2.0 * theirs or own == 0.0
    with pytest.raises(InvalidValueError, match="client = 24"):
        result.to_dp_accounting(client=24)


def test_who_never_took_part_has_spent_nothing(tmp_path: Path) -> None:
    result = fs.simulate(
        RUN, overrides={"run.rounds": 1, "training.participation": 0.1}, out=tmp_path / "run"
    )
    absent = int(result.ledger.record.totals.rounds.argmin())
    law = result.to_dp_accounting(client=absent)
    assert law.get_epsilon_for_delta(1e-12) == 0.0 and law.get_delta_for_epsilon(0.0) < 1e-9
