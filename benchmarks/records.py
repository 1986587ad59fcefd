"""Accuracy at proven epsilons beside published ones: `scripts/reproduce records` prints a table.

Each row of `records.json` is a configuration with some settings, played with seeds 1 to 5, and what
was measured. Where shuffled reports are seen it is played again `with_a_trusted_server`: one sum a
round, at the row's epsilon, by further settings (null where the row is one of sums, whose noise is
a trusted server's already). Test records are scored and choose nothing; settings were chosen on a
part of the training set. A run that was played already is read from its folder.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fl_shuffle as fs
from benchmarks.tables import between, markdown
from benchmarks.turns import ROOT
from fl_shuffle.certificates.runs import certificate_of_run
from fl_shuffle.errors import NotApplicableError
from fl_shuffle.ledger.reader import RunView
from fl_shuffle.runs.views import summary_of

SEEDS = 5
RESULTS = ROOT / "benchmarks" / "records.json"
PAGE = ROOT / "docs" / "research" / "benchmark.md"
START, END = "<!-- rows -->\n", "<!-- end of rows -->\n"
"""Between these the page has the table."""
TRUSTED = "with_a_trusted_server"
HEADS = (
    "row", "accuracy", "spread, seeds", "trusted server", "sums seen", "add-remove", "reports seen",
    "certified", "MB", "minutes", "beside",
)  # fmt: skip
Row = dict[str, Any]


def read() -> list[Row]:
    """What is played, and what was measured."""
    rows: list[Row] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return rows


def place_of(row: Row, seed: int, folder: Path, *, trusted: bool) -> Path:
    """The folder of a run."""
    return folder / f"{row['name']}{'-trusted' if trusted else ''}-{seed}"


def played(row: Row, seed: int, folder: Path, root: str | None, *, trusted: bool) -> Path:
    """The folder of a row's finished run, played if it was not."""
    place = place_of(row, seed, folder, trusted=trusted)
    if not (place / "summary.json").exists():
        settings = {**row["settings"], "run.seed": seed, "run.jobs": 1}
        settings |= row[TRUSTED] if trusted else {}
        settings |= {} if root is None else {"data.root": root}
        fs.simulate(str(ROOT / "configs" / f"{row['config']}.toml"), overrides=settings, out=place)
    return place


def measured(runs: Sequence[Path], trusted: Sequence[Path]) -> Row:
    """What a row's finished runs say, and those with a trusted server."""
    view = RunView(runs[0])
    privacy, summary = view.config["privacy"], summary_of(view)
    accuracies = _accuracies(runs)
    sent = privacy["reports_per_round"] * summary["rounds"]
    # Of float32, unless the row says how few.
    bits = privacy.get("report_bits", 0) or 32
    return {
        "seeds": len(runs),
        "accuracy": round(statistics.fmean(accuracies), 3),
        "spread": round(max(accuracies) - min(accuracies), 3),
        "delta": summary["delta"],
        "reports_seen": summary["shuffled_epsilon"],
        "sums_seen": summary["sum_epsilon"],
        "sums_seen_add_remove": summary["sum_epsilon_add_remove"],
        "certified": _certified(runs[0]),
        "megabytes": 1e-6 * sent * math.ceil(bits * view.meta["dimension"] / 8),
        "minutes": statistics.median(summary_of(RunView(run))["seconds"] for run in runs) / 60.0,
        "trusted": round(statistics.fmean(_accuracies(trusted)), 3) if trusted else None,
        "trusted_seeds": len(trusted),
    }


def _accuracies(runs: Sequence[Path]) -> list[float]:
    return [100.0 * float(summary_of(RunView(run))["accuracy"]) for run in runs]


def _certified(run: Path) -> str | None:
    """The epsilon of a certificate of the run's headline, which `fl-shuffle verify` proves; None
    where there is none."""
    try:
        written, _ = certificate_of_run(run)
    except NotApplicableError:
        return None
    return str(written["claim"]["epsilon"])


def table(rows: Sequence[Row]) -> str:
    """Markdown; a dash for what was not measured."""

    def shown(value: Any, form: str = ".3g") -> str:
        return "-" if value is None else f"{float(value):{form}}"

    return markdown(
        HEADS,
        (
            [
                row["name"],
                f"{row['accuracy']:.2f}",
                f"{row['spread']:.2f}, {row['seeds']}",
                # The noise of a row of sums is a trusted server's already.
                shown(row["trusted"], ".2f") if row[TRUSTED] else "the same",
                *(shown(row[name]) for name in ("sums_seen", "sums_seen_add_remove")),
                *(
                    shown(row[name])
                    for name in ("reports_seen", "certified", "megabytes", "minutes")
                ),
                row["beside"],
            ]
            for row in rows
            if row.get("seeds")
        ),
    )


def page(text: str, rows: Sequence[Row]) -> str:
    """The page with this table."""
    return between(text, START, END, f"\n{table(rows)}\n")


def main(arguments: list[str] | None = None) -> int:
    """`scripts/reproduce records`."""
    rows = read()
    names = [row["name"] for row in rows]
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce records", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(names))
    parser.add_argument("--seeds", type=int, choices=range(1, SEEDS + 1), default=SEEDS)
    parser.add_argument("--folder", type=Path, default=Path("runs/records"))
    parser.add_argument("--data", help="folder of MNIST/raw and FashionMNIST/raw")
    parser.add_argument(
        "--finished", action="store_true", help="only of runs that are there already"
    )
    parser.add_argument("--write", action="store_true", help="into the page and its numbers")
    given = parser.parse_args(arguments)
    if unknown := set(given.rows) - set(names):
        parser.error(f"no row {', '.join(sorted(unknown))}")
    for number, row in enumerate(rows):
        if given.rows and row["name"] not in given.rows:
            continue
        runs: dict[bool, list[Path]] = {False: [], True: []}
        for kind in (False, True) if row[TRUSTED] else (False,):
            for seed in range(1, given.seeds + 1):
                place = place_of(row, seed, given.folder, trusted=kind)
                if not given.finished or (place / "summary.json").exists():
                    runs[kind].append(played(row, seed, given.folder, given.data, trusted=kind))
        if runs[False]:
            found = measured(runs[False], runs[True])
            print(table([row | found]), flush=True)
            # Of fewer seeds than before it is shown, and not written down.
            if found["seeds"] >= row.get("seeds", 0):
                rows[number] = row | found
    if given.write:
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
