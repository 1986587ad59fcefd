"""What the maps of pictures share: any side, gray or color, and a reference that is synthetic.

Each map describes a picture by a vector, subtracts the mean that the vector has on synthetic
pictures (`leaves`), projects it on the leading principal directions there, and divides each
coordinate by sqrt(variance + ridge). The result is scaled to l2 norm 1, so a record's vector has
norm 1, or 0 where there is nothing to describe, whatever the picture is.

Nothing here is computed from anything but one record and constants. Hence the vector of a record
depends on no other record, and a mechanism on these vectors has the guarantee that it has on
records.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.threads import on_all_cores, one_thread
from fl_shuffle.data.features.base import (
    FULL,
    Described,
    decorrelation,
    flag,
    positive,
    refused,
    unit_rows,
    whole,
)
from fl_shuffle.data.features.leaves import dead_leaves

LEAVES: Final = 4000
"""Synthetic pictures: they must outnumber the components."""
MOST_SIDE: Final = 128
"""Of a picture: a larger one takes too much memory, and `images` resizes."""
_BLOCK: Final = 250
_EXACT: Final = 2500
"""Rows up to this length have their principal directions from all of the covariance."""
_SPARE: Final = 200
"""Directions beside those asked for, in the iteration that finds the leading ones."""
_START_SEED: Final = 20261201


class PictureMap(Described):
    """A map of pictures of side `image_side` with 1 or 3 `channels`; `least` is its smallest side.

    `components` None: `usual` of them, or as many as the description has. `components` 0 keeps the
    description, only centered. `flip`: describe a picture and its mirror image equally.
    """

    least: int = 8
    usual: int

    def __init__(
        self, image_side: int, channels: int, flip: bool, components: int | None, ridge: float
    ) -> None:
        self.image_side = whole("image_side", image_side, 1, 1 << 16)
        if not self.least <= self.image_side <= MOST_SIDE:
            raise refused(
                "image_side", image_side,
                f"features {self.kind!r} need pictures of {self.least} to {MOST_SIDE} pixels",
                "resize them (source 'images': source_options.size)",
            )  # fmt: skip
        if channels not in (1, 3):
            why = f"features {self.kind!r} need gray pictures or three channels"
            raise refused("channels", channels, why)
        self.channels = channels
        self.flip = flag("flip", flip)
        most = min(self.description, LEAVES - 1)
        usual = min(self.usual, most)
        self.components = usual if components is None else whole("components", components, 0, most)
        self.ridge = positive("ridge", ridge)

    @property
    @abstractmethod
    def description(self) -> int:
        """Numbers of a picture's description, before it is decorrelated."""

    @abstractmethod
    def describing(self, unit: torch.Tensor) -> torch.Tensor:
        """Return [N, description] of pictures [N, channels, side, side] in [0, 1]; a zero row says
        that there is nothing to describe."""

    @property
    def shape(self) -> tuple[int, ...]:
        square = self.image_side, self.image_side
        return square if self.channels == 1 else (3, *square)

    @property
    def full(self) -> int:
        return FULL

    @property
    def dimension(self) -> int:
        return self.components or self.description

    def prepare(self) -> None:
        _ = self._reference

    def describe(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        mean, basis = self._reference
        unit = torch.tensor(pixels).float() / FULL
        rows = self.describing(unit.reshape(len(pixels), self.channels, *pixels.shape[-2:]))
        rows = (rows - mean) * rows.any(dim=1, keepdim=True)
        # The mean over a picture and its mirror image has another norm than each; the last step
        # makes it 1 again, and it is what a report's sensitivity rests on.
        return unit_rows(rows if basis is None else rows @ basis)

    @cached_property
    def _reference(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The mean on synthetic pictures, and the decorrelating basis if one is asked for."""
        rows = torch.cat(on_all_cores(self._leaves_described, range(LEAVES // _BLOCK)))
        if not self.components:
            return rows.double().mean(dim=0).float(), None
        with one_thread():
            if self.description <= _EXACT:
                return decorrelation(rows.double(), self.components, self.ridge)
            return _leading(rows, self.components, self.ridge)

    def _leaves_described(self, block: int) -> torch.Tensor:
        leaves = dead_leaves(block, _BLOCK, self.channels, self.image_side)
        return self.describing(torch.from_numpy(leaves))


def _leading(
    rows: torch.Tensor, components: int, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `decorrelation` does, for long rows, of directions found by subspace iteration.

    With C the covariance and Q a basis of random directions, two steps Q <- orthonormal(C Q) turn
    Q towards the leading directions of C: what it has of the others shrinks by the ratio of the
    variances, squared (Halko, Martinsson, and Tropp, SIAM Review 2011). Inside of Q the directions
    are exact. Every basis is a valid one: a worse one costs accuracy, and no privacy.
    """
    mean = rows.mean(dim=0)
    centered = rows - mean
    centered *= len(centered) ** 0.5 / centered.norm()
    width = min(rows.shape[1], len(rows) - 1, components + _SPARE)
    start = np.random.default_rng(_START_SEED).standard_normal((rows.shape[1], width))
    basis = torch.from_numpy(start).float()
    for _ in range(2):
        basis = torch.linalg.qr(centered.T @ (centered @ basis))[0]
    inside = centered @ basis
    variances, turns = torch.linalg.eigh((inside.T @ inside / len(rows)).double())
    kept = basis @ turns[:, -components:].float()
    return mean, kept / (variances[-components:].clamp_min(0.0) + ridge).sqrt().float()
