"""A round of fl-shuffle against one of apple/pfl-research 0.6, in one run, client unit.

pfl runs in a Python of its own (--pfl-python, or FL_SHUFFLE_PFL_PYTHON; this one where it has it);
without one the benchmark says so and ends well. It is tuned: one flat parameter, gradients in
closed form, users made once; NumPy, or PyTorch with one or two threads, and of its two central
mechanisms the one that a trial finds fastest. Both sides have the same records, clip, noise scale
and step.

  ours         fl-shuffle simulate --json: accountant, ledger, shuffler, every client's own noise
  pooled       the same with run.noise = "pooled"
  pfl-local    pfl's GaussianMechanism on every client
  pfl-central  pfl's CentrallyAppliedPrivacyMechanism, or approximate_as_central_mechanism()

They take turns of some seconds, all but one of them stopped. A ratio is pfl's turn over ours next
to it: the median over turns, and the tenth and ninetieth percentile. `--seconds` is for the whole
benchmark, trials included: a job's trials of pfl's ways end when half of its share has gone, the
turns when all has; each simulator gets one turn in any case, of two of its rounds or more. Every
step is told on the standard error as it ends. pfl's rounds take seconds: a quiet machine wants
about ten minutes for the three jobs, a busy one several times as long.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.simulation import CHILD_LIMIT, ENGINES, TURN_SECONDS, Bench, ratios
from benchmarks.simulation_parts.jobs import JOBS, SMOKE_JOB, Job
from benchmarks.simulation_parts.measure import Measurement

PEERS = ("J1000", "JS1000", "JS10000")
PAIRS = {"pfl-local": "ours", "pfl-central": "pooled"}
MECHANISMS = {"pfl-local": ("local",), "pfl-central": ("approximate", "central")}
FRAMEWORKS = (("numpy", 1), ("torch", 1), ("torch", 2))
CLIP = 1.0
TRIAL_ROUNDS = 2
# Ours are short: so many say how long a turn must be.
OWN_TRIAL_ROUNDS = 10
# Of a turn a round is lost to the stops.
TURN_ROUNDS = 2.5
# A way of pfl's is given up when its trial takes so many times as long as the best so far.
PATIENCE = 1.5
WANTED = "0.6"
COLUMNS = (
    *("job", "clients", "records", "d", "engine", "how", "rounds", "median_s", "p10_s", "p90_s"),
    *("cpu_s", "over", "ratio", "ratio_p10", "ratio_p90", "note"),
)
ASK = "import pfl, importlib.metadata as m; print(m.version('pfl'))"


@dataclass
class PeerBench(Bench):
    """A job for both simulators."""

    python: str = sys.executable
    how: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    tuned: dict[str, float] = field(default_factory=dict)
    """Seconds of a round in the fastest trial."""

    def __post_init__(self) -> None:
        self.begun = time.monotonic()
        super().__post_init__()
        self.tell("data written")

    def tell(self, what: str) -> None:
        """Say how far it is, and since when."""
        passed = time.monotonic() - self.begun
        print(f"[{passed:6.1f} s] {self.job.name}: {what}", file=sys.stderr, flush=True)

    def command(self, engine: str, rounds: int) -> list[str]:
        if engine in ENGINES:
            return super().command(engine, rounds)
        return self._pfl(rounds, *self.how[engine])

    def typical(self, engine: str) -> float:
        """Seconds of a round of ours: the median of one short trial."""
        trial = self.run(engine, OWN_TRIAL_ROUNDS)
        median = trial.quantile(0.5)
        if trial.failed or median is None:
            raise SystemExit(f"{engine} failed: {trial.failed or 'no rounds'}")
        self.tell(f"{engine}: {median:.3g} s a round")
        return median

    def tune(self, engine: str, until: float) -> None:
        """Take the mechanism, framework and number of threads whose rounds are fastest.

        Frameworks are compared on the first mechanism, the others tried in the fastest. After
        `until` (of the monotonic clock) nothing is tried any more, once there is one.
        """
        first, *others = MECHANISMS[engine]
        found: dict[tuple[str, str, int], float] = {}
        ways = [(first, *each) for each in FRAMEWORKS]
        limit = CHILD_LIMIT
        while ways:
            way = ways.pop(0)
            if found and time.monotonic() > until:
                self.tell(f"{engine}: no time to try {' '.join(map(str, way))}")
                continue
            trial = self.child(self._pfl(TRIAL_ROUNDS, *way), limit=limit)
            fastest = trial.quantile(0.0)
            if trial.failed or fastest is None:
                self.tell(f"{engine}: {' '.join(map(str, way))}: {trial.failed or 'no rounds'}")
            else:
                if fastest < min(found.values(), default=math.inf):
                    limit = PATIENCE * trial.ended_after
                found[way] = fastest
                self.tell(f"{engine}: {' '.join(map(str, way))}: {fastest:.3g} s a round")
            if found and not ways:
                framework = min(found, key=found.__getitem__)[1:]
                ways, others = [(each, *framework) for each in others], []
        if not found:
            raise SystemExit(f"{engine} failed in every way")
        self.how[engine] = min(found, key=found.__getitem__)
        self.tuned[engine] = min(found.values())

    def _pfl(self, rounds: int, mechanism: str, framework: str, threads: int) -> list[str]:
        command = [self.python, "-m", "benchmarks.peers.pfl_rounds", str(self.folder / "job.npz")]
        command += ["--clients", str(self.job.clients), "--hidden", str(self.job.hidden)]
        command += ["--clip", str(CLIP), "--scale", repr(self.scale), "--rounds", str(rounds)]
        command += ["--mechanism", mechanism, "--framework", framework]
        return [*command, "--threads", str(threads)]


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
    job: Job, mnist: str, seconds: float, folder: Path, python: str
) -> list[dict[str, object]]:
    """Both simulators on one job, in turns, within about `seconds`."""
    begun = time.monotonic()
    bench = PeerBench(job, "client", mnist, folder / job.name, python=python)
    typical, rounds = {}, {}
    for engine in ("ours", "pooled", *PAIRS):
        if engine in PAIRS:
            bench.tune(engine, begun + seconds / 2)
            typical[engine] = bench.tuned[engine]
        else:
            typical[engine] = bench.typical(engine)
        # Twice what the time allows, as its own trial may have been in a slow minute.
        rounds[engine] = 10 + int(2.0 * seconds / 4 / typical[engine])
    turns = [max(TURN_SECONDS, TURN_ROUNDS * each) for each in typical.values()]
    bench.tell(f"turns of {', '.join(f'{each:.3g}' for each in turns)} s")
    # Two rounds that end in a turn are what makes one time.
    left = max(1.0, begun + seconds - time.monotonic())
    found = bench.run_in_turns(rounds, turns, left, least=2)
    bench.tell("done")
    return [row_of(bench, engine, found) for engine in found]


def row_of(bench: PeerBench, engine: str, found: dict[str, Measurement]) -> dict[str, object]:
    """A line of the table: pfl's with the ratio to ours."""
    own, job = found[engine], bench.job
    over = PAIRS.get(engine, "")
    apart = ratios(own, found[over]) if over else []
    at = {
        name: apart[round(share * (len(apart) - 1))] if apart else None
        for name, share in (("ratio", 0.5), ("ratio_p10", 0.1), ("ratio_p90", 0.9))
    }
    return {
        "job": job.name,
        "clients": job.clients,
        "records": job.records,
        "d": job.dimension,
        "engine": engine,
        "how": " ".join(map(str, bench.how.get(engine, ()))),
        "rounds": own.rounds,
        **{f"{n}_s": own.quantile(q) for n, q in (("median", 0.5), ("p10", 0.1), ("p90", 0.9))},
        "cpu_s": own.cpu_per_round,
        "over": over,
        **at,
        "note": own.failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench_peers",
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
    jobs = [JOBS[name] for name in (PEERS if given.job == "all" else (given.job,))]
    if given.smoke:
        jobs, mnist = [SMOKE_JOB], ""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
        for job in jobs:
            seconds = 4.0 if given.smoke else given.seconds / len(jobs)
            rows += measure_job(job, mnist, seconds, Path(folder), given.pfl_python)
            for row in rows[-len(PAIRS) - 2 :]:
                cells = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
                print(
                    "  ".join(f"{n}={c}" for n, c in zip(COLUMNS, cells, strict=True)), flush=True
                )
            with given.csv.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    return 1 if any(row["note"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
