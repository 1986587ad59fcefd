"""`pca`: principal components, fitted on the training images.

A run that uses them must say that its privacy guarantee does not cover that fit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.data.features.base import PIXEL_MAXIMUM, FeatureMap, FeatureRows, whole
from fl_shuffle.errors import DataError, RunError


class PrincipalComponents(FeatureMap):
    """The leading `components` principal components of the training pixels in [0, 1], centered.

    Fitted on the data: not covered by a privacy guarantee. Directions are unit vectors whose
    largest entry is positive, so the fit is deterministic.
    """

    kind = "pca"
    data_dependent = True

    def __init__(self, *, image_side: int = 28, components: int = 60) -> None:
        super().__init__(image_side)
        self.components = whole("components", components, 1, self.image_side**2)
        self._mean: NDArray[np.float64] | None = None
        self._directions: NDArray[np.float64] | None = None

    @property
    def dimension(self) -> int:
        return self.components

    def fit(self, images: NDArray[np.uint8]) -> FeatureMap:
        pixels = self._pixels(images)
        if len(pixels) < 2:
            raise DataError(f"images: pca needs at least 2 training images, got {len(pixels)}")
        flat = self._flat(pixels)
        mean = flat.mean(axis=0)
        # Summing in chunks keeps the float64 copy of 60,000 images out of memory twice over.
        second = sum(
            (part.T @ part for part in np.array_split(flat - mean, max(1, len(flat) // 10_000))),
            start=np.zeros((flat.shape[1], flat.shape[1])),
        )
        _, vectors = np.linalg.eigh(second)
        directions = vectors[:, ::-1][:, : self.components]
        largest = directions[np.abs(directions).argmax(axis=0), np.arange(self.components)]
        self._mean, self._directions = mean, directions * np.sign(largest)
        return self

    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        if self._mean is None or self._directions is None:
            raise RunError("features pca: call fit with the training images before transform")
        return ((self._flat(self._pixels(images)) - self._mean) @ self._directions).astype(
            np.float32
        )

    def _flat(self, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
        return pixels.reshape(len(pixels), -1).astype(np.float64) / PIXEL_MAXIMUM[self.image_side]
