"""Accuracy at proven epsilons beside published ones: `scripts/bench records` prints a table.

Each row is a configuration of `configs/records/` with some settings, played with seeds 1 to 5. The
test records are scored once, after the last round; settings were chosen on a part of the training
set. A row that was played already is read from its folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fl_shuffle as fs
from tests.repository import ROOT

SEEDS = range(1, 6)
RESULTS = ROOT / "benchmarks" / "records.json"
PAGE = ROOT / "docs" / "benchmark.md"
START, END = "<!-- rows -->\n", "<!-- end of rows -->\n"
"""Between these the page has the table."""


@dataclass(frozen=True)
class Row:
    """One row: what is played, and whose published accuracy it stands beside."""

    name: str
    config: str
    settings: Mapping[str, Any]
    beside: str


def _sums(config: str, name: str, epsilon0: float, rate: float, beside: str) -> Row:
    settings: dict[str, Any] = {"budgets.epsilon": epsilon0, "server.learning_rate": rate}
    return Row(name, f"records/{config}", settings, f"DPSUR, central, add-remove {beside}")


ROWS = (
    _sums("mnist_sums", "mnist-sums-1", 102.3, 786.0, "1: 97.93"),
    _sums("mnist_sums", "mnist-sums-2", 285.8, 1471.0, "2: 98.70"),
    _sums("mnist_sums", "mnist-sums-3", 535.4, 2109.0, "3: 98.88"),
    _sums("fashion_sums", "fashion-sums-1", 102.3, 78.6, "1: 88.38"),
    _sums("fashion_sums", "fashion-sums-2", 285.8, 147.1, "2: 89.34"),
    _sums("fashion_sums", "fashion-sums-3", 535.4, 211.0, "3: 89.71"),
    Row("mnist-reports-1", "records/mnist_reports", {}, "Girgis et al. 2021, shuffled, 10: 87.9"),
    Row(
        "mnist-reports-0.5",
        "records/mnist_reports",
        {"budgets.epsilon": 2.0, "server.learning_rate": 192.0},
        "Girgis et al. 2021, shuffled, 5: 76.7",
    ),
    Row(
        "clients-0.25",
        "mnist_clients",
        {"privacy.reports_per_round": 6, "budgets.epsilon": 1.37},
        "own: one report a round 97.8 at 0.25",
    ),
    Row(
        "clients-0.1",
        "mnist_clients",
        {"privacy.reports_per_round": 6, "budgets.epsilon": 0.55},
        "own",
    ),
)


def played(row: Row, seed: int, folder: Path, root: str | None) -> dict[str, Any]:
    """The summary of a row's finished run, played if it was not."""
    place = folder / f"{row.name}-{seed}"
    if not (place / "summary.json").exists():
        settings = {**row.settings, "run.seed": seed, "run.jobs": 1}
        settings |= {} if root is None else {"data.root": root}
        fs.simulate(str(ROOT / "configs" / f"{row.config}.toml"), overrides=settings, out=place)
    found: dict[str, Any] = json.loads((place / "summary.json").read_text(encoding="utf-8"))
    return found


def measured(row: Row, results: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table, of its finished runs."""
    first = results[0]
    accuracies = [100.0 * result["accuracy"] for result in results]
    return {
        "name": row.name,
        "config": row.config,
        "settings": dict(row.settings),
        "seeds": len(results),
        "accuracy": round(statistics.fmean(accuracies), 3),
        "spread": round(max(accuracies) - min(accuracies), 3),
        "delta": first["delta"],
        "reports_seen": first["proven_epsilon"],
        "sums_seen": first["sum_epsilon"],
        "sums_seen_add_remove": first["sum_epsilon_add_remove"],
        "beside": row.beside,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| row | accuracy | spread, seeds | sums seen | add-remove | reports seen | beside |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = [f"{row[key]:.3g}" for key in ("sums_seen", "sums_seen_add_remove")]
        seen = row["reports_seen"]
        lines.append(
            f"| {row['name']} | {row['accuracy']:.2f} | {row['spread']:.2f}, {row['seeds']} | "
            f"{' | '.join(numbers)} | {seen:.3g} | {row['beside']} |"
        )
    return "\n".join(lines) + "\n"


def page(text: str, rows: list[dict[str, Any]]) -> str:
    """The page with this table."""
    before, rest = text.split(START)
    return f"{before}{START}\n{table(rows)}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str] | None = None) -> int:
    """`scripts/bench records`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(r.name for r in ROWS))
    parser.add_argument("--folder", type=Path, default=Path("runs/records"))
    parser.add_argument("--data", help="folder of MNIST/raw and FashionMNIST/raw")
    parser.add_argument(
        "--finished", action="store_true", help="only of runs that are there already"
    )
    parser.add_argument("--write", action="store_true", help="into the page and its numbers")
    given = parser.parse_args(arguments)
    chosen = [row for row in ROWS if not given.rows or row.name in given.rows]
    found = []
    for row in chosen:
        seeds = [
            seed
            for seed in SEEDS
            if not given.finished or (given.folder / f"{row.name}-{seed}" / "summary.json").exists()
        ]
        if seeds:
            summaries = [played(row, seed, given.folder, given.data) for seed in seeds]
            found.append(measured(row, summaries))
    print(table(found))
    if given.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page(text, found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
