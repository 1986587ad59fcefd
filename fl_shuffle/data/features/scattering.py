"""`scattering`: wavelets, their moduli, and wavelets again, averaged: order 2, 2 scales, 8 angles.

With psi_{j,t} the Morlet wavelet of scale 2^j and angle t, and phi a Gaussian, the coefficients are

    S1[j,t] = phi * |psi_{j,t} * x|,   S2[j,t,k,s] = phi * |psi_{k,s} * |psi_{j,t} * x||, k > j

(Bruna and Mallat, IEEE TPAMI 2013). The modulus drops the phase, so that a small shift changes
little, and the second wavelet keeps what the average would lose. The mean S0 = phi * x is left out.

Filters, with sigma_j = 0.8 2^j, frequency xi_j = 3 pi / (4 2^j) and slant 1 / 2: a Gabor function
exp(-(u^2 + (v / 2)^2) / (2 sigma_j^2) + i xi_j u) in coordinates (u, v) turned by t, less the
multiple of its envelope that makes its sum 0. These are kymatio's (Andreux et al., JMLR 2020).

Steps that save time. A signal behind psi_{1,t} has hardly anything above half of the largest
frequency, so its modulus is taken at every second position: in the Fourier domain the four
quarters of the spectrum are added. This is 4.5 times less work for 72 of 80 channels.

Steps that make the mirror exact. Positions 0, 2, 4, .. are not their own mirror image, but those at
1/2, 5/2, 9/2, .. are: a filter times exp(i w / 2) has its values there. So are the 2 `cells`
places per axis at which phi averages. Mirroring x turns angle t into -t, and wavelets of opposite
directions have the same modulus, so the description D of the mirror image is that of x with angles
and places exchanged: `flip` averages both without computing the second one.

A logarithm follows, since moduli are products of contrast and structure, and a mean over 2 x 2
places.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from fl_shuffle.data.features.base import refused
from fl_shuffle.data.features.pictures import PictureMap

_ANGLES: Final = 8
_CELLS: Final = 4
"""Per axis: means are taken over 2 x 2 of twice as many places."""
_PAD: Final = 4
"""Pixels of reflection on each side: 2^J."""
_WIDTH: Final = 0.8
"""Standard deviation of the finest wavelet's envelope, in pixels."""
_SMOOTH: Final = 1.6
"""That of phi: 0.8 2^(J - 1)."""
_FLOOR: Final = 2e-3
"""Added before the logarithm: half a level of a pixel, below which there is noise alone."""
_BATCH: Final = 6
"""Channels at a time: they stay in the cache."""


class Scattering(PictureMap):
    """Scattering coefficients of order 1 and 2 of every channel, in logarithms, over 4 x 4 cells,
    decorrelated on dead leaves."""

    kind = "scattering"
    usual = 1200

    def __init__(
        self,
        *,
        image_side: int = 32,
        channels: int = 3,
        flip: bool = True,
        components: int | None = None,
        ridge: float = 0.003,
    ) -> None:
        super().__init__(image_side, channels, flip, components, ridge)
        if self.image_side % 2:
            raise refused("image_side", image_side, "scattering needs an even side")

    @property
    def description(self) -> int:
        return self.channels * len(_MIRRORED) * _CELLS**2

    def describing(self, unit: torch.Tensor) -> torch.Tensor:
        found = []
        for part in torch.split(unit.flatten(0, 1), _BATCH):
            rows = (self._filters.coefficients(part)[:, 1:] + _FLOOR).log()
            if self.flip:
                rows = (rows + rows[:, _MIRRORED].flip(3)) / 2
            found.append(torch.nn.functional.avg_pool2d(rows, 2))
        return torch.cat(found).reshape(len(unit), -1)

    @cached_property
    def _filters(self) -> Filters:
        return Filters(self.image_side, 2 * _CELLS, shift=0.5)

    def prepare(self) -> None:
        _ = self._filters
        super().prepare()


