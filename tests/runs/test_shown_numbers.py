"""One small run with everything in it (personal budgets, lifetimes, drawn clients, a client that
sends nothing, reports that cannot be used): each place that shows its numbers shows the same ones,
and they are those of formulas over who was there."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from pytest import CaptureFixture, approx
from scipy.optimize import brentq

import fl_shuffle as fs
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    gaussian_epsilon,
    gaussian_profile,
)
from fl_shuffle.cli import main
from fl_shuffle.flower.answers import ReportsAnswer
from fl_shuffle.report.record import read_run
from fl_shuffle.shuffler.local import SummedBatch
from tests.report.reading import Page

CLIENTS, ROUNDS, DELTA, CLIP = 23, 4, 1e-5, 0.25
EPSILONS = (0.9, 1.7, 2.6)
UNUSABLE = {2: 3}
"""Round -> how many of its reports cannot be used."""
SILENT = {3: 5}
"""Round -> a client whose report does not arrive."""
SHORT = 4
"""A client whose lifetime budget is one report."""
ENTRY_WIDTH = 14
OLD_CSV = {
    "n_reports": "num_reports", "specific_epsilon": "su2025_epsilon",
    "proven_epsilon": "shuffled_epsilon", "lower_epsilon": "shuffled_lower_epsilon",
}  # fmt: skip
OLD_SUMMARY = {
    "proven_epsilon": "shuffled_epsilon", "fewest_reports": "min_reports_per_round",
    "in_plain_words": "description", "proven_over_lower": "tightness",
    "ledger_link": "ledger_hash",
}  # fmt: skip
"""Names of version 0.2 -> today's."""
COLUMNS = ("gspa", "su2025", "rdp", "shuffled", "sum", "local", "shuffled_lower", "sum_lower")
CONFIG = f"""
run = {{ rounds = {ROUNDS}, seed = 8, evaluate_every = 2 }}
data = {{ source = "digits", clients = {CLIENTS} }}
training = {{ participation = 0.7 }}
server = {{ learning_rate = 0.5 }}
"""
TELLING = """
TOLD = []
class Tracker:
    def __call__(self, event): TOLD.append(event)
    def close(self): TOLD.append("closed")
def make(): return Tracker()
"""


@cache
def exposure(epsilon: float) -> float:
    """Gaussian noise's mu of a report with this local budget."""
    found: float = brentq(lambda mu: gaussian_profile([epsilon], mu)[0] - DELTA, 1e-3, 10.0)
    return found


