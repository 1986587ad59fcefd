"""CPU seconds of one curve by the command line, and of Renyi divergences at many orders.

The curve is that of figure 2 of Su, Cheng and Wang 2025: 100 numbers of clients from 10^3 to 10^5,
10-RR, local epsilon 0.1, delta 10^-6, start and picture included. At most 3 s are wanted. Its floor
is the same command for a closed form (gspa): start, questions, and picture without a search.

The divergences are those of 10^6 clients at 64 orders from 2 to 4096. At most 2 s are wanted. Their
floor is one exponential and one sum for each order and each outcome that the accountant keeps.

    scripts/bench curve            # the smallest proven bound, each method alone, the divergences
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.tables import show
from fl_shuffle.accounting.bounds.renyi import CloneRenyi

WANTED_S, WANTED_RDP_S = 3.0, 2.0
ASKED = "--randomizer krr --k 10 --epsilon0 0.1 --delta 1e-6 --over clients=1e3:1e5:100"
FLOOR = "gspa"
METHODS = (FLOOR, "", "blanket", "clone", "lower")
CLIENTS, ORDERS = 10**6, np.geomspace(2.0, 4096.0, 64).tolist()
BUDGETS = (0.1, 0.5, 1.0, 2.0)


def cpu_of(method: str, picture: Path) -> float:
    """CPU seconds of the command and of the processes that it starts."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    words = [*ASKED.split(), "--plot", str(picture), *(["--method", method] if method else [])]
    command = [sys.executable, "-m", "fl_shuffle", "bound", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return spent() - before


def curves() -> None:
    """Print a row a method."""
    floor = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            seconds = cpu_of(method, Path(folder) / "curve.png")
            floor = floor or seconds
            row = {"curve": method or "smallest proven", "cpu_s": round(seconds, 2)}
            show({**row, "wanted_s": WANTED_S, "over_floor": round(seconds / floor, 2)})


def divergences(clients: int = CLIENTS) -> None:
    """Print a row a local epsilon."""
    for epsilon0 in BUDGETS:
        start = time.process_time()
        pair = CloneRenyi(epsilon0, clients)
        for order in ORDERS:
            pair.divergence(order)
        seconds = time.process_time() - start
        outcomes = max(law.angle.size for law in pair._laws.values() if law is not None)
        angle = np.linspace(0.0, 1e-3, outcomes)
        start = time.process_time()
        for order in ORDERS:
            np.exp(2.0 * order * angle).sum()
        floor = time.process_time() - start
        row = {"divergences": len(ORDERS), "eps0": epsilon0, "n": clients, "outcomes": outcomes}
        over = round(seconds / max(floor, 1e-6), 1)
        show({**row, "cpu_s": round(seconds, 2), "wanted_s": WANTED_RDP_S, "over_floor": over})


def main() -> int:
    """Print both tables."""
    curves()
    divergences()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
