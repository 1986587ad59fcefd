"""Accuracy at proven epsilons beside published ones: `scripts/reproduce records` prints a table.

Each row is a configuration with some settings, played with seeds 1 to 5. Where shuffled reports are
seen it is played again with a trusted server: one sum a round, at the row's epsilon. Test records
are scored and choose nothing; settings were chosen on a part of the training set. A run that was
played already is read from its folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fl_shuffle as fs
from fl_shuffle.certificates.runs import certificate_of_run
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.runs.views import RunView
from tests.repository import ROOT

SEEDS = 5
RESULTS = ROOT / "benchmarks" / "records.json"
PAGE = ROOT / "docs" / "benchmark.md"
START, END = "<!-- rows -->\n", "<!-- end of rows -->\n"
"""Between these the page has the table."""


@dataclass(frozen=True)
class Row:
    """One row: what is played, and whose published accuracy it stands beside.

    `trusted` are further settings with which a trusted server has the row's epsilon; none where the
    row is one of sums, whose noise is a trusted server's already.
    """

    name: str
    config: str
    settings: Mapping[str, Any]
    beside: str
    trusted: Mapping[str, Any] = field(default_factory=dict)


def _sums(
    config: str, name: str, epsilon0: float, rate: float, beside: str, rounds: int | None = None
) -> Row:
    """`rounds`: in place of the configuration's."""
    settings: dict[str, Any] = {"budgets.epsilon": epsilon0, "server.learning_rate": rate}
    settings |= {} if rounds is None else {"run.rounds": rounds}
    return Row(name, f"records/{config}", settings, f"DPSUR, central, add-remove {beside}")


def _clients(name: str, epsilon0: float, clip: float, rate: float, trusted: dict[str, Any]) -> Row:
    settings = {
        "run.noise": "pooled",
        "run.rounds": 100,
        "privacy.reports_per_round": 3,
        "privacy.clip_norm": clip,
        "budgets.epsilon": epsilon0,
        "server.learning_rate": rate,
    }
    return Row(name, "mnist_clients", settings, "own", _one_sum(trusted))


def _one_sum(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"privacy.release": "sum", "privacy.reports_per_round": 1, **settings}


ROWS = (
    _sums("mnist_sums", "mnist-sums-1", 60.25, 393.0, "1: 97.93"),
    _sums("mnist_sums", "mnist-sums-2", 160.2, 735.6, "2: 98.70"),
    _sums("mnist_sums", "mnist-sums-3", 292.6, 1054.0, "3: 98.88"),
    _sums("fashion_sums", "fashion-sums-1", 102.3, 78.6, "1: 88.38"),
    _sums("fashion_sums", "fashion-sums-2", 160.2, 73.55, "2: 89.34", rounds=300),
    _sums("fashion_sums", "fashion-sums-3", 535.4, 211.0, "3: 89.71"),
    Row(
        "mnist-reports-1",
        "records/mnist_reports",
        {},
        "Girgis et al. 2021, shuffled, 10: 87.9",
        _one_sum({"budgets.epsilon": 36.4, "server.learning_rate": 392.0}),
    ),
    Row(
        "mnist-reports-0.5",
        "records/mnist_reports",
        {"budgets.epsilon": 2.0, "server.learning_rate": 192.0},
        "Girgis et al. 2021, shuffled, 5: 76.7",
        _one_sum({"budgets.epsilon": 15.38, "server.learning_rate": 206.6}),
    ),
    Row(
        "records-0.35",
        "mnist_record_constant",
        {"run.noise": "pooled"},
        "Chen et al. 2024 (GSPA), local 0.5 as labelled: 94.8",
    ),
    _clients(
        "clients-0.25",
        1.37,
        0.01,
        50.0,
        {"budgets.epsilon": 2.67, "server.learning_rate": 52.8},
    ),
    _clients(
        "clients-0.1",
        0.55,
        0.005,
        44.0,
        {"budgets.epsilon": 1.026, "server.learning_rate": 44.7},
    ),
)

SUMS = {row.name for row in ROWS if not row.trusted}


def played(row: Row, seed: int, folder: Path, root: str | None, *, trusted: bool = False) -> Path:
    """The folder of a row's finished run, played if it was not."""
    place = folder / f"{row.name}{'-trusted' if trusted else ''}-{seed}"
    if not (place / "summary.json").exists():
        settings = {**row.settings, "run.seed": seed, "run.jobs": 1}
        settings |= row.trusted if trusted else {}
        settings |= {} if root is None else {"data.root": root}
        fs.simulate(str(ROOT / "configs" / f"{row.config}.toml"), overrides=settings, out=place)
    return place


