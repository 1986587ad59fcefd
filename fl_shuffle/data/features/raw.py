"""`raw`: pixels on a scale that is fixed in advance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.data.features.base import FIELD, PIXEL_MAXIMUM, FeatureMap, FeatureRows
from fl_shuffle.errors import require_real


class RawPixels(FeatureMap):
    """(pixel / full pixel - shift) / scale, flattened; shift and scale are public constants."""

    kind = "raw"
    costly = False

    def __init__(self, *, image_side: int = 28, shift: float = 0.0, scale: float = 1.0) -> None:
        super().__init__(image_side)
        self.shift = require_real(f"{FIELD}.shift", shift, minimum=-10.0, maximum=10.0)
        self.scale = require_real(f"{FIELD}.scale", scale, minimum=1e-3, maximum=1e3)

    @property
    def dimension(self) -> int:
        return self.image_side**2

    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        pixels = self._pixels(images)
        unit = pixels.reshape(len(pixels), -1).astype(np.float32) / PIXEL_MAXIMUM[self.image_side]
        return ((unit - np.float32(self.shift)) / np.float32(self.scale)).astype(np.float32)
