"""The estimate of a run's time counts what was played."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from torch import Tensor

from fl_shuffle.configuration.reading import load_config
from fl_shuffle.data.task import load_task
from fl_shuffle.federation import Federation
from fl_shuffle.gradients.clipper import Clipper
from fl_shuffle.planner import run_time

QUICK = "configs/digits_record.toml"


@pytest.mark.parametrize(("jobs", "noise"), [(1, "pooled"), (3, "per-report")])
def test_time_is_that_of_the_records_played_in_proportion(
    jobs: int, noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(QUICK, ["training.participation=0.5", f"run.noise={noise}"])
    task = load_task(config)
    played: list[tuple[int, ...]] = []
    real = Federation.clipper.fget
    assert real is not None

    def noting(self: Federation) -> Clipper:
        clip = real(self)

        def noted(parameters: Tensor, clients: np.ndarray) -> Tensor:
            played.append(tuple(clients.tolist()))
            return clip(parameters, clients)

        return noted

    # A clock in which every request set takes one second; few records in a request.
    ticks = itertools.count()
    monkeypatch.setattr(run_time.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(run_time, "PIECE_RECORDS", 100)
    monkeypatch.setattr(Federation, "clipper", property(noting))
    seconds = run_time.seconds_of_round(config, jobs)
    asked = np.concatenate([np.array(one) for one in set(played)])
    assert len(set(played)) == jobs and len(np.unique(asked)) == len(asked)
    records = int(np.diff(task.offsets)[asked].sum())
    assert 0 < records <= jobs * 100
    assert seconds == pytest.approx(0.5 * task.offsets[-1] / records)
