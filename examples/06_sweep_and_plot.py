"""Run a grid of settings with several seeds, and plot accuracy against epsilon.

Run it: python 06_sweep_and_plot.py [--mnist] [--rounds N] [--out FOLDER]

The epsilons are about each run alone. On the same people, the epsilons of all runs add up.

Expected output:

    budget 1 per report: epsilon 0.102, accuracy 16.6% (sd 9.3%)
    budget 2 per report: epsilon 0.214, accuracy 31.1% (sd 10.4%)
    budget 4 per report: epsilon 0.515, accuracy 56.8% (sd 4.3%)
    figure: sweep/accuracy.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fl_shuffle as fs


def main() -> None:
    """Run the sweep, print its table, and save the figure."""
    options = argparse.ArgumentParser(description="A sweep over privacy budgets.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    options.add_argument("--out", type=Path, default=Path("sweep"), help="folder to create")
    given = options.parse_args()
    config = "mnist_clients" if given.mnist else "quickstart"

    budgets = [1.0, 2.0, 4.0]
    sweep = fs.sweep(
        config,
        grid={"budgets.epsilon": budgets},
        seeds=2,
        overrides={"run.rounds": given.rounds, "budgets.distribution": "constant"},
        out=given.out,
    )
    table = sweep.table
    for row, budget in enumerate(table["budgets.epsilon"]):
        print(
            f"budget {budget:g} per report: epsilon {table['epsilon'][row]:.3f}, "
            f"accuracy {table['accuracy'][row]:.1%} (sd {table['accuracy_sd'][row]:.1%})"
        )
    figure = sweep.plot()
    figure.savefig(given.out / "accuracy.png")
    print(f"figure: {given.out / 'accuracy.png'}")


if __name__ == "__main__":
    main()
