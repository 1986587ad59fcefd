"""Several runs on the same people: which are composed, which are refused, and what is printed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.data import Records
from fl_shuffle.errors import ConfigError, InvalidValueError, RunError
from tests.crashes import Crashing
from tests.small_federation import Play
from tests.small_federation import rows as rows_of

NAMES = [f"c{number:02d}" for number in range(12)]
ELSEWHERE = [*NAMES[1:], "zoe"]
"""The first client has another name in another source, so every client has another number."""


def here(section: Any, names: list[str] = NAMES) -> Records:
    """Five records of each named client."""
    draw = np.random.Generator(np.random.Philox(3))
    images = draw.standard_normal((60, 4)).astype(np.float32)
    labels, owners = np.arange(60) % 3, np.repeat(names, 5)
    return Records(images, labels, images[:4], labels[:4], 3, train_clients=owners)


def elsewhere(section: Any) -> Records:
    return here(section, ELSEWHERE)


OWN = ("data.partition=natural", "data.features=none", "training.participation=0.6")


def table(capsys: CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["ledger", *arguments, "--format", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_two_runs_cost_what_one_of_all_rounds_does(
    play: Play, capsys: CaptureFixture[str], tmp_path: Path
) -> None:
    """Of other seed, model and learning rate; and less than the sum of their epsilons."""
    first = play("first", "run.rounds=2")
    second = play("second", "run.seed=9", "server.learning_rate=0.1", "model.bias=false")
    whole = fs.Result(play("whole", "run.rounds=5")).ledger
    found = fs.compose_runs([first, second])
    for name in ("shuffled", "sum", "local"):
        theirs = whole.to_dict()[f"{name}_epsilon"]
        np.testing.assert_allclose(found.epsilon[name], theirs, rtol=1e-6)
    assert found.headline == "shuffled" and found.worst() == found.epsilon["shuffled"].max()
    assert found.rounds.tolist() == [5] * 12 and len(found) == 12
    own = [fs.Result(each).ledger.to_dict()["local_epsilon"] for each in (first, second)]
    assert np.array_equal(found.added["local"], own[0] + own[1])
    assert (found.added["local"] > found.epsilon["local"]).all()
    assert found.added_delta == pytest.approx(2e-5) and found.delta == 1e-5
    gspa = [float(rows_of(each)[-1]["gspa_epsilon"]) for each in (first, second)]
    assert found.added["gspa"][0] == pytest.approx(sum(gspa))
    runs = (str(first), str(second), "--together")
    rows = {row["column"]: row for row in table(capsys, *runs)}
    assert rows["headline"]["epsilon"] == found.worst()
    assert rows["local"]["added_epsilons"] == found.added["local"].max()
    assert rows["gspa"]["status"] == "as published" and rows["sum"]["status"] == "proven"
    clients = table(capsys, *runs, "--clients")
    assert [row["epsilon"] for row in clients] == found.epsilon["headline"].tolist()
    assert table(capsys, *runs, "--client", "4") == clients[4:5]
    smaller = table(capsys, *runs, "--delta", "1e-8", "--client", "4")[0]
    assert smaller["delta"] == 1e-8 and smaller["epsilon"] > clients[4]["epsilon"]
    out = tmp_path / "clients.csv"
    assert main(["ledger", *runs, "--clients", "--out", str(out)]) == 0
    with out.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [float(row["epsilon"]) for row in lines] == found.epsilon["headline"].tolist()
    capsys.readouterr()
    assert main(["ledger", *runs]) == 0
    said = capsys.readouterr().out
    for words in (
        "2 runs on the same 12 clients, unit client, replace-one", f"{found.worst():.4g}",
        "seeded noise protects nobody", "the runs draw their noise independently",
        "not chosen from what", "all clients whose reports arrive",
    ):  # fmt: skip
        assert words in " ".join(said.split())


@pytest.mark.slow
def test_assumptions_of_every_run_are_told(play: Play) -> None:
    first, second = play("first"), play("second", "privacy.assumed_honest=0.5", "run.seed=9")
    found = fs.compose_runs([first, second])
    assert sum("second: in every round at least 0.5" in text for text in found.assumptions) == 1
    assert sum("first: all clients" in text for text in found.assumptions) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("privacy.unit=record",), r"protects a client, .* a record \(privacy.unit\)"),
        (("data.seed=1",), "has other clients than .*data.seed = 1 instead of 0"),
        (("data.clients=11",), "data.clients = 11 instead of 12"),
        (("data.partition=dirichlet",), "neighbors of .* are replace-one"),
        (("data.records_per_client=9",), "data.records_per_client = 9 instead of 0"),
    ],
    ids=["unit", "seed", "clients", "labels", "records"],
)
@pytest.mark.slow
def test_runs_on_other_units_or_clients_are_refused(
    settings: tuple[str, ...], words: str, play: Play
) -> None:
    with pytest.raises(RunError, match=words):
        fs.compose_runs([play("first"), play("second", "run.seed=9", *settings)])


def test_bad_input_is_one_line(play: Play, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    first, second = str(play("first")), str(play("second", "privacy.target_delta=1e-6"))
    both = ("ledger", first, second)
    for arguments, words in (
        ((*both, "--together"), "runs' own are 1e-06, 1e-05"),
        ((*both, "--together", "--delta", "0"), "delta = 0"),
        ((*both, "--together", "--delta", "nan"), "delta = nan"),
        ((*both, "--together", "--delta", "1"), "delta = 1"),
        ((*both, "--delta", "1e-5"), "--delta needs --together"),
        ((*both, "--delta", "0"), "--delta needs --together"),
        ((*both, "--clients-as", "a=b"), "--clients-as needs --together"),
        ((*both, "--together", "--notes"), "--notes is about single runs"),
        ((*both, "--together", "--recompute"), "--recompute is about single runs"),
        ((*both, "--together", "--round", "0"), "--round is about single runs"),
        (("ledger", first, "--together"), "at least two run directories"),
        (("ledger", first, first, "--together"), "is the same run as"),
        ((*both, "--together", "--delta", "1e-5", "--client", "12"), "client = 12"),
        ((*both, "--together", "--delta", "1e-5", "--clients-as", "a"), "must be NAME=NAME"),
        ((*both, "--together", "--delta", "1e-5", "--clients-as", "a="), "must be NAME=NAME"),
        ((*both, "--together", "--delta", "1e-5", "--clients-as", "a=b"), "no client of any run"),
        (("ledger", first, str(tmp_path / "none"), "--together"), "none"),
        ((*both, "--together", "--delta", "1e-5", "--format", "parquet"), "add --out FILE"),
    ):
        capsys.readouterr()
        assert main([*arguments]) == 2, arguments
        said = capsys.readouterr().err.splitlines()
        assert words in said[-1] and "Traceback" not in " ".join(said), said
    for wrong in ([first], first, []):
        with pytest.raises(InvalidValueError, match="at least two run directories"):
            fs.compose_runs(wrong)
    with pytest.raises(ConfigError, match="delta is missing"):
        fs.compose_runs([first, second])


def test_named_clients_are_matched_by_name(play: Play, capsys: CaptureFixture[str]) -> None:
    first = play("first", *OWN, f"data.source={__name__}:here")
    second = play("second", *OWN, f"data.source={__name__}:elsewhere", "run.seed=9")
    with pytest.raises(RunError, match="'c00' is in .*first alone .2 such names.; say with"):
        fs.compose_runs([first, second])
    found = fs.compose_runs([first, second], clients_as={"c00": "zoe"})
    rounds = [fs.Result(each).ledger.to_dict()["rounds"] for each in (first, second)]
    place = [ELSEWHERE.index({"c00": "zoe"}.get(name, name)) for name in NAMES]
    assert found.rounds.tolist() == (rounds[0] + rounds[1][place]).tolist()
    assert len({*found.rounds.tolist()}) > 1 and found.rounds.tolist() != sum(rounds).tolist()
    runs = (str(first), str(second), "--together", "--clients-as", "c00=zoe")
    assert [row["rounds"] for row in table(capsys, *runs, "--clients")] == found.rounds.tolist()
    (own,) = table(capsys, *runs, "--client", "c07")
    assert own["client"] == 7 and own["epsilon"] == found.epsilon["headline"][7]
    for wrong, error, words in (
        ({"c0": "zoe"}, ConfigError, "no client of any run has this name; did you mean"),
        ({"c00": "c01"}, RunError, "two of its clients have one name"),
    ):
        with pytest.raises(error, match=words):
            fs.compose_runs([first, second], clients_as=wrong)
    with pytest.raises(RunError, match="have no names; they cannot be matched"):
        fs.compose_runs([first, play("third")], clients_as={"c00": "zoe"})


@pytest.mark.slow
def test_unfinished_runs_count_as_far_as_they_came(crash: Crashing, play: Play) -> None:
    stopped, whole = crash(2, "run.entropy=system", name="stopped"), play("whole")
    assert fs.compose_runs([stopped, whole]).rounds.tolist() == [5] * 12


@pytest.mark.slow
def test_run_without_noise_is_infinite(play: Play) -> None:
    bare = play("bare", "privacy.randomizer=none", "run.seed=9")
    found = fs.compose_runs([play("run"), bare])
    assert found.worst() == np.inf and found.worst("local") is None
    assert "no noise" in found.reasons["shuffled"]
