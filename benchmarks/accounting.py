"""Speed of the accountant beside a literal implementation of a published algorithm, in one process.

Times are CPU seconds of this process (median of repeated calls). The reference point is our own
literal implementation of Algorithm 4 of Su, Cheng and Wang 2025: values rounded up to the grid
l = (e^eps0 - 1)/1200, one FFT over the full length of the n-fold sum, no tilting, no window.
How accurate and how tight it is, tests/accounting says.

    scripts/bench accounting            # everything, about a minute
    scripts/bench accounting --smoke    # small sizes only, a few seconds
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.tables import show
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.distributions.finite import KRandomizedResponse

DELTA = 1e-6
TARGETS_MS = {10**3: 5.0, 10**4: 10.0, 10**5: 30.0, 10**6: 100.0, 10**8: 2000.0}


def cpu(call: Callable[[], object], repeats: int) -> float:
    """Median CPU seconds of one call, after one warm-up call."""
    call()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def algorithm_four(epsilon0: float, k: int, n: int, epsilon: float) -> float:
    """Algorithm 4 for k-RR: ceil grid, full-length FFT, n-th power, integral over the positives."""
    high, a = math.exp(epsilon0), math.exp(epsilon)
    low = 1.0 / (high + k - 1.0)
    step = (high - 1.0) / 1200.0
    values = [1.0 - high * a, 1.0 - a, 0.0, high - a]
    masses = [low, (k - 2) * low, (high - 1.0) * low, low]
    places = [math.ceil(value / step) for value in values]
    first, last = min(places), max(places)
    length = 1 << (n * (last - first) + 1).bit_length()
    grid = np.zeros(length)
    for place, mass in zip(places, masses, strict=True):
        grid[place - first] += mass
    total = np.fft.ifft(np.fft.fft(grid) ** n).real
    position = (np.arange(length) + n * first) * step
    return float(np.sum(np.maximum(position, 0.0) * total)) / n


def speed(sizes: Sequence[int], repeats: int) -> None:
    """One delta of 10-RR, and the epsilon of 1e-6, slowest over local epsilons."""
    for n in sizes:
        slowest = [0.0, 0.0]
        for epsilon0 in (0.1, 1.0, 4.0):
            randomizer = KRandomizedResponse(epsilon0, 10)
            epsilon = blanket_epsilon(randomizer, n, DELTA).epsilon
            calls = (
                partial(blanket_delta, randomizer, n, epsilon),
                partial(blanket_epsilon, randomizer, n, DELTA),
            )
            slowest = [
                max(one, cpu(call, repeats)) for one, call in zip(slowest, calls, strict=True)
            ]
        delta_ms, epsilon_ms = (1e3 * each for each in slowest)
        wanted = TARGETS_MS.get(n, math.nan)
        show({"n": n, "delta_ms": delta_ms, "target_ms": wanted, "epsilon_ms": epsilon_ms})


def ratio(cases: Sequence[tuple[float, int]], repeats: int) -> None:
    """One delta of 10-RR at our epsilon, beside Algorithm 4."""
    for epsilon0, n in cases:
        randomizer = KRandomizedResponse(epsilon0, 10)
        epsilon = blanket_epsilon(randomizer, n, DELTA).epsilon
        start = time.process_time()
        theirs = algorithm_four(epsilon0, 10, n, epsilon)
        reference = time.process_time() - start
        ours = cpu(partial(blanket_delta, randomizer, n, epsilon), repeats)
        excess = theirs / blanket_delta(randomizer, n, epsilon).delta - 1.0
        times = {"algorithm_4_s": reference, "ours_ms": 1e3 * ours, "ratio": reference / ours}
        show({"eps0": epsilon0, "n": n, **times, "its_excess": excess})


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmark the shuffle-model accountant.")
    parser.add_argument("--smoke", action="store_true", help="small sizes only")
    smoke = parser.parse_args().smoke
    repeats = 3 if smoke else 15
    speed([10**3] if smoke else list(TARGETS_MS), repeats)
    ratio([(0.1, 100)] if smoke else [(0.1, 10**3), (0.1, 10**4), (4.0, 10**4)], repeats)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
