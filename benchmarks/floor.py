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
    """Softmax regression over equal clients of `records` records each.

    Biases are an extra input of one, so the model is one matrix. `unit` is "record" (clip every
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
        """`job`: clients, unit, clip and scale."""
        clients = job.clients
        ones = torch.ones(len(inputs), 1)
        self._x = torch.cat([inputs, ones], dim=1).contiguous()
        self._labels = labels
        self._x_squared = self._x.square().sum(dim=1)
        self._clients, self._records = clients, len(inputs) // clients
        self._unit, self._clip, self._scale = job.unit, job.clip, job.scale
        self._classes = int(labels.max()) + 1
        width = self._x.shape[1]
        torch.manual_seed(1)
        self._weight = torch.randn(self._classes, width) / width**0.5
        self._dimension = self._weight.numel()
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
        self._weight.sub_(mean.view_as(self._weight), alpha=rate)

    def _sum_of(self, stream: NoiseStream, blocks: list[tuple[int, int]]) -> Tensor:
        total = torch.zeros(self._dimension, dtype=torch.float64)
        for first, last in blocks:
            rows = self._rows(last - first)
            self._means(first, last, rows)
            stream.add_("normal", rows, np.arange(first, last), self._scale, STEP * self._scale)
            total += rows.sum(dim=0)
        return total

    def _rows(self, count: int) -> Tensor:
        """A thread's own array [count, d], the same memory every time."""
        rows: Tensor | None = getattr(self._local, "rows", None)
        if rows is None or len(rows) < count:
            self._local.rows = rows = torch.empty(count, self._dimension)
        return rows[:count]

    def _means(self, first: int, last: int, rows: Tensor) -> None:
        """Clipped means of clients first .. last-1 into `rows` [k, d]."""
        own = slice(first * self._records, last * self._records)
        x = self._x[own]
        # Softmax minus one-hot, [classes, n]: columns, because short rows are slow.
        error = torch.softmax(self._weight @ x.T, dim=0)
        minus_one = torch.full((1, 1), -1.0).expand(1, len(x))
        error.scatter_add_(0, self._labels[None, own], minus_one)
        if self._unit == "record":
            squared = self._x_squared[own] * (error * error).sum(dim=0)
            factor = squared.rsqrt_().mul_(self._clip).clamp_(max=1.0)
            error *= factor.mul_(1.0 / self._records)
        else:
            error *= 1.0 / self._records
        target = rows.view(len(rows), self._classes, -1)
        if self._records == 1:
            torch.mul(error.T[:, :, None], x[:, None, :], out=target)
        else:
            left = torch.unflatten(error, 1, (len(rows), self._records)).transpose(0, 1)
            torch.bmm(left, x.view(len(rows), self._records, -1), out=target)
        if self._unit == "client":
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            if bool((length > self._clip).any()):
                rows *= (self._clip / length).clamp_(max=1.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--unit", required=True)
    for name in ("clients", "rounds"):
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
    return {"threads": threads, "block-bytes": size}


if __name__ == "__main__":
    main()
