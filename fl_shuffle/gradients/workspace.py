"""A block's arrays and every view of them that its computation needs, made once per block shape.

Blocks are small, so that they stay in the cache; making a view costs as much as a small kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_shuffle.gradients.blocks import Block
from fl_shuffle.gradients.structure import Layer

# Whole vector registers, unrolled four times, on every processor PyTorch has kernels for.
LANES = 64
# Products with fewer rows go through kernels for thin matrices, which round differently.
THIN = 32

Pool = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """One segment's views, layer by layer.

    errors: [k, fan_out, n]. inputs: [k, n, fan_in], but None for the first layer, whose inputs are
    the call's records `rows`. spread: its [k, n] window of the per-record limits.
    """

    rows: slice
    errors: tuple[Tensor, ...]
    inputs: tuple[Tensor | None, ...]
    spread: Tensor


class Workspace:
    """Arrays of a block of `count` records, padded to whole registers; contents arbitrary.

    hidden, lower: outputs and output gradients [padded, fan_out] of the hidden layers; the `_used`
    views hold the rows that matrix products touch. logits, error: [C, padded] of the last layer.
    shares: one over the number of records of the record's client, a number or [padded].
    """

    def __init__(
        self, layers: tuple[Layer, ...], block: Block, pool: Pool, like: Tensor, copy: bool
    ) -> None:
        """`copy`: the block's records are copied into `records`, padded, as thin blocks always are.

        `like` tells type and device.
        """
        count = block.stop - block.start
        padded = -(-count // LANES) * LANES
        classes = layers[-1].fan_out
        self.count = count
        self.padded = padded
        self.records: Tensor | None = None
        used = count
        if copy or count < THIN:
            self.records = pooled(pool, like, "records", padded, layers[0].fan_in)
            used = padded
        self.hidden, self.lower = (
            [
                pooled(pool, like, f"{name} {depth}", padded, layer.fan_out)
                for depth, layer in enumerate(layers[:-1])
            ]
            for name in ("hidden", "lower")
        )
        self.hidden_used = [hidden[:used] for hidden in self.hidden]
        self.lower_used = [lower[:used] for lower in self.lower]
        self.logits = pooled(pool, like, "logits", classes, padded)
        self.logits_used = self.logits[:, :used]
        self.error = pooled(pool, like, "error", classes, padded)
        self.error_used = self.error[:, :used].T
        self.error_terms = pooled(pool, like, "error terms", classes, padded)
        self.terms = [pooled(pool, like, "terms", padded, layer.fan_out) for layer in layers[:-1]]
        self.input_terms = pooled(pool, like, "terms", used, layers[0].fan_in)
        self.input_length = pooled(pool, like, "input length", padded)
        self.input_length_used = self.input_length[:used]
        self.limit = pooled(pool, like, "limit", padded)
        self.minus_one = torch.full((1, 1), -1.0, device=like.device).expand(1, count)
        self.shares: Tensor | float = 1.0 / block.segments[0].total
        if any(part.total != block.segments[0].total for part in block.segments):
            # One array of its own: it is read by later blocks of this shape.
            self.shares = torch.zeros(padded, device=like.device)
            for part in block.segments:
                self.shares[part.row : part.row + part.count * part.size] = 1.0 / part.total
        self.parts = [
            self._part(layers, part.row, part.count, part.size) for part in block.segments
        ]

    def _part(self, layers: tuple[Layer, ...], row: int, count: int, size: int) -> Part:
        rows = slice(row, row + count * size)
        last = self.error[:, rows].view(layers[-1].fan_out, count, size).transpose(0, 1)
        errors = [
            lower[rows].view(count, size, lower.shape[1]).transpose(1, 2) for lower in self.lower
        ]
        inputs = [hidden[rows].view(count, size, hidden.shape[1]) for hidden in self.hidden]
        return Part(rows, (*errors, last), (None, *inputs), self.limit[rows].view(count, size))


def pooled(pool: Pool, like: Tensor, name: str, *shape: int) -> Tensor:
    """A contiguous view of the pool's array of that name, which grows as needed.

    Finite when new: padding that nothing writes must not slow kernels down with NaN.
    """
    size = math.prod(shape)
    if name not in pool or pool[name].numel() < size:
        pool[name] = torch.zeros(size, dtype=like.dtype, device=like.device)
    return pool[name][:size].view(shape)
