"""What a simulated round costs: the floor, and fl-shuffle, also with pooled noise.

Every engine runs in its own child process, side by side for a given time, all but one of them
stopped while that one has its turn of a second or so. Rounds that were stalled (three times their
engine's median) are left out, and counted. Times are of this machine under its load at the time, so
read the ratios: of the mean round of one engine's turn (not every round does the same work) to that
of the other's next to it, the median over turns, with the tenth and ninetieth percentile beside it.

  floor   the round's arithmetic alone (benchmarks/floor.py), 1 or 2 threads
  ours    fl-shuffle simulate CONFIG --json, accountant and ledger on
  pooled  the same with run.noise = "pooled"

The test set is not evaluated between rounds in any of them. MNIST (60 principal components) is
used where --data or FL_SHUFFLE_DATA names it; synthetic features of the same shape otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import JOBS, SIZES
from benchmarks.tables import show, write_csv
from benchmarks.turns import Measurement, run_child, run_in_turns, spread
from fl_shuffle.configuration.reading import load_config
from fl_shuffle.data.task import load_task

ENGINES = ("floor", "ours", "pooled")
TURN_SECONDS = 1.5
# A turn has at least so many rounds.
TURN_ROUNDS = 5
# How long a trial takes at least: it says how many rounds are certainly enough for the time given.
TRIAL_SECONDS = 2.0
TRIAL_ROUNDS = 3
CHILD_LIMIT = 900.0


@dataclass
class Bench:
    """One job in one unit of privacy, with the data written out for every engine."""

    name: str
    unit: str
    mnist: str
    folder: Path
    turns: int = 0

    def __post_init__(self) -> None:
        """Inputs and labels in client order, and the noise scale, as the product derives them."""
        self.folder.mkdir(parents=True)
        self.job = JOBS[self.name]
        settings = self.job.settings(unit=self.unit, mnist=self.mnist)
        self.config = self.folder / "job.toml"
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self.config.write_text("".join(lines), encoding="utf-8")
        task = load_task(load_config(self.config))
        inputs, labels = task.inputs.numpy(), task.labels.numpy()
        self.data = self.folder / "job.npz"
        np.savez(self.data, inputs=inputs, labels=labels)
        self.scale = float(task.plan.scale[0])
        self.tuned: list[str] = []

    def sizes(self, *more: str) -> list[str]:
        """What other programs are told of the job, its data first."""
        sizes = {"clients": self.job.clients, "clip": 1.0, "scale": self.scale}
        told = [f"--{key}={value!r}" for key, value in sizes.items()]
        return [str(self.data), *told, *more]

    def command(self, engine: str, rounds: int) -> list[str]:
        """What starts an engine."""
        if engine == "floor":
            floor = [sys.executable, "-m", "benchmarks.floor", *self.sizes(f"--unit={self.unit}")]
            if not self.tuned:
                found = run_child([*floor, "--rounds=0"], self.folder, CHILD_LIMIT)
                if found.failed:
                    raise SystemExit(f"the floor failed: {found.failed}")
                names = ("threads", "block_bytes")
                self.tuned = [f"--{name.replace('_', '-')}={found.finish[name]}" for name in names]
            return [*floor, f"--rounds={rounds}", *self.tuned]
        noise = "pooled" if engine == "pooled" else "per-report"
        self.turns += 1
        command = [sys.executable, "-m", "fl_shuffle", "simulate", str(self.config), "--json"]
        command += ["--set", f"run.rounds={rounds}", "--set", f"run.noise={noise}"]
        return [*command, "--out", str(self.folder / f"run-{self.turns}")]

    def run(self, engine: str, rounds: int) -> Measurement:
        """One child process of an engine."""
        found = run_child(self.command(engine, rounds), self.folder, CHILD_LIMIT)
        if not found.seconds:
            raise SystemExit(f"{engine} failed: {found.failed or 'no rounds'}")
        return found

    def typical(self, engine: str) -> float:
        """Median seconds of an engine's rounds in a trial of some seconds; it also warms the file
        cache."""
        rounds = TRIAL_ROUNDS
        while True:
            seconds = self.run(engine, rounds).seconds
            if sum(seconds) >= TRIAL_SECONDS or rounds > 1000:
                return statistics.median(seconds)
            rounds = min(10 * rounds, 2 + math.ceil(2.0 * TRIAL_SECONDS * rounds / sum(seconds)))

    def run_in_turns(
        self, rounds: dict[str, int], turns: list[float], seconds: float, least: int = 0
    ) -> dict[str, Measurement]:
        """These engines, each its own of `turns` seconds at a time, for `seconds` together or so
        many rounds each."""
        commands = [self.command(engine, count) for engine, count in rounds.items()]
        found = run_in_turns(
            commands, self.folder, CHILD_LIMIT, turns=turns, seconds=seconds, least=least
        )
        return dict(zip(rounds, found, strict=True))

    def row(self, engine: str, own: Measurement) -> dict[str, Any]:
        """What a table says of an engine."""
        low, median, high = spread(own.seconds)
        return {
            "job": self.name,
            "unit": self.unit,
            "data": "mnist" if self.mnist and self.job.fits_mnist else "synthetic",
            "engine": engine,
            "clients": self.job.clients,
            "records": self.job.records,
            "d": self.job.dimension,
            "rounds": own.rounds,
            "start_up_s": own.start_up,
            "median_s": median,
            "p10_s": low,
            "p90_s": high,
            "stalled": own.stalled,
            "cpu_s": own.cpu_per_round,
            "note": own.failed,
        }


def measure_job(
    name: str, unit: str, mnist: str, engines: list[str], seconds: float, folder: Path
) -> list[dict[str, Any]]:
    """All asked engines on one job, in turns, within about `seconds`."""
    bench = Bench(name, unit, mnist, folder / f"{name}-{unit}")
    rounds = dict.fromkeys(engines, TRIAL_ROUNDS)
    turn = TURN_SECONDS if seconds else CHILD_LIMIT
    if seconds:
        for engine in rounds:
            typical = bench.typical(engine)
            # Twice what the time allows: a trial in a slow minute must not end it early.
            rounds[engine] = max(TRIAL_ROUNDS, int(2.0 * seconds / len(rounds) / typical))
            turn = max(turn, TURN_ROUNDS * typical)
    found = bench.run_in_turns(rounds, [turn] * len(rounds), seconds)
    rows = []
    for engine, own in found.items():
        row = bench.row(engine, own)
        for other in {"floor", "ours"} & set(found):
            names = (f"{other}_p10", f"wall_over_{other}", f"{other}_p90")
            row |= dict(zip(names, own.over(found[other]), strict=True))
        if "floor" in found:
            row["cpu_over_floor"] = own.cpu_per_round / found["floor"].cpu_per_round
        rows.append(row)
    return rows


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
    jobs = list(SIZES) if given.job == "all" else [given.job]
    seconds = given.seconds / len(jobs)
    if given.smoke:
        jobs, engines, mnist, seconds = ["smoke"], list(ENGINES), "", 0.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-simulation-") as folder:
        for name in jobs:
            found = measure_job(name, given.unit, mnist, engines, seconds, Path(folder))
            for row in found:
                show(row)
            rows += found
            # After every job: a long run that is stopped leaves the finished part of its table.
            write_csv(given.csv, rows)
    return 1 if any(row["note"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
