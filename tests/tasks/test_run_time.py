"""The estimate of a run's time counts what was played, and says why a mode is refused."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import load_config
from fl_shuffle.flower.records import TrainRequest
from fl_shuffle.tasks import run_time
from fl_shuffle.tasks.task import load_task
from fl_shuffle.tasks.worker import Worker

QUICK = "fl_shuffle/configs/digits_record.toml"


@pytest.mark.parametrize("jobs", [1, 3])
def test_time_is_that_of_the_records_played_in_proportion(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(QUICK, ["training.participation=0.5", "run.rounds=7"])
    task = load_task(config)
    played: list[TrainRequest] = []
    real = Worker.reports

    def reports(self: Worker, request: TrainRequest, parameters: object) -> np.ndarray:
        played.append(request)
        return real(self, request, parameters)  # type: ignore[arg-type]

    # A clock in which every request set takes one second; few records in a request.
    ticks = itertools.count()
    monkeypatch.setattr(run_time.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(run_time, "PIECE_RECORDS", 100)
    monkeypatch.setattr(Worker, "reports", reports)
    per_report, pooled = run_time.estimate_run_time(config, jobs)
    asked = np.concatenate([one.clients for one in set(played)])
    assert len(set(played)) == jobs and len(np.unique(asked)) == len(asked)
    records = int(np.diff(task.offsets)[asked].sum())
    assert 0 < records <= jobs * 100
    assert per_report.round_seconds == pytest.approx(0.5 * task.offsets[-1] / records)
    assert per_report.seconds == pytest.approx(7 * per_report.round_seconds)
    assert pooled.round_seconds == per_report.round_seconds


def test_a_mode_that_is_refused_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "run.entropy=system", "--set", "data.records=6", "--rounds", "2"]
    assert main(["plan", QUICK, "--time", "--json", *settings]) == 0
    per_report, pooled = json.loads(capsys.readouterr().out)["time"]
    assert per_report["seconds"] == 2 * per_report["round_seconds"] > 0
    assert pooled["seconds"] is None and "each client draws its own" in pooled["reason"]


def test_time_needs_one_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--time", "--epsilon", "1", "--delta", "1e-5", "--rounds", "2"]) == 2
    assert "--time changes a configuration; name one" in capsys.readouterr().err
    assert main(["plan", QUICK, "--time", "--levels", "3"]) == 2
    assert "leave out --levels" in capsys.readouterr().err
