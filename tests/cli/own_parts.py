"""Users' own parts that are wrong in one way each."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import torch
from torch import nn

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records
from fl_shuffle.randomizers import LocalRandomizer
from fl_shuffle.randomizers.base import Noise


def lists(section: DataSection) -> Records:
    return Records([[0.0]], [0], [[0.0]], [0], 2)  # type: ignore[arg-type]


def lazy(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.LazyLinear(classes)


class Raises(nn.Linear):
    """Where clients compute, which is in other threads than the server's."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise KeyError("my own mistake")
        return super().forward(inputs)


class Centred(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs - inputs.mean(0))


def centred(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Centred(math.prod(input_shape), classes))


def pictures(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, classes))


def flat(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(64, classes)


def narrow(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(input_shape[0], 3)


def balanced(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
    return losses / torch.bincount(labels, minlength=outputs.shape[1])[labels]


def raising(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Raises(input_shape[0], classes)


class TextFeatures:
    data_dependent = False

    def fit(self, images: Any) -> None: ...

    def transform(self, images: Any) -> str:
        return "vectors"


class Own:
    """Looks at each picture by itself."""

    data_dependent = False

    def fit(self, images: Any) -> None: ...

    def transform(self, images: Any) -> Any:
        return images.reshape(len(images), -1).astype(np.float32)


class Standardized(Own):
    """By the pictures that it gets together."""

    def transform(self, images: Any) -> Any:
        rows = super().transform(images)
        return rows - rows.mean(0)


class Fitted(Own):
    """By the training records, of which it says nothing."""

    def fit(self, images: Any) -> None:
        self.mean = images.reshape(len(images), -1).mean(0)

    def transform(self, images: Any) -> Any:
        return (super().transform(images) - self.mean).astype(np.float32)


class FittedAndSaysSo(Fitted):
    data_dependent = True


def one_argument(first: object) -> object:
    return first


def text_analyzer(reports: torch.Tensor) -> str:
    return "a step"


def nan_analyzer(reports: torch.Tensor) -> torch.Tensor:
    return reports.mean(dim=0) * float("nan")


def too_quiet(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> np.ndarray:
    """Far less noise than the declared budget needs."""
    return mean + generator.laplace(scale=1e-3, size=mean.shape)


class Averaging(LocalRandomizer):
    """A report of everybody's mean."""

    def bound(self) -> np.ndarray:
        return 1e3 * self.radius

    def randomize(self, means: np.ndarray, clients: np.ndarray, noise: Noise) -> np.ndarray:
        return means.mean(0) + 10.0 * noise.laplace()


class Unrepeatable(Averaging):
    """Noise of its own, which no seed makes again."""

    def __init__(self, *budgets: np.ndarray) -> None:
        super().__init__(*budgets)
        self.draw = np.random.default_rng()

    def randomize(self, means: np.ndarray, clients: np.ndarray, noise: Noise) -> np.ndarray:
        return means + self.draw.laplace(scale=10.0, size=means.shape)


def no_report(
    mean: np.ndarray, epsilon0: float, delta0: float, generator: np.random.Generator
) -> np.ndarray:
    return mean[:3]


def drawing_analyzer(reports: torch.Tensor) -> torch.Tensor:
    return reports[torch.randint(len(reports), (5,))].mean(dim=0)
