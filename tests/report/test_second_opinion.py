"""`ledger --check`: the printed parameters beside closed forms, and the printed lines executed."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch
from scipy.optimize import brentq
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.accounting.client_classes import ClientClass
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.report.second_opinion import SecondOpinion
from tests.small_federation import Play, stored

CLIENT = 3
SETTINGS = ["training.participation=0.6", "privacy.personalization=noise"]


def printed(folder: Path, capsys: CaptureFixture[str], client: int = CLIENT) -> str:
    capsys.readouterr()
    assert main(["ledger", str(folder), "--client", str(client), "--check"]) == 0
    return capsys.readouterr().out


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of a mu-GDP mechanism (Balle and Wang, ICML 2018, Theorem 8), solved for."""

    def excess(epsilon: float) -> float:
        above = norm.cdf(mu / 2.0 - epsilon / mu)
        return float(above - np.exp(epsilon) * norm.cdf(-mu / 2.0 - epsilon / mu) - delta)

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


def parameters(lines: str) -> dict[str, Any]:
    """What the printed lines assign, without dp-accounting."""
    import_free = [line for line in lines.splitlines() if not line.startswith(("from", "print"))]
    names: dict[str, Any] = {"get_epsilon_gaussian": lambda sigma, delta: (1.0 / sigma, delta)}
    exec("\n".join(import_free), names)
    return names


@pytest.mark.parametrize("honest", [None, 0.5])
def test_check_parameters_are_the_closed_form(
    honest: float | None, play: Play, capsys: CaptureFixture[str]
) -> None:
    """From the ledger's tables alone: noise, clipping norm, and who reported when."""
    more = [] if honest is None else [f"privacy.assumed_honest={honest}"]
    folder = play("run", *SETTINGS, *more)
    found = parameters(printed(folder, capsys))
    tables = "clients JOIN classes USING (class_id)"
    noise = dict(stored(folder, f"SELECT client_id, scale FROM {tables}"))
    radius = dict(stored(folder, f"SELECT client_id, radius FROM {tables}"))[CLIENT]
    local, summed = 0.0, 0.0
    rounds: dict[int, list[int]] = {}
    for number, client in stored(folder, "SELECT round, client_id FROM participation"):
        rounds.setdefault(number, []).append(client)
    for present in rounds.values():
        if CLIENT in present:
            others = sorted(noise[each] ** 2 for each in present if each != CLIENT)
            count = len(present) if honest is None else int(honest * len(present))
            hidden = noise[CLIENT] ** 2 + sum(others[: count - 1])
            local += (2.0 * radius / noise[CLIENT]) ** 2
            summed += (2.0 * radius) ** 2 / hidden
    assert local > 0.0 and found["local"] == (pytest.approx(local**0.5), found["delta"])
    assert found["summed"] == (pytest.approx(summed**0.5), found["delta"])
    own = fs.Result(folder).ledger.client(CLIENT)
    assert own.local_epsilon == pytest.approx(gaussian_epsilon(*found["local"]), rel=1e-6)
    assert own.sum_epsilon == pytest.approx(gaussian_epsilon(*found["summed"]), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "columns", "tolerance"),
    [
        ((), ["local", "sum"], 1e-6),
        (("privacy.release=sum", "privacy.reports_per_round=2"), ["local", "sum"], 1e-6),
        # A discretized PLD, in steps of 1e-4 for each of the reports.
        (("privacy.randomizer=laplace",), ["local"], 1e-3),
        (("training.schedule=sequential",), ["local"], 1e-6),
        (("privacy.randomizer=discrete-gaussian", "run.entropy=system"), ["local", "sum"], 1e-6),
    ],
    ids=["Gaussian", "batches", "Laplace", "sequential", "discrete"],
)
def test_check_lines_executed_by_dp_accounting(
    settings: tuple[str, ...],
    columns: list[str],
    tolerance: float,
    play: Play,
    capsys: CaptureFixture[str],
) -> None:
    pytest.importorskip("dp_accounting")
    folder = play("run", SETTINGS[0], *settings)
    lines = printed(folder, capsys)
    exec(lines, {})
    words = capsys.readouterr().out.split()
    assert words[::2] == columns
    own = fs.Result(folder).ledger.client(CLIENT)
    for name, value in zip(columns, map(float, words[1::2]), strict=True):
        ours = getattr(own, f"{name}_epsilon")
        assert value == pytest.approx(ours, rel=tolerance)
        (shown,) = re.findall(rf"# {name}: epsilon by fl-shuffle (\S+), by dp-acc\S+ (\S+)", lines)
        assert list(map(float, shown)) == pytest.approx([ours, value], rel=1e-9)


def test_check_without_dp_accounting(
    play: Play, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    folder = play("run", "run.rounds=2", "training.participation=0.3")
    monkeypatch.setattr("fl_shuffle.report.second_opinion.installed", lambda library: False)
    rounds = fs.Result(folder).ledger.history().rounds[-1]
    said = printed(folder, capsys, int(rounds.argmax()))
    assert "# dp-accounting is not installed here: pip install dp-accounting" in said
    assert "by dp-accounting " not in said and "# local: epsilon by fl-shuffle" in said
    # A client that was never asked.
    assert rounds.min() == 0
    exec(printed(folder, capsys, int(rounds.argmin())), {})
    assert capsys.readouterr().out.split() == ["local", "0.0", "sum", "0.0"]


@pytest.mark.parametrize("options", [["--clients"], ["--client", "3", "--format", "csv"]])
def test_check_is_for_one_client(
    options: list[str], play: Play, capsys: CaptureFixture[str]
) -> None:
    folder = play("run", "run.rounds=1")
    capsys.readouterr()
    assert main(["ledger", str(folder), "--check", *options]) == 2
    said = capsys.readouterr().err
    assert "--check prints Python code for one client: add --client ID" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("honest", "unusable", "hiding"),
    [
        (None, 0, [1, 2, 2, 4, 8]),
        (None, 2, [1, 2, 2]),
        (3, 0, [1, 2, 2]),
        (4, 2, [1, 2]),
        (0.8, 1, [1, 2, 2]),
        (1, 0, [2]),
        (None, 5, [2]),
    ],
)
def test_noise_of_a_sum_is_that_of_the_fewest_reports_that_hide(
    honest: float | None, unusable: int, hiding: list[int]
) -> None:
    """Its own report, and the smallest noise of the others: all unusable ones may be honest."""
    scales = [1.0, 2.0, 4.0, 8.0]
    kinds = ClassTable.of([ClientClass("gaussian", each, 1.0, 2.0, 1.0, 1e-5) for each in scales])
    asked = {} if honest is None else {"privacy.assumed_honest": honest}
    run: Any = SimpleNamespace(
        classes=kinds, class_of=np.array([0, 1, 1, 2, 3, 3]),
        config=resolve_config({"data": {"clients": 6}}, asked).to_dict(),
        attempts=[(1, np.arange(6) < 5, unusable)],
    )  # fmt: skip
    deviation = math.sqrt(sum(each * each for each in hiding))
    assert SecondOpinion(run, 1).sums == [(pytest.approx(deviation), 1)]
    assert SecondOpinion(run, 5).sums == []
