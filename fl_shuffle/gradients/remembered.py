"""What is kept of records that are asked for again and again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Remembered:
    """Records [N, fan_in], the same with a last column of ones if kept, powers of their lengths."""

    records: Tensor
    wide: Tensor | None
    powers: Tensor | None

    def of(self, records: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is kept of these records (themselves if nothing is) and of their lengths."""
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
        if not inside:
            return records, None
        own = slice(first, first + len(records))
        wide = records if self.wide is None else self.wide[own]
        return wide, None if self.powers is None else self.powers[own]
