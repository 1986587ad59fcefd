"""What every client had spent after every round: beside the ledger's rows, closed forms, a recount;
of runs with absences, that were resumed, of an old version; in the three ways to ask for it."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, MonkeyPatch
from scipy.stats import norm

import fl_shuffle as fs
from fl_shuffle.cli import main
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.report.history import SpendHistory, spend_history
from fl_shuffle.report.record import read_run
from tests.crashes import Crashing, opened, resume
from tests.ledger.test_ledger import as_version_0_1
from tests.small_federation import Play, stored

pytestmark = pytest.mark.usefixtures("coarse_pairs")

PARTIAL = "training.participation=0.6"
SETTINGS = {
    "everybody": (),
    "absences": (PARTIAL,),
    "clipping": ("privacy.personalization=clipping", "budgets.levels=2"),
    "sums": (PARTIAL, "privacy.release=sum"),
    "Laplace sums": (PARTIAL, "privacy.release=sum", "privacy.randomizer=laplace"),
    "sequential": (PARTIAL, "training.schedule=sequential"),
    "pooled": (PARTIAL, "run.noise=per-sum", "privacy.release=sum"),
    "discrete": (PARTIAL, "privacy.randomizer=discrete-gaussian", "run.entropy=system"),
    "batches": ("privacy.reports_per_round=2",),
}


def require_consistent(folder: Path) -> SpendHistory:
    """Each row against the ledger's row of that round, the last one against everything else."""
    run, result = read_run(folder), fs.Result(folder)
    spent = result.ledger.history()
    assert spent.round_numbers.tolist() == run.rounds.tolist()
    assert spent.epsilon.shape == (len(run.rounds), 12)
    for name, values in spent.columns.items():
        np.testing.assert_allclose(values.max(axis=1), run.epsilons[name], rtol=1e-6)
    told = stored(
        folder, "SELECT rounds, shuffled, sum, local FROM client_spend ORDER BY client_id"
    )
    last = np.array(told, dtype=float).T
    np.testing.assert_array_equal(spent.rounds[-1], last[0])
    for name, values in zip(("shuffled", "sum", "local"), last[1:], strict=True):
        np.testing.assert_allclose(getattr(spent, name)[-1], values, rtol=1e-6)
    np.testing.assert_array_equal(spent.epsilon[-1], run.totals.headline)
    assert spent.epsilon[-1].max() == pytest.approx(result.epsilon, rel=1e-6)
    return spent


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "clipping")) for name in SETTINGS],
)
def test_history_rows_are_the_ledgers_and_last_is_recount(name: str, play: Play) -> None:
    folder = play("run", *SETTINGS[name])
    spent = require_consistent(folder)
    attended = stored(folder, "SELECT round, client_id FROM participation")
    present = np.zeros_like(spent.num_reports)
    for number, client in attended:
        present[number - 1, client] += 1
    np.testing.assert_array_equal(spent.num_reports, present)
    assert PARTIAL not in SETTINGS[name] or not present.all()
    # Of one client, and in any order, the numbers are the same.
    for clients in ([7], [11, 0]):
        some = fs.Result(folder).ledger.history(clients)
        for column in ("num_reports", "rounds", "shuffled", "sum", "local"):
            whole = getattr(spent, column)[:, clients]
            np.testing.assert_allclose(getattr(some, column), whole, rtol=1e-9)
        assert some.clients.tolist() == clients
    # Who is absent spends nothing, and spend never falls.
    for values in spent.columns.values():
        steps = np.diff(values, axis=0, prepend=0.0)
        # Gaussian epsilons of many clients are solved for together, to about 1e-12.
        assert (np.abs(steps[present == 0]) < 1e-9).all() and (steps[present > 0] > 1e-6).all()


def gaussian_delta(epsilon: float, mu: float) -> float:
    """delta of a mu-GDP mechanism at epsilon (Balle and Wang, ICML 2018, Theorem 8)."""
    first, second = mu / 2.0 - epsilon / mu, -mu / 2.0 - epsilon / mu
    return float(norm.cdf(first) - np.exp(epsilon) * norm.cdf(second))


def test_history_local_and_sum_are_gaussian_closed_forms(play: Play) -> None:
    """Both from the ledger's tables alone: noise, clipping norm, and who reported when."""
    folder = play("run", PARTIAL)
    spent = fs.Result(folder).ledger.history()
    classes = dict(stored(folder, "SELECT client_id, class_id FROM clients"))
    noise = {c: (s, r) for c, s, r in stored(folder, "SELECT class_id, scale, radius FROM classes")}
    scale, radius = np.array([noise[classes[client]] for client in range(12)]).T
    local, summed = np.zeros(12), np.zeros(12)
    for row, present in enumerate(spent.num_reports.astype(bool)):
        local += present * (2.0 * radius / scale) ** 2
        summed += present * (2.0 * radius) ** 2 / np.sum(scale[present] ** 2)
        for squares, found in ((local, spent.local[row]), (summed, spent.sum[row])):
            for mu_squared, epsilon in zip(squares, found, strict=True):
                if mu_squared:
                    delta = gaussian_delta(epsilon, float(np.sqrt(mu_squared)))
                    assert delta == pytest.approx(spent.delta, rel=1e-4)
                    assert delta <= spent.delta * (1.0 + 1e-9)


