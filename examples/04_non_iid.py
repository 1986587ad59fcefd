"""Deal the data unevenly to the clients, and see what that does to the accuracy.

Run it: python 04_non_iid.py [--mnist] [--rounds N]

Clients take several gradient steps on their own records before they report. The fewer classes a
client has, the more its steps pull the model towards them. Epsilon stays the same: it covers any
records. But for `dirichlet` and `shards`, it holds after the partition, which read the labels.

Expected output:

    iid: a client has 6 classes, accuracy 63.2%, epsilon 1.384
    dirichlet, alpha 1: a client has 5 classes, accuracy 60.7%, epsilon 1.384
    dirichlet, alpha 0.1: a client has 2 classes, accuracy 51.8%, epsilon 1.384
    shards: a client has 3 classes, accuracy 56.5%, epsilon 1.384
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import fl_shuffle as fs

PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"data.partition": "iid"},
    "dirichlet, alpha 1": {"data.partition": "dirichlet", "data.dirichlet_alpha": 1.0},
    "dirichlet, alpha 0.1": {"data.partition": "dirichlet", "data.dirichlet_alpha": 0.1},
    "shards": {"data.partition": "shards"},
}
TRAINING = {"training.local_steps": 5, "training.local_learning_rate": 0.1}
DIGITS = {
    "data.clients": 144,
    "budgets.distribution": "constant",
    "budgets.epsilon": 4.0,
    "budgets.delta": 1e-5,
}


def classes_of_a_client(config: str, settings: dict[str, Any]) -> float:
    """Return the median number of classes that a client holds.

    This is an exact number about the training records, which no epsilon covers: look at it with
    public or simulated data only.
    """
    command = [sys.executable, "-m", "fl_shuffle", "data", config, "--json"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, median, _ = json.loads(said)["classes_of_a_client"]
    return float(median)


def main() -> None:
    """Run one federation for each partition, and print the accuracies."""
    options = argparse.ArgumentParser(description="Partitions that are not i.i.d.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    given = options.parse_args()
    config, shared = ("mnist_clients", {}) if given.mnist else ("quickstart", DIGITS)

    for name, partition in PARTITIONS.items():
        settings = shared | partition
        overrides = settings | TRAINING | {"run.rounds": given.rounds}
        result = fs.simulate(config, overrides=overrides)
        print(
            f"{name}: a client has {classes_of_a_client(config, settings):g} classes, "
            f"accuracy {result.accuracy:.1%}, epsilon {result.epsilon:.3f}"
        )


if __name__ == "__main__":
    main()
