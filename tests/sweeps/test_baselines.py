"""A run beside its baselines: at the same epsilon, on the same data, with the same training."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.errors import ConfigError
from fl_shuffle.planner.cost import cost_of
from fl_shuffle.report.many import sweep_figure
from fl_shuffle.sweeps.baselines import _local_epsilon, _without_privacy, baselines_of
from fl_shuffle.sweeps.points import LOCAL, NONE, SHUFFLED, TRUSTED, Sweep, changed
from fl_shuffle.sweeps.results import SweepResult
from tests.oracles import gaussian_epsilon

BASE: dict[str, Any] = {
    "run": {"rounds": 3},
    "data": {"source": "digits", "clients": 60, "records_per_client": 5},
    "model": {"init": "zeros"},
    "privacy": {"unit": "client", "clip_norm": 0.5, "client_clip_norm": 0.4},
    "budgets": {"epsilon": 3.0},
    "server": {"learning_rate": 4.0},
}


@pytest.mark.slow
def test_all_cost_what_the_shuffled_run_costs() -> None:
    """By the accountant for sums, and by an own formula for local noise: never more, and nearly as
    much."""
    found = baselines_of(BASE)
    assert list(found) == [NONE, TRUSTED, SHUFFLED, LOCAL] and not found[SHUFFLED]
    target = cost_of(parse_config(BASE)).epsilon
    trusted, local, bare = (parse_config(changed(BASE, found[n])) for n in (TRUSTED, LOCAL, NONE))
    assert trusted.privacy.release == "sum" and local.privacy.release == "reports"
    assert 0.995 * target <= cost_of(trusted).epsilon <= target
    sigmas = {each.noise_scale for each in cost_of(local).classes}
    assert len(sigmas) == 1
    alone = gaussian_epsilon(math.sqrt(3.0) * 2.0 * 0.4 / sigmas.pop(), 1e-5)
    assert 0.995 * target <= alone <= target * (1.0 + 1e-9)
    assert bare.privacy.randomizer == "none" and bare.server.learning_rate == 4.0 * 0.5


def test_training_of_the_baselines_is_the_same() -> None:
    """But for privacy, budgets, what noise needs, and the length of a step."""
    base = {**BASE, "training": {"local_epochs": 2, "batch_size": 2}}
    whole = parse_config(base).to_dict()
    for name, own in baselines_of(base).items():
        made = parse_config(changed(base, own)).to_dict()
        for section in ("data", "model", "training", "server"):
            assert made[section] == whole[section], name
        assert made["privacy"]["target_delta"] == whole["privacy"]["target_delta"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"privacy.release": "sum"}, "shuffled run"),
        ({"training.schedule": "sequential", "training.participation": 1.0}, "no batch"),
        ({"server.analyzer": "coordinate-median"}, "sums alone"),
        ({"privacy.randomizer": "none", "privacy.client_clip_norm": None}, "adds no noise"),
        ({"privacy.target_epsilon": 1.0}, "limits"),
    ],
)
def test_what_has_no_baselines_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"--baselines: .*{reason}"):
        baselines_of(changed(BASE, settings))


def test_without_privacy_a_rate_in_clipping_norms_is_the_same_step() -> None:
    """A gradient of length 1 counts as one clipping norm; a whole update is as long as it is."""
    base = changed(BASE, {"server.learning_rate_unit": "clipping-norm"})
    for more, rate in (({}, 4.0), ({"training.local_steps": 2}, 4.0 / 0.5)):
        config = parse_config(changed(base, more))
        made = parse_config(changed(changed(base, more), _without_privacy(config))).server
        assert (made.learning_rate, made.learning_rate_unit) == (rate, "absolute")


@pytest.mark.slow
def test_every_combination_has_its_own_and_no_privacy_is_one() -> None:
    sweep = Sweep.of(BASE, {"budgets.epsilon": [2.0, 4.0]}, 2, baselines=True)
    names = [point.settings["baseline"] for point in sweep.points[::2]]
    assert names == [NONE, TRUSTED, SHUFFLED, LOCAL, TRUSTED, SHUFFLED, LOCAL]
    assert len({point.name for point in sweep.points}) == 14
    solved = [p.config.budgets.epsilon for p in sweep.points if p.settings["baseline"] == LOCAL]
    assert solved[0] == solved[1] < solved[2] == solved[3]
    # Read back from its file it is the same, without solving anything again.
    again = Sweep(sweep.base, sweep.grid, sweep.seeds, sweep.baselines)
    assert [point.config for point in again.points] == [point.config for point in sweep.points]


@pytest.mark.slow
def test_a_sweep_with_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    result = fs.sweep(BASE, seeds=2, baselines=True, out=out)
    table = result.table
    assert table["baseline"] == [NONE, TRUSTED, SHUFFLED, LOCAL] and table["runs"] == [2] * 4
    bare, trusted, shuffled, local = table["epsilon"]
    assert bare == math.inf and table["local_epsilon"][0] is None
    assert max(trusted, local) <= shuffled * (1.0 + 1e-9) and min(trusted, local) > 0.99 * shuffled
    assert local == table["local_epsilon"][3] and trusted == table["sum_epsilon"][1]
    figure = sweep_figure(result)
    assert figure is not None
    assert {line.label for line in figure.lines} == {
        "no privacy", *(f"baseline = {name}" for name in (TRUSTED, SHUFFLED, LOCAL))
    }  # fmt: skip
    assert "no privacy" in result.report().read_text(encoding="utf-8")
    with (out / "runs.csv").open(newline="") as file:
        assert [row["epsilon"] for row in csv.DictReader(file)][:2] == ["inf", "inf"]
    assert SweepResult(out).table == table
    assert main(["sweep", "--resume", str(out)]) == 0
    said = capsys.readouterr().out
    assert "trusted server" in said and "inf" in said
    assert main(["sweep", "--resume", str(out), "--baselines"]) == 2


def test_own_noise_pays_for_every_report_of_a_round() -> None:
    """Several reports a round cost what as many rounds do, where nobody shuffles."""
    tables = {"data": {"clients": 4, "records_per_client": 6}, "budgets": {"epsilon": 1.0}}
    several = {"run.rounds": 2, "privacy.reports_per_round": 3}
    found, single, rounds = (
        _local_epsilon(resolve_config(tables, settings))
        for settings in (several, {"run.rounds": 2}, {"run.rounds": 6})
    )
    assert found == rounds > 1.5 * single