@dataclass
class Shown:
    """A run's folder, what it has printed, and what trackers were told."""

    folder: Path
    release: str
    progress: str
    out: str
    calls: dict[str, list[tuple[str, tuple[Any, ...], dict[str, Any]]]]
    events: list[Any] = field(default_factory=list)

    @cached_property
    def present(self) -> np.ndarray:
        """Whose reports were released in which round [rounds, clients]."""
        found = np.zeros((ROUNDS, CLIENTS), dtype=bool)
        for number, client in self.stored("SELECT round, client_id FROM participation"):
            found[number - 1, client] = True
        return found

    def stored(self, select: str) -> list[tuple[Any, ...]]:
        """What the ledger's file answers."""
        with closing(sqlite3.connect(self.folder / "ledger.sqlite")) as database:
            return database.execute(select).fetchall()

    @property
    def exposure(self) -> np.ndarray:
        """How far a client's report moves, in its noise [clients]: what its budget allows."""
        return np.array([exposure(budget(client)) for client in range(CLIENTS)])

    @property
    def radius(self) -> np.ndarray:
        """To what updates are clipped [clients]: personal budgets clip sums, and scale noise."""
        own = self.exposure
        return CLIP * own / own.max() if self.release == "sum" else np.full(CLIENTS, CLIP)

    @property
    def scale(self) -> np.ndarray:
        """The noise of a report [clients]."""
        return 2.0 * self.radius / self.exposure

    @cached_property
    def clients(self) -> dict[str, np.ndarray]:
        """Every client's epsilons after each round [rounds, clients], by formulas."""
        own = self.exposure
        taken = np.cumsum(self.present, axis=0)
        variance = [
            hidden(self.scale, present, UNUSABLE.get(number, 0))
            for number, present in enumerate(self.present, start=1)
        ]
        squared = np.cumsum(self.present * (2.0 * self.radius) ** 2 / np.array(variance), axis=0)
        local, half = own * np.sqrt(taken), 0.5 * own * np.sqrt(taken)
        return {
            name: np.vectorize(lambda mu: gaussian_epsilon(DELTA, mu) if mu else 0.0)(found)
            for name, found in (("local", local), ("shuffled", half), ("sum", np.sqrt(squared)))
        }

    @cached_property
    def rounds(self) -> list[dict[str, float | None]]:
        """The lines of metrics.csv, by formulas but for attacks and what is measured."""
        shares = np.array([(1.0 - DELTA) / (1.0 + math.exp(budget(c))) for c in range(CLIENTS)])
        squared, found = 0.0, list[dict[str, float | None]]()
        for number, present in enumerate(self.present, start=1):
            squared += 2.0 / (shares[present].sum() - shares[present].max())
            found.append({
                "round": number, "num_reports": int(present.sum()), "gspa_mu": math.sqrt(squared),
                "gspa_epsilon": gaussian_epsilon(DELTA, math.sqrt(squared)),
                "su2025_epsilon": None, "rdp_epsilon": None,
                **{f"{name}_epsilon": float(values[number - 1].max())
                   for name, values in self.clients.items()},
                "shuffled_lower_epsilon": None, "sum_lower_epsilon": None,
            })  # fmt: skip
        attacks = read_run(self.folder).accountant.lower_bounds()
        found[-1] |= {f"{name}_epsilon": column.worst for name, column in attacks.items()}
        for number, name, value in self.stored("SELECT round, name, value FROM metrics"):
            found[number - 1][name] = value
        return found

    @property
    def last(self) -> dict[str, Any]:
        return self.rounds[-1]

    @property
    def headline(self) -> str:
        return "sum" if self.release == "sum" else "shuffled"


