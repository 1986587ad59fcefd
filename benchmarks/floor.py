"""The floor: what a round's arithmetic costs when nothing else is done.

One process, plain PyTorch and NumPy. Per block of clients: forward pass, per-record norms in closed
form (no per-record gradient is ever stored), clipped means by one batched product, each client's
own noise, one sum. Then one SGD step. Denormal numbers count as zero. No messages, no shuffler, no
accountant, no ledger.

`python -m benchmarks.floor JOB.npz ...` prints one JSON line per round, as the
product does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fl_shuffle.randomizers.noise import NoiseStream

BLOCK_BYTES = (1 << 16, 1 << 18, 1 << 20, 3 << 20, 3 << 22)
TUNING_ROUNDS = 3
# Noise is added and rounded in one pass; the rounding is free.
STEP = 2.0**-16


class Floor:
    """Equal clients of `records` records each; `hidden` = 0 means softmax regression.

    Biases are an extra input of one, so each layer is one matrix. `unit` is "record" (clip every
    record, then average) or "client" (average, then clip).
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        job: argparse.Namespace,
        threads: int,
        block_bytes: int,
    ) -> None:
        """`job`: clients, hidden, unit, clip and scale."""
        clients, hidden = job.clients, job.hidden
        ones = torch.ones(len(inputs), 1)
        self._x = torch.cat([inputs, ones], dim=1).contiguous()
        self._labels = labels
        self._x_squared = self._x.square().sum(dim=1)
        self._clients, self._records = clients, len(inputs) // clients
        self._unit, self._clip, self._scale = job.unit, job.clip, job.scale
        self._classes = int(labels.max()) + 1
        width = self._x.shape[1]
        torch.manual_seed(1)
        shapes = (
            [(hidden, width), (self._classes, hidden + 1)] if hidden else [(self._classes, width)]
        )
        self._weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in shapes]
        self._sizes = [weight.numel() for weight in self._weights]
        self._dimension = sum(self._sizes)
        per_block = max(1, block_bytes // (4 * self._dimension))
        blocks = max(threads, -(-clients // per_block))
        edges = np.linspace(0, clients, blocks + 1).astype(int).tolist()
        self._blocks = list(itertools.pairwise(edges))
        self._threads = threads
        self._pool = ThreadPoolExecutor(
            threads, initializer=torch.set_flush_denormal, initargs=(True,)
        )
        self._local = threading.local()

    def round(self, number: int, rate: float = 0.5) -> None:
        """One round."""
        stream = NoiseStream(number.to_bytes(16, "big"), self._dimension)
        share = -(-len(self._blocks) // self._threads)
        parts = [self._blocks[i : i + share] for i in range(0, len(self._blocks), share)]
        if self._threads == 1:
            total = self._sum_of(stream, self._blocks)
        else:
            total = sum(self._pool.map(lambda part: self._sum_of(stream, part), parts))  # type: ignore[assignment]
        mean = (total / self._clients).to(torch.float32)
        for weight, step in zip(self._weights, torch.split(mean, self._sizes), strict=True):
            weight.sub_(step.view_as(weight), alpha=rate)

    def _sum_of(self, stream: NoiseStream, blocks: list[tuple[int, int]]) -> Tensor:
        total = torch.zeros(self._dimension, dtype=torch.float64)
        for first, last in blocks:
            rows = self._buffer("rows", last - first, self._dimension)
            self._means(first, last, rows)
            stream.add_("normal", rows, np.arange(first, last), self._scale, STEP * self._scale)
            total += rows.sum(dim=0)
        return total

    def _buffer(self, name: str, count: int, width: int) -> Tensor:
        """A thread's own array [count, width], the same memory every time."""
        buffer: Tensor | None = getattr(self._local, name, None)
        if buffer is None or len(buffer) < count:
            buffer = torch.empty(count, width)
            setattr(self._local, name, buffer)
        return buffer[:count]

    def _means(self, first: int, last: int, rows: Tensor) -> None:
        """Clipped means of clients first .. last-1 into `rows` [k, d]."""
        own = slice(first * self._records, last * self._records)
        x = self._x[own]
        top = self._weights[-1]
        if len(self._weights) == 1:
            error = self._output_error(top, x, own)
            if self._unit == "record":
                error *= self._factor(self._x_squared[own] * (error * error).sum(dim=0))
            else:
                error *= 1.0 / self._records
            self._products(error, x, rows)
        else:
            h = self._buffer("hidden", len(x), top.shape[1])
            h[:, -1] = 1.0
            torch.mm(x, self._weights[0].T, out=h[:, :-1]).clamp_(min=0.0)
            error = self._output_error(top, h, own)
            below = torch.mm(
                error.T, top[:, :-1], out=self._buffer("below", len(x), top.shape[1] - 1)
            )
            torch.ops.aten.threshold_backward.grad_input(below, h[:, :-1], 0, grad_input=below)
            if self._unit == "record":
                factor = self._factor(
                    self._x_squared[own] * torch.linalg.vector_norm(below, dim=1).square_()
                    + (error * error).sum(dim=0) * torch.linalg.vector_norm(h, dim=1).square_()
                )
                error *= factor
                # Scaling the inputs scales the product, and they are fewer than the errors.
                x = x * factor[:, None]
            else:
                error *= 1.0 / self._records
                x = x * (1.0 / self._records)
            self._products(below.T, x, rows[:, : self._sizes[0]])
            self._products(error, h, rows[:, self._sizes[0] :])
        if self._unit == "client":
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            if bool((length > self._clip).any()):
                rows *= (self._clip / length).clamp_(max=1.0)

    def _output_error(self, weight: Tensor, x: Tensor, own: slice) -> Tensor:
        """Softmax minus one-hot, [classes, n]: columns, because short rows are slow."""
        error = torch.softmax(weight @ x.T, dim=0)
        minus_one = torch.full((1, 1), -1.0).expand(1, len(x))
        return error.scatter_add_(0, self._labels[None, own], minus_one)

    def _factor(self, squared: Tensor) -> Tensor:
        """Clip factor over batch size, [n]."""
        return squared.rsqrt_().mul_(self._clip).clamp_(max=1.0).mul_(1.0 / self._records)

    def _products(self, error: Tensor, x: Tensor, rows: Tensor) -> None:
        """Per client: error x, [out, n] times [n, in], into a [k, out * in] slice of the rows."""
        count, batch = len(rows), self._records
        target = torch.unflatten(rows, 1, (error.shape[0], x.shape[1]))
        if batch == 1:
            torch.mul(error.T[:, :, None], x[:, None, :], out=target)
            return
        left, right = (
            torch.unflatten(error, 1, (count, batch)).transpose(0, 1),
            x.view(count, batch, -1),
        )
        if target.is_contiguous():
            torch.bmm(left, right, out=target)
        else:
            for index in range(count):
                torch.mm(left[index], right[index], out=target[index])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--unit", required=True)
    for name in ("clients", "hidden", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("clip", "scale"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("threads", "block-bytes"):
        parser.add_argument(f"--{name}", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with np.load(given.file) as data:
        inputs, labels = torch.from_numpy(data["inputs"]), torch.from_numpy(data["labels"])

    def build(threads: int, block_bytes: int) -> Floor:
        return Floor(inputs, labels, given, threads, block_bytes)

    if not given.threads:
        print(json.dumps({"event": "tuned", **_tune(build)}), flush=True)
        return
    floor = build(given.threads, given.block_bytes)
    for number in range(1, given.rounds + 1):
        floor.round(number)
        print(json.dumps({"event": "round", "round": number}), flush=True)


def _tune(build: Callable[[int, int], Floor]) -> dict[str, int]:
    """The block size that takes the least CPU time, then the faster of one and two threads."""

    def fastest(threads: int, size: int, clock: Callable[[], float]) -> float:
        floor = build(threads, size)
        times = [clock()]
        for number in range(TUNING_ROUNDS):
            floor.round(number + 1)
            times.append(clock())
        return min(b - a for a, b in itertools.pairwise(times))

    size = min(BLOCK_BYTES, key=lambda size: fastest(1, size, time.thread_time))
    threads = min((1, 2), key=lambda count: fastest(count, size, time.perf_counter))
    return {"threads": threads, "block_bytes": size}


if __name__ == "__main__":
    main()
