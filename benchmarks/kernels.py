"""Single parts of a round against a floor: gradients of a convolutional network, and noise.

    scripts/bench kernels gradients [--seconds 20]
    scripts/bench kernels noise [--dimension 610 ...] [--seconds 20]

The floor of gradients (client unit) is plain PyTorch, one pass back per client of equal size, with
no care for packing, ragged clients, NaN or labels. Both write the same float32 [clients, d] array
again and again, on one thread, in turns (models without convolutions have theirs in
`scripts/bench simulation`). Noise is beside torch's own generator, nanoseconds a variate. Times are
this thread's processor time, medians; data are random: no branch depends on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.turns import spread
from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.base import LocalRandomizer
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.randomizers.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import exact_group, exact_sum

CLIENTS, RECORDS = 100, 60
SHAPE, CLASSES = (1, 28, 28), 10
VARIATES = 1 << 20
"""Drawn in a turn."""


def cnn() -> nn.Sequential:
    """Two convolutions and two linear layers for 28 x 28 images, 26,010 parameters."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def one_by_one(module: nn.Module, x: Tensor, y: Tensor, out: Tensor) -> None:
    """Gradients of each client's mean loss into the rows of `out`, one pass back per client."""
    parameters = list(module.parameters())
    size = len(x) // len(out)
    for client, row in enumerate(out):
        own = slice(client * size, (client + 1) * size)
        loss = nn.functional.cross_entropy(module(x[own]), y[own])
        found = torch.autograd.grad(loss, parameters)
        torch.cat([values.reshape(-1) for values in found], out=row)


def seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def gradients(budget: float) -> tuple[float, float]:
    """Prints a line; returns seconds of a round, ours and the floor's."""
    module = cnn()
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    x = torch.randn(CLIENTS * RECORDS, *SHAPE) * 0.3
    y = torch.randint(0, CLASSES, (CLIENTS * RECORDS,))
    offsets = torch.arange(CLIENTS + 1) * RECORDS
    engine = make_gradient_engine(module, clip="none", records=len(y), shape=SHAPE)
    # Packs as a worker makes them: rows that stay in the cache.
    pack = max(1, min(CLIENTS, 2_000_000 // engine.dimension))
    theirs, other = torch.empty(pack, engine.dimension), cnn()
    packs = [
        (min(pack, CLIENTS - first), slice(first * RECORDS, min(first + pack, CLIENTS) * RECORDS))
        for first in range(0, CLIENTS, pack)
    ]

    def ours(count: int, own: slice) -> Tensor:
        return engine.client_means(flat, x[own], y[own], offsets[: count + 1], 1.0)

    def floor(count: int, own: slice) -> Tensor:
        one_by_one(other, x[own], y[own], theirs[:count])
        return theirs[:count]

    for each in packs:
        mine, base_line = ours(*each), floor(*each)
        difference = float((mine - base_line).abs().max() / base_line.abs().max())
        if difference > 1e-5:
            raise SystemExit(f"ours and the floor differ by {difference:.1e}")
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < end:
        own, base = (
            seconds(lambda play=play: [play(*each) for each in packs])  # type: ignore[misc]
            for play in (ours, floor)
        )
        times.append((own, base))
    own, base = median(a for a, _ in times), median(b for _, b in times)
    low, ratio, high = spread([a / b for a, b in times])
    print(
        f"ours {own * 1e3:8.1f} ms  floor {base * 1e3:8.1f} ms  ratio {ratio:.2f} "
        f"({low:.2f} to {high:.2f})  [{len(times)} rounds, {engine.path}]",
        flush=True,
    )
    return own, base


def noise(dimension: int, budget: float) -> None:
    """Prints a line for each way to draw or process variates of rows of that length."""
    rows = max(1, VARIATES // dimension)
    key, ones, everyone = SeedTree(1).key(0, "bench"), np.ones(rows), np.arange(rows)
    out, total = torch.zeros(rows, dimension), torch.zeros(dimension, dtype=torch.float64)

    def draw(own: LocalRandomizer, stream: NoiseStream) -> object:
        return own.reports(out.zero_(), everyone, stream)

    work: dict[str, Callable[[], object]] = {"torch normal_ (mt19937)": out.normal_}
    for name, kind in NOISES.items():
        own = kind(ones, ones, ones, ones)
        for bits in (32, 64):
            stream = NoiseStream(key, dimension, bits=bits)
            work[f"{name} reports, {bits} bits"] = partial(draw, own, stream)
    own = NOISES["gaussian"](ones, ones, ones, ones)
    reports = own.reports(torch.zeros(rows, dimension), everyone, NoiseStream(key, dimension))
    group = exact_group(float(own.step[0]), float(own.largest()[0]))
    updates = torch.randn(rows, dimension)
    work["exact sum"] = lambda: exact_sum(reports, total.zero_(), group=group)
    work["clip rows, l2"] = lambda: clip_rows(updates, 1.0, 2)
    for call in work.values():
        call()
    turns: dict[str, list[float]] = {name: [] for name in work}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or not all(turns.values()):
        for name, call in work.items():
            turns[name].append(seconds(call) / (rows * dimension) * 1e9)
    for name, times in turns.items():
        print(f"d = {dimension:<8,} {name:26} {median(times):7.2f} ns", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench kernels", description=__doc__.splitlines()[0]
    )
    parser.add_argument("part", choices=["gradients", "noise"])
    parser.add_argument("--dimension", type=int, nargs="+", default=[610, 71_010])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row of the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "gradients":
        gradients(given.seconds)
        return 0
    for dimension in given.dimension:
        noise(dimension, given.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