class Filters:
    """The filters for pictures of an even `side`: averages at `places` per axis.

    `shift` 1/2: at symmetric positions. `shift` 0: positions 0, side / places, 2 side / places, ..
    as kymatio has them.
    """

    def __init__(self, side: int, places: int, shift: float) -> None:
        self.padded = side + 2 * _PAD
        step = side / places
        at = _PAD + step * np.arange(places) + (step / 2 - 0.5 if shift else 0.0)
        self._fine = torch.from_numpy(_averages(at, np.arange(float(self.padded)), self.padded))
        half = 2 * np.arange(self.padded // 2) + shift
        self._coarse = torch.from_numpy(_averages(at, half, self.padded))
        self._first = torch.from_numpy(_spectra(self.padded, 0))
        later = _spectra(self.padded, 1) * _moved(self.padded, shift) / 4
        self._second = torch.from_numpy(later.astype(np.complex64))

    def coefficients(self, unit: torch.Tensor) -> torch.Tensor:
        """Return [N, 81, places, places] of signals [N, side, side]: order 0, the 8 and 8 of order
        1 by scale and angle, the 64 of order 2."""
        padded = torch.nn.functional.pad(unit[:, None], (_PAD,) * 4, mode="reflect")[:, 0]
        spectrum = torch.fft.fft2(padded)
        fine = torch.fft.ifft2(spectrum[:, None] * self._first).abs()
        found = [self._average(padded[:, None], self._fine), self._average(fine, self._fine)]
        found.append(self._average(self._behind_second(spectrum), self._coarse))
        for angle in range(_ANGLES):
            one = torch.fft.fft2(fine[:, angle])
            found.append(self._average(self._behind_second(one), self._coarse))
        return torch.cat(found, dim=1)

    def _behind_second(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Return [N, 8, side / 2, side / 2]: moduli behind the coarse wavelets."""
        half = self.padded // 2
        product = spectrum[:, None] * self._second
        # Values at every second position have the sum of the spectrum's quarters, over 4 (which
        # the filters have).
        upper, lower = product[..., :half, :], product[..., half:, :]
        folded = upper[..., :half] + upper[..., half:] + lower[..., :half] + lower[..., half:]
        moduli: torch.Tensor = torch.fft.ifft2(folded).abs()
        return moduli

    def _average(self, signal: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
        return means @ (signal @ means.T)


def _averages(
    at: NDArray[np.floating], of: NDArray[np.floating], period: int
) -> NDArray[np.float32]:
    """Return [places, positions]: Gaussian weights of a periodic signal's positions around each
    place, times the step between positions."""
    away = at[:, None, None] - of[None, :, None] + period * np.arange(-2, 3)
    density = np.exp(-(away**2) / (2 * _SMOOTH**2)).sum(axis=2) / (math.sqrt(2 * math.pi) * _SMOOTH)
    weights: NDArray[np.float32] = (density * (of[1] - of[0])).astype(np.float32)
    return weights


def _spectra(period: int, scale: int) -> NDArray[np.float32]:
    """Return [angles, period, period]: the wavelets' Fourier transforms, which are real."""
    width, frequency = _WIDTH * 2**scale, 3 * math.pi / 4 / 2**scale
    # Positions from -2 to 3 periods: the sum over periods has what matters of the Gaussian.
    axis = np.arange(-2 * period, 3 * period)
    found = []
    for number in range(_ANGLES):
        angle = (_ANGLES // 2 - 1 - number) * math.pi / _ANGLES
        u = axis[:, None] * math.cos(angle) + axis[None] * math.sin(angle)
        v = axis[None] * math.cos(angle) - axis[:, None] * math.sin(angle)
        envelope = np.exp(-(u**2 + v**2 / 4) / (2 * width**2)) / (4 * math.pi * width**2)
        wave = _folded(envelope * np.exp(1j * frequency * u), period)
        plain = _folded(envelope, period)
        # Less the multiple of the envelope that leaves a sum of 0: a constant has no structure.
        found.append(np.fft.fft2(wave - wave.sum() / plain.sum() * plain).real)
    return np.array(found, dtype=np.float32)


def _folded(values: NDArray[np.inexact], period: int) -> NDArray[np.inexact]:
    """Return the sum of a function's values [5 period, 5 period] over all periods."""
    folded: NDArray[np.inexact] = values.reshape(5, period, 5, period).sum(axis=(0, 2))
    return folded


def _moved(period: int, shift: float) -> NDArray[np.complex128]:
    """Return the spectrum [period, period] of the step by `shift` in both directions."""
    frequency = np.fft.fftfreq(period)
    one = np.exp(2j * math.pi * frequency * shift)
    # The largest frequency stands for both signs: the mean of exp(i pi s) and exp(-i pi s).
    one[period // 2] = math.cos(math.pi * shift)
    both: NDArray[np.complex128] = one[:, None] * one[None]
    return both


def _mirrored() -> list[int]:
    """Return the channels of order 1 and 2 that a mirror image has in each one's place.

    Angle number n is (3 - n) pi / 8. Its mirror image, -(3 - n) pi / 8 up to half a turn, has
    number 6 - n modulo 8.
    """
    other = [(6 - number) % _ANGLES for number in range(_ANGLES)]
    first = [_ANGLES * scale + each for scale in range(2) for each in other]
    return first + [2 * _ANGLES + _ANGLES * one + two for one in other for two in other]


_MIRRORED: Final = _mirrored()
