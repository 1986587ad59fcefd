"""Rows of numbers clipped to a norm, so that rounding makes none longer."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.arrays import FloatArray
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.randomizers.base import LARGEST, SMALLEST


def clip_rows(
    rows: torch.Tensor, radius: float | NDArray[np.float64], norm: int
) -> NDArray[np.bool_]:
    """Clip each row of `rows` (float32 [K, d]) to norm at most `radius`, in place.

    `norm` is 1 or 2; `radius` a number or an array [K]. Returns the mask [K] of valid rows. A row
    that holds NaN or an infinity is invalid and is set to zero, so nothing non-finite ever passes;
    a zero row stays zero. Rows at most `radius` (1 - 2^-15) long are left untouched; longer ones
    are scaled. The float32 norm is inflated by its worst error, so a clipped row never exceeds
    `radius`. The result of a row does not depend on the other rows. Off the CPU norms are float64
    reductions on the device, and the last bits may differ from the CPU's.
    """
    if norm not in (1, 2):
        raise InvalidValueError("norm", norm, "must be 1 or 2")
    if rows.dtype != torch.float32 or rows.dim() != 2:
        raise InvalidValueError(
            "rows", f"{rows.dtype} {list(rows.shape)}", "must be float32 [K, d]"
        )
    radii = np.broadcast_to(np.asarray(radius, dtype=np.float64), len(rows))
    if not bool(np.all((radii >= SMALLEST) & (radii <= LARGEST))):
        raise InvalidValueError("radius", radius, f"must lie in [{SMALLEST:g}, {LARGEST:g}]")
    if rows.device.type != "cpu":
        return _clip_on_device(rows.detach(), radii, norm)
    from fl_shuffle._internal.compiled import rows as loops

    own = rows.detach().contiguous()
    invalid = np.zeros(len(rows), dtype=np.bool_)
    loops.clip_rows(own.numpy(), np.array(radii), norm, invalid)
    if own.data_ptr() != rows.data_ptr():
        rows.detach().copy_(own)
    return ~invalid


def _clip_on_device(rows: torch.Tensor, radii: FloatArray, norm: int) -> NDArray[np.bool_]:
    from fl_shuffle._internal.compiled.rows import INFLATION

    lengths = INFLATION * torch.linalg.vector_norm(rows, ord=norm, dim=1, dtype=torch.float64)
    valid = torch.isfinite(lengths)
    limits = torch.tensor(radii, device=rows.device)
    factor = torch.where(valid & (lengths > limits), limits / lengths, 1.0)
    rows.copy_(torch.where(valid[:, None], rows.double() * factor[:, None], 0.0))
    return np.asarray(valid.cpu().numpy(), dtype=np.bool_)
