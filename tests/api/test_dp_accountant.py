"""Runs and shuffled reports in the words of Google's dp-accounting."""

from __future__ import annotations

from pathlib import Path

import pytest

import fl_shuffle as fs
from fl_shuffle.errors import InvalidValueError

RUN = {
    "run": {"rounds": 2},
    "data": {"clients": 24},
    "privacy": {"unit": "client", "clip_norm": 0.5, "release": "sum"},
    "training": {"participation": 0.3},
    "budgets": {"distribution": "uniform", "low": 1.0, "high": 8.0, "levels": 2},
}


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_a_clients_bill_with_mixed_budgets_and_missed_rounds(
    randomizer: str, tmp_path: Path
) -> None:
    pytest.importorskip("dp_accounting")
    result = fs.simulate(RUN, overrides={"privacy.randomizer": randomizer}, out=tmp_path / "run")
    taken = result.ledger.record.totals.rounds
    assert taken.min() == 0 < taken.max()  # who never took part has spent nothing
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
