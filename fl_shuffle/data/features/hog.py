"""`hog` of written characters: gray images of 28 x 28 or 8 x 8 pixels.

It describes a digit by the directions of its edges. Each image is first moved, sheared and scaled
to a common pose, computed from that image alone; edge magnitudes are then collected in
`orientations` directions over a grid of cells. Optionally the result is centered and decorrelated
with the mean and covariance of the same descriptor on *drawn* strokes (`features.strokes`):
random smooth curves from a fixed seed, no data. `fourier` puts random Fourier features behind it,
decorrelated on the same strokes: a linear model of them is nearly a kernel machine.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.threads import on_all_cores
from fl_shuffle.data.features.base import (
    CHUNK,
    PIXEL_MAXIMUM,
    Described,
    decorrelation,
    described_cells,
    edge_energy,
    flag,
    pooling,
    positive,
    refused,
    unit_rows,
    whole,
)
from fl_shuffle.data.features.strokes import draw_strokes

_SIDE: Final = 28
"""Images of another side are scaled to this one first."""
_STROKES: Final = 4000
"""Drawn strokes from which the projection is learnt: they must outnumber its outputs."""

_DIRECTIONS_SEED: Final = 20240522
"""Fixed: the directions of random Fourier features are part of the features, no noise."""


class OrientedGradients(Described):
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
        self.orientations = whole("orientations", orientations, 2, 32)
        if not isinstance(cells, tuple | list) or not 1 <= len(cells) <= 4:
            raise refused("cells", cells, "must be a list of 1 to 4 grid sizes")
        self.cells = tuple(whole("cells", size, 2, _SIDE // 2) for size in cells)
        self.upright = flag("upright", upright)
        self.descriptor_dimension = self.orientations * sum(size**2 for size in self.cells)
        most = min(self.descriptor_dimension, _STROKES - 1)
        self.components = whole("components", components, 0, most)
        self.ridge = positive("ridge", ridge)
        self.fourier = whole("fourier", fourier, 0, _STROKES - 2)
        if self.fourier % 2:
            raise refused("fourier", fourier, "must be even: a cosine has its sine")
        for option, value, usual in (
            ("gamma", gamma, 0.5),
            ("fourier_ridge", fourier_ridge, 0.003),
        ):
            if not fourier and value != usual:
                raise refused(option, value, "has no effect without fourier")
        self.gamma = positive("gamma", gamma)
        self.fourier_ridge = positive("fourier_ridge", fourier_ridge)
        self._pools = [pooling(_SIDE, size) for size in self.cells]

    @property
    def dimension(self) -> int:
        return self.fourier or self.components or self.descriptor_dimension

    def prepare(self) -> None:
        _ = self._fourier_reference if self.fourier else self._reference

    def describe(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        part = torch.tensor(pixels)
        vectors = self._vectors(part.float() / PIXEL_MAXIMUM[self.image_side])
        if self.fourier:
            mean, basis = self._fourier_reference
            inked = vectors.any(dim=1, keepdim=True)
            vectors = unit_rows((self._waves(vectors) - mean) @ basis * inked)
        return vectors

    def _vectors(self, unit: torch.Tensor) -> torch.Tensor:
        """Return the descriptors of images in [0, 1], centered and decorrelated, of unit norm."""
        mean, basis = self._reference
        descriptor = self._descriptor(unit)
        centred = (descriptor - mean) * descriptor.any(dim=1, keepdim=True)
        return unit_rows(centred @ basis if basis is not None else centred)

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
        drawn = torch.split(torch.from_numpy(draw_strokes(_STROKES)), CHUNK)
        waves = torch.cat([self._waves(self._vectors(part)) for part in drawn]).double()
        return decorrelation(waves, self.fourier, self.fourier_ridge)

    @cached_property
    def _reference(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The mean on drawn strokes, and the decorrelating basis if one is asked for."""
        drawn = torch.from_numpy(draw_strokes(_STROKES))
        described = torch.cat(on_all_cores(self._descriptor, torch.split(drawn, CHUNK))).double()
        if not self.components:
            return described.mean(dim=0).float(), None
        return decorrelation(described, self.components, self.ridge)

    def _descriptor(self, unit: torch.Tensor) -> torch.Tensor:
        """Return [N, descriptor_dimension], non-negative, l2 norm 1 (0 for a blank image)."""
        posed = _common_pose(unit) if self.upright else _resized(unit)
        energy = edge_energy(posed, self.orientations)
        blocks = []
        for pool in self._pools:
            blocks.append(described_cells(energy, pool))
        return torch.cat(blocks, dim=1) / math.sqrt(len(blocks))


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
