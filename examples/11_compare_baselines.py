"""What does privacy cost? Compare a shuffled run with no privacy, a trusted server, local privacy.

Run it: python 11_compare_baselines.py [--mnist] [--rounds N] [--out FOLDER]

The three rows of a budget have the same epsilon: of the most exposed client after all rounds, in
nats, for replacing one client. The picture shows accuracy against epsilon, with the spread over the
seeds.

Expected output:

    no privacy      accuracy  91.6%  epsilon inf
    trusted server  accuracy  36.1%  epsilon 0.217
    shuffled        accuracy  36.9%  epsilon 0.217
    local           accuracy  14.5%  epsilon 0.217
    trusted server  accuracy  78.1%  epsilon 0.523
    shuffled        accuracy  59.9%  epsilon 0.523
    local           accuracy  15.2%  epsilon 0.523
    picture: baselines/accuracy.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import fl_shuffle as fs

CONFIG: dict[str, Any] = {
    "data": {"source": "digits", "clients": 700, "records": 2, "features": "hog",
             "feature_options": {"components": 32, "ridge": 0.03}},
    "model": {"init": "zeros", "bias": False},
    "privacy": {"unit": "client", "clip_norm": 0.05},
    "budgets": {"epsilon": 4.0},
    "server": {"optimizer": "fedavgm", "learning_rate": 40.0, "lr_schedule": "linear"},
}  # fmt: skip


def main() -> None:
    """Run all of them with two seeds, and print the table."""
    options = argparse.ArgumentParser(description="A run beside its baselines.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    options.add_argument("--out", type=Path, default=Path("baselines"), help="folder to create")
    given = options.parse_args()

    result = fs.sweep(
        "mnist_clients" if given.mnist else CONFIG,
        grid={"budgets.epsilon": [2.0, 4.0]},
        seeds=2,
        baselines=True,
        overrides={"run.rounds": given.rounds},
        out=given.out,
    )
    table = result.table
    for name, accuracy, epsilon in zip(
        table["baseline"], table["accuracy"], table["epsilon"], strict=True
    ):
        print(f"{name:15} accuracy {accuracy:6.1%}  epsilon {epsilon:.3g}")
    print(f"picture: {result.figure(given.out / 'accuracy.png')}")


if __name__ == "__main__":
    main()
