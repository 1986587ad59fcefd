"""An engineer: a network of one's own on one's own data, with clients and budgets that exist.

Run in an empty folder. First by configuration (a convolution, silos in files), then as a Flower app
of one's own, written by `fl-shuffle new` and played as it stands.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from commands import typed

import fl_shuffle as fs

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


def main() -> None:
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
    # What is wrong is one line, before anything is spent.
    typed("fl-shuffle simulate config.toml --set privacy.clip_nrom=1", folder="my-app", code=2)
    typed("fl-shuffle simulate config.toml --out run", folder="my-app", code=2)
    bill = typed("fl-shuffle ledger run --client 17", folder="my-app")
    assert "client 17" in bill and "spent, at delta" in bill, bill
    own = fs.Result("my-app/run")
    assert own.epsilon > 0.0 and own.report("own.html").is_file()
    print("engineer: done")


if __name__ == "__main__":
    main()
