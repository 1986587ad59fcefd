"""Single parts of a round against a floor: gradients of a convolutional network, and noise.

    scripts/bench kernels gradients [--unit record|client] [--seconds 20]
    scripts/bench kernels noise [--dimension 610 ...] [--seconds 20]

The floor of gradients is plain PyTorch for one model and equal client sizes, the best of two ways
and of several sizes of blocks, with no care for packing, ragged clients, NaN or labels. Both write
the same float32 [clients, d] array again and again, on one thread, in turns (models without
convolutions have theirs in `scripts/bench simulation`). Noise is beside torch's own generator,
nanoseconds a variate. Times are this thread's processor time, medians; data are random: no branch
depends on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import make_gradient_engine
from fl_shuffle.gradients.row_clips import clip_rows
from fl_shuffle.randomizers.additive import NOISES
from fl_shuffle.randomizers.base import LocalRandomizer
from fl_shuffle.randomizers.noise import NoiseStream
from fl_shuffle.seeds import SeedTree
from fl_shuffle.shuffler.exact_sums import exact_group, exact_sum


class Given(NamedTuple):
    """Parameters, inputs, labels, records a client, whether each is clipped, records a block."""

    parameters: Tensor
    inputs: Tensor
    labels: Tensor
    size: int
    per_record: bool
    rows: int


Floor = Callable[[Given, Tensor], None]

CLIENTS, RECORDS = 100, 60
SHAPE = (1, 28, 28)
CLASSES, RADIUS = 10, 1.0
BLOCKS = (60, 120, 240)
"""Records of a block of the floor's, tried in turn."""
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


