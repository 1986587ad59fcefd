"""`patches`: responses to filters of 6 x 6 pixels in mirrored pairs, rectified, and pooled.

A patch p of all channels is centered and divided by sqrt(mean of squares + c^2), so that contrast
counts little. Patches of synthetic pictures have a mean and a covariance C; W = (C + e)^(-1/2)
whitens, and a filter f is a whitened patch of a synthetic picture, of norm 1 (Coates, Lee, and Ng,
AISTATS 2011, take such filters from training data). The response is r = f . W (p - mean). Both
(r - b)+ and (-r - b)+ are kept, averaged over the four quadrants, and the square root is taken.

Mirrored pairs. Mean and covariance are averaged over a patch and its mirror image, so they commute
with the mirror m; then (m f) . W (p - mean) = f . W (m p - mean). The response of the filter m f at
a place of x is that of f at the mirrored place of m x. Hence the mean over x and m x of everything
is the mean over the pair (f, m f) and the mirrored quadrants, from one pass over x.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import torch

from fl_shuffle._internal.threads import one_thread
from fl_shuffle.data.features.base import whole
from fl_shuffle.data.features.leaves import dead_leaves
from fl_shuffle.data.features.pictures import PictureMap

SIZE: Final = 6
"""Height and width of a filter, in pixels."""
_CONTRAST: Final = 10 / 255
_EVENING: Final = 0.01
"""Share of the mean variance that is added to each before whitening."""
_THRESHOLD: Final = 0.25
_SOURCES: Final = 1000
"""Synthetic pictures that filters are taken from."""
_PATCHES: Final = 100_000
_FIRST_BLOCK: Final = 1 << 20
"""Of their pictures: others than those of the reference."""
_SEED: Final = 20261202


class PatchFeatures(PictureMap):
    """Pooled responses to `pairs` pairs of mirrored filters, decorrelated on dead leaves."""

    kind = "patches"
    usual = 1500

    def __init__(
        self,
        *,
        image_side: int = 32,
        channels: int = 3,
        pairs: int = 384,
        components: int | None = None,
        ridge: float = 0.0007,
    ) -> None:
        self.pairs = whole("pairs", pairs, 1, 2048)
        super().__init__(image_side, channels, True, components, ridge)

    @property
    def description(self) -> int:
        return 8 * self.pairs

    def prepare(self) -> None:
        _ = self._filters
        super().prepare()

    def describing(self, unit: torch.Tensor) -> torch.Tensor:
        filters, offset = self._filters
        quadrants = _quadrants(self.image_side - SIZE + 1)
        found = torch.empty(len(unit), 2, 4, self.pairs)
        # One picture at a time: its responses stay in the cache.
        for number, picture in enumerate(unit):
            patches = torch.nn.functional.unfold(picture[None], SIZE)[0].T
            response = torch.addmm(-offset - _THRESHOLD, _even(patches), filters)
            above = quadrants @ response.clamp_min(0.0)
            # (-r - b)+ is -min(r + b, 0): no second array of this size is needed.
            response += 2 * _THRESHOLD
            below = -(quadrants @ response.clamp_max_(0.0))
            both = torch.stack([above, below])
            # [.., quadrant, filter] with the mirrored quadrant of the mirrored filter.
            other = both[:, [1, 0, 3, 2], self.pairs :]
            found[number] = (both[:, :, : self.pairs] + other) / 2
        return found.sqrt_().flatten(1)

    @cached_property
    def _filters(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Whitened filters [36 channels, 2 pairs], mirrored ones last, and their answers to the
        mean."""
        with one_thread():
            patches = self._synthetic_patches()
            flip = mirrored_pixels(self.channels)
            mean = patches.mean(dim=0)
            mean = (mean + mean[flip]) / 2
            centered = patches - mean
            covariance = (centered.T @ centered / len(centered)).double()
            covariance = (covariance + covariance[flip][:, flip]) / 2
            variances, directions = torch.linalg.eigh(covariance)
            scale = (variances.clamp_min(0.0) + _EVENING * variances.mean()).sqrt()
            whitening = (directions / scale @ directions.T).float()
            white = centered @ whitening
            sizes = white.norm(dim=1)
            white = white[sizes > sizes.median() / 2]
            rng = np.random.default_rng(_SEED)
            chosen = white[torch.from_numpy(rng.choice(len(white), self.pairs, replace=False))]
            both = torch.cat([chosen, chosen[:, flip]])
            filters = (whitening @ (both / both.norm(dim=1, keepdim=True)).T).contiguous()
            return filters, mean @ filters

    def _synthetic_patches(self) -> torch.Tensor:
        """Return [patches, 36 channels] of synthetic pictures, of even contrast."""
        rng = np.random.default_rng([_SEED, self.image_side])
        block = 100
        kept = []
        for number in range(_SOURCES // block):
            leaves = dead_leaves(_FIRST_BLOCK + number, block, self.channels, self.image_side)
            spread = torch.nn.functional.unfold(torch.from_numpy(leaves), SIZE)
            found = spread.transpose(1, 2).reshape(-1, spread.shape[1])
            take = rng.integers(len(found), size=_PATCHES * block // _SOURCES)
            kept.append(_even(found[torch.from_numpy(take)]))
        return torch.cat(kept)


def mirrored_pixels(channels: int) -> torch.Tensor:
    """Return the order [36 channels] of a patch's pixels in its mirror image."""
    order = torch.arange(channels * SIZE * SIZE).view(channels, SIZE, SIZE)
    return order.flip(2).reshape(-1)


def _even(patches: torch.Tensor) -> torch.Tensor:
    """Return patches [N, pixels] without their mean, at nearly the same contrast."""
    centered = patches - patches.mean(dim=1, keepdim=True)
    power = centered.square().mean(dim=1, keepdim=True)
    return centered / (power + _CONTRAST**2).sqrt()


def _quadrants(places: int) -> torch.Tensor:
    """Return [4, places^2]: means over upper left, upper right, lower left, and lower right."""
    axis = torch.arange(places) - (places - 1) / 2
    low = (axis < 0).float() + (axis == 0).float() / 2
    sides = torch.stack([low, low.flip(0)]) / low.sum()
    return torch.einsum("iy,jx->ijyx", sides, sides).reshape(4, -1)
