"""`hog` of pictures: edges by direction over grids of cells, in color, equal for mirror images.

Each channel's gradient (g_x, g_y) gives every pixel a magnitude and a direction on the full turn;
the magnitude is shared by the two nearest of `orientations` directions, and collected over cells
with overlapping triangular windows. A cell is divided by the contrast around it, and the square
root evens large and small values out (Dalal and Triggs, CVPR 2005, describe people this way).

`color`: the channels are lightness (R + G + B) / 3 and two opponent axes, (R - B) / 2 and
(2 G - R - B) / 4, which are 0 for gray. Contrast is measured over all three, so that a weak tint
does not count as much as strong light; beside the edges stand the mean colors of 4 x 4 cells.

`flip`: with D the description and m the mirror, the result is (D(x) + D(m x)) / 2. As m m = 1, a
picture and its mirror image have the same one.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from fl_shuffle.data.features.base import (
    described_cells,
    edge_energy,
    flag,
    pooling,
    refused,
    whole,
)
from fl_shuffle.data.features.leaves import LUMINANCE
from fl_shuffle.data.features.pictures import PictureMap

_OPPONENT: Final = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 0.0, -1 / 2), (-1 / 4, 1 / 2, -1 / 4))
_TINT: Final = 2.0
"""How much the opponent axes count beside lightness, on which they have less spread."""
_COLOR_CELLS: Final = 4


class PictureGradients(PictureMap):
    """Edge directions over grids of cells, and cell colors, decorrelated on dead leaves.

    `cells` are the grid sizes, `orientations` the number of directions. `color` True (the default
    for three channels) has opponent axes; False looks at the luminance alone.
    """

    kind = "hog"
    usual = 1200

    def __init__(
        self,
        *,
        image_side: int = 32,
        channels: int = 3,
        orientations: int = 8,
        cells: tuple[int, ...] | list[int] = (8, 4),
        color: bool | None = None,
        flip: bool = True,
        components: int | None = None,
        ridge: float = 0.001,
    ) -> None:
        self.orientations = whole("orientations", orientations, 2, 32)
        if not isinstance(cells, tuple | list) or not 1 <= len(cells) <= 4:
            raise refused("cells", cells, "must be a list of 1 to 4 grid sizes")
        side = max(whole("image_side", image_side, 1, 1 << 16), 4)
        self.cells = tuple(whole("cells", size, 2, side // 2) for size in cells)
        self.color = channels == 3 if color is None else flag("color", color)
        if self.color and channels != 3:
            raise refused("color", color, "needs pictures of three channels, these are gray")
        super().__init__(image_side, channels, flip, components, ridge)
        self._pools = [pooling(side, size) for size in self.cells]
        colors = pooling(side, _COLOR_CELLS)
        self._colors = colors / colors.sum(dim=1, keepdim=True)

    @property
    def description(self) -> int:
        edges = self.orientations * sum(size**2 for size in self.cells)
        return 3 * (edges + _COLOR_CELLS**2) if self.color else edges

    def describing(self, unit: torch.Tensor) -> torch.Tensor:
        if self.channels == 3:
            mixing = torch.tensor(_OPPONENT if self.color else (LUMINANCE,))
            unit = torch.einsum("ij,njhw->nihw", mixing, unit)
            unit[:, 1:] *= _TINT
        rows = self._one_way(unit)
        return (rows + self._one_way(unit.flip(3))) / 2 if self.flip else rows

    def _one_way(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the description of pictures [N, C, H, W] as they stand."""
        count, channels, side = picture.shape[:3]
        # Replicated at the border: its edge is none of the picture's.
        flat = torch.nn.functional.pad(picture, (1, 1, 1, 1), mode="replicate").flatten(0, 1)
        energy = edge_energy(flat, self.orientations)[:, :, 1:-1, 1:-1]
        energy = energy.reshape(count, channels * self.orientations, side, side)
        blocks = []
        for pool in self._pools:
            blocks.append(described_cells(energy, pool) / math.sqrt(len(self._pools)))
        if self.color:
            colors = self._colors @ (picture @ self._colors.T)
            middle = torch.tensor([0.5, 0.0, 0.0])[:, None, None]
            blocks.append((colors - middle).flatten(1))
        return torch.cat(blocks, dim=1)
