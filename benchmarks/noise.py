"""Time the noise: nanoseconds of CPU per float32 variate on one core, ours beside alternatives.

Every candidate runs in turn, again and again until the time is up, so that a busy machine slows all
of them alike; the table gives the fastest and the median turn and the ratio of medians to torch's
own generator. `scripts/bench_noise --seconds 60 --csv FILE`.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.vector import VectorRandomizer, clip_rows, exact_group, exact_sum
from fl_shuffle.seeds import SeedTree

REFERENCE = "torch normal_ (mt19937)"
VARIATES = 1 << 20


def candidates(dimension: int) -> dict[str, Callable[[], object]]:
    """Each draws or processes `rows * dimension` variates."""
    rows = max(1, VARIATES // dimension)
    key = SeedTree(1).key(0, "bench")
    stream, deployed = NoiseStream(key, dimension), NoiseStream(key, dimension, bits=64)
    device = NoiseStream(key, dimension, generator="philox")
    out = torch.zeros(rows, dimension)
    array = out.numpy()
    scattered = np.random.default_rng(0).permutation(rows)
    ziggurat = np.random.default_rng(0)
    gaussian = VectorRandomizer("gaussian", 1.0, 1.0)
    laplace = VectorRandomizer("laplace", 1.0, 1.0)
    group = exact_group(gaussian.step, gaussian.largest_report())
    reports = gaussian.randomize_(torch.zeros(rows, dimension), 0, stream)
    total = torch.zeros(dimension, dtype=torch.float64)
    updates = torch.randn(rows, dimension)
    return {
        REFERENCE: out.normal_,
        "numpy ziggurat (PCG64)": lambda: ziggurat.standard_normal(
            array.shape, dtype=np.float32, out=array
        ),
        "AES bits only": lambda: aes_bits(rows * dimension),
        "AES + erfinv (tail 5.3)": lambda: aes_erfinv(out),
        "ours: normal": lambda: stream.normal(0, rows, out),
        "ours: laplace": lambda: stream.laplace(0, rows, out),
        "ours: normal, scattered ids": lambda: stream.normal_rows(scattered),
        "ours: normal, client by client": lambda: [
            stream.normal(i, 1, out[i : i + 1]) for i in range(rows)
        ],
        "ours: normal, 64 bits": lambda: deployed.normal(0, rows, out),
        "ours: laplace, 64 bits": lambda: deployed.laplace(0, rows, out),
        "ours: normal, Philox path": lambda: device.normal(0, rows, out),
        "ours: gaussian reports": lambda: gaussian.randomize_(out.zero_(), 0, stream),
        "ours: laplace reports": lambda: laplace.randomize_(out.zero_(), 0, stream),
        "exact sum": lambda: exact_sum(reports, total.zero_()),
        "exact sum, grouped": lambda: exact_sum(reports, total.zero_(), group),
        "clip rows, l2": lambda: clip_rows(updates, 1.0, 2),
    }


def aes_bits(words: int, block: int = 1 << 16) -> None:
    context = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, buffer = bytes(4 * block), np.empty(4 * block, np.uint8)
    for _ in range(0, words, block):
        context.update_into(zeros, buffer.data)


def aes_erfinv(out: torch.Tensor, block: int = 1 << 16) -> None:
    """The shortest inverse-transform generator: float32 resolution ends it at 5.3 sigma."""
    flat = out.view(-1)
    context = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, buffer = bytes(4 * block), np.empty(4 * block, np.uint8)
    words = torch.from_numpy(buffer.view(np.int32))
    uniform = torch.empty(block)
    edge = 1.0 - 2.0**-24
    for start in range(0, flat.numel(), block):
        part = flat[start : start + block]
        context.update_into(zeros, buffer.data)
        uniform.copy_(words).mul_(2.0**-31).clamp_(-edge, edge)
        torch.erfinv(uniform, out=uniform)
        torch.mul(uniform[: part.numel()], math.sqrt(2.0), out=part)


def threads_speedup(dimension: int, seconds: float) -> float:
    """Wall-clock speed of two threads over one, on separate halves of the clients."""
    rows = max(2, 4 * VARIATES // dimension)
    stream = NoiseStream(SeedTree(1).key(0, "bench"), dimension)
    out = torch.zeros(rows, dimension)
    half = rows // 2

    def one() -> None:
        stream.normal(0, rows, out)

    def two(pool: ThreadPoolExecutor) -> None:
        parts = [(0, half), (half, rows)]
        list(pool.map(lambda p: stream.normal(p[0], p[1] - p[0], out[p[0] : p[1]]), parts))

    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    with ThreadPoolExecutor(2) as pool:
        while time.perf_counter() < end or not times[1]:
            works: tuple[Callable[[], None], ...] = (one, partial(two, pool))
            for index, work in enumerate(works):
                start = time.perf_counter()
                work()
                times[index].append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def measure(dimension: int, seconds: float) -> list[dict[str, object]]:
    work = candidates(dimension)
    variates = max(1, VARIATES // dimension) * dimension
    turns: dict[str, list[float]] = {name: [] for name in work}
    end = time.perf_counter() + seconds
    for call in work.values():
        call()
    while time.perf_counter() < end or not turns["clip rows, l2"]:
        for name, call in work.items():
            start = time.process_time()
            call()
            turns[name].append((time.process_time() - start) / variates * 1e9)
    reference = statistics.median(turns[REFERENCE])
    return [
        {
            "dimension": dimension,
            "what": name,
            "fastest_ns": round(min(times), 3),
            "median_ns": round(statistics.median(times), 3),
            "ratio_to_torch": round(statistics.median(times) / reference, 3),
        }
        for name, times in turns.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="time for the whole table")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[610, 71_010])
    parser.add_argument("--csv", metavar="FILE", help="also write the rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    share = arguments.seconds / len(arguments.dimensions)
    rows: list[dict[str, object]] = []
    for dimension in arguments.dimensions:
        part = measure(dimension, 0.9 * share)
        print(f"\n| d = {dimension:,}, ns of CPU per variate | fastest | median | median/torch |")
        print("|---|---|---|---|")
        for row in part:
            print(
                f"| {row['what']} | {row['fastest_ns']:.2f} | {row['median_ns']:.2f} | "
                f"{row['ratio_to_torch']:.2f} |"
            )
        print(
            f"\nTwo threads against one, wall clock: {threads_speedup(dimension, 0.1 * share):.2f}x"
        )
        rows += part
    if arguments.csv:
        with open(arguments.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
