"""What a simulated round costs: the floor, and fl-shuffle, also with pooled noise.

Every engine runs in its own child process, side by side for a given time, all but one of them
stopped while that one has its turn of a second or so. Rounds that were stalled (three times their
engine's median) are left out, and counted. Times are of this machine under its load at the time, so
read the ratios: of the mean round of one engine's turn (not every round does the same work) to that
of the other's next to it, the median over turns, with the tenth and ninetieth percentile beside it.

  floor   the round's arithmetic alone (benchmarks/floor.py), 1 or 2 threads
  ours    fl-shuffle simulate CONFIG --json, accountant and ledger on
  pooled  the same with run.noise = "per-sum"
  pfl-local, pfl-central
          apple/pfl-research 0.6 (`scripts/bench peers`), unit client, with its GaussianMechanism on
          every client or once: the faster of CentrallyAppliedPrivacyMechanism and
          approximate_as_central_mechanism()

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import JOBS, SIZES
from benchmarks.tables import show, write_csv
from benchmarks.turns import Measurement, run_child, run_in_turns, spread
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.task import load_task

ENGINES = ("floor", "ours", "pooled", "pfl-local", "pfl-central")
MECHANISMS = {"pfl-local": ("local",), "pfl-central": ("approximate", "central")}
TURN_SECONDS = 1.5
# Smallest number of rounds in a turn.
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
    pfl: str
    """A Python that has pfl."""
    turns: int = 0

    def __post_init__(self) -> None:
        """Inputs and labels in client order, and the noise scale, as the product derives them."""
        self.folder.mkdir(parents=True)
        self.job = JOBS[self.name]
        settings = self.job.settings(unit=self.unit, mnist=self.mnist)
        self.config = self.folder / "job.toml"
        lines = (f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        self.config.write_text("".join(lines), encoding="utf-8")
        task = load_task(resolve_config(self.config))
        inputs, labels = task.inputs.numpy(), task.labels.numpy()
        self.data = self.folder / "job.npz"
        np.savez(self.data, inputs=inputs, labels=labels)
        self.scale = float(task.plan.scale[0])
        self.tuned: dict[str, list[str]] = {}

    def command(self, engine: str, rounds: int) -> list[str]:
        """What starts an engine."""
        if engine in ("floor", *MECHANISMS):
            if engine not in self.tuned:
                self.tuned[engine] = self.fastest(engine)
            return [*self.tuned[engine], f"--rounds={rounds}"]
        noise = "per-sum" if engine == "pooled" else "per-report"
        self.turns += 1
        command = [sys.executable, "-m", "fl_shuffle", "simulate", str(self.config), "--json"]
        command += ["--set", f"run.rounds={rounds}", "--set", f"run.noise={noise}"]
        return [*command, "--out", str(self.folder / f"run-{self.turns}")]

    def fastest(self, engine: str) -> list[str]:
        """What starts the floor or pfl's rounds, the way in which they are fastest."""
        sizes = {"clients": self.job.clients, "clip": 1.0, "scale": self.scale}
        told = [str(self.data), *(f"--{key}={value!r}" for key, value in sizes.items())]
        if engine == "floor":
            floor = [sys.executable, "-m", "benchmarks.floor", *told, f"--unit={self.unit}"]
            found = self.finished(engine, [*floor, "--rounds=0"]).finish
            return [*floor, *(f"--{name}={found[name]}" for name in ("threads", "block-bytes"))]
        pfl = [self.pfl, "-m", "benchmarks.peers.pfl_rounds", *told]
        ways = [[*pfl, f"--mechanism={kind}"] for kind in MECHANISMS[engine]]
        if len(ways) == 1:
            return ways[0]
        return min(
            ways,
            key=lambda way: min(
                self.finished(engine, [*way, f"--rounds={TRIAL_ROUNDS}"]).seconds,
            ),
        )

    def finished(self, engine: str, command: list[str]) -> Measurement:
        """One child process that has come to its end."""
        found = run_child(command, self.folder, CHILD_LIMIT)
        if found.failed:
            raise SystemExit(f"{engine} failed: {found.failed}")
        return found

    def typical(self, engine: str) -> float:
        """Median seconds of an engine's rounds in a trial of some seconds; it also warms the file
        cache."""
        rounds = TRIAL_ROUNDS
        while True:
            seconds = self.finished(engine, self.command(engine, rounds)).seconds
            if sum(seconds) >= TRIAL_SECONDS or rounds > 1000:
                return statistics.median(seconds)
            rounds = min(10 * rounds, 2 + math.ceil(2.0 * TRIAL_SECONDS * rounds / sum(seconds)))

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


