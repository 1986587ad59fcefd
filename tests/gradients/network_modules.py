"""Networks for the gradient tests; records are [2, 9, 9] unless the name says otherwise."""

from __future__ import annotations

import torch
from torch import nn

SHAPE = (2, 9, 9)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(4)
    return {
        "plain": nn.Sequential(
            nn.Conv2d(2, 8, 4, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(8, 9, 2),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(9, 6),
            nn.Tanh(),
            nn.Linear(6, 5, bias=False),
        ),
        "wide": nn.Sequential(
            nn.Conv2d(2, 40, 5, bias=False),
            nn.GroupNorm(4, 40),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Conv2d(40, 30, 2),
            nn.Flatten(),
            nn.LayerNorm(30, bias=False),
            nn.Linear(30, 5),
        ),
        # Sequences: a convolution along them, and a linear map of each place.
        "lines": nn.Sequential(
            nn.Flatten(1, 2),
            nn.Conv1d(18, 7, 3, stride=2, dilation=2),
            nn.Sigmoid(),
            nn.Linear(3, 4),
            nn.LayerNorm([7, 4]),
            nn.Flatten(),
            nn.Linear(28, 5),
        ),
    }
