"""CPU seconds to certify new kinds of rounds, beside a floor in the same run.

A kind is a shuffled round of Gaussian reports that no earlier run has certified. The floor is the
same arithmetic with nothing around it: exponentials, logarithms and sums of as many numbers as the
atoms of `FLOOR_LAWS` distributions. On a busy machine read the ratio, not the seconds.

    scripts/bench kinds            # radius 0.1 to 1.4 noise standard deviations, 200 to 1e5 clients
    scripts/bench kinds --smoke    # three kinds
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.tables import show
from fl_shuffle.accounting.client_classes import ShuffledRound
from fl_shuffle.accounting.rounds.equal_rounds import shuffled_pair
from fl_shuffle.accounting.rounds.round_library import curve_of

WANTED_S = 2.0
RADII = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.2, 1.4)
CLIENTS = (200, 1_000, 10_000, 100_000)
ATOMS, CELLS, FLOOR_LAWS = 2_700, 256, 4_000
"""Atoms of one finite distribution, cells of its grid, and distributions of a kind, about."""


def certify(radius: float, clients: int) -> float:
    """CPU seconds of one kind's pair."""
    kind = ShuffledRound("gaussian", 1.0, radius, 2.0 * radius, ((radius, clients - 1),))
    start = time.process_time()
    shuffled_pair(curve_of(kind))
    return time.process_time() - start


def floor() -> float:
    """CPU seconds of the arithmetic of `FLOOR_LAWS` distributions."""
    values = np.random.default_rng(1).uniform(0.0, 4.0, ATOMS)
    start = time.process_time()
    for _ in range(FLOOR_LAWS):
        grown = np.exp(values)
        place = (np.log(grown + np.sqrt(grown * grown + 1.0)) * (CELLS / 8.0)).astype(np.intp)
        np.bincount(place, grown, CELLS)
    return time.process_time() - start


def main() -> int:
    """Print a row a kind."""
    parser = argparse.ArgumentParser(description="Benchmark the certification of new rounds.")
    parser.add_argument("--smoke", action="store_true", help="three kinds only")
    smoke = parser.parse_args().smoke
    certify(0.3, 500)
    for radius in (0.1, 0.5, 1.0) if smoke else RADII:
        for clients in CLIENTS[:1] if smoke else CLIENTS:
            low, seconds = floor(), certify(radius, clients)
            row = {"radius": radius, "clients": clients, "cpu_s": round(seconds, 2)}
            show({**row, "wanted_s": WANTED_S, "over_floor": round(seconds / low, 2)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
