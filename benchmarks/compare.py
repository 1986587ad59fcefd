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
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.simulation_parts.jobs import JOBS, ROOT, SMOKE_JOB, Job

FILE = Path(__file__).with_name("frozen.json")
MILLION = Job("million", 1_000_000, 1)
POOLED = {job.name: job for job in (JOBS["JS1000"], JOBS["JS10000"], MILLION)}
NETWORK = "C100"
SMOKE = "smoke"
Ratio = dict[str, float]


def pooled(job: Job, seconds: float, mnist: str) -> Ratio:
    """A round of pooled noise over the floor's, record unit, in processor seconds."""
    from benchmarks.simulation import measure_job

    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
        floor, own = measure_job(job, "record", mnist, ["floor", "pooled"], seconds, Path(folder))
    if own["note"] or floor["note"]:
        raise SystemExit(f"{job.name} failed: {own['note'] or floor['note']}")
    if own["cpu_s"] is None or floor["cpu_s"] is None:
        raise SystemExit(f"{job.name}: --seconds {seconds:g} are too few for its rounds; give more")
    return _ratio(own["cpu_s"], floor["cpu_s"])


def network(seconds: float) -> Ratio:
    """A round's gradients of a convolutional network over the same written by hand, client unit."""
    from benchmarks.kernels import bench

    return _ratio(*bench("client", seconds))


def _ratio(own: Any, floor: Any) -> Ratio:
    return {"own_s": own, "floor_s": floor, "ratio": own / floor}


def accuracy(path: Path, mnist: str) -> float | None:
    """Test accuracy of a shipped configuration, run as it stands."""
    import fl_shuffle as fs

    overrides = {"data.root": mnist} if mnist else {}
    with tempfile.TemporaryDirectory(prefix="bench-compare-") as folder:
        return fs.simulate(path, overrides=overrides, out=Path(folder, "run")).accuracy


def accuracies(mnist: str) -> dict[str, float | None]:
    """Of all shipped configurations whose data are there."""
    found = {}
    for path in sorted(ROOT.glob("configs/*.toml")):
        if path.stem.startswith("mnist") and not mnist:
            continue
        found[path.stem] = accuracy(path, mnist if path.stem.startswith("mnist") else "")
        show(path.stem, found[path.stem], read().get("accuracies", {}).get(path.stem))
    return found


def read() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return known


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
    parser.add_argument("--note", default="", help="of the machine, to be written down")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="one tiny job, nothing written")
    given = parser.parse_args()
    mnist = str(Path(given.data).resolve()) if given.data else ""
    if given.smoke:
        show(SMOKE, pooled(SMOKE_JOB, 4.0, "")["ratio"], None)
        return 0
    known = read()
    jobs = dict(known.get("jobs", {}))
    for name in given.job:
        now = (
            network(given.seconds)
            if name == NETWORK
            else pooled(POOLED[name], given.seconds, mnist)
        )
        show(f"{name}, over its floor", now["ratio"], jobs.get(name, {}).get("ratio"))
        jobs[name] = now
    trained = dict(known.get("accuracies", {}))
    if given.accuracies:
        trained |= accuracies(mnist)
    if given.write:
        note = given.note or known.get("note", "")
        kept = {"note": note, "jobs": jobs, "accuracies": trained}
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
