"""Random numbers that a user's code draws, and the precision in which it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ROUNDING: Final[Mapping[torch.dtype, float]] = {torch.float64: 1e-8, torch.float32: 1e-4}
"""A result may differ by this share of the records' typical result: libraries round a product
differently in another shape. float64 is tried first, so that little hides behind rounding."""
COARSE: Final = 0.05
"""The same for results of half precision."""


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what torch computes in this thread, whatever other threads do. `first`: the operation
    that drew random numbers first, and in what part; `rounding`: how far results may differ where
    they are computed as coarsely as what was seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inside: list[str] = []
        self.first: tuple[str, str] | None = None
        self.rounding = ROUNDING[torch.float64]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Answer torch's own question: else it loads its compiler here, which takes more than a
        second."""
        return False

    def __torch_dispatch__(
        self, func: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """See torch: every operation comes by here."""
        kwargs = kwargs or {}
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        if seeded and self.first is None and not _without_dropout(func, args, kwargs):
            self.first = str(func).split(".")[1], self.inside[-1] if self.inside else ""
        made = func(*args, **kwargs)
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor) and each.is_floating_point():
                self.rounding = max(self.rounding, ROUNDING.get(each.dtype, COARSE))
        return made


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether it is an attention that would draw numbers, did its dropout not have p = 0."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
            return bool(given == 0.0)
    return False
