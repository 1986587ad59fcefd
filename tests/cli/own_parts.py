"""Users' own parts that are wrong in one way each."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data import Records


def lists(section: DataSection) -> Records:
    return Records([[0.0]], [0], [[0.0]], [0], 2)  # type: ignore[arg-type]


def lazy(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.LazyLinear(classes)


class Raises(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise KeyError("my own mistake")


def raising(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Raises(2, classes)


class TextFeatures:
    data_dependent = False

    def fit(self, images: Any) -> None: ...

    def transform(self, images: Any) -> str:
        return "vectors"


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
