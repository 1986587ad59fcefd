"""What a simulated round costs: the floor, and fl-shuffle, also with pooled noise.

Every engine runs in its own child process, side by side for a given time, all but one of them
stopped while that one has its turn of a second or so. Rounds that were stalled (three times their
engine's median) are left out, and counted. Times are of this machine under its load at the time, so
read the ratios: of the mean round of one engine's turn (not every round does the same work) to that
of the other's next to it, the median over turns, with the tenth and ninetieth percentile beside it.

  floor   the round's arithmetic alone (benchmarks/simulation_parts/floor.py), 1 or 2 threads
  ours    fl-shuffle simulate CONFIG --json, accountant and ledger on
  pooled  the same with run.noise = "pooled"

The test set is not evaluated between rounds in any of them. MNIST (60 principal components) is
used where --data or FL_SHUFFLE_DATA names it; synthetic features of the same shape otherwise.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.simulation_parts.jobs import (
    JOBS,
    SMOKE_JOB,
    Job,
    child_environment,
    simulate_command,
)
from benchmarks.simulation_parts.measure import Measurement, run_child, run_in_turns

ENGINES = ("floor", "ours", "pooled")
TURN_SECONDS = 1.5
# A turn has at least so many rounds.
TURN_ROUNDS = 5
# How long a trial takes at least: it says how many rounds are certainly enough for the time given.
TRIAL_SECONDS = 2.0
TRIAL_ROUNDS = 3
CHILD_LIMIT = 900.0
COLUMNS = (
    "job", "unit", "data", "engine", "clients", "records", "d", "rounds", "start_up_s",
    "median_s", "p10_s", "p90_s", "stalled", "cpu_s", "peak_mib", "accounting_share",
    "wall_over_floor", "floor_p10", "floor_p90", "cpu_over_floor",
    "wall_over_ours", "ours_p10", "ours_p90", "note",
)  # fmt: skip


@dataclasses.dataclass
class Bench:
    """One job in one unit of privacy, with the data written out for every engine."""

    job: Job
    unit: str
    mnist: str
    folder: Path
    scale: float = 0.0
    threads: int = 0
    block_bytes: int = 0
    turns: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.environment = child_environment()
        self._export()

    @property
    def data(self) -> str:
        return "mnist" if self.mnist and self.job.fits_mnist else "synthetic"

    def config(self, rounds: int, name: str) -> Path:
        """Write the configuration file of one run."""
        path = self.folder / f"{name}.toml"
        out = self.folder / "runs"
        text = self.job.config(unit=self.unit, mnist=self.mnist, rounds=rounds, out=out)
        path.write_text(text, encoding="utf-8")
        return path

    def _export(self) -> None:
        """Inputs and labels in client order, and the noise scale, as the product derives them."""
        from fl_shuffle.configuration.reading import load_config
        from fl_shuffle.data.task import load_task

        task = load_task(load_config(self.config(1, "export")))
        inputs, labels = task.inputs.numpy(), task.labels.numpy()
        np.savez(self.folder / "job.npz", inputs=inputs, labels=labels)
        self.scale = float(task.plan.scale[0])

    def run(self, engine: str, rounds: int) -> Measurement:
        """One child process of an engine."""
        self.turns += 1
        return self.child(self.command(engine, rounds))

    def typical(self, engine: str) -> float:
        """Median seconds of an engine's rounds in a trial of some seconds; it also warms the file
        cache."""
        rounds = TRIAL_ROUNDS
        while True:
            trial = self.run(engine, rounds)
            if not trial.seconds:
                raise SystemExit(f"{engine} failed: {trial.failed or 'no rounds'}")
            if sum(trial.seconds) >= TRIAL_SECONDS or rounds > 1000:
                return statistics.median(trial.seconds)
            rounds = min(
                10 * rounds, 2 + math.ceil(2.0 * TRIAL_SECONDS * rounds / sum(trial.seconds))
            )

    def run_in_turns(
        self, rounds: dict[str, int], turn: float | list[float], seconds: float, least: int = 0
    ) -> dict[str, Measurement]:
        """These engines, `turn` seconds at a time (or each its own), for `seconds` together or so
        many rounds each."""
        self.turns += 1
        found = run_in_turns(
            [self.command(engine, count) for engine, count in rounds.items()],
            environment=self.environment,
            cwd=self.folder,
            limit=CHILD_LIMIT,
            turn=turn,
            seconds=seconds,
            least=least,
        )
        return dict(zip(rounds, found, strict=True))

    def command(self, engine: str, rounds: int) -> list[str]:
        """What starts an engine."""
        if engine == "floor":
            return self._floor(rounds)
        noise = "pooled" if engine == "pooled" else "per-report"
        name = f"{noise}-{self.turns}"
        return simulate_command(self.config(rounds, name), {"run.noise": noise}, self.folder / name)

    def child(self, command: list[str], *, limit: float = CHILD_LIMIT) -> Measurement:
        """One child process, measured; ended after `limit` seconds."""
        return run_child(command, environment=self.environment, cwd=self.folder, limit=limit)

    def _floor(self, rounds: int) -> list[str]:
        command = [sys.executable, "-m", "benchmarks.simulation_parts.floor"]
        command += [str(self.folder / "job.npz")]
        command += ["--clients", str(self.job.clients), "--hidden", str(self.job.hidden)]
        command += ["--unit", self.unit, "--clip", "1.0", "--scale", repr(self.scale)]
        if not self.threads:
            tuned = self.child([*command, "--rounds", "0"])
            if tuned.failed:
                raise SystemExit(f"the floor failed: {tuned.failed}")
            self.threads = int(tuned.finish["threads"])
            self.block_bytes = int(tuned.finish["block_bytes"])
        command += ["--rounds", str(rounds), "--threads", str(self.threads)]
        return [*command, "--block-bytes", str(self.block_bytes)]


def summarize(
    bench: Bench, engine: str, found: Measurement, share: float | None
) -> dict[str, object]:
    """One line of the table, `share` being the accountant's; ratios are filled in later."""
    cpu = found.cpu_per_round
    return {
        "job": bench.job.name,
        "unit": bench.unit,
        "data": bench.data,
        "engine": engine,
        "clients": bench.job.clients,
        "records": bench.job.records,
        "d": bench.job.dimension,
        "rounds": found.rounds,
        "start_up_s": found.start_up,
        "median_s": found.quantile(0.5),
        "p10_s": found.quantile(0.1),
        "p90_s": found.quantile(0.9),
        "stalled": found.stalled,
        "cpu_s": None if math.isnan(cpu) else cpu,
        "peak_mib": found.peak_mib,
        "accounting_share": share,
        "note": found.failed,
    }


