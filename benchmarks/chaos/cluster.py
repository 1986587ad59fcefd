"""10,000 clients packed into nodes on a Ray cluster of this machine that loses one of its members.

    nice -n 19 .venv/bin/python -m benchmarks.chaos.cluster --rounds 20

Four raylets with one worker each; one is killed after two rounds. Every round must have all
reports, and the model and epsilon those of the same run in one process.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.simulation_parts.jobs import JOBS, child_environment, simulate_command

JOB = JOBS["JS10000"]
RAYLETS = 4
KILLED_AFTER = 2
"""Rounds."""


def play(folder: Path, rounds: int) -> dict[str, Any]:
    """Both runs; what came of them."""
    from ray.cluster_utils import Cluster

    config = folder / "run.toml"
    text = JOB.config(unit="client", mnist="", rounds=rounds, engine="in-process", out=folder)
    config.write_text(text, encoding="utf-8")
    here, there = folder / "here", folder / "there"
    with (folder / "said").open("wb") as said:

        def start(out: Path, **settings: object) -> subprocess.Popen[bytes]:
            named = {f"run.{name}": value for name, value in settings.items()}
            arguments = simulate_command(config, named, out)
            return subprocess.Popen(arguments, env=child_environment(), stdout=said)

        codes = [start(here, jobs=2).wait()]
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            members = [cluster.add_node(num_cpus=1) for _ in range(RAYLETS - 1)]
            settings = {"engine": "ray", "jobs": RAYLETS, "ray_address": cluster.address}
            process = start(there, **settings, timeout=300)
            killed_after: int | None = None
            while process.poll() is None:
                if killed_after is None and (done := len(_reports(there))) >= KILLED_AFTER:
                    cluster.remove_node(members.pop(), allow_graceful=False)
                    killed_after = done
                time.sleep(0.05)
            codes.append(process.wait())
        finally:
            cluster.shutdown()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (here, there)]
    models = [(run / "model.safetensors").read_bytes() for run in (here, there)]
    return {
        "exit_codes": codes,
        "killed_after_rounds": killed_after,
        "rounds": summaries[1]["rounds"],
        "reports": sorted(set(_reports(there))),
        "same_model": models[0] == models[1],
        "same_epsilon": len({summary["proven_epsilon"] for summary in summaries}) == 1,
    }


def _reports(run: Path) -> list[int]:
    """How many each finished round had."""
    path = run / "metrics.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        return [int(row["n_reports"]) for row in csv.DictReader(lines) if row["n_reports"]]


def main() -> int:
    """Print what came of it; 1 if a report or a bit was lost."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="how many (20)")
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="fl-shuffle-cluster-"))
    try:
        found = play(folder, rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found, indent=2))
    expected = {
        "exit_codes": [0, 0],
        "killed_after_rounds": found["killed_after_rounds"],
        "rounds": rounds,
        "reports": [JOB.clients],
        "same_model": True,
        "same_epsilon": True,
    }
    return int(found != expected or found["killed_after_rounds"] in (None, rounds))


if __name__ == "__main__":
    sys.exit(main())
