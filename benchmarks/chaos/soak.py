"""A long run of a small federation: does memory grow, do rounds become slower?

nice -n 19 .venv/bin/python -m benchmarks.chaos.soak --rounds 5000
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fl_shuffle as fs
from fl_shuffle.runs.events import RoundFinished

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """This process's memory that is in use, bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


@dataclass
class Watch:
    """What every `every`-th round found: its number, resident bytes, CPU seconds until then."""

    every: int
    seen: list[tuple[int, int, float]] = field(default_factory=list)

    def __call__(self, event: object) -> None:
        if not isinstance(event, RoundFinished):
            return
        number = event.outcome.round_number
        if number % self.every == 0:
            gc.collect()
            look = number, resident(), time.process_time()
            self.seen.append(look)
            said = f"round {number}: {look[1]} bytes, {look[2]:.2f} CPU s"
            print(said, file=sys.stderr, flush=True)


def soak(
    folder: Path,
    *,
    rounds: int,
    every: int,
    entropy: str = "seeded",
    participation: float = 1.0,
) -> tuple[Watch, Path]:
    """Run it. Returns what was seen, and the run's folder."""
    watch = Watch(every)
    fs.simulate(
        {
            "run": {
                "rounds": rounds, "entropy": entropy, "jobs": 1, "evaluate_every": rounds,
            },
            "data": {"source": "digits", "clients": 60, "records": 5},
            "model": {"kind": "linear"},
            "privacy": {"unit": "client"},
            "budgets": {"distribution": "constant", "epsilon": 0.02},
            "server": {"learning_rate": 0.01},
            "training": {"participation": participation},
        },
        out=folder / "run",
        on_event=watch,
    )  # fmt: skip
    return watch, folder / "run"


def growth(seen: list[tuple[int, int, float]]) -> dict[str, float]:
    """Over the rounds after the first fifth: bytes and CPU seconds a round, and how much longer a
    round takes at the end than there, as a ratio of halves."""
    settled = np.array(seen[len(seen) // 5 :], dtype=np.float64)
    number, memory, cpu = settled.T
    middle = len(number) // 2
    first = (cpu[middle] - cpu[0]) / (number[middle] - number[0])
    second = (cpu[-1] - cpu[middle]) / (number[-1] - number[middle])
    return {
        "bytes_a_round": float(np.polyfit(number, memory, 1)[0]),
        "megabytes": float(memory[-1] / 1e6),
        "cpu_ms_a_round": float(1e3 * (cpu[-1] - cpu[0]) / (number[-1] - number[0])),
        "second_half_over_first": float(second / first),
    }


def main() -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000, help="how many (5000)")
    parser.add_argument("--every", type=int, default=50, help="rounds between two looks (50)")
    parser.add_argument("--entropy", default="seeded", help="seeded (default) or system")
    parser.add_argument("--participation", type=float, default=1.0, help="share of clients (1)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fl-shuffle-soak-"))
    try:
        watch, run = soak(
            folder,
            rounds=options.rounds,
            every=options.every,
            entropy=options.entropy,
            participation=options.participation,
        )
        sizes = {path.name: path.stat().st_size for path in sorted(run.iterdir())}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**growth(watch.seen), "files": sizes}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
