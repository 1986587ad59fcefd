"""Three people's ways through the software, each in an empty folder: `ways.py WHO`."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import sqlite3
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np

import fl_shuffle as fs


def typed(line: str, *, folder: str = ".") -> str:
    """What `fl-shuffle ...`, as somebody types it, prints on stdout in a process of its own."""
    command = [sys.executable, "-m", "fl_shuffle", *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"$ {line}\n{done.stderr}"
    return done.stdout


def researcher() -> None:
    """A researcher: how does accuracy hang on the budget?

    From the list of shipped configurations to two runs side by side; a sweep of budgets and seeds,
    its table and figure; and the proven bound beside the literature's.
    """
    # Which are there, what one costs before it runs, two runs of it, side by side.
    assert "mnist_clients" in typed("fl-shuffle simulate --list")
    assert "privacy.clip_norm = " in typed("fl-shuffle settings privacy.clip_norm")
    before = typed("fl-shuffle bound quickstart --rounds 2")
    assert "epsilon" in before, before
    said = typed("fl-shuffle simulate quickstart --rounds 2 --out runs/first")
    assert len(said.splitlines()) <= 9 and "next: fl-shuffle report runs/first" in said, said
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
    proven, attack = found["vector"], found["attack"]
    # Bounds that know epsilon0 alone cannot speak of Gaussian noise with this delta0; ours does.
    assert isinstance(proven, fs.Guarantee) and isinstance(attack, fs.Guarantee), found
    assert attack.epsilon <= proven.epsilon < math.inf, found


NETWORK = '''
from torch import nn


def network(input_shape, classes):
    """A small convolution over pictures of 8 x 8."""
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, classes))
'''
CONFIG = """
run = { rounds = 8, seed = 1 }
model = { kind = "my_parts:network" }
privacy = { unit = "client", clip_norm = 1.0, release = "sum" }
budgets = { distribution = "file", file = "budgets.csv" }
server = { optimizer = "momentum", learning_rate = 0.5 }

[data]
source = "files"
root = "pictures"
source_options = { classes = 2 }
partition = "natural"
clients = 120
features = "none"
"""


def write_silos(folder: Path, silos: int) -> None:
    """One file a hospital, of unequal sizes, and a public test file: bright halves of pictures."""
    draw = np.random.default_rng(7)

    def write(name: str, count: int) -> None:
        labels = draw.integers(0, 2, count)
        images = draw.normal(0.0, 0.3, (count, 1, 8, 8)).astype(np.float32)
        images[labels == 0, :, :4] += 1.0
        images[labels == 1, :, 4:] += 1.0
        np.savez(folder / f"{name}.npz", x=images, y=labels)

    (folder / "train").mkdir(parents=True)
    for silo in range(silos):
        write(f"train/hospital-{silo:03}", 3 + silo % 5)
    write("test", 200)


def engineer() -> None:
    """An engineer: a network of one's own on one's own data, with clients and budgets that exist.

    First by configuration (a convolution, silos in files), then as a Flower app of one's own,
    written by `fl-shuffle new` and played as it stands.
    """
    silos = 120
    write_silos(Path("pictures"), silos)
    Path("my_parts.py").write_text(NETWORK, encoding="utf-8")
    Path("silos.toml").write_text(CONFIG, encoding="utf-8")
    budgets = [f"{client},{4.0 if client % 4 else 8.0},1e-6" for client in range(silos)]
    lines = "\n".join(["client_id,epsilon,delta", *budgets, ""])
    Path("budgets.csv").write_text(lines, encoding="utf-8")
    result = fs.simulate("silos.toml")
    assert result.accuracy is not None and result.accuracy > 0.6, result.accuracy
    bills = [result.ledger.client(client) for client in range(silos)]
    assert bills[0].epsilon0 == 8.0 and bills[1].epsilon0 == 4.0
    # Alone they differ; in the sum everybody's noise hides everybody.
    assert bills[0].local_epsilon > bills[1].local_epsilon > bills[1].epsilon > 0.0
    assert max(bill.epsilon for bill in bills) == result.epsilon

    typed("fl-shuffle new my-app")
    typed("fl-shuffle simulate config.toml --dry-run --rounds 2", folder="my-app")
    typed("fl-shuffle simulate config.toml --rounds 2 --quiet --out run", folder="my-app")
    bill = typed("fl-shuffle ledger run --client 17", folder="my-app")
    assert "client 17" in bill and "spent, at delta" in bill, bill


def officer() -> None:
    """A privacy officer: what was promised to whom, and is it so?

    Somebody hands over a run directory. The officer reads the report, asks the ledger by command
    and by SQL, compares the two, and goes through the list of runs.
    """
    clients, rounds, run = 40, 4, "runs/handed-over"
    drawn = {"data.clients": clients, "run.rounds": rounds, "training.participation": 0.5}
    fs.simulate(overrides={**drawn, "privacy.personalization": "noise"}, out=run)
    summary = json.loads(Path(run, "summary.json").read_text(encoding="utf-8"))

    # The report shows the headline, and nothing of it lies elsewhere.
    typed(f"fl-shuffle report {run} --out report.html")
    text = unescape(re.sub(r"<[^>]+>", " ", Path("report.html").read_text(encoding="utf-8")))
    assert f"{summary['epsilon']:.4g}" in text, summary["epsilon"]
    assert "http://" not in text.replace("http://www.w3.org", "")

    # Every client's spend as it is written, and counted again.
    printed = typed(f"fl-shuffle ledger {run} --clients --format csv")
    written = [
        float(bill["shuffled_epsilon"] or 0.0) for bill in csv.DictReader(io.StringIO(printed))
    ]
    ledger = fs.Result(run).ledger
    counted = [ledger.client(number).shuffled_epsilon for number in range(clients)]
    assert max(abs(a - b) for a, b in zip(written, counted, strict=True)) < 1e-6
    assert abs(max(written) - summary["epsilon"]) <= 1e-6 * max(written), summary["epsilon"]
    typed(f"fl-shuffle ledger {run} --recompute")
    assert "assumption" in typed(f"fl-shuffle ledger {run} --notes")
    audited = typed(f"fl-shuffle audit {run} --trials 20 --reports 2000 --seconds 5")
    assert "proven bound not contradicted" in audited, audited

    # Who took part: by command, and by SQL that needs nothing of ours.
    one = json.loads(typed(f"fl-shuffle ledger {run} --client 17 --format json"))
    base = sqlite3.connect(f"file:{run}/ledger.sqlite?mode=ro", uri=True)
    asked = "SELECT round FROM participation WHERE client_id = 17 ORDER BY round"
    took_part = [number for (number,) in base.execute(asked)]
    base.close()
    assert [row["round"] for row in one] == list(range(1, rounds + 1)), one
    before = [0, *(row["rounds"] for row in one)]
    rose = [row["round"] for row, was in zip(one, before, strict=False) if row["rounds"] > was]
    assert rose == took_part, took_part
    assert ledger.client(17).rounds == len(took_part), took_part

    listed = typed("fl-shuffle runs runs --differences")
    assert "handed-over" in listed


WAYS = {"researcher": researcher, "engineer": engineer, "officer": officer}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
