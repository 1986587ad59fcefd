"""`pixels`: whole pictures, for models that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.data.features.base import FULL, PIXEL_MAXIMUM
from fl_shuffle.errors import InvalidValueError


class Pixels:
    """uint8 images [N, H, W] or [N, C, H, W] as float32 [N, C, H, W], a full pixel as 1.

    Nothing is fitted. A pixel above the full one counts as a full one. Raises `InvalidValueError`
    for records that are no images.
    """

    data_dependent = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) not in (2, 3):
            raise InvalidValueError(
                "data.features", "pixels", f"needs images, the records have shape {shape}; use none"
            )
        self._grey = len(shape) == 2
        self._full = PIXEL_MAXIMUM.get(shape[0], FULL) if self._grey else FULL

    def fit(self, images: NDArray[Any]) -> None:
        """Fit nothing; raises `InvalidValueError` for another type than uint8."""
        if images.dtype != np.uint8:
            raise InvalidValueError(
                "data.features", "pixels", f"needs uint8 images, these are {images.dtype}; use none"
            )

    def transform(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Return float32 [N, C, H, W]."""
        values = np.minimum(images, self._full).astype(np.float32) / np.float32(self._full)
        return np.ascontiguousarray(values[:, None] if self._grey else values)
