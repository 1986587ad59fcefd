"""What feature maps of images have in common: their interface, checks of options, and the loop
over the images.

A map that is fixed before any private image is seen costs no privacy: its `data_dependent` is
False. Images are uint8: [N, 28, 28] with values 0..255 (MNIST), [N, 8, 8] with values 0..16 (the
digits that ship with scikit-learn), and for maps of pictures [N, H, H] or [N, 3, H, H] of any side
with values 0..255. A pixel above the full one counts as a full one; among public test images it is
an error.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from inspect import signature
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle._internal.threads import on_all_cores
from fl_shuffle.errors import DataError, InvalidValueError, require_integer, require_real

PIXEL_MAXIMUM: Final[Mapping[int, int]] = {28: 255, 8: 16}
"""Image side -> the value of a full pixel."""
FULL = 255
"""The value of a full pixel, where `PIXEL_MAXIMUM` has no other for images of that side."""


FIELD: Final = "data.feature_options"
CHUNK: Final = 200
"""Images described at a time: bounds the memory, and fixes the last bits of every vector."""

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
        self.image_side = whole("image_side", image_side, 1, 1 << 16)
        if self.image_side not in PIXEL_MAXIMUM:
            sides = f"must be one of {sorted(PIXEL_MAXIMUM)}"
            raise refused("image_side", self.image_side, sides)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return self.image_side, self.image_side

    @property
    def full(self) -> int:
        """The value of a full pixel."""
        return PIXEL_MAXIMUM[self.image_side]

    @property
    def options(self) -> dict[str, Any]:
        """What the map was made from: with the same, it has the same vectors."""
        return {name: getattr(self, name) for name in signature(type(self)).parameters}

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
        top, array = self.full, np.asarray(images)
        if array.shape[1:] != self.shape:
            sides = ", ".join(map(str, self.shape))
            raise DataError(f"images: shape {array.shape}, expected [N, {sides}]; set image_side")
        if array.dtype != np.uint8:
            raise DataError(f"images: dtype {array.dtype}, expected uint8 in [0, {top}]")
        # One record's pixels must not end everybody's run, so they are cut off and not refused.
        return array if top == np.iinfo(np.uint8).max else np.minimum(array, np.uint8(top))

    def require_range(self, images: NDArray[Any]) -> None:
        """Raise `DataError` for pixels above the full one; for public images only."""
        top = self.full
        if images.size and int(images.max()) > top:
            raise DataError(f"images: largest pixel {int(images.max())}, expected at most {top}")


class Described(FeatureMap):
    """A map that describes images by themselves, in chunks of `CHUNK` on all cores.

    Chunks begin at multiples of `CHUNK` and each is computed by one thread, so that the bits of the
    result do not depend on the number of threads.
    """

    @abstractmethod
    def prepare(self) -> None:
        """Compute what is computed once, before the threads need it."""

    @abstractmethod
    def describe(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """Return float32 [N, dimension] of a chunk of checked images."""

    def transform(self, images: NDArray[np.uint8]) -> FeatureRows:
        pixels = self._pixels(images)
        out = np.empty((len(pixels), self.dimension), dtype=np.float32)

        def work(start: int) -> None:
            part = pixels[start : start + CHUNK]
            out[start : start + len(part)] = self.describe(part).numpy()
            with speaking:
                done.append(len(part))
                if self.progress is not None:
                    self.progress(sum(done), len(pixels))

        done, speaking = list[int](), Lock()
        self.prepare()
        on_all_cores(work, range(0, len(pixels), CHUNK))
        return out


def decorrelation(
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


def whole(option: str, value: int, least: int, most: int) -> int:
    return require_integer(f"{FIELD}.{option}", value, minimum=least, maximum=most)


def positive(option: str, value: float) -> float:
    return require_real(
        f"{FIELD}.{option}", value, minimum=0.0, maximum=1e3, exclusive_minimum=True
    )


def flag(option: str, value: bool) -> bool:
    """Return a boolean option, checked."""
    if not isinstance(value, bool):
        raise refused(option, value, "must be true or false")
    return value


def refused(option: str, value: object, why: str, hint: str = "") -> InvalidValueError:
    return InvalidValueError(f"{FIELD}.{option}", value, why, hint)


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows divided by their l2 norm; rows that are (numerically) zero stay zero."""
    unit: torch.Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-9)
    return unit


QUIET = 0.05
"""Share of the whole picture's contrast that every cell is measured against as well."""


def described_cells(energy: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
    """Return roots of edge energies in cells over the contrast there, [N, cells], l2 norm 1.

    `energy` is [N, K, H, H], `pool` [size, H] averages a side into its cells.
    """
    cell = pool @ (energy @ pool.T)
    power = cell.square().sum(dim=1, keepdim=True)
    # Contrast is measured over a cell and its neighbors; the second term keeps empty corners quiet.
    local = torch.nn.functional.avg_pool2d(power, 3, stride=1, padding=1).sqrt()
    overall = power.mean(dim=(2, 3), keepdim=True).sqrt()
    return unit_rows((cell / (local + QUIET * overall + 1e-6)).sqrt().flatten(1))


def edge_energy(images: torch.Tensor, orientations: int) -> torch.Tensor:
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


def pooling(side: int, cells: int) -> torch.Tensor:
    """Return [cells, side]: overlapping triangular windows, one cell wide either side of the
    center."""
    width = side / cells
    centres = (torch.arange(cells) + 0.5) * width - 0.5
    away = (torch.arange(side)[None, :] - centres[:, None]).abs() / width
    return (1.0 - away).clamp_min(0.0)