def measure_job(bench: Bench, engines: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """All asked engines on one job, in turns, within about `seconds`."""
    rounds = dict.fromkeys(engines, TRIAL_ROUNDS)
    turn = TURN_SECONDS if seconds else CHILD_LIMIT
    if seconds:
        for engine in rounds:
            typical = bench.typical(engine)
            # Twice what the time allows: a trial in a slow minute must not end it early.
            rounds[engine] = max(TRIAL_ROUNDS, int(2.0 * seconds / len(rounds) / typical))
            turn = max(turn, TURN_ROUNDS * typical)
    commands = [bench.command(engine, count) for engine, count in rounds.items()]
    measured = run_in_turns(commands, bench.folder, CHILD_LIMIT, turn=turn, seconds=seconds)
    found = dict(zip(rounds, measured, strict=True))
    rows = []
    for engine, own in found.items():
        row = bench.row(engine, own)
        for other in ("floor", "ours", "pooled"):
            if other in found:
                names = (f"{other}_p10", f"wall_over_{other}", f"{other}_p90")
                row |= dict(zip(names, own.over(found[other]), strict=True))
        if "floor" in found:
            row["cpu_over_floor"] = own.cpu_per_round / found["floor"].cpu_per_round
        rows.append(row)
    return rows


def measure(
    given: argparse.Namespace, jobs: Sequence[str], engines: Sequence[str], pfl: str = ""
) -> int:
    """These jobs with the options of the command; 1 if an engine failed."""
    mnist = str(Path(given.data).resolve()) if given.data else ""
    seconds = given.seconds / len(jobs)
    if given.smoke:
        jobs, mnist, seconds = ["smoke"], "", 0.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-simulation-") as folder:
        for name in jobs:
            bench = Bench(name, given.unit, mnist, Path(folder, name), pfl)
            found = measure_job(bench, engines, seconds)
            for row in found:
                show(row)
            rows += found
            # After every job: a long run that is stopped leaves the finished part of its table.
            write_csv(given.csv, rows)
    return 1 if any(row["note"] for row in rows) else 0


def parser_of(doc: str, jobs: Sequence[str], csv: str) -> argparse.ArgumentParser:
    """The options of a benchmark of rounds."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="all", choices=[*jobs, "all"])
    parser.add_argument("--seconds", type=float, default=600.0, help="of turns, all jobs together")
    parser.add_argument("--csv", type=Path, default=Path(csv))
    parser.add_argument("--data", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--smoke", action="store_true", help="a tiny job, 3 rounds")
    return parser


def main() -> int:
    parser = parser_of(__doc__, list(JOBS), "bench_simulation.csv")
    parser.add_argument("--engines", default="floor,ours,pooled", help="comma-separated")
    parser.add_argument("--unit", choices=("record", "client"), default="record")
    given = parser.parse_args()
    engines = given.engines.split(",")
    if not set(engines) <= set(ENGINES[:3]):
        parser.error(f"--engines: known ones are {', '.join(ENGINES[:3])}")
    return measure(given, SIZES if given.job == "all" else [given.job], engines)


if __name__ == "__main__":
    raise SystemExit(main())
