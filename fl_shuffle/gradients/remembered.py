"""What is kept of records that are asked for again and again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Remembered:
    """Records [N, fan_in] and the powers [N] of their lengths."""

    records: Tensor
    powers: Tensor

    def of(self, records: Tensor) -> Tensor | None:
        """The powers of these records if they are a slice of those."""
        base = self.records
        shift = int(records.storage_offset()) - int(base.storage_offset())
        first, rest = divmod(shift, base.shape[1])
        inside = (
            records.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
            and records.is_contiguous()
            and rest == 0
            and first >= 0
            and first + len(records) <= len(base)
        )
        return self.powers[first : first + len(records)] if inside else None
