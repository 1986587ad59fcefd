"""The command audits what it once could not see; `tests/mutants.toml` has a fault for each.

Clients of many kinds and weights, rounds that the accountant must all count, absent clients, noise
that occurs again at other coordinates or at a few.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_shuffle.cli import main

WEIGHTED = """
[run]
rounds = 5
[data]
source = "digits"
clients = 30
[privacy]
unit = "client"
clip_norm = 0.5
[budgets]
distribution = "uniform"
low = 1.0
high = 6.0
[server]
weights = "inverse-variance"
"""
OPTIONS = ["--trials", "400", "--reports", "60000", "--seconds", "60", "--json"]


def test_an_audit_of_weighted_clients_over_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(WEIGHTED, encoding="utf-8")
    code = main(["audit", str(path), *OPTIONS])
    report = json.loads(capsys.readouterr().out)
    broken = [
        found["game"] for found in report["findings"] if found["verdict"].startswith("CONTRADICTS")
    ]
    refuted = [check["game"] for check in report["checks"] if check["refuted"]]
    assert (code, broken, refuted) == (0, [], [])
    games = [found["game"] for found in report["findings"]]
    # Six kinds of clients, the least and the most weighted among them.
    assert sum(game.startswith("one report of a client at") for game in games) == 6
    rounds = {found["rounds"] for found in report["findings"] if "several rounds" in found["game"]}
    assert rounds == {1, 5}
    assert any("others absent" in game for game in games)
    assert any("any two places" in check["game"] for check in report["checks"])
    for found in report["findings"]:
        assert all(point["proven_epsilon"] is not None for point in found["points"])
