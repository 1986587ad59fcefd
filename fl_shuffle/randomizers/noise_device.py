"""Noise on any device: Philox4x32-10 in integer tensor operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.randomizers.noise_cpu import Layout

WORDS_PER_BLOCK = 1 << 22
"""Words made at a time: 32 MiB in each temporary."""
_MASK = 0xFFFFFFFF
"""The low 32 bits of a 64-bit word."""
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""Of the generator itself (Salmon et al. 2011)."""
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
"""Of the generator itself: the golden ratio and the root of three, as 32-bit fractions."""


def philox4x32(counter: Sequence[torch.Tensor], key: tuple[int, int]) -> list[torch.Tensor]:
    """Philox4x32-10 of four int64 tensors that hold unsigned 32-bit words (Salmon et al. 2011).

    64-bit products wrap around as two's complement; masking the shifted product gives the high word
    either way.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first = c0 * _PHILOX_MULTIPLIERS[0]
        second = c2 * _PHILOX_MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((second >> 32) & _MASK) ^ c1 ^ k0,
            second & _MASK,
            ((first >> 32) & _MASK) ^ c3 ^ k1,
            first & _MASK,
        )
        k0 = (k0 + _PHILOX_WEYL[0]) & _MASK
        k1 = (k1 + _PHILOX_WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def draw_device(
    law: str,
    layout: Layout,
    key: bytes,
    ids: range | NDArray[np.int64],
    target: torch.Tensor,
    *,
    scale: float | NDArray[np.float64],
    step: float | NDArray[np.float64] | None,
) -> None:
    device = target.device
    philox_key = (int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little"))
    salt = int.from_bytes(key[8:16], "little") & ((1 << 63) - 1)
    clients = torch.as_tensor(np.asarray(ids, np.int64), device=device)
    block = torch.arange(layout.blocks_per_tile, device=device)
    rows_per_block = max(1, WORDS_PER_BLOCK // layout.width)
    for start in range(0, len(ids), rows_per_block):
        rows = slice(start, min(start + rows_per_block, len(ids)))
        for tile in range(layout.tiles):
            # 128-bit counter: the block's place in the stream, then 64 bits of the key as a salt.
            place = clients[rows, None] * layout.blocks_per_client + (
                tile * layout.blocks_per_tile + block
            )
            zero = torch.zeros_like(place)
            words = philox4x32(
                (place & _MASK, place >> 32, zero + (salt & _MASK), zero + (salt >> 32)),
                philox_key,
            )
            stacked = torch.stack(words, dim=2)
            signed = torch.where(stacked > 0x7FFFFFFF, stacked - (1 << 32), stacked)
            integers = signed.to(torch.int32).view(len(place), -1)
            if layout.word_bytes == 8:
                integers = integers.view(torch.int64)
            part = target[rows, layout.columns(tile)]
            noise = _law_device(law, integers)[:, : part.shape[1]]
            noise.mul_(_column(_per_row(scale, rows), noise))
            _place_device(noise, part, None if step is None else _per_row(step, rows))


def _column(value: float | NDArray[np.float64], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _law_device(law: str, words: torch.Tensor) -> torch.Tensor:
    wide = words.dtype == torch.int64
    dtype, unit = (torch.float64, 2.0**-63) if wide else (torch.float32, 2.0**-31)
    uniform = words.to(dtype).mul_(unit)
    if law == "laplace":
        uniform.add_(0.5 * unit)
        return torch.copysign(uniform.abs().log_(), uniform)
    half = words.shape[1] // 2
    radius = uniform[:, :half].add(0.5 * unit).square_().log_().neg_().sqrt_()
    angle = uniform[:, half:] * math.pi
    return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)


def _place_device(
    noise: torch.Tensor, part: torch.Tensor, step: float | NDArray[np.float64] | None
) -> None:
    if step is None:
        part.copy_(noise)
        return
    exponent = 23 if noise.dtype == torch.float32 else 52
    magic = _column(1.5 * 2.0**exponent * np.asarray(step), noise)
    part.copy_(noise.add_(part).add_(magic).sub_(magic))


def _per_row(values: float | NDArray[np.float64], rows: slice) -> float | NDArray[np.float64]:
    """The part of a per-row quantity that belongs to `rows`, as a column."""
    return values[rows, None] if isinstance(values, np.ndarray) else values
