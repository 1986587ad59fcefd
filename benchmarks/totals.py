"""CPU time of solving for totals of shuffled reports, and how near each ends.

    python -m benchmarks.totals [CLIENTS] [ROUNDS]

Three totals, an equal share of the clients each; first without a cache, then with one. The goal is
60 s of CPU time for 5,000 clients and 10 rounds, and 2 s from the cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

import fl_shuffle as fs
from fl_shuffle.randomizers import shuffled_totals

TOTALS = (0.2, 1.0, 4.0)


def main(clients: int, rounds: int) -> None:
    totals = [TOTALS[client * len(TOTALS) // clients] for client in range(clients)]
    config = {
        "data": {"records_per_client": 5, "clients": clients},
        "privacy": {"unit": "client", "release": "reports", "personalization": "clipping"},
        "budgets": {"expected_share": 1.0, "of": "run"},
        "run": {"rounds": rounds},
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FL_SHUFFLE_CACHE"] = folder
        for cache in ("empty", "warm"):
            shuffled_totals.forget()
            started = time.process_time()
            rows = fs.calibrate(config, totals=totals)
            seconds = time.process_time() - started
            ratios = ", ".join(f"{row.total:g}: {row.epsilon / row.total:.4f}" for row in rows)
            print(f"{clients:,} clients, {rounds} rounds, cache {cache}: {seconds:.1f} s; {ratios}")


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:3]]
    main(*given, *(5000, 10)[len(given) :])