def test_history_of_resumed_run_counts_repeated_attempts(tmp_path: Path) -> None:
    """Round 1 left twice, once without client 0; round 2 was reserved, and may have left."""
    everybody, without = np.ones(12, dtype=bool), np.arange(12) > 0
    with opened(tmp_path / "run", 12) as run:
        for mask in (without, everybody):
            run.ledger.reserve(1, 12, 99.0)
            after = run.accountant.preview(1, mask)
            run.accountant.commit(after)
            run.ledger.record(after.spend, mask)
        run.ledger.reserve(2, 11, 99.0, without)
    run_record = read_run(tmp_path / "run")
    spent = spend_history(run_record)
    assert spent.round_numbers.tolist() == [1, 2]
    assert spent.num_reports.tolist() == [[1, *[2] * 11], [0, *[1] * 11]]
    assert spent.rounds.tolist() == [[1, *[2] * 11], [1, *[3] * 11]]
    assert spent.epsilon[0].max() == pytest.approx(run_record.epsilons["shuffled"][0], rel=1e-6)
    np.testing.assert_array_equal(spent.epsilon[-1], run_record.totals.headline)


@pytest.mark.parametrize("settings", [(), ("run.entropy=system",)])
def test_history_of_run_that_was_continued(settings: tuple[str, ...], crash: Crashing) -> None:
    folder = crash(2, PARTIAL, *settings)
    assert resume(folder) == 0
    require_consistent(folder)


def test_history_of_version_0_1(play: Play) -> None:
    folder = play("run", PARTIAL)
    spent = fs.Result(folder).ledger.history()
    as_version_0_1(folder)
    np.testing.assert_array_equal(fs.Result(folder).ledger.history().epsilon, spent.epsilon)
    assert main(["ledger", str(folder), "--history"]) == 0


def printed(capsys: CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main(["ledger", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_history_is_printed_written_and_a_frame(
    play: Play, tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    folder = play("run", PARTIAL)
    spent = fs.Result(folder).ledger.history()
    table = {name: values.tolist() for name, values in spent.table().items()}
    wanted = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    assert json.loads(printed(capsys, folder, "--history", "--format", "json")) == wanted
    own = [row for row in wanted if row["client"] == 3]
    read = csv.DictReader(io.StringIO(printed(capsys, folder, "--client", 3, "--format", "csv")))
    found = [{key: float(value) for key, value in row.items()} for row in read]
    assert [pytest.approx(row, rel=1e-9) for row in found] == own
    bill, (heads, *lines) = (
        part.splitlines() for part in printed(capsys, folder, "--client", 3).split("again:\n")
    )
    assert "client 3" in bill[0]
    assert heads.split() == [
        "round",
        "num_reports",
        "shuffled_epsilon",
        "sum_epsilon",
        "local_epsilon",
    ]
    shown = [[float(cell) for cell in line.split()] for line in lines]
    assert shown == [[float(f"{row[head]:.4g}") for head in heads.split()] for row in own]
    out = tmp_path / "history.csv"
    assert printed(capsys, folder, folder, "--history", "--out", out) == ""
    assert len(out.read_text().splitlines()) == 1 + 2 * len(wanted)
    # pandas is no dependency: here stands what it is asked to make of the table.
    fake: Any = type(sys)("pandas")
    fake.DataFrame = dict
    monkeypatch.setitem(sys.modules, "pandas", fake)
    monkeypatch.setattr("fl_shuffle._internal.plugins.installed", lambda library: True)
    assert list(spent.to_frame()) == list(table)
    monkeypatch.setattr("fl_shuffle._internal.plugins.installed", lambda library: False)
    with pytest.raises(ConfigError, match="^to_frame needs pandas, .*; pip install pandas$"):
        spent.to_frame()
    with pytest.raises(InvalidValueError, match="client = 12"):
        fs.Result(folder).ledger.history([12])


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("007", "--client '007': no client of run has this name; for client number 7 write"),
        ("", "--client '': must be a client's number, 0 to 11, or its name"),
        (" ", "--client ' ': must be a client's number, 0 to 11, or its name"),
        ("12", "client = 12: must be a whole number in [0, 11]"),
        ("012", "--client '012': no client of run has this name; the clients of this run have no"),
        ("bob", "--client 'bob': no client of run has this name; the clients of this run have no"),
    ],
)
def test_unknown_client_is_one_line(
    client: str, text: str, play: Play, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(play("run", "run.rounds=1").parent)
    for form in ("table", "csv"):
        capsys.readouterr()
        assert main(["ledger", "run", f"--client={client}", "--format", form]) == 2
        said = capsys.readouterr()
        assert not said.out and said.err.count("\n") == 1
        assert said.err.startswith(f"fl-shuffle: error: {text}")


def test_a_column_that_says_nothing_of_somebody_is_no_column() -> None:
    """Where it says nothing of one client after one round, nobody may add up or compare it."""
    shape = (2, 3)
    whole, gap, rounds = np.ones(shape), np.ones(shape), np.ones(shape, dtype=np.int64)
    gap[1, 2] = np.nan
    history = SpendHistory(
        np.array([1, 2]), np.arange(3), rounds, rounds, gap, whole, np.full(shape, np.nan),
        headline="sum", delta=1e-5,
    )  # fmt: skip
    assert list(history.columns) == ["sum"] and history.epsilon is whole