class Unfolded:
    """Hooks on the layers: one pass back for a chunk; gradients of convolutions from unfolded
    inputs, norms of linear layers without their gradients; then one weighted product per client."""

    def __init__(self, module: nn.Sequential, radius: float) -> None:
        self._module, self._radius = module, radius
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        self._layers = [m for m in module if isinstance(m, nn.Conv2d | nn.Linear)]
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        for layer in self._layers:
            layer.register_forward_hook(self._keep)

    def _keep(self, _layer: nn.Module, given: tuple[Tensor], result: Tensor) -> None:
        if not result.requires_grad:
            result.requires_grad_()
        self._inputs.append(given[0].detach())
        self._outputs.append(result)

    def __call__(self, given: Given, out: Tensor) -> None:
        flat, x, y, size, per_record, rows = given
        nn.utils.vector_to_parameters(flat, self._module.parameters())
        step = max(1, rows // size)
        for start in range(0, len(out), step):
            target = out[start : start + step]
            some = slice(start * size, (start + len(target)) * size)
            self._chunk(x[some], y[some], size, per_record, target)

    def _chunk(self, x: Tensor, y: Tensor, size: int, per_record: bool, out: Tensor) -> None:
        self._inputs.clear()
        self._outputs.clear()
        with torch.enable_grad():
            loss = nn.functional.cross_entropy(self._module(x), y, reduction="sum")
            errors = torch.autograd.grad(loss, self._outputs)
        squares, written = torch.zeros(len(x)), list[Tensor | None]()
        for layer, given, error in zip(self._layers, self._inputs, errors, strict=True):
            if isinstance(layer, nn.Linear):
                written.append(None)
                squares += given.square().sum(1).add_(1.0) * error.square().sum(1)
                continue
            assert not isinstance(layer.padding, str)
            patches = nn.functional.unfold(
                given, layer.kernel_size, padding=layer.padding, stride=layer.stride
            )
            places = error.flatten(2)
            gradients = torch.cat(
                [torch.bmm(places, patches.transpose(1, 2)).flatten(1), places.sum(2)], 1
            )
            written.append(gradients)
            squares += torch.linalg.vector_norm(gradients, dim=1).square_()
        factor = torch.full((len(x),), 1.0 / size)
        if per_record:
            factor *= (self._radius / squares.sqrt_()).clamp_(max=1.0)
        clients, position = len(out), 0
        weights = factor.view(clients, 1, size)
        for whole, given, error in zip(written, self._inputs, errors, strict=True):
            if whole is None:
                scaled = (error * factor[:, None]).view(clients, size, -1)
                product = torch.bmm(scaled.transpose(1, 2), given.view(clients, size, -1))
                total = torch.cat([product.flatten(1), scaled.sum(1)], 1)
            else:
                total = torch.bmm(weights, whole.view(clients, size, -1))[:, 0]
            out[:, position : position + total.shape[1]] = total
            position += total.shape[1]


class OneByOne:
    """One pass back per client, for means that are not clipped record by record."""

    def __init__(self, module: nn.Sequential) -> None:
        self._module = module

    def __call__(self, given: Given, out: Tensor) -> None:
        flat, x, y, size, per_record, _ = given
        assert not per_record
        nn.utils.vector_to_parameters(flat, self._module.parameters())
        parameters = list(self._module.parameters())
        for client, row in enumerate(out):
            own = slice(client * size, (client + 1) * size)
            loss = nn.functional.cross_entropy(self._module(x[own]), y[own])
            found = torch.autograd.grad(loss, parameters)
            torch.cat([values.reshape(-1) for values in found], out=row)


def seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def bench(unit: str, budget: float) -> tuple[float, float]:
    """Prints a line; returns seconds of a round, ours and the floor's."""
    per_record, clients, size, module = unit == "record", CLIENTS, RECORDS, cnn()
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    x = torch.randn(clients * size, *SHAPE) * 0.3
    y = torch.randint(0, CLASSES, (clients * size,))
    offsets = torch.arange(clients + 1) * size
    clip = "record" if per_record else "none"
    engine = make_gradient_engine(module, clip=clip, records=len(y), shape=SHAPE)
    # What the floor clips to: the engine's radius, less what covers its rounding.
    radius = float(engine.record_radius(RADIUS, np.array([size]))[0])
    # Packs as a worker makes them: rows that stay in the cache.
    pack = max(1, min(clients, 2_000_000 // engine.dimension))
    theirs = torch.empty(pack, engine.dimension)
    ours: list[Tensor] = []
    floors: dict[str, Floor] = {"hooks, ": Unfolded(cnn(), radius)}
    if not per_record:
        floors["a pass a client, "] = OneByOne(cnn())

    def packs(work: Callable[[int, int], object]) -> Callable[[], None]:
        def run() -> None:
            for start in range(0, clients, pack):
                work(start, min(pack, clients - start))

        return run

    def our_pack(start: int, k: int) -> None:
        members = slice(start * size, (start + k) * size)
        ours[:] = [engine.client_means(flat, x[members], y[members], offsets[: k + 1], RADIUS)]

    def floor_pack(floor: Floor, rows: int) -> Callable[[int, int], None]:
        def work(start: int, k: int) -> None:
            members = slice(start * size, (start + k) * size)
            floor(Given(flat, x[members], y[members], size, per_record, rows), theirs[:k])

        return work

    our_round = packs(our_pack)
    candidates = {
        f"{name}blocks of {rows} records": packs(floor_pack(floor, rows))
        for name, floor in floors.items()
        for rows in BLOCKS
    }
    our_round()
    trial = {name: min(seconds(call), seconds(call)) for name, call in candidates.items()}
    best = min(trial, key=trial.__getitem__)
    floor_round = candidates[best]
    floor_round()
    # The last pack of both.
    last = clients - (clients - 1) // pack * pack
    difference = float(
        (ours[0] - theirs[: len(ours[0])])[:last].abs().max() / theirs[:last].abs().max()
    )
    if difference > 1e-5:
        raise SystemExit(f"ours and the floor differ by {difference:.1e}")
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < end:
        times.append((seconds(our_round), seconds(floor_round)))
    mine, base = median(a for a, _ in times), median(b for _, b in times)
    ratios = sorted(a / b for a, b in times)
    low, ratio, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.5, 0.9))
    print(
        f"{unit:6} ours {mine * 1e3:8.1f} ms  floor {base * 1e3:8.1f} ms "
        f"({best})  ratio {ratio:.2f} ({low:.2f} to {high:.2f})  "
        f"[{len(times)} rounds, {engine.path}]",
        flush=True,
    )
    return mine, base


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
    work["exact sum"] = lambda: exact_sum(reports, total.zero_(), group)
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
    parser.add_argument("--unit", nargs="+", choices=["record", "client"], default=None)
    parser.add_argument("--dimension", type=int, nargs="+", default=[610, 71_010])
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row of the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "noise":
        for dimension in given.dimension:
            noise(dimension, given.seconds)
        return 0
    for unit in given.unit or ["record", "client"]:
        bench(unit, given.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
