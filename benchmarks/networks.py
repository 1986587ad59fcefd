"""Accuracy of a small network against epsilon, beside a linear model on fixed features.

    scripts/bench networks --data DIR --clients 1000 --epsilon0 32

Client unit, FedAvg with local epochs, attackers who see only the sums of rounds; noise is added
once to each sum, of the distribution that all reports have together. Each row is one run, with its
seed.
Epsilons are proven, replace-one, for the most exposed client, at delta 1e-6.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fl_shuffle as fs

SOURCES = ("mnist", "fashion-mnist")
RECORDS = 60_000
LEARNERS: dict[str, dict[str, Any]] = {
    "cnn": {
        "data.features": "pixels",
        "model.kind": "cnn",
        "training.local_learning_rate": 0.1,
        "privacy.clip_norm": 1.0,
        "server.optimizer": "fedavgm",
        "server.learning_rate": 1.0,
        "server.momentum": 0.5,
    },
    "linear": {
        "data.features": "hog",
        "data.feature_options": {"cells": [7, 4], "components": 64, "ridge": 0.03},
        "model.kind": "linear",
        "model.init": "zeros",
        "model.bias": False,
        "training.local_learning_rate": 1.0,
        "privacy.clip_norm": 0.5,
        "server.optimizer": "fedavgm",
        "server.learning_rate": 2.0,
        "server.momentum": 0.5,
    },
}
"""The settings of each model; none was chosen with the test records."""
COLUMNS = (
    "data", "model", "clients", "rounds", "local_epochs", "epsilon0", "seed", "sum_epsilon",
    "shuffled_epsilon", "accuracy", "cpu_s",
)  # fmt: skip


def overrides_of(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of all runs with this model."""
    network = {"model.width": given.width} if model == "cnn" else {}
    return {
        **LEARNERS[model],
        **network,
        "run.rounds": given.rounds,
        "run.noise": "per-sum",
        "run.evaluate_every": given.rounds,
        "run.jobs": 1,
        "training.local_epochs": given.local_epochs,
        "training.batch_size": given.batch_size,
        "privacy.unit": "client",
        "privacy.target_delta": 1e-6,
        "privacy.release": "sum",
        "budgets.distribution": "constant",
        "budgets.delta": 1e-6,
    }


def row(point: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """Run one point (data, model, clients, epsilon0, seed) and return its row."""
    clients = point["clients"]
    settings = {
        **overrides_of(point["model"], given),
        "data.source": point["data"],
        "data.clients": clients,
        "data.records_per_client": RECORDS // clients,
        "data.root": given.root,
        "budgets.epsilon": point["epsilon0"],
        "run.seed": point["seed"],
    }
    started = time.process_time()
    with tempfile.TemporaryDirectory(prefix="bench-networks-") as folder:
        result = fs.simulate({"run": {"rounds": given.rounds}}, overrides=settings, out=folder)
    summary = result.summary
    return {
        **point,
        "rounds": summary["rounds"],
        "local_epochs": given.local_epochs,
        "sum_epsilon": result.sum_epsilon,
        "shuffled_epsilon": summary["shuffled_epsilon"],
        "accuracy": result.accuracy,
        "cpu_s": time.process_time() - started,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table: a line for each point, over its seeds."""
    lines = [
        "| data | model | clients | rounds | sums seen | reports seen | accuracy | spread, seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for _, of_point in itertools.groupby(
        rows, key=lambda each: [each[name] for name in COLUMNS[:6]]
    ):
        found = list(of_point)
        accuracies = [100.0 * each["accuracy"] for each in found]
        first = found[0]
        cells = (
            first["data"], first["model"], f"{first['clients']:,}", first["rounds"],
            f"{first['sum_epsilon']:.3g}", f"{first['shuffled_epsilon']:.3g}",
            f"{statistics.fmean(accuracies):.2f}",
            f"{max(accuracies) - min(accuracies):.2f}, {len(found)}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", nargs="+", default=SOURCES, choices=SOURCES)
    parser.add_argument("--models", nargs="+", default=tuple(LEARNERS), choices=tuple(LEARNERS))
    parser.add_argument("--clients", nargs="+", type=int, default=(1_000, 10_000))
    parser.add_argument(
        "--epsilon0", nargs="+", type=float, default=(8.0, 32.0), help="of a report"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--local-epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=0, help="0: all records of a client")
    parser.add_argument("--width", type=int, default=4, help="channels of the network")
    parser.add_argument("--data", dest="root", default=os.environ.get("FL_SHUFFLE_DATA", ""))
    parser.add_argument("--csv", type=Path, default=Path("bench_networks.csv"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    axes = (given.source, given.models, given.clients, given.epsilon0, range(1, given.seeds + 1))
    for values in itertools.product(*axes):
        point = dict(zip(("data", "model", "clients", "epsilon0", "seed"), values, strict=True))
        rows.append(row(point, given))
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        print(rows[-1], flush=True)
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
