"""Totals of a run: what is planned for them, whom it spends how much, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

import fl_shuffle as fs
from fl_shuffle.accounting.rounds.local_guarantees import accounted_locally, local_epsilons
from fl_shuffle.accounting.rounds.sum_account import SumAccount
from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.cli import main
from fl_shuffle.cli.cost import _limit_lines, _totals_table
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.planner.cost import TotalCost, cost_of
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.total_budgets import (
    absent_reports,
    expected_reports,
    planned_reports,
    solved_totals,
)

DELTA = 1e-5


def totals_of(shape: str, clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Totals between 0.1 and 8 of so many clients: of two values, three, or all different."""
    if shape == "all different":
        return rng.uniform(0.1, 8.0, clients)
    values = np.exp(rng.uniform(math.log(0.1), math.log(8.0), 2 if shape == "two" else 3))
    return rng.permutation(values[np.arange(clients) % len(values)])


def configured(clients: int, rounds: int, budgets: dict[str, Any], **privacy: Any) -> Config:
    wanted = {"unit": "client", "personalization": "clipping", "release": "sum",
              "target_delta": DELTA}  # fmt: skip
    return parse_config(
        {
            "run": {"rounds": rounds},
            "data": {"clients": clients},
            "privacy": {**wanted, **privacy},
            "budgets": {"of": "run", **budgets},
        }
    )


def planned(
    config: Config, totals: NDArray[np.float64], records: NDArray[np.int64] | None = None
) -> Calibration:
    records = np.ones(len(totals), dtype=np.int64) if records is None else records
    return make_plan(config, Budgets(totals, np.zeros(len(totals)), of="run"), records)


def spent(config: Config, plan: Calibration, rounds: list[NDArray[np.bool_]]) -> Any:
    """Each client's epsilon [clients] after these rounds, by the account of sums."""
    account = SumAccount.start(
        plan.classes, plan.class_of, schedule="aggregate",
        assumed_honest=config.privacy.assumed_honest, dimension=10,
    )  # fmt: skip
    for present in rounds:
        account = account.after(present, config.privacy.reports_per_round)
    return account.epsilons(DELTA)


