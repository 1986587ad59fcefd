"""Speed, accuracy, tightness and memory of the accountant, measured in one process.

Times are CPU seconds of this process (median of repeated calls). The reference point is our own
literal implementation of Algorithm 4 of Su, Cheng and Wang 2025: values rounded up to the grid
l = (e^eps0 - 1)/1200, one FFT over the full length of the n-fold sum, no tilting, no window.

    scripts/bench accounting            # everything, about a minute
    scripts/bench accounting --smoke    # small sizes only, a few seconds
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fl_shuffle.accounting.attacks.chosen_datasets import lower_bound_epsilon
from fl_shuffle.accounting.bounds.blanket import blanket_delta, blanket_epsilon
from fl_shuffle.accounting.engine.stop_loss import amplified_delta
from fl_shuffle.accounting.laws.continuous import LaplaceRandomizer
from fl_shuffle.accounting.laws.finite import CapRandomizer, KRandomizedResponse, Randomizer
from fl_shuffle.accounting.laws.frequency_oracles import (
    BinaryLocalHashing,
    HadamardResponse,
    OptimizedUnaryEncoding,
    Rappor,
)
from fl_shuffle.accounting.laws.products import JointComposition, ParallelComposition

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "exact_delta.json"
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


def accuracy(smoke: bool) -> None:
    print("accuracy against exact values (tests/golden), (ours - exact)/exact")
    kinds: dict[str, Callable[[float], Randomizer]] = {
        "10-RR": lambda e: KRandomizedResponse(e, 10),
        "2-RR": lambda e: KRandomizedResponse(e, 2),
        "BLH": BinaryLocalHashing,
        "OUE": OptimizedUnaryEncoding,
        "RAPPOR": Rappor,
    }
    records = json.loads(GOLDEN.read_text())["records"]
    print(f"  {'':8}{'records':>8}{'least':>12}{'largest':>12}{'smallest delta':>16}")
    for name, kind in kinds.items():
        chosen = [r for r in records if r["mech"] == name][:: 8 if smoke else 1]
        excess = [
            blanket_delta(kind(r["eps0"]), r["n"], r["eps"]).delta / float(r["delta"]) - 1.0
            for r in chosen
        ]
        smallest = min(float(r["delta"]) for r in chosen)
        print(f"  {name:8}{len(chosen):8d}{min(excess):12.2e}{max(excess):12.2e}{smallest:16.1e}")


def speed(sizes: list[int], repeats: int) -> None:
    print("\nspeed, 10-RR, delta = 1e-6 (milliseconds; slowest over eps0 = 0.1, 1, 4)")
    print(f"  {'n':>12}{'delta(eps)':>12}{'target':>9}{'eps(delta)':>12}{'ratio':>7}")
    for n in sizes:
        one, inverse = [], []
        for epsilon0 in (0.1, 1.0, 4.0):
            randomizer = KRandomizedResponse(epsilon0, 10)
            epsilon = blanket_epsilon(randomizer, n, DELTA).epsilon
            one.append(cpu(partial(blanket_delta, randomizer, n, epsilon), repeats))
            inverse.append(cpu(partial(blanket_epsilon, randomizer, n, DELTA), repeats))
        slow, slow_inverse = max(one), max(inverse)
        print(
            f"  {n:12.0e}{1e3 * slow:12.2f}{TARGETS_MS.get(n, math.nan):9.0f}"
            f"{1e3 * slow_inverse:12.2f}{slow_inverse / slow:7.1f}"
        )


def personal(sizes: list[int], repeats: int) -> None:
    print("\nspeed, 50 classes of personal budgets, 10-RR (milliseconds)")
    for n in sizes:
        law = KRandomizedResponse(1.0, 10).pairs()[0].law(2.4 / math.sqrt(n))
        assert law is not None
        classes = [(10.0 / (math.exp(e) + 9.0), n // 50) for e in np.linspace(0.1, 4.0, 50)]
        seconds = cpu(partial(amplified_delta, law, classes), repeats)
        print(f"  n = {n:8.0e}{1e3 * seconds:10.1f}")


def curve(points: int) -> None:
    sizes = np.geomspace(1e3, 1e5, points).astype(int)
    start = time.process_time()
    for n in sizes:
        blanket_epsilon(KRandomizedResponse(0.1, 10), int(n), DELTA)
    seconds = time.process_time() - start
    print(f"\ncurve of {points} cohort sizes, 1e3..1e5, eps0 = 0.1: {seconds:.2f} s (target 3 s)")


def ratio(cases: list[tuple[float, int]], repeats: int) -> None:
    print("\nagainst a literal Algorithm 4, one delta of 10-RR at our eps(1e-6)")
    print(f"  {'eps0':>6}{'n':>9}{'Alg. 4 s':>11}{'ours ms':>9}{'ratio':>8}{'its excess':>12}")
    for epsilon0, n in cases:
        randomizer = KRandomizedResponse(epsilon0, 10)
        epsilon = blanket_epsilon(randomizer, n, DELTA).epsilon
        start = time.process_time()
        theirs = algorithm_four(epsilon0, 10, n, epsilon)
        reference = time.process_time() - start
        ours = cpu(partial(blanket_delta, randomizer, n, epsilon), repeats)
        excess = theirs / blanket_delta(randomizer, n, epsilon).delta - 1.0
        print(
            f"  {epsilon0:6.2g}{n:9d}{reference:11.3f}{1e3 * ours:9.2f}{reference / ours:8.0f}"
            f"{excess:12.1%}"
        )


def tightness(sizes: list[int]) -> None:
    print("\ntightness: epsilon upper / lower at delta = 1e-6, eps0 = 1 in all")
    ten = KRandomizedResponse(0.25, 10)
    kinds: list[Randomizer] = [
        KRandomizedResponse(1.0, 10),
        KRandomizedResponse(1.0, 2),
        BinaryLocalHashing(1.0),
        Rappor(1.0),
        Rappor(1.0, 8),
        OptimizedUnaryEncoding(1.0),
        HadamardResponse(1.0),
        LaplaceRandomizer(1.0),
        CapRandomizer(1.0, 0.1),
        JointComposition((ten, ten, ten, ten)),
        ParallelComposition(((0.5, KRandomizedResponse(1.0, 10)), (0.5, BinaryLocalHashing(1.0)))),
    ]
    print(f"  {'':32}" + "".join(f"{n:>28.0e}" for n in sizes))
    for randomizer in kinds:
        cells = []
        for n in sizes:
            upper = blanket_epsilon(randomizer, n, DELTA).epsilon
            lower = lower_bound_epsilon(randomizer, n, DELTA, both_directions=True).epsilon
            cells.append(f"{upper:10.5g} /{lower:9.5g}{upper / lower:7.3f}")
        print(f"  {randomizer.name[:31]:32}" + "".join(cells))


def memory(n: int) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "def peak():\n"
        "    status = open('/proc/self/status').read()\n"
        "    return int(status.split('VmHWM:')[1].split()[0]) / 1024\n"
        "from fl_shuffle.accounting.bounds.blanket import blanket_epsilon\n"
        "from fl_shuffle.accounting.laws.finite import KRandomizedResponse\n"
        "before = peak()\n"
        "blanket_epsilon(KRandomizedResponse(1.0, 10), int(sys.argv[2]), 1e-6)\n"
        "print(before, peak())\n"
    )
    command = [sys.executable, "-c", code, str(ROOT), str(n)]
    before, after = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    print(
        f"\npeak memory of a fresh process at n = {n:.0e}: {float(after):.0f} MiB "
        f"({float(before):.0f} MiB of it Python, NumPy and SciPy); target 500 MiB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmark the shuffle-model accountant.")
    parser.add_argument("--smoke", action="store_true", help="small sizes only")
    smoke = parser.parse_args().smoke
    repeats = 3 if smoke else 15
    sizes = [10**3] if smoke else [10**3, 10**4, 10**5, 10**6, 10**8]
    accuracy(smoke)
    speed(sizes, repeats)
    personal([10**3] if smoke else [10**3, 10**6], repeats)
    curve(4 if smoke else 100)
    ratio([(0.1, 100)] if smoke else [(0.1, 10**3), (0.1, 10**4), (4.0, 10**4)], repeats)
    tightness([10**3] if smoke else [10**3, 10**4, 10**5])
    memory(10**4 if smoke else 10**8)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, Algorithm 4 included: {peak:.0f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
