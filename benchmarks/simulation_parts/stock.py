"""Run the stock Flower app through `flwr run`, on a SuperLink of its own, to a checked end."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from fl_shuffle.flower.on_ray import engine as ray_engine

APP = Path(__file__).resolve().parents[1] / "stock_flower"


def main() -> int:
    """`python -m benchmarks.simulation_parts.stock CLIENTS RUN_CONFIG.toml LOG`: 0 if the run
    completed."""
    clients, settings, log_path = sys.argv[1], sys.argv[2], sys.argv[3]
    with (
        tempfile.TemporaryDirectory(prefix="bench-stock-") as home,
        Path(log_path).open("w", encoding="utf-8") as log,
    ):
        environment = {**os.environ, **ray_engine.OFFLINE, "FLWR_HOME": home}
        with ray_engine._superlink(Path(home), environment, log):
            federation = f"num-supernodes={clients} client-resources-num-cpus=1"
            command = ["run", str(APP), ray_engine.CONNECTION, "--run-config", settings]
            command += ["--federation-config", federation, "--format", "json"]
            answer = ray_engine._flwr(command, Path(home), environment, log)
            run_id = str(json.loads(answer[answer.index("{") :])["run-id"])
            status = ray_engine._wait(run_id, Path(home), environment)
            show = ["log", run_id, ray_engine.CONNECTION, "--show"]
            ray_engine._flwr(show, Path(home), environment, log)
    if status != "finished:completed":
        print(f"stock Flower run ended as {status}; see {log_path}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
