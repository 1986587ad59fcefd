"""Train a digit classifier with shuffled, private clients, and read what each client has spent.

Run it: python 01_first_federation.py [--mnist] [--rounds N]

Expected output (the epsilons are proven, in nats, for replacing one client):

    accuracy 43.7%, epsilon 0.303 at delta 1e-05
    round 1: client 4 has spent 0.110, client 17 0.175
    round 2: client 4 has spent 0.159, client 17 0.246
    round 3: client 4 has spent 0.198, client 17 0.303
    report: report.html
"""

from __future__ import annotations

import argparse

import fl_shuffle as fs


def main() -> None:
    """Run the federation, and print its accuracy and two clients' spend by round."""
    options = argparse.ArgumentParser(description="A first private federation.")
    options.add_argument("--mnist", action="store_true", help="10,000 clients with MNIST images")
    options.add_argument("--rounds", type=int, default=3, help="number of rounds")
    given = options.parse_args()

    config = "mnist_clients" if given.mnist else "quickstart"
    result = fs.simulate(config, overrides={"run.rounds": given.rounds})
    print(f"accuracy {result.accuracy:.1%}, epsilon {result.epsilon:.3f} at delta {result.delta:g}")

    history = result.ledger.history([4, 17])
    for number, (four, seventeen) in zip(history.round_numbers, history.epsilon, strict=True):
        print(f"round {number}: client 4 has spent {four:.3f}, client 17 {seventeen:.3f}")
    print(f"report: {result.report(result.directory / 'report.html').name}")


if __name__ == "__main__":
    main()
