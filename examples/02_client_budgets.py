"""Give every client its own privacy budget, compare two policies, and limit what clients spend.

Run it: python 02_client_budgets.py [--mnist] [--rounds N]

Every tenth client has a budget of 6 per report, the others have 3. Epsilons are proven, in nats,
for replacing one client, against an attacker who sees the shuffled reports.

Expected output:

    smaller norm: accuracy 52.6%, budget 3 spent 0.368, budget 6 spent 0.742
    more noise: accuracy 54.6%, budget 3 spent 0.368, budget 6 spent 7.742
    function: accuracy 37.6%, budget 1 spent 0.109, budget 2.8 spent 0.295
    limit 0.3: accuracy 46.0%, budget 3 took part in 6 rounds, budget 6 in 1
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fl_shuffle as fs
from fl_shuffle.results import ClientSpend

DELTA = 1e-5
LIMIT = 0.3


def log_uniform(clients: int, generator: np.random.Generator) -> tuple[Any, Any]:
    """Draw epsilons from a log-uniform distribution on [1, 8]; return them with their deltas."""
    epsilons = np.exp(generator.uniform(np.log(1.0), np.log(8.0), clients))
    return epsilons, np.full(clients, DELTA)


def write_budgets(file: Path, clients: int, limit: float = np.inf) -> str:
    """Write one line for each client; `limit` bounds its epsilon over all rounds."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["client_id", "epsilon", "delta", "lifetime_epsilon"])
        for client in range(clients):
            table.writerow([client, 3.0 if client % 10 else 6.0, DELTA, limit])
    return str(file)


def extremes(result: fs.Result) -> tuple[ClientSpend, ClientSpend]:
    """Return the spend of a client with the smallest budget, and of one with the largest."""
    budgets = result.ledger.to_dict()["epsilon0"]
    return result.ledger.client(budgets.argmin()), result.ledger.client(budgets.argmax())


def spent(result: fs.Result) -> str:
    """Return the accuracy, and what clients with the smallest and the largest budget have spent."""
    return f"accuracy {result.accuracy:.1%}, " + ", ".join(
        f"budget {client.epsilon0:.2g} spent {client.epsilon:.3f}" for client in extremes(result)
    )


def main() -> None:
    """Run four federations, and print what clients have spent in each."""
    options = argparse.ArgumentParser(description="Personal privacy budgets.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=10, help="number of rounds")
    given = options.parse_args()
    config, clients = ("mnist_clients", 10_000) if given.mnist else ("quickstart", 718)

    def run(**settings: Any) -> fs.Result:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        return fs.simulate(config, overrides={"run.rounds": given.rounds, **named})

    with tempfile.TemporaryDirectory() as folder:
        file = write_budgets(Path(folder) / "budgets.csv", clients)
        from_file = {"budgets__distribution": "file", "budgets__file": file}
        # All clients add the same noise, so all of them hide each other.
        result = run(**from_file, privacy__personalization="clipping")
        print(f"smaller norm: {spent(result)}")
        # A smaller budget adds more noise: clients hide among those with the same noise only.
        result = run(**from_file, privacy__personalization="noise")
        print(f"more noise: {spent(result)}")

        # In a configuration file, name the module that holds your function: "my_budgets:function".
        # Two levels: every level is another clipping norm, whose first proof takes seconds.
        own = {"budgets__distribution": "__main__:log_uniform", "budgets__levels": 2}
        result = run(**own, privacy__personalization="clipping")
        print(f"function: {spent(result)}")

        limited = write_budgets(Path(folder) / "limited.csv", clients, LIMIT)
        result = run(
            budgets__distribution="file",
            budgets__file=limited,
            privacy__personalization="clipping",
        )
        small, large = extremes(result)
        print(
            f"limit {LIMIT}: accuracy {result.accuracy:.1%}, budget {small.epsilon0:g} took "
            f"part in {small.rounds} rounds, budget {large.epsilon0:g} in {large.rounds}"
        )


if __name__ == "__main__":
    main()
