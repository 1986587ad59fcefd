"""A round of fl-shuffle against one of apple/pfl-research 0.6, in one run, client unit.

pfl runs in a Python of its own (--pfl-python, or FL_SHUFFLE_PFL_PYTHON; this one where it has it);
without one the benchmark says so and ends well. It is tuned: one flat parameter, gradients in
closed form with NumPy (faster than PyTorch for models of this size), users made once, and of its
two central mechanisms the one that a trial finds faster. Both sides have the same records, clip,
noise scale and step.

  ours         fl-shuffle simulate --json: accountant, ledger, shuffler, every client's own noise
  pooled       the same with run.noise = "pooled"
  pfl-local    pfl's GaussianMechanism on every client
  pfl-central  pfl's CentrallyAppliedPrivacyMechanism, or approximate_as_central_mechanism()

They take turns of some seconds, all but one of them stopped. A ratio is pfl's turn over ours next
to it: the median over turns, and the tenth and ninetieth percentile. `--seconds` is for the whole
benchmark, trials included: a job's trials of pfl's ways end when half of its share has gone, the
turns when all has; each simulator gets one turn in any case, of two of its rounds or more. Every
step is told on the standard error as it ends. pfl's rounds take seconds: a quiet machine wants
some minutes for the jobs, a busy one several times as long.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.simulation import CHILD_LIMIT, ENGINES, TURN_SECONDS, Bench
from benchmarks.tables import show, write_csv
from benchmarks.turns import run_child

PEERS = ("JS1000", "JS10000")
PAIRS = {"pfl-local": "ours", "pfl-central": "pooled"}
MECHANISMS = {"pfl-local": ("local",), "pfl-central": ("approximate", "central")}
TRIAL_ROUNDS = 2
# Of a turn a round is lost to the stops.
TURN_ROUNDS = 2.5
WANTED = "0.6"
ASK = "import pfl, importlib.metadata as m; print(m.version('pfl'))"


@dataclass
class PeerBench(Bench):
    """A job for both simulators."""

    python: str = sys.executable
    how: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun = time.monotonic()
        super().__post_init__()
        self.tell("data written")

    def tell(self, what: str) -> None:
        """Say how far it is, and since when."""
        passed = time.monotonic() - self.begun
        print(f"[{passed:6.1f} s] {self.name}: {what}", file=sys.stderr, flush=True)

    def command(self, engine: str, rounds: int) -> list[str]:
        if engine in ENGINES:
            return super().command(engine, rounds)
        return self._pfl(rounds, self.how[engine])

    def tune(self, engine: str) -> float:
        """Take the mechanism whose rounds are fastest; how long one takes."""
        found = {}
        for way in MECHANISMS[engine]:
            trial = run_child(self._pfl(TRIAL_ROUNDS, way), self.folder, CHILD_LIMIT)
            if trial.failed or not trial.seconds:
                raise SystemExit(f"{engine} failed: {trial.failed or 'no rounds'}")
            found[way] = min(trial.seconds)
            self.tell(f"{engine}: {way}: {found[way]:.3g} s a round")
        self.how[engine] = min(found, key=found.__getitem__)
        return min(found.values())

    def _pfl(self, rounds: int, mechanism: str) -> list[str]:
        told = self.sizes(f"--rounds={rounds}", f"--mechanism={mechanism}")
        return [self.python, "-m", "benchmarks.peers.pfl_rounds", *told]


def missing(python: str) -> str:
    """Why this Python cannot play the peer; empty if it can."""
    if not python:
        return "pfl is not installed here; name a Python that has it with --pfl-python"
    try:
        answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{python} cannot be started: {error.strerror}"
    if answer.returncode:
        return f"{python} has no pfl: {answer.stderr.strip().splitlines()[-1]}"
    version = answer.stdout.strip()
    return "" if version.startswith(WANTED) else f"{python} has pfl {version}, not {WANTED}"


def measure_job(
    name: str, mnist: str, seconds: float, folder: Path, python: str
) -> list[dict[str, Any]]:
    """Both simulators on one job, in turns, within about `seconds`."""
    begun = time.monotonic()
    bench = PeerBench(name, "client", mnist, folder / name, python=python)
    typical = {engine: bench.typical(engine) for engine in PAIRS.values()}
    typical |= {engine: bench.tune(engine) for engine in PAIRS}
    # Twice what the time allows, as its own trial may have been in a slow minute.
    rounds = {engine: 10 + int(2.0 * seconds / 4 / each) for engine, each in typical.items()}
    turns = [max(TURN_SECONDS, TURN_ROUNDS * each) for each in typical.values()]
    bench.tell(f"turns of {', '.join(f'{each:.3g}' for each in turns)} s")
    # Two rounds that end in a turn are what makes one time.
    left = max(1.0, begun + seconds - time.monotonic())
    found = bench.run_in_turns(rounds, turns, left, least=2)
    bench.tell("done")
    rows = []
    for engine, own in found.items():
        row = bench.row(engine, own)
        if engine in PAIRS:
            row |= {"how": bench.how[engine], "over": PAIRS[engine]}
            names = ("ratio_p10", "ratio", "ratio_p90")
            row |= dict(zip(names, own.over(found[PAIRS[engine]]), strict=True))
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--job", default="all", choices=[*PEERS, "all"])
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything, about")
    here = sys.executable if importlib.util.find_spec("pfl") else ""
    parser.add_argument("--pfl-python", default=os.environ.get("FL_SHUFFLE_PFL_PYTHON", here))
    parser.add_argument("--csv", type=Path, default=Path("bench_peers.csv"))
    parser.add_argument("--data", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--smoke", action="store_true", help="a tiny job, a few rounds")
    given = parser.parse_args()
    reason = missing(given.pfl_python)
    if reason:
        print(f"skipped: {reason}")
        return 0
    mnist = str(Path(given.data).resolve()) if given.data else ""
    jobs = list(PEERS) if given.job == "all" else [given.job]
    seconds = given.seconds / len(jobs)
    if given.smoke:
        jobs, mnist, seconds = ["smoke"], "", 4.0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        for name in jobs:
            found = measure_job(name, mnist, seconds, Path(folder), given.pfl_python)
            for row in found:
                show(row)
            rows += found
            write_csv(given.csv, rows)
    return 1 if any(row["note"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
