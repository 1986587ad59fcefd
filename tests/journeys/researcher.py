"""A researcher: how does accuracy hang on the budget? Run in an empty folder.

A sweep of budgets and seeds, its table and figure, and the proven bound beside the literature's.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import fl_shuffle as fs

COMMAND = "import sys; from fl_shuffle.cli import main; sys.exit(main())"


def main() -> None:
    base = {"data.clients": 100, "run.rounds": 3, "budgets.low": 0.5, "budgets.high": 1.5}
    small = ["--quiet", *(f"--set={key}={value}" for key, value in base.items())]
    grid = ["--grid", "budgets.low=0.5,1", "--grid", "privacy.clip_norm=0.05,0.1", "--seeds", "2"]
    subprocess.run(
        [sys.executable, "-c", COMMAND, "sweep", *small, *grid, "--jobs", "2", "--out", "sweep"],
        check=True,
    )
    with open("sweep/table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4, rows
    assert all(row["runs"] == "2" for row in rows), rows
    page = Path("sweep/sweep.html").read_text(encoding="utf-8")
    assert "<svg" in page and "epsilon" in page

    # A larger budget costs more, at every clipping length.
    swept = fs.sweep(
        overrides={"data.clients": 100, "run.rounds": 1, "budgets.low": 0.5},
        grid={"budgets.high": [1.0, 1.5]},
    )
    assert swept.table["epsilon"][0] < swept.table["epsilon"][1], swept.table

    found = fs.compare(
        randomizer="gaussian", epsilon0=1.0, delta0=1e-6, clients=1000, delta=1e-6, unit="client"
    )
    values = {
        name: answer.epsilon for name, answer in found.items() if isinstance(answer, fs.Guarantee)
    }
    # Bounds that know epsilon0 alone cannot speak of Gaussian noise with this delta0; ours does.
    assert math.isfinite(values["proven"]) and values["attack"] <= values["proven"], values
    print("researcher: done")


if __name__ == "__main__":
    main()
