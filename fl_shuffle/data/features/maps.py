"""Feature maps: images in, float32 vectors out.

A map that is fixed before any private image is seen costs no privacy: `raw` and `hog` are such
maps, and `data_dependent` is False. `pca` is fitted on the training images, so a run that uses it
must say that its privacy guarantee does not cover that fit (`data_dependent` is True).

`hog` describes a digit by the directions of its edges. Each image is first moved, sheared and
scaled to a common pose, computed from that image alone; edge magnitudes are then collected in
`orientations` directions over a grid of cells. Optionally the result is centered and decorrelated
with the mean and covariance of the same descriptor on *drawn* strokes (`features.strokes`):
random smooth curves from a fixed seed, no data. `fourier` puts random Fourier features behind it,
decorrelated on the same strokes: a linear model of them is nearly a kernel machine.

Images are uint8, [N, 28, 28] with values 0..255 (MNIST) or [N, 8, 8] with values 0..16 (the
digits that ship with scikit-learn). A pixel above that counts as a full one; among public test
images it is an error.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import signature
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.threads import on_all_cores
from fl_shuffle.data.features.strokes import draw_strokes
from fl_shuffle.errors import (
    DataError,
    InvalidValueError,
    RunError,
    require_choice,
    require_integer,
    require_real,
    suggestion,
)

PIXEL_MAXIMUM: Final[Mapping[int, int]] = {28: 255, 8: 16}
"""Image side -> the value of a full pixel."""
FULL = 255
"""The value of a full pixel, where `PIXEL_MAXIMUM` has no other for images of that side."""

_FIELD: Final = "data.feature_options"
_CHUNK: Final = 200
"""Images described at a time: bounds the memory."""
_SIDE: Final = 28
"""Images of another side are scaled to this one first."""
_STROKES: Final = 4000
"""Drawn strokes from which the projection is learnt: they must outnumber its outputs."""

_DIRECTIONS_SEED: Final = 20240522
"""Fixed: the directions of random Fourier features are part of the features, no noise."""

FeatureRows = NDArray[np.float32]


class FeatureMap(ABC):
    """Turns images into vectors; `fit` must come before `transform` when `data_dependent`."""

    kind: str
    data_dependent: bool = False
    costly: bool = True
    """Whether vectors take longer to compute than to read."""
    progress: Callable[[int, int], None] | None = None
    """Called with (images done, images in all) while vectors are computed, from any thread, one
    call at a time."""

    def __init__(self, image_side: int) -> None:
        side = _whole("image_side", image_side, 1, 1 << 16)
        if side not in PIXEL_MAXIMUM:
            raise _refused("image_side", side, f"must be one of {sorted(PIXEL_MAXIMUM)}")
        self.image_side = side

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Number of features per image."""

    def fit(self, images: NDArray[np.uint8]) -> FeatureMap:
        """Learn from the training images if data dependent; otherwise only check them."""
        self.check(images)
        return self

    def check(self, images: NDArray[np.uint8]) -> None:
        """Raise `DataError` for another shape or type than the map's."""
        self._pixels(images)

    @abstractmethod
    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        """Return float32 [N, dimension]."""

    def _pixels(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        side, top = self.image_side, PIXEL_MAXIMUM[self.image_side]
        array = np.asarray(images)
        if array.ndim != 3 or array.shape[1:] != (side, side):
            raise DataError(
                f"images: shape {array.shape}, expected [N, {side}, {side}]; set image_side"
            )
        if array.dtype != np.uint8:
            raise DataError(f"images: dtype {array.dtype}, expected uint8 in [0, {top}]")
        # One record's pixels must not end everybody's run, so they are cut off and not refused.
        return array if top == np.iinfo(np.uint8).max else np.minimum(array, np.uint8(top))

    def require_range(self, images: NDArray[Any]) -> None:
        """Raise `DataError` for pixels above the full one; for public images only."""
        top = PIXEL_MAXIMUM[self.image_side]
        if images.size and int(images.max()) > top:
            raise DataError(f"images: largest pixel {int(images.max())}, expected at most {top}")


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


class RawPixels(FeatureMap):
    """(pixel / full pixel - shift) / scale, flattened; shift and scale are public constants."""

    kind = "raw"
    costly = False

    def __init__(self, *, image_side: int = 28, shift: float = 0.0, scale: float = 1.0) -> None:
        super().__init__(image_side)
        self.shift = require_real(f"{_FIELD}.shift", shift, minimum=-10.0, maximum=10.0)
        self.scale = require_real(f"{_FIELD}.scale", scale, minimum=1e-3, maximum=1e3)

    @property
    def dimension(self) -> int:
        return self.image_side**2

    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        pixels = self._pixels(images)
        unit = pixels.reshape(len(pixels), -1).astype(np.float32) / PIXEL_MAXIMUM[self.image_side]
        return ((unit - np.float32(self.shift)) / np.float32(self.scale)).astype(np.float32)


class PrincipalComponents(FeatureMap):
    """The leading `components` principal components of the training pixels in [0, 1], centered.

    Fitted on the data: not covered by a privacy guarantee. Directions are unit vectors whose
    largest entry is positive, so the fit is deterministic.
    """

    kind = "pca"
    data_dependent = True

    def __init__(self, *, image_side: int = 28, components: int = 60) -> None:
        super().__init__(image_side)
        self.components = _whole("components", components, 1, self.image_side**2)
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


class OrientedGradients(FeatureMap):
    """Edge directions over grids of cells, in a common pose, centered on drawn strokes.

    `cells` are the grid sizes (several give a multi-scale descriptor), `orientations` the number
    of directions over the full turn (a dark-to-light edge differs from a light-to-dark one),
    `upright` moves each image to a common center, slant and extent. `components` > 0 projects on
    the leading principal directions of the descriptor on drawn strokes and divides each by
    sqrt(variance + ridge); 0 keeps the descriptor, only centered.

    `fourier` > 0 (an even number) is the number of random Fourier features of that vector h: cos
    and sin of h W, the entries of W normal of variance 2 `gamma` from a fixed seed, whose scalar
    products approximate exp(-gamma |h - h'|^2) (Rahimi and Recht, NeurIPS 2007); they are centered
    and decorrelated on the drawn strokes as well, with `fourier_ridge`.

    Every non-blank image has unit l2 norm; a blank one is the zero vector.
    """

    kind = "hog"

    def __init__(
        self,
        *,
        image_side: int = 28,
        orientations: int = 8,
        cells: tuple[int, ...] | list[int] = (7,),
        upright: bool = True,
        components: int = 0,
        ridge: float = 0.003,
        fourier: int = 0,
        gamma: float = 0.5,
        fourier_ridge: float = 0.003,
    ) -> None:
        super().__init__(image_side)
        self.orientations = _whole("orientations", orientations, 2, 32)
        if not isinstance(cells, tuple | list) or not 1 <= len(cells) <= 4:
            raise _refused("cells", cells, "must be a list of 1 to 4 grid sizes")
        self.cells = tuple(_whole("cells", size, 2, _SIDE // 2) for size in cells)
        if not isinstance(upright, bool):
            raise _refused("upright", upright, "must be true or false")
        self.upright = upright
        self.descriptor_dimension = self.orientations * sum(size**2 for size in self.cells)
        most = min(self.descriptor_dimension, _STROKES - 1)
        self.components = _whole("components", components, 0, most)
        self.ridge = _positive("ridge", ridge)
        self.fourier = _whole("fourier", fourier, 0, _STROKES - 2)
        if self.fourier % 2:
            raise _refused("fourier", fourier, "must be even: a cosine has its sine")
        for option, value, usual in (
            ("gamma", gamma, 0.5),
            ("fourier_ridge", fourier_ridge, 0.003),
        ):
            if not fourier and value != usual:
                raise _refused(option, value, "has no effect without fourier")
        self.gamma = _positive("gamma", gamma)
        self.fourier_ridge = _positive("fourier_ridge", fourier_ridge)
        self._pools = [_pooling(_SIDE, size) for size in self.cells]

    @property
    def dimension(self) -> int:
        return self.fourier or self.components or self.descriptor_dimension

    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        pixels = self._pixels(images)
        out = np.empty((len(pixels), self.dimension), dtype=np.float32)
        mean, basis = self._fourier_reference if self.fourier else (None, None)

        def describe(start: int) -> None:
            part = torch.tensor(pixels[start : start + _CHUNK])
            vectors = self._vectors(part.float() / PIXEL_MAXIMUM[self.image_side])
            if mean is not None and basis is not None:
                inked = vectors.any(dim=1, keepdim=True)
                vectors = _unit_rows((self._waves(vectors) - mean) @ basis * inked)
            out[start : start + len(part)] = vectors.numpy()
            with speaking:
                done.append(len(part))
                if self.progress is not None:
                    self.progress(sum(done), len(pixels))

        done, speaking = list[int](), Lock()
        # What is computed once is there before the threads need it.
        _ = self._reference
        on_all_cores(describe, range(0, len(pixels), _CHUNK))
        return out

    def _vectors(self, unit: torch.Tensor) -> torch.Tensor:
        """Return the descriptors of images in [0, 1], centered and decorrelated, of unit norm."""
        mean, basis = self._reference
        descriptor = self._descriptor(unit)
        centred = (descriptor - mean) * descriptor.any(dim=1, keepdim=True)
        return _unit_rows(centred @ basis if basis is not None else centred)

    def _waves(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return [N, fourier]: the random Fourier features of vectors, before they are centered."""
        angles = vectors @ self._directions
        return torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(self.fourier // 2)

    @cached_property
    def _directions(self) -> torch.Tensor:
        inputs = self.components or self.descriptor_dimension
        drawn = np.random.default_rng(_DIRECTIONS_SEED).standard_normal((inputs, self.fourier // 2))
        return torch.from_numpy(drawn * math.sqrt(2.0 * self.gamma)).float()

    @cached_property
    def _fourier_reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean of the random Fourier features on drawn strokes, and the decorrelating basis."""
        drawn = torch.split(torch.from_numpy(draw_strokes(_STROKES)), _CHUNK)
        waves = torch.cat([self._waves(self._vectors(part)) for part in drawn]).double()
        return _decorrelation(waves, self.fourier, self.fourier_ridge)

    @cached_property
    def _reference(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The mean on drawn strokes, and the decorrelating basis if one is asked for."""
        drawn = torch.from_numpy(draw_strokes(_STROKES))
        described = torch.cat(on_all_cores(self._descriptor, torch.split(drawn, _CHUNK))).double()
        if not self.components:
            return described.mean(dim=0).float(), None
        return _decorrelation(described, self.components, self.ridge)

    def _descriptor(self, unit: torch.Tensor) -> torch.Tensor:
        """Return [N, descriptor_dimension], non-negative, l2 norm 1 (0 for a blank image)."""
        posed = _common_pose(unit) if self.upright else _resized(unit)
        energy = _edge_energy(posed, self.orientations)
        blocks = []
        for pool in self._pools:
            cell = pool @ (energy @ pool.T)
            power = cell.square().sum(dim=1, keepdim=True)
            # Contrast is measured over a cell and its neighbors; the second term keeps empty
            # corners quiet.
            local = torch.nn.functional.avg_pool2d(power, 3, stride=1, padding=1).sqrt()
            overall = power.mean(dim=(2, 3), keepdim=True).sqrt()
            blocks.append(_unit_rows((cell / (local + 0.05 * overall + 1e-6)).sqrt().flatten(1)))
        return torch.cat(blocks, dim=1) / math.sqrt(len(blocks))


def _decorrelation(
    described: torch.Tensor, components: int, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of rows [N, d], and a basis [d, components] of their leading principal
    directions, each divided by sqrt(variance + ridge); variances add up to one."""
    mean = described.mean(dim=0)
    centred = described - mean
    centred *= len(centred) ** 0.5 / centred.norm()
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    kept = directions[:, -components:] / (variances[-components:].clamp_min(0.0) + ridge).sqrt()
    return mean.float(), kept.float()


def _whole(option: str, value: int, least: int, most: int) -> int:
    return require_integer(f"{_FIELD}.{option}", value, minimum=least, maximum=most)


def _positive(option: str, value: float) -> float:
    return require_real(
        f"{_FIELD}.{option}", value, minimum=0.0, maximum=1e3, exclusive_minimum=True
    )


def _refused(option: str, value: object, why: str, hint: str = "") -> InvalidValueError:
    return InvalidValueError(f"{_FIELD}.{option}", value, why, hint)


def _unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows divided by their l2 norm; rows that are (numerically) zero stay zero."""
    unit: torch.Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return unit


def _resized(images: torch.Tensor) -> torch.Tensor:
    if images.shape[1] == _SIDE:
        return images
    return torch.nn.functional.interpolate(
        images[:, None], size=(_SIDE, _SIDE), mode="bilinear", align_corners=True
    )[:, 0]


def _common_pose(images: torch.Tensor, height: float = 4.5, width: float = 4.0) -> torch.Tensor:
    """Return each image moved to its center of mass, unslanted, scaled to a common spread.

    `height` and `width` are the standard deviations of the ink after scaling, in pixels of a 28 x
    28 image. The width of a thin digit (a one) is not stretched beyond two pixels' worth, so a
    one stays thin.
    """
    side = images.shape[1]
    half = (side - 1) / 2
    shrink = (side - 1) / (_SIDE - 1)
    axis = torch.arange(side, dtype=torch.float32) - half
    mass = images.sum(dim=(1, 2)).clamp_min(1e-6)
    centre_x = images.sum(dim=1) @ axis / mass
    centre_y = images.sum(dim=2) @ axis / mass
    dx = axis[None, None, :] - centre_x[:, None, None]
    dy = axis[None, :, None] - centre_y[:, None, None]
    floor = shrink**2
    var_y = ((images * dy * dy).sum(dim=(1, 2)) / mass).clamp_min(floor)
    var_x = (images * dx * dx).sum(dim=(1, 2)) / mass
    cov = (images * dx * dy).sum(dim=(1, 2)) / mass
    slant = (cov / var_y).clamp(-1.0, 1.0)
    thin = (var_x - slant * cov).clamp_min(4.0 * floor)
    scale_y = var_y.sqrt() / (height * shrink)
    scale_x = thin.sqrt() / (width * shrink)
    pose = torch.zeros(len(images), 2, 3)
    pose[:, 0, 0] = scale_x
    pose[:, 0, 1] = slant * scale_y
    pose[:, 0, 2] = centre_x / half
    pose[:, 1, 1] = scale_y
    pose[:, 1, 2] = centre_y / half
    grid = torch.nn.functional.affine_grid(pose, [len(images), 1, _SIDE, _SIDE], align_corners=True)
    return torch.nn.functional.grid_sample(images[:, None], grid, align_corners=True)[:, 0]


def _edge_energy(images: torch.Tensor, orientations: int) -> torch.Tensor:
    """Return [N, orientations, H, W]: edge magnitude, shared linearly by the two nearest
    directions."""
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    gx = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    gy = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    magnitude = torch.hypot(gx, gy)
    turn = torch.remainder(torch.atan2(gy, gx) / (2 * math.pi), 1.0) * orientations
    bins = torch.arange(orientations, dtype=torch.float32)[None, :, None, None]
    # In place: fresh memory of this size costs more than the arithmetic.
    away = (turn[:, None] - bins).abs_()
    torch.minimum(away, orientations - away, out=away)
    return away.neg_().add_(1.0).clamp_min_(0.0).mul_(magnitude[:, None])


def _pooling(side: int, cells: int) -> torch.Tensor:
    """Return [cells, side]: overlapping triangular windows, one cell wide either side of the
    center."""
    width = side / cells
    centres = (torch.arange(cells) + 0.5) * width - 0.5
    away = (torch.arange(side)[None, :] - centres[:, None]).abs() / width
    return (1.0 - away).clamp_min(0.0)


_KINDS: Final[Mapping[str, Callable[..., FeatureMap]]] = {
    "raw": RawPixels,
    "pca": PrincipalComponents,
    "hog": OrientedGradients,
}
FEATURE_KINDS: Final = tuple(_KINDS)


def build_features(kind: str, **options: Any) -> FeatureMap:
    """Return the feature map `kind` ("raw", "pca", "hog"); `InvalidValueError` for bad options."""
    maker = _KINDS[require_choice("data.features", kind, FEATURE_KINDS)]
    known = list(signature(maker).parameters)
    for name, value in options.items():
        if name not in known:
            why = f"is no option of {kind!r}, which takes {', '.join(known)}"
            raise _refused(name, value, why, suggestion(name, known))
    return maker(**options)
