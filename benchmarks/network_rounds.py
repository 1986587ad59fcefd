"""A round of the MNIST CNN: here, in Opacus, and in pfl-research 0.6, beside plain PyTorch.

    scripts/bench network_rounds --data DIR [--clients 1000] [--turns 3]

Clients hold 60 records each. All have the same records, one thread, and turns in one run; times are
processor seconds of a round, medians over the turns. The floor is one pass forward and back for
each client. Client unit: the update of one local step is clipped, gets its noise, and joins the
sum. Record unit: each record's gradient is clipped, beside Opacus' DPOptimizer, which steps once
for each client. Messages, shuffler, and accounting are not in it. pfl runs in a Python of its own
(--pfl-python) and is left out, with the reason, where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers.__main__ import missing
from benchmarks.turns import ROOT
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.data.models import flatten_parameters
from fl_shuffle.data.task import load_task
from fl_shuffle.federation.parts import Federation
from fl_shuffle.shuffler.exact_sums import ExactSum

RECORDS = 60
NOISE = 1.0
"""Standard deviations of noise in clipping norms, for Opacus and pfl: it changes no time."""


def federation(unit: str, clients: int, root: str) -> Federation:
    """Return the parts of a run on MNIST with this unit."""
    config = resolve_config(
        {
            "run": {"jobs": 1},
            "data": {
                "source": "mnist", "root": root, "clients": clients,
                "records_per_client": RECORDS, "features": "pixels",
            },
            "model": {"kind": "cnn"},
            "training": {"local_epochs": 1} if unit == "client" else {},
            "privacy": {"unit": unit},
            "budgets": {"epsilon": 4.0},
        }
    )  # fmt: skip
    return Federation(config, load_task(config))


def ours(parts: Federation) -> Callable[[], object]:
    """Return one round's work: each client's clipped report with its noise, and the exact sum."""
    start = flatten_parameters(parts.model())
    clients = np.arange(parts.config.data.clients)
    plan = parts.randomizers
    edges = [int(each) for each in parts.blocks(clients)]
    blocks = np.split(clients, edges[1:-1] if edges[-1] == len(clients) else edges[1:])

    def play() -> None:
        total = ExactSum(len(start), plan.group)
        for block in blocks:
            means = parts.clipper(start, block, 1)
            total.add(parts.randomizer(means, block, 1), plan.largest[block])

    return play


def floor(parts: Federation) -> Callable[[], object]:
    """Return a pass forward and back over each client's records."""
    task, model = parts.task, parts.model()

    def play() -> None:
        for first in range(0, len(task.labels), RECORDS):
            own = slice(first, first + RECORDS)
            model.zero_grad()
            nn.functional.cross_entropy(model(task.inputs[own]), task.labels[own]).backward()  # type: ignore[no-untyped-call]

    return play


def opacus_loop(parts: Federation) -> Callable[[], object]:
    """Return Opacus' own loop: per-record gradients, clipped and noised, a step for each client."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    task, model = parts.task, GradSampleModule(parts.model())
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(
        steps, noise_multiplier=NOISE, max_grad_norm=1.0, expected_batch_size=RECORDS
    )

    def play() -> None:
        for first in range(0, len(task.labels), RECORDS):
            own = slice(first, first + RECORDS)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(task.inputs[own]), task.labels[own]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return play


def pfl_child(parts: Federation, python: str, folder: Path) -> subprocess.Popen[str]:
    """Start pfl's rounds on the same records and network."""
    data, network = folder / "records.npz", folder / "network.pt"
    np.savez(data, inputs=parts.task.inputs.numpy(), labels=parts.task.labels.numpy())
    torch.save(parts.model(), network)
    return subprocess.Popen(
        [
            python, "-m", "benchmarks.peers.pfl_network", str(data), str(network),
            f"--clients={parts.config.data.clients}", f"--noise={NOISE}",
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def child_seconds(child: subprocess.Popen[str]) -> float:
    """Have the child play one round; return its processor seconds."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write("round\n")
    child.stdin.flush()
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"pfl ended with code {child.wait()}")
    return float(json.loads(line)["seconds"])


def seconds(play: Callable[[], object]) -> float:
    """Return the processor seconds of a call, those of all threads."""
    started = time.process_time()
    play()
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--data", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--pfl-python", default=os.environ.get("FL_SHUFFLE_PFL_PYTHON", ""))
    given = parser.parse_args()
    torch.set_num_threads(1)
    by_client, by_record = (
        federation(unit, given.clients, given.data) for unit in ("client", "record")
    )
    engines: dict[str, Callable[[], float]] = {}
    plays = {
        "floor": floor(by_client),
        "ours, client unit": ours(by_client),
        "ours, record unit": ours(by_record),
        "Opacus, record unit": opacus_loop(by_record),
    }
    for name, play in plays.items():
        engines[name] = lambda play=play: seconds(play)  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="bench-network-") as folder:
        child = None
        if reason := missing(given.pfl_python):
            print(f"pfl is left out: {reason}")
        else:
            child = pfl_child(by_client, given.pfl_python, Path(folder))
            engines["pfl 0.6, client unit"] = lambda: child_seconds(child)
        try:
            show(measured(engines, given.turns), given.clients)
        finally:
            if child is not None:
                child.kill()
                child.wait()
    return 0


def measured(engines: dict[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each engine's rounds, played in turns; the first turn warms up."""
    found: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(turns + 1):
        for name, play in engines.items():
            taken = play()
            if turn:
                found[name].append(taken)
    return found


def show(found: dict[str, list[float]], clients: int) -> None:
    """Print a Markdown table: milliseconds of a client, and ratios to the floor turn by turn."""
    print("| engine | ms a client | times the floor |", "|---|---|---|", sep="\n")
    base = found["floor"]
    for name, times in found.items():
        ratios: list[Any] = [a / b for a, b in zip(times, base, strict=True)]
        low, high = min(ratios), max(ratios)
        cells = (
            f"{1e3 * median(times) / clients:.2f} | {median(ratios):.2f} ({low:.2f} to {high:.2f})"
        )
        print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
