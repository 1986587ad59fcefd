"""Several kinds side by side: each map's vector, one behind the other, over sqrt(number of maps).

Each part has norm at most 1, so the norm of the whole is at most sqrt(k / k) = 1: joining changes
no sensitivity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.data.features.base import Described


class Joined(Described):
    """The maps `parts`, of images of the same shape, side by side."""

    def __init__(self, parts: list[Described]) -> None:
        self.parts = parts
        self.kind = " + ".join(part.kind for part in parts)
        self.image_side = parts[0].image_side

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    @property
    def full(self) -> int:
        return min(part.full for part in self.parts)

    @property
    def dimension(self) -> int:
        return sum(part.dimension for part in self.parts)

    @property
    def options(self) -> dict[str, Any]:
        return {part.kind: part.options for part in self.parts}

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()

    def describe(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        vectors = torch.cat([part.describe(pixels) for part in self.parts], dim=1)
        return vectors / math.sqrt(len(self.parts))
