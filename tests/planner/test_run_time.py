"""The estimate of a run's time counts what was played."""

from __future__ import annotations

import itertools

import pytest

from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.task import load_task
from fl_shuffle.planner import run_time


@pytest.mark.parametrize(("jobs", "noise"), [(1, "pooled"), (3, "per-report")])
def test_time_is_that_of_the_records_played_in_proportion(
    jobs: int, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of whole clients; by a clock in which every set of requests takes one second."""
    config = resolve_config("digits_record", ["training.participation=0.5", f"run.noise={noise}"])
    ticks = itertools.count()
    monkeypatch.setattr(run_time.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(run_time, "PIECE_RECORDS", 100)
    offsets = load_task(config).offsets.tolist()
    played = 0.5 * offsets[-1] / run_time.seconds_of_round(config, jobs)
    assert 0 < played <= jobs * 100
    assert min(abs(played - each) for each in offsets) < 1e-6
