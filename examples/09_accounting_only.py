"""Ask the accountant without training anything: what does it cost, and what is needed?

Run it: python 09_accounting_only.py     (the last line needs pip install dp-accounting)

Every epsilon is in nats at delta 1e-6, for replacing the one record of a client. Only a number with
the status "proven" is a guarantee.

Expected output:

    one round of 10,000 clients: epsilon 0.0083, proven
    50 rounds: epsilon 0.0693, proven
    epsilon 0.1 allows 99 rounds
    epsilon 0.1 in 50 rounds, if only sums are seen, needs noise of 5.14 clipping norms
    k-ary randomized response, by method:
        blanket         0.0233  proven
        clone           0.0530  proven
        gspa            0.0989  as published
        lower           0.0233  lower bound
    composed with itself in dp-accounting: epsilon 0.275
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec

import fl_shuffle as fs

DELTA = 1e-6
CLIENTS = 10_000


def main() -> None:
    """Print bounds, solved settings, a comparison of methods, and a composition."""
    argparse.ArgumentParser(description="Bounds without training.").parse_args()

    # Each report is (1, 1e-5)-private by itself. Gaussian noise is calibrated exactly to that.
    report = {"randomizer": "gaussian", "epsilon0": 1.0, "delta0": 1e-5, "clients": CLIENTS}
    once = fs.bound(**report, delta=DELTA)
    print(f"one round of {CLIENTS:,} clients: epsilon {once.epsilon:.4f}, {once.status.value}")
    # Rounds are composed by their privacy loss distributions, not by adding epsilons.
    often = fs.bound(**report, rounds=50, delta=DELTA)
    print(f"50 rounds: epsilon {often.epsilon:.4f}, {often.status.value}")

    allowed = fs.solve("rounds", fs.BoundQuery(**report, epsilon=0.1), delta=DELTA)
    print(f"epsilon 0.1 allows {allowed.value:.0f} rounds")
    sums = fs.BoundQuery(
        randomizer="gaussian", sigma=1.0, clients=CLIENTS, rounds=50, epsilon=0.1, release="sum"
    )
    # Sigma is the standard deviation of the noise in each coordinate of one report.
    needed = fs.solve("sigma", sums, delta=DELTA)
    print(
        "epsilon 0.1 in 50 rounds, if only sums are seen, "
        f"needs noise of {needed.value:.3g} clipping norms"
    )

    response = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "clients": CLIENTS}
    answers = fs.compare(**response, delta=DELTA)
    print("k-ary randomized response, by method:")
    # `lower` is what an attack reaches: no valid bound is below it, so `blanket` is nearly exact.
    for method in ("blanket", "clone", "gspa", "lower"):
        answer = answers[method]
        print(f"    {method:15} {answer.epsilon:.4f}  {answer.status.value}")

    if find_spec("dp_accounting") is None:
        print("composed with itself in dp-accounting: not installed")
        return
    # The bound as a privacy loss distribution: compose it there with whatever else is released.
    distribution = fs.to_dp_accounting(**response, rounds=50)
    both = distribution.compose(distribution).get_epsilon_for_delta(DELTA)
    print(f"composed with itself in dp-accounting: epsilon {both:.3f}")


if __name__ == "__main__":
    main()