def budget(client: int) -> float:
    return EPSILONS[(client * client + client // 5) % 3]


def hidden(scale: np.ndarray, present: np.ndarray, unusable: int) -> np.ndarray:
    """The variance that hides each client: its own, and the smallest of the others'."""
    there = np.flatnonzero(present)
    found = np.ones(len(scale))
    for client in there:
        others = np.sort(scale[there[there != client]] ** 2)
        found[client] = scale[client] ** 2 + others[: len(others) - unusable].sum()
    return found


class Calls:
    """Writes down every call made of it, or of what its calls return."""

    def __init__(self, told: list[Any], name: str = "library") -> None:
        self._told, self._name = told, name

    def __getattr__(self, name: str) -> Calls:
        return Calls(self._told, name)

    def __call__(self, *arguments: Any, **options: Any) -> Calls:
        self._told.append((self._name, arguments, options))
        return self


def play(folder: Path, release: str, patch: pytest.MonkeyPatch) -> Shown:
    sums = release == "sum"
    mu = exposure(budget(SHORT)) * (1.0 / math.sqrt(0.7 * CLIENTS) if sums else 0.5)
    limit = 1.2 * gaussian_epsilon(DELTA, mu)
    lines = [
        f"{c},{budget(c)},{DELTA},{limit if c == SHORT else 'inf'}\n"
        for c in (7 * place % CLIENTS for place in range(CLIENTS))
    ]
    (folder / "budgets.csv").write_text(
        "client_id,epsilon,delta,lifetime_epsilon\n" + "".join(lines)
    )
    let_out, allowed = SummedBatch.release, ReportsAnswer.allowed

    def lacking(own: SummedBatch) -> Any:
        return replace(let_out(own), unusable=UNUSABLE.get(own._number, 0))

    def silent(own: ReportsAnswer, clients: np.ndarray) -> np.ndarray:
        return allowed(own, clients) & (clients != SILENT.get(own.request.round, -1))

    patch.setattr(SummedBatch, "release", lacking)
    patch.setattr(ReportsAnswer, "allowed", silent)
    calls: dict[str, list[Any]] = {"mlflow": [], "wandb": [], "tensorboard": []}
    telling = ModuleType("telling")
    exec(TELLING, telling.__dict__)
    libraries = {
        "mlflow.tracking": Calls(calls["mlflow"]), "wandb": Calls(calls["wandb"]),
        "torch.utils.tensorboard": Calls(calls["tensorboard"]), "telling": telling,
    }  # fmt: skip
    for name, library in libraries.items():
        patch.setitem(sys.modules, name, library)
    patch.setattr("fl_shuffle.trackers.require_extra", lambda *_: None)
    patch.chdir(folder)
    settings = CONFIG + f'[privacy]\nclip_norm = {CLIP}\nunit = "client"\nrelease = "{release}"\n'
    settings += f'personalization = "{"clipping" if sums else "noise"}"\n'
    (folder / "run.toml").write_text(settings)
    arguments = ["simulate", "run.toml", "--out", "run", "--budgets", "budgets.csv"]
    for tracker in ("mlflow", "wandb", "tensorboard", "telling:make"):
        arguments += ["--track", tracker]
    progress, out = io.StringIO(), io.StringIO()
    with redirect_stderr(progress), redirect_stdout(out):
        code = main(arguments)
    assert code == 0, progress.getvalue()
    found = Shown(folder / "run", release, progress.getvalue(), out.getvalue(), calls)
    found.events = telling.TOLD
    return found


@pytest.fixture(scope="module", params=["reports", "sum"])
def shown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
    halving_shuffles: None,
) -> Iterator[Shown]:  # fmt: skip
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        yield play(folder, request.param, patch)


def four(value: Any) -> str:
    """As a number is shown to the eye."""
    return "-" if value is None else f"{value:.4g}"


def close(found: Any, wanted: Any) -> bool:
    """Equal as far as the composition of rounds promises; nothing is nothing."""
    if wanted is None or found in (None, ""):
        return wanted is None and found in (None, "")
    return bool(float(found) == approx(float(wanted), rel=1e-3, abs=1e-12))


def require_row(found: dict[str, Any], wanted: dict[str, Any], names: Sequence[str]) -> None:
    wrong = {
        n: (found.get(n), wanted.get(n)) for n in names if not close(found.get(n), wanted.get(n))
    }
    assert not wrong, wrong


ROW = ("round", "num_reports", "accuracy", "loss", "gspa_mu", *(f"{n}_epsilon" for n in COLUMNS))


def test_the_run_has_all_that_can_be_shown(shown: Shown) -> None:
    """Else the tests below compare nothing."""
    asked = [n for (n,) in shown.stored("SELECT expected_reports FROM rounds ORDER BY round")]
    came = shown.present.sum(axis=1).tolist()
    assert len(set(came)) >= 3 and asked[2] == came[2] + 1 and asked[3] == came[3]
    assert shown.present[:, SHORT].sum() == 1
    unusable = shown.stored("SELECT released - 1 FROM reservations ORDER BY round")
    assert [n for (n,) in unusable] == [0, 3, 0, 0]
    values = [
        shown.last[f"{name}_epsilon"]
        for name in ("gspa", "shuffled", "sum", "local", "shuffled_lower")
    ]
    assert len(set(map(four, values))) == 5 and shown.last["sum_lower_epsilon"] > 0


def test_ledger_and_metrics_hold_the_formulas(shown: Shown) -> None:
    lines = list(csv.DictReader((shown.folder / "metrics.csv").open(newline="")))
    assert len(lines) == ROUNDS and list(lines[0]) == [
        "round", "num_reports", "accuracy", "loss", "gspa_mu",
        *(f"{name}_epsilon" for name in COLUMNS), "seconds", *OLD_CSV,
    ]  # fmt: skip
    # For one release the renamed columns stand there under their old names, too.
    assert all(line[old] == line[new] for line in lines for old, new in OLD_CSV.items())
    measured = [number for number, line in enumerate(lines, 1) if line["accuracy"]]
    assert measured == [2, 4]
    stored = shown.stored(
        "SELECT round, num_reports, gspa_mu_total, gspa, su2025, rdp, shuffled, sum, local, "
        "shuffled_lower, sum_lower, delta, gspa_mu_round FROM rounds ORDER BY round"
    )
    before = 0.0
    for line, row, wanted in zip(lines, stored, shown.rounds, strict=True):
        require_row(line, wanted, ROW)
        names = [name for name in ROW if name not in ("accuracy", "loss")]
        require_row(dict(zip(names, row, strict=False)), wanted, names)
        assert row[-2] == DELTA and row[-1] == approx(math.sqrt(wanted["gspa_mu"] ** 2 - before))
        before = wanted["gspa_mu"] ** 2


def test_every_clients_spend_is_its_formula(shown: Shown) -> None:
    """In the ledger, in `fl-shuffle ledger --clients`, and in Python."""
    stored = {row[0]: row[1:] for row in shown.stored(
        "SELECT client_id, rounds, shuffled, sum, local, epsilon0, delta0, scale, radius "
        "FROM client_spend JOIN clients USING (client_id) JOIN classes USING (class_id)"
    )}  # fmt: skip
    result = fs.Result(shown.folder)
    for client in range(CLIENTS):
        taken = int(shown.present[:, client].sum())
        spent = [shown.clients[name][-1, client] for name in ("shuffled", "sum", "local")]
        own = budget(client)
        wanted = [taken, *spent, own, DELTA, shown.scale[client], shown.radius[client]]
        assert stored[client] == approx(wanted, rel=1e-3), client
        bill = result.ledger.client(client)
        found = [
            bill.rounds, bill.shuffled_epsilon, bill.sum_epsilon, bill.local_epsilon, bill.epsilon0,
            bill.delta0,
        ]  # fmt: skip
        assert found == approx(wanted[:6], rel=1e-3) and bill.client_id == client
        assert bill.epsilon == getattr(bill, f"{shown.headline}_epsilon") and bill.delta == DELTA


def asked(capsys: CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_fl_shuffle_ledger_shows_them_in_each_form(
    form: str, shown: Shown, capsys: CaptureFixture[str]
) -> None:
    def table(*options: str) -> list[dict[str, Any]]:
        text = asked(capsys, "ledger", str(shown.folder), "--format", form, *options)
        if form == "json":
            found: list[dict[str, Any]] = json.loads(text)
            return found
        if form == "csv":
            return list(csv.DictReader(io.StringIO(text)))
        heads, *rows = [line.split() for line in text.splitlines()]
        cells = [[None if cell == "-" else cell for cell in row] for row in rows]
        return [dict(zip(heads, row, strict=True)) for row in cells]

    def require(found: dict[str, Any], wanted: dict[str, Any]) -> None:
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            if isinstance(value, str):
                assert found[name] == value, name
            elif form == "table" and value is not None:
                assert float(found[name]) == approx(value, rel=1e-3, abs=1e-12), name
            else:
                assert close(found[name], value), name

    for found, own in zip(table(), shown.rounds, strict=True):
        wanted = {"round": own["round"], "num_reports": own["num_reports"]}
        wanted |= {f"{name}_epsilon": own[f"{name}_epsilon"] for name in COLUMNS}
        require(found, {**wanted, "delta": DELTA, "accuracy": own.get("accuracy")})
    records = [r for (r,) in shown.stored(
        "SELECT records FROM clients JOIN classes USING (class_id) ORDER BY client_id"
    )]  # fmt: skip
    for options in ([], ["--recompute"]):
        for client, found in enumerate(table("--clients", *options)):
            require(found, {
                "client": client, "epsilon0": budget(client), "delta0": DELTA,
                "noise": "gaussian", "scale": shown.scale[client],
                "radius": shown.radius[client],
                "records": records[client], "rounds": shown.present[:, client].sum(),
                **{f"{name}_epsilon": shown.clients[name][-1, client]
                   for name in ("shuffled", "sum", "local")}, "delta": DELTA,
            })  # fmt: skip
    here = [
        (int(row["round"]), int(row["attempt"]), int(row["client"]))
        for row in table("--round", "3")
    ]
    assert here == [(3, 1, client) for client in np.flatnonzero(shown.present[2])]


def test_one_clients_bill_in_words(shown: Shown, capsys: CaptureFixture[str]) -> None:
    for client in (SHORT, SILENT[3], CLIENTS - 1):
        said = asked(capsys, "ledger", str(shown.folder), "--client", str(client))
        taken = (1 + np.flatnonzero(shown.present[:, client])).tolist()
        assert f"client {client}, " in said
        assert f"reported in {len(taken)} rounds: " in said
        listed = said.split("rounds: ")[1].splitlines()[0]
        numbers = []
        for part in listed.split(", "):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        assert numbers == taken, listed
        own = budget(client)
        assert f"({own:.4g}, 1e-05) a report" in said
        assert f"scale {shown.scale[client]:.4g} on" in said
        spent = re.search(
            r"delta = 1e-05: epsilon shuffled (\S+), sum (\S+), local ([^,\s]+)", said
        )
        assert spent is not None
        for name, found in zip(("shuffled", "sum", "local"), spent.groups(), strict=True):
            assert float(found) == approx(shown.clients[name][-1, client], rel=1e-3), name


def test_the_screen_shows_them(shown: Shown) -> None:
    """Lines of rounds, and what stands below them."""
    lines = [line.split() for line in shown.progress.splitlines()]
    heads = next(line for line in lines if line[:2] == ["round", "reports"])
    assert heads == ["round", "reports", "accuracy", "loss", "GSPA", "shuffled", "sum"]
    found = [line for line in lines if re.fullmatch(r"\d+/\d+", (line or [""])[0])]
    for cells, own in zip(found, shown.rounds, strict=True):
        wanted = [f"{own['round']}/{ROUNDS}", str(own["num_reports"])]
        if own.get("accuracy") is not None:
            wanted += [f"{own['accuracy']:.2%}", f"{own['loss']:.4f}"]
        count = len(wanted)
        assert cells[:count] == wanted and len(cells) == count + 3
        for cell, name in zip(cells[count:], ("gspa", "shuffled", "sum"), strict=True):
            assert float(cell) == approx(own[f"{name}_epsilon"], rel=1e-3), name
    last = shown.last
    entries: dict[str, str] = {}
    for line in filter(str.strip, shown.out.splitlines()):
        # The second line of this name is what the operator of the server could learn.
        name = line[:ENTRY_WIDTH].strip()
        entries["local" if name == "epsilon" and name in entries else name] = line
    assert "operator of this server" in entries["local"]
    other = {"reports": "sums", "sum": "reports"}[shown.release]
    worth = {
        "epsilon": last[f"{shown.headline}_epsilon"], "local": last["local_epsilon"],
        other: last[{"sums": "sum_epsilon", "reports": "shuffled_epsilon"}[other]],
        "lower bound": last[f"{'shuffled' if shown.release == 'reports' else 'sum'}_lower_epsilon"],
    }  # fmt: skip
    if shown.release == "reports":
        worth["GSPA"] = last["gspa_epsilon"]
    for name, value in worth.items():
        assert float(entries[name][ENTRY_WIDTH:].split()[0]) == approx(value, rel=1e-3), name
    assert ("GSPA" in entries) is (shown.release == "reports")
    assert entries["accuracy"].split()[1] == f"{last['accuracy']:.2%}"
    assert f"after {ROUNDS} rounds" in entries["accuracy"]
    middle = float(np.median(shown.clients[shown.headline][-1]))
    told = re.search(r"of (\d+) clients \(median (\S+)\)", entries["epsilon"])
    assert told is not None and int(told[1]) == CLIENTS
    assert float(told[2]) == approx(middle, rel=1e-3)
    gain = re.search(r"gains at most (\S+) times", entries["lower bound"])
    assert gain is not None
    assert float(gain[1]) == approx(worth["epsilon"] / worth["lower bound"], rel=1e-2)
    assert (
        f"{len(set(map(budget, range(CLIENTS))))} distinct budgets of a report, epsilon 0.9 to 2.6"
        in shown.progress
    )


def test_the_summary_holds_them(shown: Shown, capsys: CaptureFixture[str]) -> None:
    summary = json.loads((shown.folder / "summary.json").read_text())
    last = shown.last
    # For one release what was renamed stands there under its old name, too.
    old = {"proven": "shuffled", "lower": "shuffled_lower", "specific": "su2025"}
    assert set(summary["columns"]) == {*COLUMNS, *old}
    for table in (summary["columns"], summary["epsilon_quantiles"]):
        assert all(table[name] == table[new] for name, new in old.items() if new in table)
    assert all(summary[name] == summary[new] for name, new in OLD_SUMMARY.items())
    for name in COLUMNS:
        assert close(summary["columns"][name]["epsilon"], last[f"{name}_epsilon"]), name
    for name in ("shuffled_epsilon", "sum_epsilon", "gspa_mu", "accuracy", "loss"):
        assert close(summary[name], last[name]), name
    assert summary["headline"] == shown.headline and summary["rounds"] == ROUNDS
    assert close(summary["epsilon"], last[f"{shown.headline}_epsilon"])
    assert summary["min_reports_per_round"] == shown.present.sum(axis=1).min()
    lower = last["shuffled_lower_epsilon"]
    assert close(summary["tightness"], last["shuffled_epsilon"] / lower)
    for name in ("shuffled", "sum", "local"):
        values = summary["epsilon_quantiles"][name]
        wanted = np.quantile(shown.clients[name][-1], (0.1, 0.5, 0.9))
        assert list(values.values()) == approx(wanted.tolist(), rel=1e-3), name
    words = summary["description"]
    bound = last[f"{shown.headline}_epsilon"]
    said = [float(each) for each in re.findall(r"(?:epsilon|round:|reaches) (\d[\d.]*\d)", words)]
    attack = last["sum_lower_epsilon"] if shown.release == "sum" else lower
    assert said == approx([last["local_epsilon"], bound, attack], rel=1e-3)
    assert f"at least {summary['min_reports_per_round']} of them" in words
    for form in ("csv", "json"):
        text = asked(capsys, "runs", str(shown.folder), "--format", form)
        (row,) = json.loads(text) if form == "json" else csv.DictReader(io.StringIO(text))
        assert close(row["epsilon"], bound) and close(row["local"], last["local_epsilon"])
        assert close(row["accuracy"], last["accuracy"]) and float(row["delta"]) == DELTA
        assert (int(row["clients"]), row["rounds"]) == (CLIENTS, f"{ROUNDS}/{ROUNDS}")
    metrics = fs.Result(shown.folder).metrics
    for number, own in enumerate(shown.rounds):
        for name in ROW:
            value = float(metrics[name][number])
            assert close(None if math.isnan(value) else value, own.get(name)), name


def test_the_events_and_trackers_tell_them(shown: Shown) -> None:
    outcomes = [event.outcome for event in shown.events if hasattr(event, "outcome")]
    asked = [n for (n,) in shown.stored("SELECT expected_reports FROM rounds ORDER BY round")]
    seconds = list[float]()
    for outcome, own, expected in zip(outcomes, shown.rounds, asked, strict=True):
        row = dict(outcome.row)
        require_row(row, {**own, "shuffled_lower_epsilon": None, "sum_lower_epsilon": None}, ROW)
        seconds.append(row["seconds"])
        assert outcome.dropped == expected - own["num_reports"]
    # How long each round took, also once the run is over.
    assert [each for (each,) in shown.stored("SELECT seconds FROM rounds")] == seconds
    assert len(set(seconds)) == ROUNDS and min(seconds) > 0.0
    lines = csv.DictReader((shown.folder / "metrics.csv").open(newline=""))
    assert [float(line["seconds"]) for line in lines] == approx(seconds, abs=1e-6)
    wanted = [
        {"num_reports": own["num_reports"],
         **{f"epsilon/{name}": own[f"{name}_epsilon"] for name in COLUMNS},
         "accuracy": own.get("accuracy"), "loss": own.get("loss")}
        for own in shown.rounds
    ]  # fmt: skip
    # An attack is told of at the end alone.
    for each in wanted:
        each |= {"epsilon/shuffled_lower": None, "epsilon/sum_lower": None}
    final = {
        "accuracy": shown.last["accuracy"], "loss": shown.last["loss"], "delta": DELTA,
        "epsilon": shown.last[f"{shown.headline}_epsilon"], "rounds": ROUNDS,
        "shuffled_epsilon": shown.last["shuffled_epsilon"],
        "sum_epsilon": shown.last["sum_epsilon"],
    }  # fmt: skip
    told: dict[str, dict[int, dict[str, float]]] = {name: {} for name in shown.calls}
    ended: dict[str, dict[str, float]] = {"mlflow": {}, "wandb": {}}
    for name, given, options in shown.calls["mlflow"]:
        if name == "log_metric":
            _, metric, value = given
            place = told["mlflow"].setdefault(options["step"], {})
            if metric.startswith("final/"):
                ended["mlflow"][metric.removeprefix("final/")] = value
            else:
                place[metric] = value
    for name, given, options in shown.calls["wandb"]:
        if name == "log":
            told["wandb"][options["step"]] = given[0]
        elif name == "update":
            ended["wandb"] = given[0]
    for name, given, _ in shown.calls["tensorboard"]:
        if name == "add_scalar":
            metric, value, step = given
            told["tensorboard"].setdefault(step, {})[metric] = value
    for tracker, rounds in told.items():
        assert sorted(rounds) == list(range(1, ROUNDS + 1)), tracker
        for number, found in rounds.items():
            own = {name: value for name, value in wanted[number - 1].items() if value is not None}
            assert found.keys() == own.keys(), tracker
            require_row(found, own, list(own))
    for tracker, found in ended.items():
        assert found.keys() == final.keys(), tracker
        require_row(found, final, list(final))


def test_the_report_and_its_figures_show_them(shown: Shown, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    options = ["--out", str(out), "--csv", str(tmp_path / "csv"), "--policy", "1e-3,1e-2"]
    assert main(["report", str(shown.folder), *options]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    for (_, count, *found), own in zip(page.table("rounds").rows, shown.rounds, strict=True):
        assert count == own["num_reports"]
        for name, value in zip(COLUMNS, found, strict=True):
            assert close(value, own[f"{name}_epsilon"]), name
    read = page.clients()
    order = np.array([shown.clients[shown.headline][-1, client] for client in read])
    assert (np.diff(order) <= 1e-9).all()
    for client, (taken, *spent) in read.items():
        assert taken == shown.present[:, client].sum()
        for name, value in zip(("shuffled", "sum", "local"), spent, strict=False):
            assert close(value, shown.clients[name][-1, client]), (client, name)
        assert spent[3:5] == [budget(client), DELTA]
    for name, *values in page.table("quantiles").rows:
        wanted = np.quantile(shown.clients[name][-1], (0.1, 0.5, 0.9, 0.99, 1.0))
        assert values == approx(wanted.tolist(), rel=1e-3), name
    bound = shown.last[f"{shown.headline}_epsilon"]
    assert close(page.data["headline"], bound) and close(
        page.data["accuracy"], shown.last["accuracy"]
    )
    grades = [each.text for each in page.root.iter("span") if "verdict" in each.get("class", "")]
    assert grades and set(grades) <= {"strong", "moderate", "weak"}

    def figure(name: str) -> dict[str, list[float]]:
        lines = list(csv.DictReader((tmp_path / "csv" / f"{name}.csv").open(newline="")))
        return {head: [float(line[head] or "nan") for line in lines] for head in lines[0]}

    labels = {
        "shuffled": "reports seen (proven)", "sum": "only sums seen (proven)",
        "local": "no shuffling, local (proven)", "gspa": "GSPA, as published",
    }  # fmt: skip
    spend = figure("spend")
    assert spend["round"] == list(range(1, ROUNDS + 1))
    for name, label in labels.items():
        assert spend[label] == approx([own[f"{name}_epsilon"] for own in shown.rounds], rel=1e-3)
    learnt = figure("accuracy")
    assert learnt["round"] == [2, 4]
    shares = figure("clients")
    across = np.array(shares[next(iter(shares))])
    for name in ("shuffled", "sum", "local"):
        values = np.array(shares[labels[name]])
        for x, share in zip(across[~np.isnan(values)], values[~np.isnan(values)], strict=True):
            at_most = (shown.clients[name][-1] <= x * (1 + 3e-4)).mean()
            assert share == approx(100.0 * at_most), name
    worst = int(np.argmax(shown.clients[shown.headline][-1]))
    profile = figure("profile")
    mu = {
        "shuffled": 0.5 * exposure(budget(worst)) * math.sqrt(shown.present[:, worst].sum()),
        "gspa": shown.last["gspa_mu"],
    }  # fmt: skip
    for name, parameter in mu.items():
        if labels[name] in profile:
            deltas = np.array(profile[labels[name]])
            wanted = gaussian_profile(np.array(profile["epsilon"]), parameter)
            seen = ~np.isnan(deltas) & (wanted > 1e-7)
            assert seen.sum() > 10
            np.testing.assert_allclose(deltas[seen], wanted[seen], rtol=0.02)
