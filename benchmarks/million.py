"""A federation of a million clients, one record each: set-up, rounds, memory of whole commands.

Softmax regression (d = 610) on synthetic records, accountant and ledger on. Budgets are the same
for all, of 20 levels, or a million distinct ones, met by noise of one's own or by one's own clip.
Each case is `fl-shuffle simulate CONFIG --json` in a child process:

  set-up   from the command to the first round's beginning: start-up, data, plan, accountant, files
  round    between the arrivals of two rounds' output; the first compiles, certifies what the second
           needs, and holds the first write of a million clients
  finish   from the last round to the end: every client's totals

Times are of this machine under its load at the time; processor seconds of the same stretches stand
beside them.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
from pathlib import Path

from benchmarks.simulation_parts.jobs import Job, child_environment, simulate_command
from benchmarks.simulation_parts.measure import Measurement, run_child

DISTINCT = {"budgets.distribution": "uniform", "budgets.low": 0.01, "budgets.high": 2.0}
CASES: dict[str, dict[str, object]] = {
    "constant": {},
    "levels": {**DISTINCT, "budgets.levels": 20},
    "noise": DISTINCT,
    "clipping": {**DISTINCT, "privacy.personalization": "clipping"},
}
MILLION = 1_000_000
LIMIT = 900.0
AIMS = {"set_up_s": 10.0, "slowest_s": 5.0, "peak_mib": 4096.0}
COLUMNS = (
    *("case", "noise", "clients", "rounds", "set_up_s", "first_s", "slowest_s", "finish_s"),
    *("set_up_cpu_s", "slowest_cpu_s", "cpu_s", "peak_mib", "note"),
)


def measure(case: str, noise: str, clients: int, rounds: int, folder: Path) -> dict[str, object]:
    """One whole command; `slowest_s` is the slowest of all rounds."""
    config = folder / f"{case}-{noise}.toml"
    job = Job("million", clients, 1)
    text = job.config(unit="record", mnist="", rounds=rounds, out=folder)
    config.write_text(text, encoding="utf-8")
    settings = {**CASES[case], "run.noise": noise}
    command = simulate_command(config, settings, folder / f"run-{case}-{noise}")
    found = run_child(command, environment=child_environment(), cwd=folder, limit=LIMIT)
    return row_of(case, noise, clients, found)


def row_of(case: str, noise: str, clients: int, found: Measurement) -> dict[str, object]:
    """A line of the table."""
    first = found.start_up - found.begun
    return {
        "case": case,
        "noise": noise,
        "clients": clients,
        "rounds": found.rounds,
        "set_up_s": found.begun,
        "first_s": first,
        "slowest_s": max([first, *found.seconds]),
        "finish_s": found.ended_after - found.start_up - sum(found.seconds),
        "set_up_cpu_s": found.marks[0] if found.marks else None,
        "slowest_cpu_s": max((b - a for a, b in itertools.pairwise(found.marks)), default=None),
        "cpu_s": found.cpu,
        "peak_mib": found.peak_mib,
        "note": found.failed,
    }


def show(row: dict[str, object]) -> None:
    """Print a line, with an aim beside every number that misses it."""
    cells = []
    for column in COLUMNS[3:]:
        value = row[column]
        text = f"{value:.4g}" if isinstance(value, float) else str(value or "-")
        missed = column in AIMS and isinstance(value, float) and not value <= AIMS[column]
        cells.append(f"{column}={text}" + (f" (aim {AIMS[column]:g})" if missed else ""))
    print(f"{row['case']:<9} {row['noise']:<11}{'  '.join(cells)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--noise", default="per-report,pooled", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=MILLION)
    parser.add_argument("--csv", type=Path, default=Path("bench_million.csv"))
    given = parser.parse_args()
    cases, noises = given.cases.split(","), given.noise.split(",")
    if not set(cases) <= set(CASES):
        parser.error(f"--cases: known ones are {', '.join(CASES)}")
    if not set(noises) <= {"per-report", "pooled"}:
        parser.error("--noise: known ones are per-report, pooled")
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="bench-million-") as folder,
        given.csv.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for case in cases:
            for noise in noises:
                rows.append(measure(case, noise, given.clients, given.rounds, Path(folder)))
                show(rows[-1])
                table.writerow(rows[-1])
                file.flush()
    return 1 if any(row["note"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
