"""What does privacy cost? A shuffled run beside the same training without privacy, with a trusted
server, and with local privacy alone.

Run it from this folder: python 11_compare_baselines.py [FOLDER]

All rows but the first have the same epsilon of the most exposed client. The picture shows accuracy
against epsilon, with the spread over the seeds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fl_shuffle as fs

CONFIG = {
    "run": {"rounds": 10},
    "data": {"source": "digits", "clients": 700, "records": 2, "features": "hog",
             "feature_options": {"components": 32, "ridge": 0.03}},
    "model": {"init": "zeros", "bias": False},
    "privacy": {"unit": "client", "clip_norm": 0.05},
    "budgets": {"epsilon": 4.0},
    "server": {"optimizer": "fedavgm", "learning_rate": 40.0, "lr_schedule": "linear"},
}  # fmt: skip


def main(folder: Path) -> None:
    """Run all of them with two seeds, and print the table."""
    result = fs.sweep(
        CONFIG,
        grid={"budgets.epsilon": [2.0, 4.0]},
        seeds=2,
        baselines=True,
        out=folder,
    )
    table = result.table
    for name, accuracy, epsilon in zip(
        table["baseline"], table["accuracy"], table["epsilon"], strict=True
    ):
        print(f"{name:15} accuracy {accuracy:6.1%}  epsilon {epsilon:.3g}")
    print(f"picture: {result.figure(folder / 'accuracy.png')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("baselines"))
