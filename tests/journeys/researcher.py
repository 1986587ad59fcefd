"""A researcher: how does accuracy hang on the budget? Run in an empty folder.

From the list of shipped configurations to two runs side by side; a sweep of budgets and seeds, its
table and figure; and the proven bound beside the literature's.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

from commands import typed

import fl_shuffle as fs


def main() -> None:
    # Which are there, what one costs before it runs, two runs of it, side by side.
    assert "mnist_clients" in typed("fl-shuffle simulate --list")
    assert "privacy.clip_norm = " in typed("fl-shuffle settings privacy.clip_norm")
    before = typed("fl-shuffle bound quickstart --rounds 2")
    assert "epsilon" in before, before
    said = typed("fl-shuffle simulate quickstart --rounds 2 --out runs/first")
    assert len(said.splitlines()) <= 8 and "next: fl-shuffle report runs/first" in said, said
    line = typed("fl-shuffle simulate quickstart --rounds 2 --seed 2 --quiet --out runs/second")
    assert line.count("\n") == 1 and line.startswith("runs/second  accuracy "), line
    typed("fl-shuffle report runs/first runs/second --out both.html")
    assert "run.seed" in Path("both.html").read_text(encoding="utf-8")
    assert "first" in typed("fl-shuffle runs runs")

    typed(
        "fl-shuffle sweep --quiet --set data.clients=100 --set run.rounds=3 --set budgets.low=0.5 "
        "--set budgets.high=1.5 --grid budgets.low=0.5,1 --grid privacy.clip_norm=0.05,0.1 "
        "--seeds 2 --jobs 2 --out sweep"
    )
    with open("sweep/table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4, rows
    assert all(row["runs"] == "2" for row in rows), rows
    page = Path("sweep/sweep.html").read_text(encoding="utf-8")
    assert "<svg" in page and "epsilon" in page
    # A larger budget costs more.
    assert float(rows[0]["epsilon"]) < float(rows[2]["epsilon"]), rows

    typed(
        "fl-shuffle bound --randomizer gaussian --clients 1000 --rounds 3 --epsilon 1 --delta 1e-6 "
        "--unit client --solve-for sigma"
    )
    found = fs.compare(
        randomizer="gaussian", epsilon0=1.0, delta0=1e-6, clients=1000, delta=1e-6, unit="client"
    )
    proven, attack = found["proven"], found["attack"]
    # Bounds that know epsilon0 alone cannot speak of Gaussian noise with this delta0; ours does.
    assert isinstance(proven, fs.Guarantee) and isinstance(attack, fs.Guarantee), found
    assert attack.epsilon <= proven.epsilon < math.inf, found
    print("researcher: done")


if __name__ == "__main__":
    main()
