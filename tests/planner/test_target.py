"""What of a configuration keeps a target: on its near side the cost is within, beyond it is not."""

from __future__ import annotations

import json

import pytest

from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from fl_shuffle.planner.cost import cost_of
from fl_shuffle.planner.target import SOLVABLE, solve_configuration

TABLES = {
    "run": {"rounds": 5},
    "data": {"source": "digits", "clients": 100, "records": 1},
    "model": {"kind": "linear"},
    "privacy": {"unit": "client", "release": "sum"},
    "budgets": {"epsilon": 3.0},
}


@pytest.mark.parametrize("name", SOLVABLE)
def test_the_value_keeps_the_target_and_the_next_one_does_not(name: str) -> None:
    config, epsilon = parse_config(TABLES), 0.8
    value, solved, cost = solve_configuration(config, name, epsilon)
    assert cost.epsilon <= epsilon and cost == cost_of(solved)
    key, costs = SOLVABLE[name]
    section, field = key.split(".")
    whole = isinstance(value, float) and name != "epsilon0"
    step = 1.0 if whole else 2e-3 * value
    beyond = value + step if costs else value - step
    tables = parse_config(TABLES).to_dict()
    tables[section][field] = int(beyond) if whole else beyond
    assert cost_of(parse_config(tables)).epsilon > epsilon


def test_targets_that_cannot_be_kept_or_are_none() -> None:
    config = parse_config(TABLES)
    with pytest.raises(NotApplicableError, match="no run.rounds in .* keeps epsilon <= 0.001"):
        solve_configuration(config, "rounds", 1e-3)
    with pytest.raises(InvalidValueError, match="epsilon = 0.0"):
        solve_configuration(config, "rounds", 0.0)
    with pytest.raises(InvalidValueError, match="must be one of rounds, reports_per_round"):
        solve_configuration(config, "sigma", 1.0)
    uneven = parse_config({**TABLES, "budgets": {"distribution": "uniform"}})
    with pytest.raises(InvalidValueError, match="must be constant to be solved for"):
        solve_configuration(uneven, "epsilon0", 1.0)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bound", "quickstart", "--set", "privacy.release=sum", "--epsilon", "1"]
    assert main([*asked, "--solve-for", "reports-per-round"]) == 0
    said = capsys.readouterr().out
    assert "privacy.reports_per_round <= 1 for epsilon <= 1" in said and "proven cost" in said
    assert main([*asked, "--solve-for", "rounds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] > 30 and 0.95 < found["epsilon"] <= 1.0
    assert main(["bound", "quickstart", "--solve-for", "rounds"]) == 2
    assert "needs the target, --epsilon" in capsys.readouterr().err
