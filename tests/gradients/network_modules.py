"""Networks for the gradient tests; records are [2, 9, 9] unless the name says otherwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPE = (2, 9, 9)


class Residual(nn.Module):
    """Two ways that meet again, functional activations, and a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.second = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        before = functional.relu(self.norm(self.first(x)), inplace=True)
        after = before + torch.tanh(self.second(before))
        pooled = torch.cat([after.mean((2, 3)), functional.max_pool2d(after, 9).flatten(1)], 1)
        return self.head(pooled.view(pooled.size(0), -1))


class Lines(nn.Module):
    """Records [18, 9] as sequences: a convolution along them, and a linear map of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.along = nn.Conv1d(18, 7, 3, stride=2, dilation=2)
        self.each = nn.Linear(7, 4)
        self.norm = nn.LayerNorm([3, 4])
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        places = self.each(torch.sigmoid(self.along(x.reshape(x.shape[0], 18, 9))).transpose(1, 2))
        return self.head(self.norm(places).flatten(1))


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
        "residual": Residual(),
        "lines": Lines(),
    }