@pytest.mark.parametrize("seed", range(60))
def test_totals_of_sums_are_spent_and_not_exceeded(seed: int) -> None:
    """With all clients in every round each ends at its total, within a thousandth below it."""
    rng = np.random.default_rng(seed)
    clients, rounds = int(rng.integers(50, 5001)), int(rng.integers(1, 101))
    honest = [None, 0.5, int(rng.integers(2, clients))][seed % 3]
    unit = ("client", "record")[seed // 3 % 2]
    more = {"assumed_honest": honest, "unit": unit, "clip_norm": float(rng.uniform(0.01, 10.0)),
            "reports_per_round": 1 + seed % 2}  # fmt: skip
    config = configured(
        clients, rounds, {"expected_share": 1.0}, **{k: v for k, v in more.items() if v is not None}
    )
    totals = totals_of(("two", "three", "all different")[seed // 6 % 3], clients, rng)
    records = rng.geometric(0.05, clients).astype(np.int64)
    plan = planned(config, totals, records)
    ratio = spent(config, plan, [np.ones(clients, dtype=bool)] * rounds) / totals
    assert ratio.min() >= 0.999 and ratio.max() <= 1.0
    assert np.unique(plan.scale).size == 1
    assert float(plan.clip.max()) == pytest.approx(more["clip_norm"], rel=1e-12)


@pytest.mark.parametrize(("clients", "rounds"), [(3, 1), (50, 1), (50, 100)])
def test_totals_of_clients_with_many_records(clients: int, rounds: int) -> None:
    """Clips of a hundred thousand records lie far out in noise scales, on coarse grids: of those,
    noise counts less."""
    rng = np.random.default_rng(clients + rounds)
    config = configured(clients, rounds, {"expected_share": 1.0}, unit="record")
    totals, records = rng.uniform(0.1, 8.0, clients), rng.integers(1, 100_000, clients)
    plan = planned(config, totals, records)
    ratio = spent(config, plan, [np.ones(clients, dtype=bool)] * rounds) / totals
    assert ratio.min() >= 0.998 and ratio.max() <= 1.0


def exact_mu(epsilon: float) -> float:
    """The mu of a Gaussian mechanism that is exactly (epsilon, DELTA)-DP, by bisection."""

    def more(mu: float) -> float:
        first = math.exp(float(log_ndtr(0.5 * mu - epsilon / mu)))
        return first - math.exp(epsilon + float(log_ndtr(-0.5 * mu - epsilon / mu))) - DELTA

    return float(brentq(more, 1e-3, 50.0, xtol=1e-14))


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_client_gets_the_clip_of_its_own_total(unit: str) -> None:
    """The closed form, computed anew: T sums of h reports of noise s, each moved by Delta_i, are
    (Delta_i / s) sqrt(T / h)-GDP. Delta_i is two clips, over the client's records where those are
    clipped one by one."""
    totals, records = np.array([4.0, 0.25, 1.0, 4.0, 0.25] * 20), np.arange(1, 101)
    config = configured(100, 7, {"expected_share": 0.8}, unit=unit, clip_norm=0.3)
    plan = planned(config, totals, records)
    moved = 2.0 * plan.clip / (records if unit == "record" else 1)
    for client in (0, 1, 2, 48, 99):
        mu = moved[client] / plan.scale[client] * math.sqrt(7 / 80)
        assert mu == pytest.approx(exact_mu(totals[client]), rel=1e-6)
    assert np.argmax(plan.clip) == (98 if unit == "record" else 0)


@pytest.mark.parametrize(("share", "rounds"), [(0.9, 10), (0.6, 40)])
def test_absent_clients_are_planned_for(share: float, rounds: int) -> None:
    """As many reports as planned, whoever sends them, are enough for every round."""
    rng = np.random.default_rng(1)
    config = configured(300, rounds, {"expected_share": share})
    totals = totals_of("three", 300, rng)
    plan = planned(config, totals)
    number = planned_reports(config)
    attendance = [rng.permutation(300) < number for _ in range(rounds)]
    ratio = spent(config, plan, attendance) / totals
    assert ratio.max() <= 1.0
    everybody = spent(config, plan, [np.arange(300) < number] * rounds) / totals
    assert 0.999 <= everybody[0] <= 1.0


def test_the_plan_counts_who_is_expected() -> None:
    def of(asked: float | None, participation: float = 1.0, least: int = 2) -> Config:
        tables = configured(100, 5, {}, min_reports=least).to_dict()
        tables["training"]["participation"] = participation
        tables["budgets"] |= {} if asked is None else {"expected_share": asked}
        return parse_config(tables)

    assert planned_reports(of(None)) == 90 and expected_reports(of(None), 50) == 45
    assert planned_reports(of(None, 0.5)) == 45 and expected_reports(of(None, 0.5), 50) == 45
    assert planned_reports(of(0.93)) == 93 and expected_reports(of(0.93), 100) == 93
    assert planned_reports(of(0.3, 0.5)) == 30 and expected_reports(of(0.3, 0.5), 50) == 30
    # No round of fewer reports is released; nor do more arrive than are asked for.
    assert planned_reports(of(0.3, least=60)) == 60
    assert expected_reports(of(0.3, least=60), 50) == 50 == expected_reports(of(0.9, 0.5), 50)


def test_drawn_clients_rarely_exceed_their_total() -> None:
    """With partial participation the plan is for as many rounds as a client is drawn for, but in
    one run of two hundred; the run itself leaves the others out."""
    tables = configured(200, 30, {"expected_share": 0.5}).to_dict()
    tables["training"]["participation"] = 0.5
    config, rng, over = parse_config(tables), np.random.default_rng(3), 0
    totals = totals_of("two", 200, rng)
    plan = planned(config, totals)
    for _ in range(20):
        drawn = [rng.permutation(200) < 100 for _ in range(30)]
        over += bool((spent(config, plan, drawn) > totals).any())
    # Each run exceeds with probability 0.005 at most: two or more of 20 with less than 0.005.
    assert over <= 1


@pytest.mark.parametrize("release", ["sum", "reports"])
@pytest.mark.parametrize("personalization", ["clipping", "noise"])
@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
@pytest.mark.parametrize("rounds", [1, 30])
def test_totals_against_everybody_are_kept_by_own_noise(
    release: str, personalization: str, randomizer: str, rounds: int
) -> None:
    """Whoever opens the reports learns a total of each client, and hardly less."""
    rng = np.random.default_rng(rounds)
    config = configured(40, rounds, {"against": "everybody"}, release=release, unit="record",
                        personalization=personalization, randomizer=randomizer)  # fmt: skip
    totals = totals_of("three", 40, rng)
    plan = planned(config, totals, rng.integers(1, 9, 40))
    own = accounted_locally(plan.classes)
    taken = np.full(40, rounds)
    ratio = local_epsilons(own, plan.class_of, taken, DELTA) / totals
    assert ratio.max() <= 1.0 and ratio.min() >= 0.999
    assert (np.unique(plan.scale).size == 1) == (personalization == "clipping")
    assert absent_reports(config, 40) == 0 and solved_totals(config, totals) is totals


def test_what_totals_against_everybody_buy_is_said(tmp_path: Path) -> None:
    """The table, the row of Python, and the header of a run name whom totals hold against."""
    config = overridden_records(
        configured(2, 3, {"against": "everybody", "distribution": "listed", "epsilons": [1.0, 2.0]})
    )
    found = cost_of(config)
    assert all(0.999 <= each.epsilon / each.total <= 1.0 for each in found.totals)
    assert found.epsilon < 2.0
    assert "against everybody" in _totals_table(config, found)[0]


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"privacy": {"randomizer": "laplace"}}, ["privacy.randomizer = 'laplace'", "closed form"]),
    ({"privacy": {"randomizer": "discrete-gaussian", "personalization": "noise"},
      "run": {"entropy": "system"}}, ["privacy.randomizer = 'discrete-gaussian'", "one report"]),
    ({"privacy": {"randomizer": "my.noise:Own"}}, ["user-defined", "gaussian"]),
    ({"privacy": {"randomizer": "declared", "declared_sigma": 1.0, "unit": "record",
                  "personalization": "noise"}, "app": {"client": "my.app:app"}},
     ["privacy.randomizer = 'declared'", "adds no noise"]),
    ({"privacy": {"calibration": "classical"}}, ["privacy.calibration = 'classical'", "analytic"]),
    ({"privacy": {"personalization": "noise"}},
     ["privacy.personalization = 'noise'", "totals from 1 to 2", "hides all clients equally"]),
    ({"budgets": {"delta": 1e-6}}, ["budgets.delta = 1e-06", "privacy.target_delta"]),
    ({"budgets": {"of": "report", "expected_share": 0.9}},
     ["budgets.expected_share = 0.9", "applies to totals of the run"]),
    ({"budgets": {"against": "everybody", "expected_share": 0.9}},
     ["budgets.expected_share = 0.9", "absent clients", "own noise"]),
    ({"budgets": {"against": "everybody"}, "training": {"participation": 0.5}},
     ["budgets.against = 'everybody'", "training.participation = 1"]),
    ({"budgets": {"of": "report", "against": "everybody"}},
     ["budgets.against = 'everybody'", "those of one report"]),
    ({"budgets": {"epsilons": [1e-9] * 4}, "run": {"rounds": 1_000_000}},
     ["budget of client 0: total epsilon = 1e-09", "too small for 1,000,000 reports"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_cannot_be_solved_for_is_refused(change: dict[str, Any], words: list[str]) -> None:
    tables: dict[str, Any] = {
        "data": {"clients": 4, "records_per_client": 10},
        "privacy": {"unit": "client", "personalization": "clipping", "release": "sum"},
        "budgets": {"of": "run", "distribution": "listed", "epsilons": [1.0, 2.0, 1.0, 2.0]},
    }
    for section, table in change.items():
        tables[section] = {**tables.get(section, {}), **table}
    with pytest.raises(FlShuffleError) as refused:
        cost_of(parse_config(tables))
    said = str(refused.value)
    assert all(word in said for word in words) and "\n" not in said, said


def test_noise_scales_are_left_out_only_where_they_say_nothing() -> None:
    """Equal totals need no clips of their own; unequal numbers of records do."""
    equal = np.full(50, 2.0)
    config = configured(50, 3, {"expected_share": 1.0}, personalization="noise", unit="record")
    plan = planned(config, equal, np.full(50, 7))
    ratio = spent(config, plan, [np.ones(50, dtype=bool)] * 3) / equal
    assert ratio.min() >= 0.999 and ratio.max() <= 1.0
    with pytest.raises(FlShuffleError, match="clients of 1 to 50 records"):
        planned(config, equal, np.arange(1, 51))


HEADER = "client_id,total_epsilon"


@pytest.mark.parametrize(
    ("content", "of", "words"),
    [
        (f"{HEADER},total_delta\n0,1,1e-6\n1,1,1e-5\n", "run",
         ["line 2", "total_delta = 1e-06", "privacy.target_delta = 1e-05"]),
        (f"{HEADER},total_delta\n0,1,0\n1,1,0\n", "run", ["line 2", "total_delta", "(0, 1)"]),
        ("client_id,epsilon,delta\n0,1,1e-5\n1,1,1e-5\n", "run", ["line 1", "total_epsilon"]),
        (f"{HEADER}\n0,inf\n1,1\n", "report", ["line 2", "total_epsilon = inf", "finite"]),
        (f"{HEADER},epsilon\n0,1,1\n1,1,1\n", "report", ["line 1", "columns must be"]),
    ],
)  # fmt: skip
def test_files_of_totals_that_say_something_else(
    content: str, of: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = tmp_path / "budgets.csv", tmp_path / "config.toml"
    path.write_text(content)
    config.write_text(
        "data = { clients = 2, records_per_client = 3 }\n"
        'privacy = { unit = "client", personalization = "clipping", release = "sum" }\n'
        f'budgets = {{ of = "{of}" }}\n'
    )
    assert main(["bound", str(config), "--budgets", str(path)]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words) and said.count("\n") == 1, said


def test_a_file_of_totals_needs_no_other_setting(tmp_path: Path) -> None:
    path = tmp_path / "budgets.csv"
    path.write_text(f"{HEADER},total_delta,lifetime_epsilon\n1,2.0,1e-5,1.5\n0,0.5,1e-5,inf\n")
    config = configured(2, 3, {"distribution": "file", "file": str(path), "of": "report",
                               "expected_share": 1.0})  # fmt: skip
    budgets = make_budgets(config.budgets, 2)
    assert budgets.of == "run" and budgets.epsilon.tolist() == [0.5, 2.0]
    # A total plans and limits, a lifetime budget limits: the smaller one binds.
    assert budgets.limits is not None and budgets.limits.tolist() == [0.5, 1.5]
    assert budgets.limit == "total of the run or lifetime budget"
    assert budgets.words() == "2 distinct totals of the run, epsilon 0.5 to 2"
    assert [each.total for each in cost_of(overridden_records(config)).totals] == [0.5, 2.0]


def overridden_records(config: Config) -> Config:
    """The same of clients whose data need not be read."""
    tables = config.to_dict()
    tables["data"]["records_per_client"] = 5
    return parse_config(tables)


def test_a_target_is_not_solved_for_beside_totals(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bound", "configs/quickstart_totals.toml", "--epsilon", "1", "--solve-for", "rounds"]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert "cannot be combined with totals of the run" in said and said.count("\n") == 1


@pytest.mark.parametrize(("name", "rc"), [("rounds", 0), ("clients", 2), ("epsilon0", 2)])
def test_a_target_is_solved_for_beside_a_file_of_reports(
    name: str, rc: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a file fixes is not solved for."""
    path, config = tmp_path / "budgets.csv", tmp_path / "config.toml"
    path.write_text("client_id,epsilon,delta\n0,1,1e-5\n1,2,1e-5\n")
    config.write_text(
        "data = { clients = 2, records_per_client = 3 }\n"
        'privacy = { unit = "client", personalization = "clipping", release = "sum" }\n'
    )
    asked = ["bound", str(config), "--budgets", str(path), "--epsilon", "3", "--solve-for", name]
    assert main(asked) == rc
    told = capsys.readouterr()
    if rc:
        assert told.err.count("\n") == 1 and "budgets.distribution = 'file'" in told.err
    else:
        assert told.out.startswith("run.rounds <= ")


def test_what_cannot_be_met_says_for_whom_and_why() -> None:
    """Each reason names its clients, and what would help."""
    config = overridden_records(configured(2, 3, {"distribution": "listed", "epsilons": [1.0, 2.0]},
                                           release="reports"))  # fmt: skip
    sums = overridden_records(configured(2, 3, {"distribution": "listed", "epsilons": [1.0, 2.0]}))
    rows = [
        TotalCost(total, clients, 1.0, 1.0, 9.0, ratio * total, limit)
        for total, clients, ratio, limit in (
            (0.5, 1200, 0.99, "own noise"), (1.0, 30, 0.99, "total"), (2.0, 40, 0.8, "total"),
            (3.0, 50, 0.85, "jump"), (4.0, 60, 0.95, "jump"),
        )
    ]  # fmt: skip
    found = dataclasses.replace(cost_of(sums), totals=tuple(rows))
    jump, below, alone = _limit_lines(config, found)
    assert jump.startswith("50 clients with a total of 3 cannot") and "jumps beyond it" in jump
    assert below.startswith("40 clients with a total of 2 end below 90% of it: fewer distinct")
    assert alone.startswith("1,200 clients with a total of 0.5 are hidden by nobody")
    assert "more clients or fewer rounds" in alone
    (said,) = _limit_lines(sums, dataclasses.replace(found, totals=(rows[2],)))
    assert said.endswith("of it: a larger budgets.expected_share would change that")


def test_rounding_totals_down_keeps_the_limits() -> None:
    """What a client gives up by rounding it may still spend where rounds are repeated."""
    config = configured(4, 3, {"distribution": "listed", "epsilons": [1.0, 1.2, 2.0, 2.4],
                               "levels": 2})  # fmt: skip
    budgets = make_budgets(config.budgets, 4)
    assert budgets.epsilon.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert budgets.limits is not None and budgets.limits.tolist() == [1.0, 1.2, 2.0, 2.4]


def test_calibrate_takes_totals_or_asks_for_them() -> None:
    with pytest.raises(FlShuffleError, match=r"budgets\.of = 'report': must be run"):
        fs.calibrate("configs/quickstart.toml")
    config = {
        "data": {"records_per_client": 5, "clients": 3},
        "privacy": {"unit": "client", "release": "sum", "personalization": "clipping"},
    }
    given = {"budgets.expected_share": 1.0, "run.rounds": 4}
    rows = fs.calibrate(config, totals=[2.0, 0.5, 2.0, 0.5, 0.5], overrides=given)
    assert [(row.total, row.clients) for row in rows] == [(0.5, 3), (2.0, 2)]
    assert rows[1].clip_norm == 1.0 > rows[0].clip_norm
    assert all(0.999 <= row.epsilon / row.total <= 1.0 for row in rows)