def measured(row: Row, runs: list[Path], trusted: list[Path]) -> dict[str, Any]:
    """A row of the table, of its finished runs and those with a trusted server."""
    view = RunView(runs[0])
    privacy, summary = view.config["privacy"], view.summary()
    accuracies = _accuracies(runs)
    sent = privacy["reports_per_round"] * summary["rounds"]
    return {
        "name": row.name,
        "config": row.config,
        "settings": dict(row.settings),
        "seeds": len(runs),
        "accuracy": round(statistics.fmean(accuracies), 3),
        "spread": round(max(accuracies) - min(accuracies), 3),
        "delta": summary["delta"],
        "reports_seen": summary["proven_epsilon"],
        "sums_seen": summary["sum_epsilon"],
        "sums_seen_add_remove": summary["sum_epsilon_add_remove"],
        "certified": _certified(runs[0]),
        "megabytes": 4e-6 * sent * view.meta["dimension"],
        "minutes": statistics.median(RunView(run).summary()["seconds"] for run in runs) / 60.0,
        "trusted": round(statistics.fmean(_accuracies(trusted)), 3) if trusted else None,
        "trusted_seeds": len(trusted),
        "beside": row.beside,
    }


def _accuracies(runs: list[Path]) -> list[float]:
    return [100.0 * float(RunView(run).summary()["accuracy"]) for run in runs]


def _certified(run: Path) -> str | None:
    """The epsilon of a certificate of the run's headline, which `fl-shuffle verify` proves; None
    where there is none."""
    try:
        written, _ = certificate_of_run(run)
    except NotApplicableError:
        return None
    return str(written["claim"]["epsilon"])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown; a dash for what was not measured."""
    lines = [
        "| row | accuracy | spread, seeds | trusted server | sums seen | add-remove | reports seen "
        "| certified | MB | minutes | beside |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        trusted = row.get("trusted")
        seen = [row["sums_seen"], row["sums_seen_add_remove"], row["reports_seen"]]
        cells = [
            row["name"],
            f"{row['accuracy']:.2f}",
            f"{row['spread']:.2f}, {row['seeds']}",
            # The noise of a row of sums is a trusted server's already.
            "the same" if row["name"] in SUMS else "-" if trusted is None else f"{trusted:.2f}",
            *(f"{float(each):.3g}" for each in seen),
            *(_shown(row.get(name)) for name in ("certified", "megabytes", "minutes")),
            row["beside"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return "-" if value is None else f"{float(value):.3g}"


def page(text: str, rows: list[dict[str, Any]]) -> str:
    """The page with this table."""
    before, rest = text.split(START)
    return f"{before}{START}\n{table(rows)}\n{END}{rest.split(END)[1]}"


def together(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """These rows, and of the others what was measured before, as `ROWS` stand; a row of fewer seeds
    than before adds only what was not measured then, or with fewer seeds of a trusted server."""
    known = {row["name"]: row for row in json.loads(RESULTS.read_text(encoding="utf-8"))}
    for row in found:
        before = known.get(row["name"], row)
        if before["settings"] == row["settings"] and before["seeds"] > row["seeds"]:
            kept = {k: v for k, v in before.items() if v is not None}
            if row["trusted_seeds"] > before.get("trusted_seeds", 0):
                kept |= {name: row[name] for name in ("trusted", "trusted_seeds")}
            known[row["name"]] = row | kept
        else:
            known[row["name"]] = row
    return [known[row.name] for row in ROWS if row.name in known]


def main(arguments: list[str] | None = None) -> int:
    """`scripts/reproduce records`."""
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce records", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(r.name for r in ROWS))
    parser.add_argument("--seeds", type=int, choices=range(1, SEEDS + 1), default=SEEDS)
    parser.add_argument("--folder", type=Path, default=Path("runs/records"))
    parser.add_argument("--data", help="folder of MNIST/raw and FashionMNIST/raw")
    parser.add_argument(
        "--finished", action="store_true", help="only of runs that are there already"
    )
    parser.add_argument("--write", action="store_true", help="into the page and its numbers")
    given = parser.parse_args(arguments)
    unknown = set(given.rows) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}")
    found = []
    for row in ROWS:
        if given.rows and row.name not in given.rows:
            continue
        runs, trusted = (
            [
                played(row, seed, given.folder, given.data, trusted=kind)
                for seed in range(1, given.seeds + 1)
                if (row.trusted or not kind)
                and (not given.finished or _is_there(given.folder, row, seed, kind))
            ]
            for kind in (False, True)
        )
        if runs:
            found.append(measured(row, runs, trusted))
    print(table(found))
    if given.write:
        rows = together(found)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


def _is_there(folder: Path, row: Row, seed: int, trusted: bool) -> bool:
    name = f"{row.name}{'-trusted' if trusted else ''}-{seed}"
    return (folder / name / "summary.json").exists()


if __name__ == "__main__":
    sys.exit(main())
