"""Four jobs beside a floor, and accuracies of shipped configurations, against what is written down.

    scripts/bench --compare [--seconds 20] [--job NAME ...] [--accuracies] [--write]

`frozen.json` holds, for each job, processor seconds of a round over those of its floor, both played
in turns in one run: read ratios of ratios, and those on a quiet machine. `--accuracies` trains
every shipped configuration (those on MNIST where --data or FL_SHUFFLE_DATA names it). `--write`
writes down what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from pathlib import Path

import fl_shuffle as fs
from benchmarks.kernels import gradients
from benchmarks.simulation import Bench, measure_job
from benchmarks.turns import ROOT

FILE = Path(__file__).with_name("frozen.json")
POOLED = ("JS1000", "JS10000", "million")
NETWORK = "C100"


def measured(name: str, seconds: float, mnist: str) -> dict[str, float]:
    """Processor seconds of a round of pooled noise and of its floor (record unit); of `NETWORK`
    the gradients of a convolutional network and a pass back per client (client unit)."""
    if name == NETWORK:
        own, floor = gradients(seconds)
    else:
        with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
            bench = Bench(name, "record", mnist, Path(folder, name), "")
            rows = measure_job(bench, ["floor", "pooled"], seconds)
        if failed := [row["note"] for row in rows if row["note"]]:
            raise SystemExit(f"{name} failed: {failed[0]}")
        floor, own = (row["cpu_s"] for row in rows)
        if math.isnan(own + floor):
            raise SystemExit(f"{name}: --seconds {seconds:g} are too few for its rounds; give more")
    return {"own_s": own, "floor_s": floor, "ratio": own / floor}


def accuracy(path: Path, mnist: str) -> float | None:
    """Test accuracy of a shipped configuration, run as it stands."""
    overrides = {"data.root": mnist} if mnist and path.stem.startswith("mnist") else {}
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
        return fs.simulate(path, overrides=overrides, out=Path(folder, "run")).accuracy


def show(name: str, now: float | None, before: float | None) -> None:
    """A line: now, as it is written down, and the one over the other."""
    cells = ["-" if value is None else f"{value:.4g}" for value in (now, before)]
    change = f"{now / before:.3f}" if now and before else "-"
    print(f"{name:<26} now {cells[0]:>8}  written down {cells[1]:>8}  change {change}", flush=True)


def main() -> int:
    """Measure, print, and write down if asked."""
    names = [*POOLED, NETWORK]
    parser = argparse.ArgumentParser(
        prog="scripts/bench --compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="for each job")
    parser.add_argument("--job", nargs="*", choices=names, default=names)
    parser.add_argument("--accuracies", action="store_true")
    parser.add_argument("--data", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    mnist = str(Path(given.data).resolve()) if given.data else ""
    known = json.loads(FILE.read_text("utf-8"))
    jobs, trained = known["jobs"], known["accuracies"]
    for name in given.job:
        now = measured(name, given.seconds, mnist)
        show(f"{name}, over its floor", now["ratio"], jobs.get(name, {}).get("ratio"))
        jobs[name] = now
    for path in sorted(ROOT.glob("configs/*.toml")) if given.accuracies else ():
        if mnist or not path.stem.startswith("mnist"):
            before, trained[path.stem] = trained.get(path.stem), accuracy(path, mnist)
            show(path.stem, trained[path.stem], before)
    if given.write:
        FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
