"""CPU seconds of one curve by the command line, start and picture included.

The curve is that of figure 2 of Su, Cheng and Wang 2025: 100 numbers of clients from 10^3 to 10^5,
10-RR, local epsilon 0.1, delta 10^-6. At most 3 s are wanted.

    scripts/bench curve            # the smallest proven bound, and each method alone
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tables import show

WANTED_S = 3.0
ASKED = "--randomizer krr --k 10 --epsilon0 0.1 --delta 1e-6 --over clients=1e3:1e5:100"
METHODS = ("", "blanket", "clone", "gspa", "lower")


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


def main() -> int:
    """Print a row a method."""
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            seconds = cpu_of(method, Path(folder) / "curve.png")
            named = method or "smallest proven"
            show({"method": named, "cpu_s": round(seconds, 2), "wanted_s": WANTED_S})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