def ratios(upper: Measurement, lower: Measurement) -> list[float]:
    """Of the means of each turn to the other's next to it; of all rounds where there are no turns
    side by side."""
    pairs = [
        statistics.fmean(left) / statistics.fmean(right)
        for left, right in zip(upper.turns, lower.turns, strict=False)
        if left and right
    ]
    if pairs:
        return sorted(pairs)
    if upper.seconds and lower.seconds:
        return [statistics.fmean(upper.seconds) / statistics.fmean(lower.seconds)]
    return []


def add_ratios(rows: list[dict[str, object]], found: dict[str, Measurement]) -> None:
    """Fill in each line's ratios to the floor and to ours, of the same job and unit."""
    for row in rows:
        own = found[str(row["engine"])]
        for engine in ("floor", "ours"):
            apart = ratios(own, found[engine]) if engine in found else []
            for name, share in (("wall_over_", 0.5), ("", 0.1), ("", 0.9)):
                column = f"{name}{engine}" if name else f"{engine}_p{round(100 * share)}"
                row[column] = apart[round(share * (len(apart) - 1))] if apart else None
        below = found["floor"].cpu_per_round if "floor" in found else math.nan
        ratio = own.cpu_per_round / below
        row["cpu_over_floor"] = None if math.isnan(ratio) else ratio


def measure_job(
    job: Job, unit: str, mnist: str, engines: list[str], seconds: float, folder: Path
) -> list[dict[str, object]]:
    """All asked engines on one job, in turns, within about `seconds`."""
    bench = Bench(job, unit, mnist, folder / f"{job.name}-{unit}")
    rounds = dict.fromkeys(engines, TRIAL_ROUNDS)
    turn = TURN_SECONDS if seconds else CHILD_LIMIT
    if seconds:
        for engine in rounds:
            typical = bench.typical(engine)
            # Twice what the time allows: a trial in a slow minute must not end it early.
            rounds[engine] = max(TRIAL_ROUNDS, int(2.0 * seconds / len(rounds) / typical))
            turn = max(turn, TURN_ROUNDS * typical)
    found = bench.run_in_turns(rounds, turn, seconds)
    shares = {engine: one.accounting_share for engine, one in found.items()}
    for engine in ("ours", "pooled"):
        if engine in found and seconds:
            # Its own clock goes on while it is stopped: a run alone says what accounting takes.
            alone = bench.run(engine, max(TRIAL_ROUNDS, rounds[engine] // 6))
            shares[engine] = alone.accounting_share
    rows = [summarize(bench, engine, found[engine], shares[engine]) for engine in engines]
    add_ratios(rows, found)
    return rows


def show(rows: list[dict[str, object]]) -> None:
    """Print lines of the table."""
    for row in rows:
        cells = []
        for column in COLUMNS[3:]:
            value = row[column]
            text = f"{value:.4g}" if isinstance(value, float) else str(value or "-")
            cells.append(f"{column}={text}")
        print(f"{row['job']:<8} {row['unit']:<6} {'  '.join(cells)}", flush=True)


def write_table(path: Path, rows: list[dict[str, object]]) -> None:
    """The table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="all", choices=[*JOBS, "all"])
    parser.add_argument("--seconds", type=float, default=600.0, help="of turns, all jobs together")
    parser.add_argument("--engines", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--unit", choices=("record", "client"), default="record")
    parser.add_argument("--csv", type=Path, default=Path("bench_simulation.csv"))
    parser.add_argument("--data", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--smoke", action="store_true", help="a tiny job, three engines, 3 rounds")
    given = parser.parse_args()
    engines = given.engines.split(",")
    if not set(engines) <= set(ENGINES):
        parser.error(f"--engines: known ones are {', '.join(ENGINES)}")
    mnist = str(Path(given.data).resolve()) if given.data else ""
    if given.smoke:
        jobs, engines, mnist = [SMOKE_JOB], list(ENGINES), ""
    else:
        jobs = [*JOBS.values()] if given.job == "all" else [JOBS[given.job]]
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="bench-simulation-") as folder:
        for job in jobs:
            budget = 0.0 if given.smoke else given.seconds / len(jobs)
            found = measure_job(job, given.unit, mnist, engines, budget, Path(folder))
            show(found)
            rows += found
            # After every job: a long run that is stopped leaves the finished part of its table.
            write_table(given.csv, rows)
    return 1 if any(row["note"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
